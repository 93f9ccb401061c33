/* SPDX-License-Identifier: Apache-2.0 */
/* `stacks [-i MICROSECONDS] JOB-BEFORE JOB-AFTER REPORT PROGRAM [ARGUMENT]...`
   interrupts a program, and walks its stack three times at each interruption: by
   the SFrame sections of one job, by those of another, and by elfutils' libdw,
   which has DWARF CFI and the frame pointer.

   `stacks -p PID [-i MICROSECONDS] JOB-BEFORE JOB-AFTER REPORT` does so in a
   program that gdb runs, whose stacks take the place of libdw's.  It reads a line
   of hexadecimal numbers for each stop that gdb sees: the registers, in the order
   of stacks_gdb.py, then PC and SP of each of gdb's frames.  A line on standard
   output says that gdb may let the program run; then it is interrupted.

   The report has a JSON line for each sample: the ending of each walk by SFrame,
   and the frames of all three, `[module, vaddr]` where a job names the module,
   with SP as a third number in walks by SFrame and by gdb.  AMD64.  */

#define _GNU_SOURCE
#include "shadow.h"

#include <elfutils/libdwfl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_DEPTH = 256, WAITS = 20000, WAIT_US = 100 };

static struct sframe_modules sections[2];
static FILE *report;
static Dwfl *dwfl;
static useconds_t interval = 3000;

/* --- Walks --- */

static void put_pc(bool is_first, uint64_t pc)
{
  unsigned index;

  if (!is_first)
    fputs(", ", report);
  for (index = 0; index < sections[0].count; index++)
    if (pc >= sections[0].items[index].start
        && pc < sections[0].items[index].end) {
      fprintf(report, "[%u, %" PRIu64, index,
              pc - shadow_modules[index].bias);
      return;
    }
  fprintf(report, "[-1, %" PRIu64, pc);
}

static void put_frame(bool is_first, uint64_t pc, uint64_t sp)
{
  put_pc(is_first, pc);
  fprintf(report, ", %" PRIu64 "]", sp);
}

static void walk(const char *name, const struct sframe_modules *by,
                 const struct user_regs_struct *now)
{
  static struct sframe_walker walker;
  enum sframe_ending ending;
  unsigned depth = 1;

  shadow_begin_walk(&walker, by, now);
  fprintf(report, "\"%s\": [", name);
  put_frame(true, now->rip, now->rsp);
  while ((ending = sframe_walk_step(&walker)) == SFRAME_STEPPED
         && depth++ < MAX_DEPTH)
    put_frame(false, walker.frame.pc, walker.frame.sp);
  fprintf(report, "], \"%s_ending\": \"%s\", ", name,
          sframe_ending_name(ending));
}

static void walk_by_sframe(const struct user_regs_struct *now)
{
  fputs("{", report);
  walk("before", &sections[0], now);
  walk("after", &sections[1], now);
}

/* --- Beside libdw --- */

static int put_libdw_frame(Dwfl_Frame *frame, void *data)
{
  unsigned *depth = data;
  Dwarf_Addr pc;
  bool is_activation;

  if (!dwfl_frame_pc(frame, &pc, &is_activation))
    return DWARF_CB_ABORT;
  put_pc(*depth == 0, pc);
  fputc(']', report);
  return ++*depth < MAX_DEPTH ? DWARF_CB_OK : DWARF_CB_ABORT;
}

static void sample(void)
{
  struct user_regs_struct now;
  unsigned depth = 0;
  int result;

  shadow_get_registers(shadow_pid, &now);
  walk_by_sframe(&now);
  fputs("\"libdw\": [", report);
  result = dwfl_getthread_frames(dwfl, shadow_pid, put_libdw_frame, &depth);
  fprintf(report, "], \"libdw_result\": %d}\n", result);
}

static void open_dwfl(void)
{
  static const Dwfl_Callbacks callbacks = {
      .find_elf = dwfl_linux_proc_find_elf,
      .find_debuginfo = dwfl_standard_find_debuginfo};

  dwfl = dwfl_begin(&callbacks);
  if (dwfl == NULL || dwfl_linux_proc_report(dwfl, shadow_pid) != 0
      || dwfl_report_end(dwfl, NULL, NULL) != 0
      || dwfl_linux_proc_attach(dwfl, shadow_pid, true) != 0)
    shadow_end(SHADOW_BROKEN, "libdw: %s", dwfl_errmsg(-1));
}

