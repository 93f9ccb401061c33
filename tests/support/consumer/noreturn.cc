// SPDX-License-Identifier: Apache-2.0
// The C++ companion of noreturn.c: an exception that nobody catches ends in a
// terminate handler, below the call that throws.  `noreturn CASE`: `throw`,
// `library` or `noexcept`.

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

#if defined __clang__
#define ALONE __attribute__((noinline, aligned(64)))
#else
#define ALONE __attribute__((noinline, noclone, aligned(64)))
#endif

namespace {

volatile int total;

[[noreturn]] void on_terminate()
{
  raise(SIGPROF);
  std::puts("left");
  std::exit(0);
}

[[noreturn]] ALONE void fail_by_throw(int number)
{
  total = total + number;
  throw number;
}

// libstdc++ throws.
[[noreturn]] ALONE void fail_in_library(int number)
{
  total = total + number;
  std::__throw_out_of_range("expected");
}

ALONE void pass_on(int number) noexcept
{
  total = total + number;
  fail_by_throw(number + 1);
}

ALONE int run(const std::string &name)
{
  if (name == "throw")
    fail_by_throw(1);
  if (name == "library")
    fail_in_library(1);
  if (name == "noexcept")
    pass_on(1);
  return 2;
}

} // namespace

int main(int argc, char **argv)
{
  std::set_terminate(on_terminate);
  return run(argc > 1 ? argv[1] : "");
}
