/* SPDX-License-Identifier: Apache-2.0 */
/* `stacks [-i MICROSECONDS] JOB-BEFORE JOB-AFTER REPORT PROGRAM [ARGUMENT]...`
   interrupts a program, and walks its stack three times at each interruption: by
   the SFrame sections of one job, by those of another, and by elfutils' libdw,
   which has DWARF CFI and the frame pointer.

   The report has a JSON line for each sample: the ending of each of the first two
   walks, and the PCs of all three, `[module, vaddr]` where a job names the
   module.  AMD64.  */

#define _GNU_SOURCE
#include "shadow.h"

#include <elfutils/libdwfl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MAX_DEPTH = 256 };

static struct sframe_modules sections[2];
static FILE *report;
static Dwfl *dwfl;

static void put_pc(bool is_first, uint64_t pc)
{
  unsigned index;

  if (!is_first)
    fputs(", ", report);
  for (index = 0; index < sections[0].count; index++)
    if (pc >= sections[0].items[index].start
        && pc < sections[0].items[index].end) {
      fprintf(report, "[%u, %" PRIu64 "]", index,
              pc - shadow_modules[index].bias);
      return;
    }
  fprintf(report, "[-1, %" PRIu64 "]", pc);
}

static void walk(const char *name, const struct sframe_modules *by,
                 const struct user_regs_struct *now)
{
  static struct sframe_walker walker;
  enum sframe_ending ending;
  unsigned depth = 1;

  shadow_begin_walk(&walker, by, now);
  fprintf(report, "\"%s\": [", name);
  put_pc(true, now->rip);
  while ((ending = sframe_walk_step(&walker)) == SFRAME_STEPPED
         && depth++ < MAX_DEPTH)
    put_pc(false, walker.frame.pc);
  fprintf(report, "], \"%s_ending\": \"%s\", ", name,
          sframe_ending_name(ending));
}

static int put_frame(Dwfl_Frame *frame, void *data)
{
  unsigned *depth = data;
  Dwarf_Addr pc;
  bool is_activation;

  if (!dwfl_frame_pc(frame, &pc, &is_activation))
    return DWARF_CB_ABORT;
  put_pc(*depth == 0, pc);
  return ++*depth < MAX_DEPTH ? DWARF_CB_OK : DWARF_CB_ABORT;
}

static void sample(void)
{
  struct user_regs_struct now;
  unsigned depth = 0;
  int result;

  shadow_get_registers(shadow_pid, &now);
  fputs("{", report);
  walk("before", &sections[0], &now);
  walk("after", &sections[1], &now);
  fputs("\"libdw\": [", report);
  result = dwfl_getthread_frames(dwfl, shadow_pid, put_frame, &depth);
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
  useconds_t interval = 3000;
  int status = 0, option;

  while ((option = getopt(argc, argv, "+i:")) == 'i')
    interval = (useconds_t)strtoul(optarg, NULL, 10);
  if (option != -1 || argc - optind < 4)
    shadow_end(SHADOW_BROKEN, "usage: stacks [-i MICROSECONDS] JOB-BEFORE "
                              "JOB-AFTER REPORT PROGRAM [ARGUMENT]...");
  report = fopen(argv[optind + 2], "w");
  if (report == NULL)
    shadow_end(SHADOW_BROKEN, "cannot write %s", argv[optind + 2]);
  shadow_start(argv + optind + 3, 0);
  read_jobs(argv[optind], argv[optind + 1]);
  open_dwfl();
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
      break;
    sample();
  }
  if (fclose(report) != 0)
    shadow_end(SHADOW_BROKEN, "cannot write %s", argv[optind + 2]);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
