// SPDX-License-Identifier: Apache-2.0
// A program that relies on its heap starting right after its data, as images do that were saved with their heap.
#define _GNU_SOURCE
#include <stdint.h>
#include <sys/personality.h>
#include <unistd.h>

extern char end[];

int main(int argc, char **argv)
{
    if (!(personality(0xffffffff) & ADDR_NO_RANDOMIZE)) {
        personality(ADDR_NO_RANDOMIZE);
        execv("/proc/self/exe", argv);
        return 2;
    }
    // By now, the C library of a static program has allocated up to 150 KiB there.
    return (uintptr_t)sbrk(0) - (uintptr_t)end > 0x30000;
}
