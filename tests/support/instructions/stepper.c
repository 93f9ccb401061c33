/* SPDX-License-Identifier: Apache-2.0 */
/* Execute a program one instruction at a time, and compare rows with the frames that calls have made.

   stepper MODULES LIMIT PROGRAM [ARGUMENT]...

   Each line of MODULES names a file of rows and the ELF file, a program or a library, whose rows they are: records of
   `struct row`, ascending, with virtual addresses of that file. A call leaves the address after it on the stack: its
   frame has its CFA above that word and FP as it was, and ends when SP is above the word. Stops after LIMIT
   instructions with rows, and 20 times as many without. Prints how many were compared, how many have wrong rows, and at how many addresses they are;
   then some of the wrong ones. */
#include <elf.h>
#include <signal.h>
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
struct module { char path[4096]; struct row *rows; size_t count; int is_fixed; unsigned char *seen; };
struct mapping { uint64_t start, end, base; struct module *module; };
struct frame { uint64_t slot, fp; };
enum { MAX_FRAMES = 1 << 16, MAX_MODULES = 64, MAX_MAPPINGS = 1024, SHOWN = 10, FP_UNKNOWN = 2 };

static struct module modules[MAX_MODULES];
static struct mapping mappings[MAX_MAPPINGS];
static struct frame frames[MAX_FRAMES];
static size_t module_count, mapping_count, frame_count;

static void read_modules(const char *name)
{
    char rows[4096], path[4096];
    FILE *list = fopen(name, "r");
    while (list && module_count < MAX_MODULES && fscanf(list, "%4095s %4095s", rows, path) == 2) {
        struct module *module = &modules[module_count++];
        FILE *file = fopen(rows, "rb"), *elf = fopen(path, "rb");
        Elf64_Ehdr header;
        if (!file || !elf || !realpath(path, module->path) || fread(&header, sizeof header, 1, elf) != 1)
            exit(2);
        fseek(file, 0, SEEK_END);
        module->count = (size_t)ftell(file) / sizeof *module->rows;
        rewind(file);
        module->rows = calloc(module->count + 1, sizeof *module->rows);
        if (fread(module->rows, sizeof *module->rows, module->count, file) != module->count)
            exit(2);
        if (module->count)
            module->seen = calloc(module->rows[module->count - 1].end - module->rows[0].start, 1);
        /* Programs at fixed addresses have no base. */
        module->is_fixed = header.e_type == ET_EXEC;
        fclose(file);
        fclose(elf);
    }
    if (!list)
        exit(2);
    fclose(list);
}

static void read_mappings(pid_t pid)
{
    char path[64], line[8192], name[4096];
    snprintf(path, sizeof path, "/proc/%d/maps", pid);
    FILE *maps = fopen(path, "r");
    uint64_t bases[MAX_MODULES] = {0};
    mapping_count = 0;
    while (maps && mapping_count < MAX_MAPPINGS && fgets(line, sizeof line, maps)) {
        struct mapping *mapping = &mappings[mapping_count++];
        name[0] = 0;
        sscanf(line, "%lx-%lx %*s %*s %*s %*s %4095s", &mapping->start, &mapping->end, name);
        mapping->module = NULL;
        for (size_t n = 0; n < module_count; n++)
            if (!strcmp(modules[n].path, name)) {
                mapping->module = &modules[n];
                if (!bases[n] && !modules[n].is_fixed)
                    bases[n] = mapping->start;
                mapping->base = bases[n];
            }
    }
    if (maps)
        fclose(maps);
}

static const struct mapping *mapping_of(uint64_t address)
{
    static const struct mapping *last;
    if (last && last < mappings + mapping_count && last->start <= address && address < last->end)
        return last;
    for (size_t n = 0; n < mapping_count; n++)
        if (mappings[n].start <= address && address < mappings[n].end)
            return last = &mappings[n];
    return NULL;
}

static const struct row *find(pid_t pid, uint64_t address, const struct mapping **where)
{
    *where = mapping_of(address);
    if (!*where) {
        read_mappings(pid);
        *where = mapping_of(address);
    }
    if (!*where || !(*where)->module)
        return NULL;
    const struct module *module = (*where)->module;
    uint64_t vaddr = address - (*where)->base;
    size_t low = 0, high = module->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (module->rows[middle].end <= vaddr)
            low = middle + 1;
        else
            high = middle;
    }
    return low < module->count && module->rows[low].start <= vaddr ? &module->rows[low] : NULL;
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
    if (argc < 4)
        return 2;
    read_modules(argv[1]);
    const long limit = atol(argv[2]);
    pid_t pid = fork();
    if (pid == 0) {
        personality(ADDR_NO_RANDOMIZE);
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        if (!freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr))
            _exit(127);
        execv(argv[3], argv + 3);
        _exit(127);
    }
    int status;
    waitpid(pid, &status, 0);
    struct user_regs_struct before, now;
    ptrace(PTRACE_GETREGS, pid, NULL, &now);
    long compared = 0, wrong = 0, places = 0;
    char shown[SHOWN][4400];
    for (long steps = 0; compared < limit && steps < 20 * limit; steps++) {
        while (frame_count && frames[frame_count - 1].slot < now.rsp)
            frame_count--;
        const struct mapping *where;
        const struct row *row = find(pid, now.rip, &where);
        if (row && frame_count) {
            const struct frame *frame = &frames[frame_count - 1];
            const uint64_t values[] = {now.rax, now.rdx, now.rcx, now.rbx, now.rsi, now.rdi, now.rbp, now.rsp,
                                       now.r8, now.r9, now.r10, now.r11, now.r12, now.r13, now.r14, now.r15};
            uint64_t vaddr = now.rip - where->base;
            uint64_t cfa = values[row->cfa_register & 15] + (int64_t)row->cfa_offset;
            uint64_t fp = row->fp_is_saved == FP_UNKNOWN ? frame->fp
                          : row->fp_is_saved            ? word(pid, cfa + (int64_t)row->fp_offset)
                                                        : now.rbp;
            compared++;
            unsigned char *seen = &where->module->seen[vaddr - where->module->rows[0].start];
            places += !*seen;
            *seen = 1;
            if (cfa != frame->slot + 8 || fp != frame->fp) {
                if (wrong < SHOWN)
                    snprintf(shown[wrong], sizeof shown[0], "%s 0x%lx: CFA 0x%lx by the row, 0x%lx; FP 0x%lx, 0x%lx",
                             where->module->path, (unsigned long)vaddr, (unsigned long)cfa,
                             (unsigned long)frame->slot + 8, (unsigned long)fp, (unsigned long)frame->fp);
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
        if (frame_count == MAX_FRAMES)
            break;
        /* A handler has a frame of its own. The word that a call of the next instruction leaves is to be popped. */
        if (signal ? now.rsp < before.rsp - 128
                   : now.rsp == before.rsp - 8 && is_call(word(pid, before.rip)) && now.rip != word(pid, now.rsp))
            frames[frame_count++] = (struct frame){now.rsp, before.rbp};
    }
    kill(pid, SIGKILL);
    printf("%ld %ld %ld\n", compared, wrong, places);
    for (long n = 0; n < wrong && n < SHOWN; n++)
        puts(shown[n]);
    return 0;
}
