/* SPDX-License-Identifier: Apache-2.0 */
/* exchange SEED OPENS: what a user may do in a folder of his own (the current one) while somebody else works there.

   It exchanges the folder `d` for `x`, a link that leads out of the tree. With an even SEED at moments that nobody can
   foresee, and then also `d/f` for `d/link`, a link to somebody else's file, and for `d/hard`, another name of that
   file. With an odd one it waits until `d/f` has been opened OPENS times, goes back and forth until it is opened once
   more, which means that its bytes are being read, and has its name lead to the other file from then on. Ends when it
   is killed, or after a minute. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/inotify.h>
#include <sys/syscall.h>
#include <unistd.h>

static const char *const pairs[][2] = {{"d", "x"}, {"d/f", "d/link"}, {"d/f", "d/hard"}};

static uint64_t state;

static uint64_t below(uint64_t limit)
{
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state % limit;
}

static void pause_for(uint64_t left)
{
  for (volatile uint64_t count = left; count; count--)
    ;
}

static void exchange(int pair)
{
  syscall(SYS_renameat2, AT_FDCWD, pairs[pair][0], AT_FDCWD, pairs[pair][1], RENAME_EXCHANGE);
}

static void ready(void)
{
  puts("ready");
  fflush(stdout);
}

static void at_random(void)
{
  ready();
  for (;;) {
    /* Most of the time the folder: that is the one way out of the tree. */
    exchange(below(4) < 2 ? 0 : 1 + below(2));
    /* From no pause at all to as long as a conversion needs. */
    pause_for(below(1u << below(16)));
  }
}

static void when_read(int opens)
{
  struct inotify_event event;
  int watch = inotify_init1(IN_CLOEXEC), is_away = 0;
  inotify_add_watch(watch, "d/f", IN_OPEN);
  ready();
  while (opens--)
    read(watch, &event, sizeof event);
  fcntl(watch, F_SETFL, O_NONBLOCK);
  do {
    exchange(0);
    is_away = !is_away;
    pause_for(below(1000));
  } while (read(watch, &event, sizeof event) <= 0);
  if (!is_away)
    exchange(0);
  for (;;)
    pause();
}

int main(int count, char **words)
{
  if (count != 3)
    return 2;
  uint64_t seed = strtoull(words[1], NULL, 10);
  state = 88172645463325252u + seed * 2654435761u;
  alarm(60);
  if (seed % 2)
    when_read(atoi(words[2]));
  else
    at_random();
}
