/* SPDX-License-Identifier: Apache-2.0 */
/* Frames from execution, and what the rows say of them.  */

#include "shadow.h"

#include <string.h>

struct shadow_frame *shadow_top(struct shadow_thread *thread)
{
  return &thread->frames[thread->depth - 1];
}

void shadow_push(struct shadow_thread *thread, enum shadow_kind kind,
                 uint64_t cfa, uint64_t ra, uint64_t fp)
{
  if (thread->depth == SHADOW_MAX_FRAMES)
    shadow_end(SHADOW_REFUSED, "the stack is too deep");
  thread->frames[thread->depth++] =
      (struct shadow_frame){kind, cfa, ra, fp, 0};
}

/* Drops the frames that end below SP, and that at SP too if INCLUSIVE.  Returns
   the last one dropped, or NULL.  The first frame of a thread stays.  */
static const struct shadow_frame *drop(struct shadow_thread *thread,
                                       uint64_t sp, bool inclusive)
{
  const struct shadow_frame *last = NULL;

  while (thread->depth > 1
         && (shadow_top(thread)->cfa < sp
             || (inclusive && shadow_top(thread)->cfa == sp))) {
    last = shadow_top(thread);
    thread->depth--;
  }
  return last;
}

/* A signal is delivered: the handler returns to code that returns to the
   interrupted instruction.  */
static bool enters_handler(struct shadow_thread *thread,
                           const struct user_regs_struct *now)
{
  uint64_t ra = shadow_word(now->rsp);

  if (!thread->got_signal || !shadow_is_sigreturn(ra))
    return false;
  shadow_sums.signals++;
  shadow_push(thread, SHADOW_KNOWN, thread->before.rsp, thread->before.rip,
              thread->before.rbp);
  shadow_push(thread, SHADOW_KNOWN, now->rsp + 8, ra, now->rbp);
  return true;
}

static bool is_call(const struct user_regs_struct *before,
                    const struct user_regs_struct *now)
{
  uint64_t size;

  if (now->rsp != before->rsp - 8)
    return false;
  size = shadow_word(now->rsp) - before->rip;
  /* A call of the next instruction only asks for its address.  */
  return size >= 1 && size <= 15 && now->rip != before->rip + size
         && shadow_is_call(before->rip);
}

/* Applies the row for the walker's frame by the reader in ../consumer.  */
static enum sframe_ending apply_row(struct sframe_walker *walker,
                                    struct shadow_frame *got)
{
  enum sframe_ending ending = sframe_walk_step(walker);

  *got = (struct shadow_frame){SHADOW_KNOWN, walker->frame.sp,
                               walker->frame.pc, walker->frame.fp, 0};
  return ending;
}

static bool has_no_row(enum sframe_ending ending)
{
  return ending == SFRAME_NO_MODULE || ending == SFRAME_NO_SECTION
         || ending == SFRAME_NO_FUNCTION || ending == SFRAME_NO_ROW;
}

/* Compares the row of the call that led to NOW as a walk through the callee uses
   it: of the registers only SP and FP are known.  */
static void compare_caller(const struct shadow_thread *thread,
                           const struct user_regs_struct *now)
{
  static struct sframe_walker walker;
  const struct shadow_frame *want = &thread->frames[thread->depth - 2];
  const struct user_regs_struct *call = &thread->before;
  struct shadow_module *module = shadow_of_interest(call->rip);
  enum sframe_ending ending;
  struct shadow_frame got;

  if (module == NULL || want->kind != SHADOW_KNOWN)
    return;
  shadow_begin_walk(&walker, &shadow_sections, call);
  walker.frame.pc = shadow_word(now->rsp);
  walker.frame.is_topmost = false;
  walker.frame.pc_is_exact = false;
  ending = apply_row(&walker, &got);
  if (has_no_row(ending))
    return;
  if (ending == SFRAME_UNSAFE_REGISTER)
    shadow_sums.unsafe_calls++;
  else if (ending == SFRAME_STEPPED && got.cfa == want->cfa
           && got.ra == want->ra
           && (got.fp == want->fp || got.fp == call->rbp))
    shadow_sums.right_calls++;
  else {
    struct shadow_example example = {module, call->rip, call->rsp, call->rbp,
                                     ending, *want, got};
    shadow_sums.differing++;
    shadow_keep_example(&example);
  }
}

