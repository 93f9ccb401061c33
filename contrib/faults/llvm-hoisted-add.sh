# SPDX-License-Identifier: Apache-2.0
# If both sides of a branch begin with the same `add` to SP, LLVM hoists it above the comparison, but not its directive:
# the CFA is too high for two instructions.
cat > moved.c << 'END'
struct s { long a, b; };
void get(struct s *);
void drop(long);
void f(struct s *s, long n)
{
  get(s);
  if (s->a != n)
    drop(s->a);
}
END
clang -O2 -c moved.c -o moved.o
objdump -d moved.o | grep -A 3 0x8,%rsp | cut -f 1,3
readelf -wF moved.o | grep -A 1 rsp+32
# Prints with clang 14:
#>   12:	add    $0x8,%rsp
#>   16:	cmp    %r14,%rdi
#>   19:	jne    1f <f+0x1f>
#>   1b:	pop    %rbx
#> 0000000000000004 rsp+32   c-24  c-16  c-8
#> 000000000000001b rsp+24   c-24  c-16  c-8
