// SPDX-License-Identifier: Apache-2.0
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
