# SPDX-License-Identifier: Apache-2.0
"""Cutting and joining functions to make a section smaller (-O2). The door is `split_functions`.

An SFrame function is a range of code with a list of rows; nothing ties it to one function of the program. A program's
functions begin and end alike (prologues and epilogues set up and release frames) and differ in the middle, so whole row
lists seldom repeat, but parts of them do. -O2 cuts where that lets ranges share a row list:

    before:  f  [ push push sub ....... add pop pop ]      two functions, two lists of all their rows
             g  [ push push sub ............. add pop pop ]

    after:   f  [ push push sub ....... | add pop pop ]    four ranges, but two lists: the two beginnings are equal,
             g  [ push push sub ............. | add pop pop ]        and so are the two ends

It also joins neighbouring functions without a gap between them, where one range is smaller than several. A range costs
a record of the function table; a row list costs its bytes once, however many ranges use it. Every address keeps its
row. Readers walk the rows of a range one after the other, so a range may have a limited number of them only; and where
look-ups would cost more than before, each row walked has a price.

The modules, in the order of the work:

- `stretches`: functions without a gap between them form a *stretch*; equal stretches are handled once.
- `columns`: the rows of all stretches, and the *cuts*, where a stretch may be divided into ranges.
- `candidates`: the row lists that more than one range could use.
- `partition`: the ranges of a stretch that cost least, by dynamic programming over its cuts.
- `choose`: partitions of all stretches, by what the choices of the others make of the cost of each list, and by the
  price of rows at which look-ups cost as much as they may; `prices` has what ranges, lists and rows walked cost.
- `split`: all steps, from functions to ranges.
"""

from cfi2sframe.sframe.splitting.split import split_functions

__all__ = ["split_functions"]
