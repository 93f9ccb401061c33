# SPDX-License-Identifier: Apache-2.0
"""CFA expressions as readelf spells them, evaluated from the text: an evaluator that never sees a byte."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_FDE: Final = re.compile(r"FDE cie=\w+ pc=([0-9a-f]+)\.\.([0-9a-f]+)")
_ADVANCE: Final = re.compile(r"  DW_CFA_advance_loc\d?: -?\d+ to ([0-9a-f]+)")
_EXPRESSION: Final = re.compile(r"  DW_CFA_def_cfa_expression \((.*)\)$")
_REGISTER: Final = re.compile(r"DW_OP_breg(\d+) \(\w+\): (-?\d+)")
_LITERAL: Final = re.compile(r"DW_OP_lit(\d+)")
_SP, _PC = 7, 16
#: SP stands for a number so large that a sum with it is never taken for anything else.
_SP_VALUE: Final = 1 << 50


class Expression(NamedTuple):
    """A CFA expression and the addresses it holds at."""

    pcs: range
    text: str

    def depth(self, pc: int) -> int:
        """CFA - SP at a PC."""
        stack: list[int] = []
        for operation in self.text.split("; "):
            if match := _REGISTER.fullmatch(operation):
                stack.append({_SP: _SP_VALUE, _PC: pc}[int(match[1])] + int(match[2]))
            elif match := _LITERAL.fullmatch(operation):
                stack.append(int(match[1]))
            else:
                right, left = stack.pop(), stack.pop()
                results = {
                    "DW_OP_and": left & right,
                    "DW_OP_ge": int(left >= right),
                    "DW_OP_plus": left + right,
                }
                stack.append(left << right if operation == "DW_OP_shl" else results[operation])
        return stack[-1] - _SP_VALUE


def cfa_expressions(readelf_wf: str) -> Iterator[Expression]:
    """Yield the CFA expressions of `readelf -wf` that compute with the PC; each holds to the end of its FDE."""
    pc = end = 0
    for line in readelf_wf.splitlines():
        if match := _FDE.search(line):
            pc, end = int(match[1], 16), int(match[2], 16)
        elif match := _ADVANCE.match(line):
            pc = int(match[1], 16)
        elif (match := _EXPRESSION.match(line)) and "DW_OP_breg16" in match[1]:
            yield Expression(range(pc, end), match[1])
