// SPDX-License-Identifier: Apache-2.0
/* A program without a C library that prints the text of its own package note. READ says how it gets there; the table is
   in tests/elf/test_readers.py. `one` is 1, which the compiler cannot know. */
#define HIDDEN __attribute__((visibility("hidden")))
#ifdef __clang__
#define APART __attribute__((noinline))
#else
#define APART __attribute__((noinline, noclone))
#endif
#define TEXT 16   /* the offset of the text in the note */
__asm__ (".section .note.package,\"a\",%note\n.balign 4\n.hidden note, words, other\n.globl note, words, other\n"
         "note: words: .long 4, 16, 0xcafe1a7e\n.asciz \"FDO\"\n.asciz \"version 1.2.3\\n\"\n.balign 4\n"
         ".section .rodata.other,\"a\"\n.balign 4\nother: .skip 16\n.asciz \"no version\\n\"\n.text");
/* One place under two names, since GCC takes what may be at an odd address from elsewhere on s390x. */
extern HIDDEN const char note[32], other[32];
extern HIDDEN const int words[8];

static long call(long number, long first, long second, long third)
{
#if defined __x86_64__
  __asm__ volatile ("syscall" : "+a" (number) : "D" (first), "S" (second), "d" (third) : "rcx", "r11", "memory");
  return number;
#elif defined __aarch64__
  register long x8 __asm__ ("x8") = number, x0 __asm__ ("x0") = first;
  register long x1 __asm__ ("x1") = second, x2 __asm__ ("x2") = third;
  __asm__ volatile ("svc 0" : "+r" (x0) : "r" (x8), "r" (x1), "r" (x2) : "memory");
  return x0;
#else
  register long r1 __asm__ ("r1") = number, r2 __asm__ ("r2") = first;
  register long r3 __asm__ ("r3") = second, r4 __asm__ ("r4") = third;
  __asm__ volatile ("svc 0" : "+d" (r2) : "d" (r1), "d" (r3), "d" (r4) : "memory");
  return r2;
#endif
}
#if defined __x86_64__
enum { WRITE = 1, EXIT = 60 };
#elif defined __aarch64__
enum { WRITE = 64, EXIT = 93 };
#else
enum { WRITE = 4, EXIT = 1 };
#endif

static APART void put(const char *text, long size) { call(WRITE, 1, (long) text, size); }
static APART void put_text(const char *text) { long n = 0; while (text[n]) n++; put(text, n); }

static char text[17];

#if READ == 0           /* not at all */
static inline const char *found(long one) { return other + TEXT; }
#elif READ == 1         /* its address */
static inline const char *found(long one) { const char *volatile at = note; return at + TEXT; }
#elif READ == 2         /* its address, which is even */
static inline const char *found(long one) { const int *volatile at = words; return (const char *) (at + TEXT / 4); }
#elif READ == 3         /* the operands of instructions that read it */
static inline const char *found(long one)
{
  for (int i = 0; i < 3; i++) ((volatile int *) text)[i] = words[TEXT / 4 + i];
  for (int i = 12; i < 16; i++) text[i] = note[TEXT + i];
  return text;
}
#elif READ == 4         /* pointers in data: relocations, or addresses */
static const char *const table[] = { other, note };
static inline const char *found(long one) { return ((const char *const volatile *) table)[one] + TEXT; }
#elif READ == 5         /* pointers that are not aligned */
static volatile struct __attribute__((packed)) { char kind; const char *at; } table[] = { { 1, other }, { 2, note } };
static inline const char *found(long one) { return table[one].at + TEXT; }
#elif READ == 6         /* words that the linker fills */
__asm__ (".section .rodata.table,\"a\"\n.balign 8\n.hidden table\n.globl table\ntable: " WORDS "\n.text");
extern HIDDEN const WORD table[];
static inline const char *found(long one) { const volatile WORD *at = &table[one]; return (const char *) BASE + *at + TEXT; }
#elif READ == 7         /* each of its bytes, in a loop that compilers run from its end, or backwards */
__asm__ (".section .rodata.same,\"a\"\n.hidden same\n.globl same\nsame: .long 4, 16, 0xcafe1a7e\n.asciz \"FDO\"\n"
         ".asciz \"version 1.2.3\\n\"\n.balign 4\n.text");
extern HIDDEN const char same[32];
static APART int sum(void) { int s = 7; for (int i = 0; i < 32; i++) s = s * 31 ^ note[i]; return s; }
static APART int sum_of(const char *at) { int s = 7; for (int i = 0; i < 32; i++) s = s * 31 ^ at[i]; return s; }
static inline const char *found(long one) { return sum() == sum_of(same) ? same + TEXT : other + TEXT; }
#elif READ == 8         /* with an index that starts somewhere else */
static APART int at(long i) { return note[i - FIRST]; }
static inline const char *found(long one) { for (long i = 0; i < 16; i++) text[i] = at(i + TEXT + FIRST); return text; }
#elif READ == 9         /* in a switch, of which LLVM makes a table of distances from its start */
static APART const char *chosen(long one)
{
  switch (one) {
  case 0: return other;
  case 1: return note + TEXT;
  case 2: return note;
  case 3: return other + 3;
  }
  return other + 1;
}
static inline const char *found(long one) { return chosen(one); }
#elif READ == 10        /* compared with immediate operands, which follow its address in instructions of AMD64 */
#define IS(type, at, value) (*(const volatile type *) (note + at) == value)
static inline const char *found(long one)
{
  return IS (char, 16, 'v') && IS (short, 4, 16) && IS (int, 8, (int) 0xcafe1a7e) ? "version 1.2.3\n" : other + TEXT;
}
#elif READ == 11        /* by a function in the assembler's language */
__asm__ (".section " SECTION "\n.balign 4\n.hidden code\n.globl code\n.type code, %function\ncode: " CODE "\n.text");
extern HIDDEN const char *code(void);
static inline const char *found(long one) { return code() + TEXT; }
#endif

HIDDEN void run(long *stack)
{
  put_text(found(stack[0]));
  call(EXIT, 0, 0, 0);
}

#if defined __x86_64__
__asm__ (".text\n.globl _start\n_start: mov %rsp, %rdi\nand $-16, %rsp\ncall run\nhlt");
#elif defined __aarch64__
__asm__ (".text\n.globl _start\n_start: mov x0, sp\nbl run\nbrk 0");
#else
__asm__ (".text\n.globl _start\n_start: lgr %r2, %r15\naghi %r15, -160\nbrasl %r14, run");
#endif
