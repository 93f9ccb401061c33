# SPDX-License-Identifier: Apache-2.0
"""From an image to a section: one module for each stage, in the order of the line.

    options               a caller's choices
    fates                 the possible fates of an FDE
    sources               all CFI that an image has, the best source first: its FDEs, and the rows of their programs
    owners                the owner of an address: an FDE, a stub or padding
    uncovered             rows from instructions as one more source, for code that nothing holds (`--from code`)
    reduce, lower         rows become frame rows of an SFrame version, or there is a reason why not
    pieces                addresses that an FDE or a stub owns, with their rows, or why there are none
    functions             functions of a section: pieces with rows, over the padding after them
    convert               the line itself, one stage a line; `sframe/` makes its ranges and bytes

No stage knows the next.
"""
