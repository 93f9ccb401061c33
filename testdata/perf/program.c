// Build: see record.sh. A program without a C library: a recursion, callers without frame pointers, a leaf of assembly
// without CFI, a CFA that only an expression gives, and a signal's handler.
typedef struct { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; } action;

static volatile int total;

static long call(long number, long a, long b, long c, long d)
{
    long result;
    register long fourth __asm__("r10") = d;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth) : "rcx", "r11", "memory");
    return result;
}

__asm__(".text; .type restore, @function; .cfi_startproc; .cfi_signal_frame;"
        ".cfi_escape 0x0f,3,0x77,0xa0,1; .cfi_escape 0x10,6,4,0x77,0xf8,0,6; .cfi_escape 0x10,16,3,0x77,0xa8,1;"
        "nop; restore: mov $15, %eax; syscall; .cfi_endproc; .size restore, .-restore");
__asm__(".type without_cfi, @function; without_cfi: mov $2000, %eax; 1: dec %eax; jnz 1b; ret; .size without_cfi, .-without_cfi");
__asm__(".type by_expression, @function; by_expression: .cfi_startproc; mov %rsp, %rax; sub $72, %rsp; mov %rax, 64(%rsp);"
        ".cfi_escape 0x0f,6,0x77,0xc0,0,6,0x23,8; mov $2000, %ecx; 1: dec %ecx; jnz 1b;"
        "add $72, %rsp; .cfi_def_cfa 7, 8; ret; .cfi_endproc; .size by_expression, .-by_expression");
void restore(void);
void without_cfi(void);
void by_expression(void);

__attribute__((noinline)) static int sum(int count)
{
    for (int i = 0; i < count; i++)
        total += i;
    return total;
}

__attribute__((noinline)) static int recurse(int depth)
{
    volatile char room[8];
    room[0] = depth ? recurse(depth - 1) : sum(20000);
    return room[0] + 1;
}

static void handler(int number)
{
    sum(30000 + number);
}

__attribute__((noinline)) static int work(int count)
{
    int result = 0;
    for (int i = 0; i < count; i++) {
        result += recurse(i % 6);
        without_cfi();
        by_expression();
        if (i % 8 == 0)
            call(62, call(39, 0, 0, 0, 0), 10, 0, 0);
    }
    return result;
}

void start_c(void)
{
    action handled = {handler, 0x04000000, restore, 0};
    call(13, 10, (long)&handled, 0, 8);
    call(231, work(45000) & 1, 0, 0, 0);
    __builtin_unreachable();
}

__asm__(".globl _start; .type _start, @function; _start: .cfi_startproc; .cfi_undefined rip; call start_c; .cfi_endproc;"
        ".size _start, .-_start");
