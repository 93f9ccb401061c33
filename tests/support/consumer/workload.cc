// SPDX-License-Identifier: Apache-2.0
// The C++ companion of workload.c, used the same way: exceptions through
// several frames, clean-ups, callbacks from templates, virtual calls.

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#if defined __clang__
#define NOINLINE __attribute__((noinline))
#else
#define NOINLINE __attribute__((noinline, noclone))
#endif

namespace {

using number = unsigned long;

NOINLINE number spin(number seed, unsigned turns)
{
  while (turns-- > 0)
    seed = seed * 2862933555777941757ul + 3037000493ul;
  return seed;
}

volatile number cleaned;

// Its destructor does work, so ticks fall into landing pads too.
struct Guard {
  explicit Guard(number start) : seed(start) {}
  Guard(const Guard &) = delete;
  Guard &operator=(const Guard &) = delete;
  ~Guard() { cleaned = cleaned + spin(seed, 1000); }
  number seed;
};

struct Failure : std::runtime_error {
  Failure(const std::string &text, number start)
      : std::runtime_error(text), seed(start) {}
  number seed;
};

[[noreturn]] NOINLINE void fail(number seed)
{
  throw Failure("depth " + std::to_string(seed), spin(seed, 300));
}

NOINLINE number descend(unsigned depth, number seed)
{
  Guard guard(seed + depth);
  if (depth > 0)
    return descend(depth - 1, seed) + spin(guard.seed, 100);
  if (seed < 1000)
    fail(seed);
  return seed;
}

NOINLINE number rethrow(unsigned depth, number seed)
{
  try {
    return descend(depth, seed);
  } catch (const Failure &failure) {
    Guard guard(failure.seed);
    throw;
  }
}

NOINLINE number with_exceptions(unsigned depth, number seed)
{
  try {
    return rethrow(depth, seed);
  } catch (const std::exception &failure) {
    return std::string(failure.what()).size() + cleaned;
  }
}

struct Shape {
  virtual ~Shape() = default;
  virtual number area(number seed) const = 0;
};

struct Square : Shape {
  NOINLINE number area(number seed) const override { return spin(seed, 900); }
};

struct Pair : Shape {
  explicit Pair(std::unique_ptr<Shape> first) : part(std::move(first)) {}
  NOINLINE number area(number seed) const override
  {
    return part->area(seed) + part->area(seed + 1);
  }
  std::unique_ptr<Shape> part;
};

NOINLINE number with_virtual_calls(number seed)
{
  std::unique_ptr<Shape> shape = std::make_unique<Square>();
  for (int level = 0; level < 4; level++)
    shape = std::make_unique<Pair>(std::move(shape));
  return shape->area(seed);
}

NOINLINE number with_callbacks(number seed)
{
  std::vector<number> items(60);
  std::map<number, std::string> names;
  std::function<number(number)> step = [](number item) {
    return spin(item, 100);
  };
  for (number &item : items)
    item = seed = step(seed);
  std::sort(items.begin(), items.end(), [&step](number left, number right) {
    return (step(left) & 0xffff) < (step(right) & 0xffff);
  });
  for (number item : items)
    names[item] = std::to_string(item);
  return names.begin()->second.size() + items[7];
}

NOINLINE number run_round()
{
  number result = 1;
  cleaned = 0;
  for (unsigned turn = 0; turn < 20; turn++) {
    result = result * 31 + with_exceptions(turn, turn);
    result = result * 31 + with_virtual_calls(turn);
    result = result * 31 + with_callbacks(turn);
  }
  return result;
}

} // namespace

int main(int argc, char **argv)
{
  double seconds = argc > 1 ? std::strtod(argv[1], nullptr) : 1;
  number first = run_round();
  do {
    number next = run_round();
    if (next != first) {
      std::fprintf(stderr, "workload: round gave %lx instead of %lx\n", next,
                   first);
      return 1;
    }
  } while (static_cast<double>(std::clock()) / CLOCKS_PER_SEC < seconds);
  std::printf("checksum %lx\n", first);
  return 0;
}
