/* SPDX-License-Identifier: Apache-2.0 */
/* What is stepped through: a threaded interpreter, tables of jumps, arrays of any size, large and aligned frames. */
#include <stdio.h>

#define APART __attribute__((noinline))
#define NEXT goto *labels[*code++]

static APART long fibonacci(long n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

static APART long interpret(const unsigned char *code)
{
    static void *const labels[] = {&&add, &&twice, &&mix, &&end};
    volatile long kept[20];
    long sum = 0;
    NEXT;
add:
    sum += fibonacci(4);
    kept[1] = sum;
    NEXT;
twice:
    sum *= 2;
    NEXT;
mix:
    sum ^= kept[1];
    printf("%ld\n", sum);
    NEXT;
end:
    return sum;
}

static APART long choose(int x, long y)
{
    switch (x) {
    case 0: return y + 1;
    case 1: printf("x"); return y * 3;
    case 2: return choose(0, y) + 1;
    case 3: puts("t"); return 9;
    case 4: return y ^ 5;
    case 5: return choose(1, y);
    default: return 0;
    }
}

static APART long sized(int n)
{
    char bytes[n];
    bytes[0] = (char)n;
    bytes[n - 1] = 3;
    puts("sized");
    return bytes[0] + bytes[n - 1];
}

static APART double aligned(double x)
{
    volatile double values[4] __attribute__((aligned(64)));
    for (int i = 0; i < 4; i++)
        values[i] = x * i;
    puts("aligned");
    return values[1] + values[3];
}

static APART long large(long x)
{
    volatile char bytes[50000];
    for (int i = 0; i < 50000; i += 4096)
        bytes[i] = (char)x;
    return bytes[4096];
}

int main(void)
{
    static const unsigned char code[] = {0, 1, 2, 0, 1, 2, 3};
    long sum = interpret(code);
    for (int i = 0; i < 8; i++)
        sum += choose(i, i);
    sum += sized(30) + sized(100) + (long)aligned(2.0) + large(3);
    printf("%ld\n", sum);
    return 0;
}