/* Interrupts the program until it ends, and returns its status.  */
static int sample_all(void)
{
  int status = 0;

  for (;;) {
    int number = 0;
    if (ptrace(PTRACE_CONT, shadow_pid, NULL, NULL) != 0)
      shadow_end(SHADOW_BROKEN, "cannot continue");
    usleep(interval);
    kill(shadow_pid, SIGSTOP);
    while (waitpid(shadow_pid, &status, 0) == shadow_pid && WIFSTOPPED(status)
           && (number = WSTOPSIG(status)) != SIGSTOP)
      if (ptrace(PTRACE_CONT, shadow_pid, NULL, (long)number) != 0)
        shadow_end(SHADOW_BROKEN, "cannot continue");
    if (!WIFSTOPPED(status))
      return status;
    sample();
  }
}

/* --- Beside gdb --- */

static bool next_number(char **at, unsigned long long *number)
{
  char *end;

  *number = strtoull(*at, &end, 16);
  if (end == *at)
    return false;
  *at = end;
  return true;
}

/* What gdb found at a stop.  */
static void sample_beside_gdb(char *line)
{
  struct user_regs_struct now;
  unsigned long long *registers[] = {
      &now.rax, &now.rdx, &now.rcx, &now.rbx, &now.rsi, &now.rdi,
      &now.rbp, &now.rsp, &now.r8,  &now.r9,  &now.r10, &now.r11,
      &now.r12, &now.r13, &now.r14, &now.r15, &now.rip};
  unsigned long long pc, sp;
  unsigned index;
  bool is_first = true;

  memset(&now, 0, sizeof now);
  for (index = 0; index < sizeof registers / sizeof *registers; index++)
    if (!next_number(&line, registers[index]))
      shadow_end(SHADOW_BROKEN, "a line without registers");
  walk_by_sframe(&now);
  fputs("\"gdb\": [", report);
  while (next_number(&line, &pc) && next_number(&line, &sp)) {
    put_frame(is_first, pc, sp);
    is_first = false;
  }
  fputs("]}\n", report);
}

static bool is_stopped(void)
{
  char name[64], state = 't';
  FILE *file;

  snprintf(name, sizeof name, "/proc/%d/stat", (int)shadow_pid);
  file = fopen(name, "r");
  if (file == NULL)
    return false;
  if (fscanf(file, "%*d (%*[^)]) %c", &state) != 1)
    state = 't';
  fclose(file);
  return state == 't' || state == 'T';
}

static void sample_all_beside_gdb(void)
{
  char *line = NULL;
  size_t size = 0;

  while (getline(&line, &size, stdin) > 0) {
    unsigned waits = 0;
    sample_beside_gdb(line);
    puts("go on");
    fflush(stdout);
    while (is_stopped() && waits++ < WAITS)
      usleep(WAIT_US);
    usleep(interval);
    kill(shadow_pid, SIGSTOP);
  }
  free(line);
}

/* --- Start --- */

/* Reads both jobs, which name the same files in the same order.  */
static void read_jobs(const char *before, const char *after)
{
  unsigned count, index;

  shadow_read_job(before);
  count = shadow_module_count;
  shadow_read_job(after);
  if (shadow_module_count != 2 * count)
    shadow_end(SHADOW_BROKEN, "the jobs do not name the same files");
  shadow_locate_modules();
  sections[0].count = sections[1].count = count;
  for (index = 0; index < count; index++) {
    sections[0].items[index] = shadow_sections.items[index];
    sections[1].items[index] = shadow_sections.items[count + index];
  }
}

int main(int argc, char **argv)
{
  int status = 0, option;

  while ((option = getopt(argc, argv, "+i:p:")) == 'i' || option == 'p')
    if (option == 'i')
      interval = (useconds_t)strtoul(optarg, NULL, 10);
    else
      shadow_pid = (pid_t)strtol(optarg, NULL, 10);
  if (option != -1 || argc - optind < (shadow_pid == 0 ? 4 : 3))
    shadow_end(SHADOW_BROKEN, "usage: stacks [-p PID] [-i MICROSECONDS] "
                              "JOB-BEFORE JOB-AFTER REPORT [PROGRAM [ARGUMENT]...]");
  report = fopen(argv[optind + 2], "w");
  if (report == NULL)
    shadow_end(SHADOW_BROKEN, "cannot write %s", argv[optind + 2]);
  if (shadow_pid != 0) {
    read_jobs(argv[optind], argv[optind + 1]);
    sample_all_beside_gdb();
  } else {
    shadow_start(argv + optind + 3, 0);
    read_jobs(argv[optind], argv[optind + 1]);
    open_dwfl();
    status = sample_all();
  }
  if (fclose(report) != 0)
    shadow_end(SHADOW_BROKEN, "cannot write %s", argv[optind + 2]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
