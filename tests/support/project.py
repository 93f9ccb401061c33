# SPDX-License-Identifier: Apache-2.0
"""A C and C++ program of some size, generated: the same files each time, hundreds of functions of many shapes."""

from __future__ import annotations

import random
from typing import Final, NamedTuple

#: Files of each language.
PART_COUNTS: Final = {"c": 6, "cc": 3}
FUNCTIONS_PER_PART: Final = 12

_C_HEAD: Final = """\
#include <alloca.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef unsigned long number;
#define NOINLINE __attribute__((noinline, noclone))
static inline number mix(number a, number b) { return (a ^ (b >> 3)) * 2862933555777941757ul + b; }
"""

#: Function shapes; @ is the name, $A and $B are numbers. Each is called as `number @(number)`.
_C_SHAPES: Final = (
    """
static NOINLINE number @_inner(number x) { return mix(x, $A) % $B; }
NOINLINE number @(number x) { return @_inner(x) + @_inner(x + 1); }
""",
    """
NOINLINE number @(number x)
{
  char *bytes = alloca(x % $A + 16);
  memset(bytes, (int)x, x % $A + 16);
  return mix((number)bytes[x % 16], x);
}
""",
    """
NOINLINE number @(number x)
{
  number cells[x % $A + 1];
  for (number i = 0; i <= x % $A; i++) cells[i] = mix(i, x);
  return cells[x % $A];
}
""",
    """
static NOINLINE __attribute__((cold)) number @_rare(number x, const char *text)
{
  return mix(x, (number)printf("%s", text));
}
NOINLINE number @(number x)
{
  if (__builtin_expect(x % 1000003 == $A, 0)) {
    number y = @_rare(x, "rare");
    return y + @_rare(y, "again");
  }
  return mix(x, $B);
}
""",
    """
NOINLINE number @_sum(int count, ...)
{
  va_list list; number total = 0;
  va_start(list, count);
  while (count-- > 0) total = mix(total, va_arg(list, number));
  va_end(list);
  return total;
}
NOINLINE number @(number x) { return @_sum(9, x, x + 1, 2ul, 3ul, 4ul, 5ul, 6ul, 7ul, 8ul) + @_sum(1, $Aul); }
""",
    """
NOINLINE number @(number x)
{
  volatile unsigned char bytes[$A * 100];
  bytes[x % sizeof bytes] = 3;
  return mix(x, bytes[x % sizeof bytes]);
}
""",
    """
NOINLINE number @(number x)
{
  volatile number cells[8] __attribute__((aligned(64)));
  char *bytes = alloca(x % $A + 1);
  bytes[0] = (char)x;
  cells[x % 8] = x;
  return mix(cells[x % 8], (number)bytes[0]);
}
""",
    """
static int @_compare(const void *a, const void *b)
{
  number x = *(const number *)a, y = *(const number *)b;
  return x < y ? -1 : x > y;
}
NOINLINE number @(number x)
{
  number cells[16];
  for (int i = 0; i < 16; i++) cells[i] = x = mix(x, $A);
  qsort(cells, 16, sizeof cells[0], @_compare);
  return cells[$B % 16];
}
""",
    """
static jmp_buf @_escape;
static NOINLINE __attribute__((noreturn)) void @_leave(number x) { longjmp(@_escape, (int)(x % 5) + 1); }
static NOINLINE void @_check(number x) { if (x != $A) @_leave(x); }
NOINLINE number @(number x)
{
  int code = setjmp(@_escape);
  if (code == 0) @_check(x | $B << 20);
  return mix(x, (number)code);
}
""",
    """
NOINLINE number @(number x)
{
  switch (x % 9) {
  case 0: return mix(x, 1);
  case 1: return labs((long)x) + $A;
  case 2: case 5: x = mix(x, (number)rand()); return x & 0;
  case 3: return strtoul("$B", 0, 10);
  case 4: x += $A; break;
  case 7: return (number)atoi("$A");
  default: x = mix(x, $B);
  }
  return x + (number)atoi("$B");
}
""",
    """
NOINLINE number @(number x) { return x < $A ? mix(x, 2) : @(x / 3) * 5 + @(x / 7); }
""",
    """
NOINLINE number @(number x)
{
  if (x % 3 == 0) return x;
  number a = strtoul("$A", 0, 10), b = strtoul("$B", 0, 10), c = mix(a, b), d = mix(b, x);
  number e = strtoul("$A", 0, 8);
  return a + b * c - d + mix(e, strtoul("7", 0, 10) + a);
}
""",
)

