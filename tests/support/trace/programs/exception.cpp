// SPDX-License-Identifier: Apache-2.0
// C++ exceptions in flight, one place for each number given as STAGE:
// 0 a destructor that unwinding runs, 1 a handler, 2 the handler of a rethrow inside a handler,
// 3 std::terminate, because a noexcept function lets an exception out, 4 before anything is thrown.

#include <cstdlib>
#include <exception>
#include <string>

#include "stop.h"

namespace {

struct Guard {
  std::string name{"a guard whose name is too long for the small string"};
  NOINLINE ~Guard()
  {
    if (STAGE == 0)
      stop_here();
    sink = sink + 1;
  }
};

NOINLINE long thrower(long depth)
{
  if (depth == 0)
    throw depth;
  Guard guard;
  sink = sink + thrower(depth - 1);
  return sink;
}

NOINLINE long catcher(long depth)
{
  try {
    return thrower(depth) + sink;
  } catch (long &) {
    if (STAGE == 1)
      stop_here();
    Guard guard;
    throw;
  }
}

NOINLINE long outer(long depth)
{
  try {
    return catcher(depth) + sink;
  } catch (...) {
    if (STAGE == 2)
      stop_here();
    return sink;
  }
}

NOINLINE long without_exceptions(long depth) noexcept
{
  sink = sink + thrower(depth);
  return sink;
}

[[noreturn]] NOINLINE void terminated()
{
  stop_here();
  std::_Exit(0);
}

}  // namespace

int main(int argc, char **)
{
  dies = argc > 1;
  std::set_terminate(terminated);
  if (STAGE == 4)
    stop_here();
  sink = sink + (STAGE == 3 ? without_exceptions(3) : outer(3));
  return 0;
}
