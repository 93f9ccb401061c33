/* SPDX-License-Identifier: Apache-2.0 */
/* Execute a program one instruction at a time, and compare the rows of its code with the frames that calls have made.

   stepper ROWS PROGRAM [ARGUMENT]...

   ROWS has records of `struct row`, ascending, with virtual addresses of PROGRAM's file. A call leaves the
   address after it on the stack: its frame has its CFA above that word, FP as it was, and ends when SP is above the word. Prints how many instructions were compared, and how many have wrong rows; then some of these. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/personality.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

struct row { uint64_t start, end; int32_t cfa_register, cfa_offset, fp_is_saved, fp_offset; };
struct frame { uint64_t slot, fp; };
enum { MAX_FRAMES = 1 << 16, SHOWN = 10, FP_UNKNOWN = 2 };

static struct row *rows;
static size_t row_count;
static struct frame frames[MAX_FRAMES];
static size_t frame_count;

static const struct row *find(uint64_t vaddr)
{
    size_t low = 0, high = row_count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (rows[middle].end <= vaddr)
            low = middle + 1;
        else
            high = middle;
    }
    return low < row_count && rows[low].start <= vaddr ? &rows[low] : NULL;
}

static uint64_t base_of(pid_t pid, const char *program)
{
    char path[64], line[4096], real[4096];
    uint64_t start = 0;
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    if (!realpath(program, real))
        return 0;
    FILE *maps = fopen(path, "r");
    while (maps && fgets(line, sizeof line, maps))
        if (strstr(line, real)) {
            start = strtoull(line, NULL, 16);
            break;
        }
    if (maps)
        fclose(maps);
    return start;
}

static uint64_t word(pid_t pid, uint64_t address)
{
    return (uint64_t)ptrace(PTRACE_PEEKDATA, pid, (void *)address, NULL);
}

static int is_call(uint64_t code)
{
    while ((code & 0xf0) == 0x40 || (code & 0xff) == 0x3e || (code & 0xff) == 0xf2 || (code & 0xff) == 0x64)
        code >>= 8;
    return (code & 0xff) == 0xe8 || ((code & 0xff) == 0xff && (code >> 11 & 7) == 2);
}

int main(int argc, char **argv)
{
    if (argc < 3)
        return 2;
    FILE *file = fopen(argv[1], "rb");
    if (!file)
        return 2;
    fseek(file, 0, SEEK_END);
    row_count = (size_t)ftell(file) / sizeof *rows;
    rewind(file);
    rows = calloc(row_count + 1, sizeof *rows);
    if (fread(rows, sizeof *rows, row_count, file) != row_count)
        return 2;
    pid_t pid = fork();
    if (pid == 0) {
        personality(ADDR_NO_RANDOMIZE);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        if (!freopen("/dev/null", "w", stdout))
            _exit(127);
        execv(argv[2], argv + 2);
        _exit(127);
    }
    int status;
    waitpid(pid, &status, 0);
    unsigned char type[18] = {0};
    FILE *program = fopen(argv[2], "rb");
    if (!program || fread(type, 1, sizeof type, program) != sizeof type)
        return 2;
    /* Programs at fixed addresses (ET_EXEC) have no base. */
    uint64_t base = type[16] == 2 ? 0 : base_of(pid, argv[2]);
    struct user_regs_struct before, now;
    ptrace(PTRACE_GETREGS, pid, NULL, &now);
    long compared = 0, wrong = 0;
    char shown[SHOWN][160];
    for (;;) {
        while (frame_count && frames[frame_count - 1].slot < now.rsp)
            frame_count--;
        const struct row *row = find(now.rip - base);
        if (row && frame_count) {
            const struct frame *frame = &frames[frame_count - 1];
            const uint64_t values[] = {now.rax, now.rdx, now.rcx, now.rbx, now.rsi, now.rdi, now.rbp, now.rsp,
                                       now.r8, now.r9, now.r10, now.r11, now.r12, now.r13, now.r14, now.r15};
            uint64_t cfa = values[row->cfa_register & 15] + (int64_t)row->cfa_offset;
            uint64_t fp = row->fp_is_saved == FP_UNKNOWN ? frame->fp
                          : row->fp_is_saved            ? word(pid, cfa + (int64_t)row->fp_offset)
                                                        : now.rbp;
            compared++;
            if (cfa != frame->slot + 8 || fp != frame->fp) {
                if (wrong < SHOWN)
                    snprintf(shown[wrong], sizeof shown[0], "0x%lx: CFA 0x%lx by the row, 0x%lx; FP 0x%lx, 0x%lx",
                             (unsigned long)(now.rip - base), (unsigned long)cfa, (unsigned long)frame->slot + 8,
                             (unsigned long)fp, (unsigned long)frame->fp);
                wrong++;
            }
        }
        before = now;
        int signal = WIFSTOPPED(status) && WSTOPSIG(status) != 5 ? WSTOPSIG(status) : 0;
        if (ptrace(PTRACE_SINGLESTEP, pid, NULL, (void *)(long)signal) || waitpid(pid, &status, 0) < 0)
            break;
        if (WIFEXITED(status) || WIFSIGNALED(status))
            break;
        ptrace(PTRACE_GETREGS, pid, NULL, &now);
        if (now.rsp == before.rsp - 8 && frame_count < MAX_FRAMES) {
            /* The word that a call of the next instruction leaves is to be popped. */
            if (is_call(word(pid, before.rip)) && now.rip != word(pid, now.rsp))
                frames[frame_count++] = (struct frame){now.rsp, before.rbp};
        }
    }
    printf("%ld %ld\n", compared, wrong);
    for (long n = 0; n < wrong && n < SHOWN; n++)
        puts(shown[n]);
    return 0;
}
