/* SPDX-License-Identifier: Apache-2.0 */
/* `words SECONDS` repeats one round of work for that much CPU time and prints its result, the same each time.  */
#include "words.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

int main(int argc, char **argv)
{
  double seconds = argc > 1 ? atof(argv[1]) : 0;
  unsigned long result = words_count(7, 200);

  while (clock() < seconds * CLOCKS_PER_SEC)
    if (words_count(7, 200) != result)
      return 1;
  printf("%lx\n", result);
  return 0;
}
