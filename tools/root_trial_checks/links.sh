#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# C and C++ in every kind of link. A compiler or linker that has something to say fails the check.
set -eu

fail() {
  echo "$*"
  exit 1
}

# Whether a command succeeds, in silence.
quietly() {
  "$@" > said 2>&1 || fail "$*: $(cat said)"
  [ ! -s said ] || fail "$* says: $(cat said)"
}

cat > library.c << 'C'
#include <stdlib.h>
void sort(int *numbers, size_t count, int (*compare)(const void *, const void *))
{
  qsort(numbers, count, sizeof *numbers, compare);
}
C
cat > program.c << 'C'
#include <execinfo.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
void sort(int *, size_t, int (*)(const void *, const void *));
static int depth;
static int compare(const void *a, const void *b)
{
  void *frames[32];
  depth = backtrace(frames, 32);
  return *(const int *)a - *(const int *)b;
}
static void *work(void *numbers)
{
  sort(numbers, 4, compare);
  return NULL;
}
int main(void)
{
  int numbers[] = {3, 1, 4, 2};
  pthread_t thread;
  if (pthread_create(&thread, NULL, work, numbers) || pthread_join(thread, NULL))
    return 1;
  printf("%d %d %d %d %s\n", numbers[0], numbers[1], numbers[2], numbers[3], depth > 4 ? "deep" : "shallow");
  return 0;
}
C
cat > throws.cc << 'C'
#include <stdexcept>
#include <string>
void throws(const std::string &text) { throw std::runtime_error(text); }
C
cat > catches.cc << 'C'
#include <iostream>
#include <stdexcept>
#include <string>
#include <thread>
void throws(const std::string &);
int main()
{
  std::thread([] {
    try {
      throws("caught");
    } catch (const std::exception &error) {
      std::cout << error.what() << std::endl;
    }
  }).join();
}
C

# check NAME OPTION...: both programs, from one command and from objects.
check() {
  echo "$1"
  shift
  quietly gcc "$@" program.c library.c -pthread -o program
  ./program
  quietly gcc "$@" -c program.c library.c
  quietly gcc "$@" program.o library.o -pthread -o program
  ./program
  quietly g++ "$@" catches.cc throws.cc -pthread -o catches
  ./catches
}

check default
check optimised -O2 -g
check pie -fPIE -pie
check no-pie -fno-PIE -no-pie
check static -static
check static-pie -static-pie
check lto -O2 -flto
check profiled -pg
check now -Wl,-z,now -Wl,-z,relro
check sections -ffunction-sections -Wl,--gc-sections
[ ! -x /usr/bin/ld.gold ] || check gold -fuse-ld=gold
check address -fsanitize=address
quietly gcc -fPIC -shared library.c -o libsort.so
quietly g++ -fPIC -shared throws.cc -o libthrows.so
quietly gcc program.c -L. -lsort -pthread -Wl,-rpath,. -o program
quietly g++ catches.cc -L. -lthrows -pthread -Wl,-rpath,. -o catches
./program
./catches
quietly gcc -c library.c program.c
quietly ld -r library.o program.o -o both.o
quietly ar rcs libboth.a both.o
quietly gcc -Wl,--whole-archive libboth.a -Wl,--no-whole-archive -pthread -o program
./program
quietly strip program
./program
objcopy --only-keep-debug catches catches.debug
./catches
