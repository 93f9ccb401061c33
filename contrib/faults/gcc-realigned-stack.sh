# SPDX-License-Identifier: Apache-2.0
# GCC's rule that FP is saved at *(rbp) outlives `leave`, which restores rbp; a tracer then loads FP through the
# restored rbp. From 3c on the rule should be "unchanged".
cat > realign.c << 'END'
void g(char *, char *);
void f(int n)
{
  _Alignas(64) char a[64];
  g(a, __builtin_alloca(n));
}
END
gcc -O2 -c realign.c -o realign.o
objdump -d realign.o | grep -A 2 leave | cut -f 1,3
readelf -wF realign.o | grep -A 1 '^0*3b'
# Prints with gcc 12 and 14:
#>   3b:	leave
#>   3c:	lea    -0x8(%r10),%rsp
#>   40:	ret
#> 000000000000003b r10+0    exp   c-8
#> 0000000000000040 rsp+8    exp   c-8
