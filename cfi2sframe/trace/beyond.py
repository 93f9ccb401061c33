# SPDX-License-Identifier: Apache-2.0
"""Rows of CFI that no section can hold, but a trace can follow: the CFA is a word in memory plus a constant.

OpenSSL's assembly keeps the caller's SP on the stack: CFA = *(rsp+152)+8. A rule of SFrame ends with the load. So the
loaded word stands in for the CFA: the other rules count from it, and the constant is added to the caller's SP.
"""

from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.constants.dwarf import DW_OP_plus_uconst
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.reduce import InexpressibleError, reduce_state
from cfi2sframe.dwarf.expression import Expression, value_of
from cfi2sframe.dwarf.numbers import read_uleb
from cfi2sframe.dwarf.rules import NoRule, RowState
from cfi2sframe.errors import CfiError
from cfi2sframe.sframe.model import Found, FrameRow, FrameState, Function, FunctionBody
from cfi2sframe.why import Why

#: The reason why a walk by sections alone ends at such a row.
BEYOND: Final = "its CFA is a word in memory plus a constant, which no row can hold"


class LoadedCfa(NamedTuple):
    """A row whose CFA is that of `found` plus `offset`; its other rules count from the CFA of `found`."""

    found: Found
    offset: int


#: Start and end of such a row, and the row.
Beyond = tuple[int, int, LoadedCfa]


def rows_beyond(conversion: Conversion) -> Iterator[Beyond]:
    """Yield such rows, where the section has none, in ascending order."""
    arch, version, entries = conversion.image.arch, conversion.target.version, conversion.cfi.entries
    for start, end, origin, why in conversion.pieces:
        if origin is None or not isinstance(why, Why):
            continue
        entry = entries[origin]
        table = entry.program.table
        ends = (*table.starts[1:], entry.size)
        for delta, end_delta, row in zip(table.starts, ends, table.states, strict=True):
            first, last = max(start, entry.start_vaddr + delta), min(end, entry.start_vaddr + end_delta)
            loaded = _loaded(row, arch) if first < last else None
            if loaded is not None:
                state, offset = loaded
                function = Function(first, last - first, FunctionBody((0,), (state,)))
                yield first, last, LoadedCfa(Found(function, FrameRow(0, state), version, arch), offset)


def _loaded(row: RowState, arch: Arch) -> tuple[FrameState, int] | None:
    """Return the rules that count from the loaded word, and the constant; None for any other row."""
    if not isinstance(row.cfa, Expression) or not isinstance(row.sp, NoRule):
        return None
    code = row.cfa.code
    # Of the bytes of the last operand, all but the last have bit 7 set.
    at = next((at for at in range(len(code) - 2, 0, -1) if code[at] < 0x80), 0)
    with suppress(CfiError, InexpressibleError):
        offset, _ = read_uleb(code, at + 1)
        cfa = value_of(code[:at], arch.byte_order, starts_with_cfa=False)
        if code[at] == DW_OP_plus_uconst and isinstance(cfa, Rule) and cfa.deref:
            ra, fp = (
                rule._replace(offset=rule.offset + offset) if isinstance(rule, Rule) and rule.register is None else rule
                for rule in (row.ra, row.fp)
            )
            return reduce_state(row._replace(cfa=cfa, ra=ra, fp=fp), arch)[0], offset
    return None