_CPP_SHARED: Final = """\
#pragma once
#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>
typedef unsigned long number;
#define NOINLINE __attribute__((noinline))
inline number mix(number a, number b) { return (a ^ (b >> 3)) * 2862933555777941757ul + b; }

struct Guard {
  explicit Guard(number &target) : counter(target) {}
  ~Guard();
  number &counter;
};
inline NOINLINE Guard::~Guard() { counter = mix(counter, 1); }

template <typename T, int N> struct Stack {
  std::vector<T> items;
  NOINLINE void push(T item) {
    if (items.size() == N) throw std::length_error("full");
    items.push_back(item);
  }
  NOINLINE T pop() {
    if (items.empty()) throw std::out_of_range("empty");
    T item = items.back();
    items.pop_back();
    return item;
  }
};

template <typename F> NOINLINE number twice(F function, number x) { return function(function(x)); }

struct Shape {
  virtual ~Shape() {}
  virtual number area(number x) const = 0;
};
struct Square : Shape {
  NOINLINE number area(number x) const override { return mix(x, 4); }
};
struct Pair : Shape {
  explicit Pair(std::unique_ptr<Shape> p) : part(std::move(p)) {}
  NOINLINE number area(number x) const override { return part->area(x) + part->area(x + 1); }
  std::unique_ptr<Shape> part;
};
"""

_CPP_SHAPES: Final = (
    """
NOINLINE number @(number x)
{
  Stack<int, $A % 4 + 2> stack;
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
""",
    """
namespace {
struct @_Failure : std::runtime_error { using std::runtime_error::runtime_error; };
NOINLINE number @_descend(number depth, number &count)
{
  Guard guard(count);
  if (depth == 0) throw @_Failure("depth $A");
  return @_descend(depth - 1, count) + mix(depth, $B);
}
}
NOINLINE number @(number x)
{
  number count = x;
  try { return @_descend(x % 7, count); }
  catch (const @_Failure &) { return count; }
}
""",
    """
NOINLINE number @(number x)
{
  auto step = [x](number y) { return mix(y, x + $A); };
  return twice(step, x) + twice([](number y) { return y / $B; }, x);
}
""",
    """
NOINLINE number @(number x)
{
  std::unique_ptr<Shape> shape(new Square);
  for (number i = 0; i < x % 4; i++) shape.reset(new Pair(std::move(shape)));
  return shape->area(x) + $A;
}
""",
    """
NOINLINE number @(number x)
{
  std::map<number, std::string> names;
  for (number i = 0; i < $A % 20 + 3; i++) names[mix(i, x) % $B] = std::to_string(i);
  std::vector<number> keys;
  for (const auto &entry : names) keys.push_back(entry.first + entry.second.size());
  std::sort(keys.begin(), keys.end(), [](number a, number b) { return a % 17 != b % 17 ? a % 17 < b % 17 : a < b; });
  return keys[keys.size() / 2];
}
""",
    """
NOINLINE number @(number x)
{
  Stack<double, $A % 3 + 4> stack;
  try { stack.push(1.5); stack.push((double)(x % 100)); return (number)(stack.pop() * 2) + $B; }
  catch (...) { throw; }
}
""",
)


class Source(NamedTuple):
    """A source file of the program."""

    name: str
    text: str


def generate() -> list[Source]:
    """Return the program's files; all that end in .c or .cc are compiled, and main calls most of their functions."""
    choice = random.Random(11)  # noqa: S311  # a test program, not a secret
    sources = [Source("shared.hpp", _CPP_SHARED)]
    names: list[str] = []
    for suffix, head, shapes in (("c", _C_HEAD, _C_SHAPES), ("cc", '#include "shared.hpp"\n', _CPP_SHAPES)):
        for part in range(PART_COUNTS[suffix]):
            texts = [head]
            for index in range(FUNCTIONS_PER_PART):
                name = f"{suffix}{part}_{index}"
                names.append(name)
                texts.append(_function(name, shapes[(part * 5 + index) % len(shapes)], choice, is_cpp=suffix == "cc"))
            sources.append(Source(f"part{part}.{suffix}", "".join(texts)))
    # Every fifth function is not called: --gc-sections removes it.
    called = [name for index, name in enumerate(names) if index % 5]
    declarations = "".join(f'extern "C" number {name}(number);\n' for name in called)
    calls = "".join(f"    total = mix(total, {name}(turn + {i}));\n" for i, name in enumerate(called))
    main = (
        f'#include "shared.hpp"\n{declarations}\nint main()\n{{\n  number total = 1;\n'
        f"  for (number turn = 0; turn < 20; turn++) {{\n{calls}  }}\n"
        '  std::printf("total %lx\\n", total);\n  return 0;\n}\n'
    )
    return [*sources, Source("main.cc", main)]


def _function(name: str, shape: str, choice: random.Random, *, is_cpp: bool) -> str:
    text = (
        shape.replace("@", name).replace("$A", str(choice.randint(10, 400))).replace("$B", str(choice.randint(3, 90)))
    )
    return (
        text.replace("\nNOINLINE number " + name + "(", '\nextern "C" NOINLINE number ' + name + "(")
        if is_cpp
        else text
    )
