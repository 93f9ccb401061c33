/* SPDX-License-Identifier: Apache-2.0
 * A C program without any library but libc, for links where the C++ runtime only stands in the way. */
#include <stdio.h>
#include <stdlib.h>

static __thread int counter = 6;
static int zeroed[5000];

static int compare(const void *first, const void *second) { return *(const int *)first - *(const int *)second; }

int main(void) {
    int numbers[] = {9, 7, 8};
    qsort(numbers, 3, sizeof(int), compare);
    for (int at = 0; at < 5000; at++) zeroed[at] += at;
    printf("%d%d%d %d %d\n", numbers[0], numbers[1], numbers[2], ++counter, zeroed[4999]);
    return 0;
}
