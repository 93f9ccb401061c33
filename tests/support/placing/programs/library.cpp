// SPDX-License-Identifier: Apache-2.0
// A library with exceptions, TLS and an ifunc of its own.
#include <stdexcept>
#include <vector>

static thread_local int calls = 100;
static int zeroed[3000];

extern "C" {
static int twice(int value) { return value * 2; }
static int (*resolve_double())(int) { return twice; }
__attribute__((visibility("hidden"))) int doubled(int value) __attribute__((ifunc("resolve_double")));

int library_run(int value) {
    try {
        std::vector<int> numbers(3, value);
        if (value < 0) throw std::runtime_error("negative");
        return doubled(numbers.at(2)) + ++calls + zeroed[value];
    } catch (const std::runtime_error &) {
        return -calls;
    }
}
}
