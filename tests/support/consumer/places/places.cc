/* SPDX-License-Identifier: Apache-2.0 */
/* `places_cc PLACE`: compares the stack in one place of an exception's life.  */

#include "places.h"

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

static const char *place = "";

static NOINLINE void here()
{
  compare(place);
  STAY();
}

static bool is(const char *name)
{
  return std::strcmp(place, name) == 0;
}

struct Guard {
  explicit Guard(bool compares) : compares_(compares) {}
  NOINLINE ~Guard()
  {
    if (compares_ && is("abort-unwinding"))
      std::abort();
    if (compares_)
      here();
  }
  bool compares_;
};

struct Thrower {
  NOINLINE ~Thrower() noexcept(false) { throw std::runtime_error("from a destructor"); }
};

/* Copied into the exception: a constructor that runs between the allocation and the throw.  */
struct Copied {
  Copied() {}
  NOINLINE Copied(const Copied &) { here(); }
};

static NOINLINE int descend(int depth, bool compares)
{
  Guard guard(compares && depth == 3);
  if (depth == 0)
    throw std::runtime_error("deep");
  return descend(depth - 1, compares) + 1;
}

static NOINLINE int catch_it(bool compares)
{
  try {
    return descend(10, compares);
  } catch (const std::exception &failure) {
    if (is("catch"))
      here();
    return (int)std::string(failure.what()).size();
  }
}

static NOINLINE void rethrow()
{
  try {
    descend(10, false);
  } catch (const std::runtime_error &) {
    throw;
  }
}

static NOINLINE void catch_again()
{
  try {
    rethrow();
  } catch (...) {
    here();
  }
}

static NOINLINE void throw_in_a_destructor()
{
  Thrower thrower;
  throw std::runtime_error("first");
}

static NOINLINE void throw_from_noexcept() noexcept
{
  descend(5, false);
}

static NOINLINE void copy_an_exception()
{
  Copied copied;
  try {
    throw copied;
  } catch (const Copied &) {
  }
}

static NOINLINE void through_a_function_object()
{
  std::function<void()> function = [] { here(); };
  function();
  STAY();
}

[[noreturn]] static void on_terminate()
{
  here();
  _exit(0);
}

static void on_abort(int)
{
  here();
  _exit(0);
}

struct Static {
  ~Static()
  {
    if (is("static-destructor"))
      here();
  }
};
static Static static_object;

static NOINLINE int choose_place()
{
  if (is("catch"))
    catch_it(false);
  else if (is("unwinding"))
    catch_it(true);
  else if (is("rethrow"))
    catch_again();
  else if (is("copy"))
    copy_an_exception();
  else if (is("function"))
    through_a_function_object();
  else if (is("unwinding-std-thread"))
    std::thread([] { catch_it(true); }).join();
  else if (is("terminate-noexcept")) {
    std::set_terminate(on_terminate);
    throw_from_noexcept();
  } else if (is("terminate-destructor")) {
    std::set_terminate(on_terminate);
    throw_in_a_destructor();
  } else if (is("terminate-uncaught")) {
    std::set_terminate(on_terminate);
    descend(5, false);
  } else if (is("abort-unwinding")) {
    std::signal(SIGABRT, on_abort);
    catch_it(true);
  } else if (is("abort-destructor")) {
    std::signal(SIGABRT, on_abort);
    throw_in_a_destructor();
  } else if (!is("static-destructor"))
    return 2;
  STAY();
  return 0;
}

int main(int argc, char **argv)
{
  int status;

  if (argc != 2)
    return 2;
  place = argv[1];
  status = choose_place();
  STAY();
  return status;
}
