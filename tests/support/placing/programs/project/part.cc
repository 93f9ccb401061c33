/* SPDX-License-Identifier: Apache-2.0
   Functions of many shapes, compiled several times: NAME(n) differs by PART. Each NAME(n) is called as number(number). */
#include "shared.hpp"
#define A (10 + 41 * PART)
#define B (3 + 8 * PART)
#define NAME(n) PASTE(PART, n)
#define PASTE(part, n) PASTED(part, n)
#define PASTED(part, n) cc##part##_##n

extern "C" NOINLINE number NAME(0)(number x)
{
  Stack<int, A % 4 + 2> stack;
  number count = 0;
  try {
    Guard guard(count);
    for (number i = 0; i <= x % 9; i++) stack.push((int)i);
    for (;;) count += (number)stack.pop();
  } catch (const std::length_error &) {
    return mix(x, count);
  } catch (const std::exception &failure) {
    return mix(count, std::string(failure.what()).size());
  }
}

namespace {
struct NAME(1_Failure) : std::runtime_error { using std::runtime_error::runtime_error; };
NOINLINE number NAME(1_descend)(number depth, number &count)
{
  Guard guard(count);
  if (depth == 0) throw NAME(1_Failure)("depth");
  return NAME(1_descend)(depth - 1, count) + mix(depth, B);
}
}
extern "C" NOINLINE number NAME(1)(number x)
{
  number count = x;
  try { return NAME(1_descend)(x % 7, count); }
  catch (const NAME(1_Failure) &) { return count; }
}

extern "C" NOINLINE number NAME(2)(number x)
{
  auto step = [x](number y) { return mix(y, x + A); };
  return twice(step, x) + twice([](number y) { return y / B; }, x);
}

extern "C" NOINLINE number NAME(3)(number x)
{
  std::unique_ptr<Shape> shape(new Square);
  for (number i = 0; i < x % 4; i++) shape.reset(new Pair(std::move(shape)));
  return shape->area(x) + A;
}

extern "C" NOINLINE number NAME(4)(number x)
{
  std::map<number, std::string> names;
  for (number i = 0; i < A % 20 + 3; i++) names[mix(i, x) % B] = std::to_string(i);
  std::vector<number> keys;
  for (const auto &entry : names) keys.push_back(entry.first + entry.second.size());
  std::sort(keys.begin(), keys.end(), [](number a, number b) { return a % 17 != b % 17 ? a % 17 < b % 17 : a < b; });
  return keys[keys.size() / 2];
}

extern "C" NOINLINE number NAME(5)(number x)
{
  Stack<double, A % 3 + 4> stack;
  try { stack.push(1.5); stack.push((double)(x % 100)); return (number)(stack.pop() * 2) + B; }
  catch (...) { throw; }
}
