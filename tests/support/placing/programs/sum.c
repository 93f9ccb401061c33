/* SPDX-License-Identifier: Apache-2.0 */
/* A program of a few functions that says whether it works. */

#include <string.h>
#include <unistd.h>

__attribute__((noinline)) static unsigned twice(unsigned n)
{
  return n > 1 ? n + twice(n / 2) : n;
}

int main(int count, char **words)
{
  char text[16] = "sum ";

  text[4] = 'a' + twice(count * 40) % 26;
  text[5] = 10;
  return write(1, text, strlen(text)) != 6 || words[count];
}
