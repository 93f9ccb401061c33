/* SPDX-License-Identifier: Apache-2.0 */
/* A library with one function: count the words that are left of a generated text, through calls of many kinds.  */
#ifndef WORDS_H
#define WORDS_H

unsigned long words_count(unsigned long seed, unsigned rounds);

#endif