bool shadow_follow(struct shadow_thread *thread,
                   const struct user_regs_struct *now)
{
  const struct user_regs_struct *before = &thread->before;
  const struct shadow_frame *top = shadow_top(thread);

  if (enters_handler(thread, now))
    return true;
  if (now->rsp > before->rsp && shadow_is_return(before->rip)) {
    const struct shadow_frame *left = drop(thread, now->rsp, true);
    if (left != NULL && left->ra == now->rip && left->kind == SHADOW_KNOWN)
      shadow_sums.returns++;
    else
      shadow_sums.other_returns++;
    return false;
  }
  if (top->kind == SHADOW_KNOWN && now->rip == top->ra && now->rsp >= top->cfa
      && thread->depth > 1) {
    shadow_sums.returns++;
    drop(thread, now->rsp, true);
    return false;
  }
  if (is_call(before, now)) {
    shadow_sums.calls++;
    shadow_push(thread, SHADOW_KNOWN, now->rsp + 8, shadow_word(now->rsp),
                now->rbp);
    compare_caller(thread, now);
    return true;
  }
  /* longjmp() and its like leave frames without a return: the frame whose return
     address is popped is left by the jump, those below it before.  */
  if ((now->rsp > before->rsp && drop(thread, now->rsp, false) != NULL)
      || (now->rsp == top->cfa && before->rsp == top->cfa
          && shadow_is_indirect_jump(before->rip)
          && drop(thread, now->rsp, true) != NULL))
    shadow_sums.abandoned++;
  return false;
}

bool shadow_enter(struct shadow_thread *thread,
                  const struct user_regs_struct *now)
{
  const struct shadow_frame *last = drop(thread, now->rsp, true);
  uint64_t ra;

  shadow_sums.entries++;
  if (last != NULL && last->ra == now->rip && last->cfa == now->rsp) {
    shadow_sums.returns++;
    return false;
  }
  ra = shadow_word(now->rsp);
  if (!shadow_is_behind_call(now->rip)
      && (shadow_is_behind_call(ra) || shadow_is_sigreturn(ra))) {
    /* A frame that has this return address was left by a jump.  */
    drop(thread, now->rsp + 8, true);
    shadow_push(thread, SHADOW_KNOWN, now->rsp + 8, ra, now->rbp);
    return true;
  }
  shadow_sums.unknown_entries++;
  shadow_push(thread, SHADOW_UNKNOWN, now->rsp, 0, 0);
  return false;
}

/* A row may say that FP is still in its register where a helper has overwritten
   it, if the callers have it in a slot and do not need it to get there.  Returns
   whether the walk goes on through the frames that are there, and comes to one
   whose caller's FP is right.  */
static bool callers_have_fp(const struct shadow_thread *thread,
                            struct sframe_walker *walker)
{
  unsigned depth = thread->depth;
  struct shadow_frame got;

  while (--depth > 0) {
    const struct shadow_frame *want = &thread->frames[depth - 1];
    if (want->kind != SHADOW_KNOWN
        || apply_row(walker, &got) != SFRAME_STEPPED || got.cfa != want->cfa
        || got.ra != want->ra)
      return false;
    if (got.fp == want->fp)
      return true;
  }
  return false;
}

void shadow_compare(struct shadow_thread *thread,
                    const struct user_regs_struct *now)
{
  struct shadow_module *module = shadow_of_interest(now->rip);
  const struct shadow_frame *want = shadow_top(thread);
  static struct sframe_walker walker;
  struct shadow_count *count;
  struct shadow_frame got;
  enum sframe_ending ending;

  if (module == NULL)
    return;
  count = &module->counts[now->rip - module->bias - module->low];
  count->steps++;
  shadow_sums.steps++;
  if (want->kind != SHADOW_KNOWN) {
    count->unknown++;
    shadow_sums.unknown++;
    return;
  }
  shadow_begin_walk(&walker, &shadow_sections, now);
  ending = apply_row(&walker, &got);
  if (has_no_row(ending)) {
    count->without_row++;
    shadow_sums.without_row++;
  } else if (ending == SFRAME_STEPPED && got.cfa == want->cfa
             && got.ra == want->ra && got.fp == want->fp)
    shadow_sums.equal++;
  else if (ending == SFRAME_STEPPED && got.cfa == want->cfa
           && got.ra == want->ra && got.fp == now->rbp
           && callers_have_fp(thread, &walker))
    shadow_sums.fp_by_caller++;
  else {
    struct shadow_example example = {module, now->rip, now->rsp, now->rbp,
                                     ending, *want, got};
    count->differing++;
    shadow_sums.differing++;
    shadow_keep_example(&example);
  }
}
