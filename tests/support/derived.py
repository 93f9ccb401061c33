# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions as tests want them, in place of the analysis."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.dwarf.row_section import RowFunction
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RowState, UnwindTable, table_of_rows
from cfi2sframe.instructions import derive as door
from cfi2sframe.instructions.derive import Derived
from cfi2sframe.reasons import CodeReason, Underived
from tests.support.rules import at_cfa, is_expression, register_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pytest

    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span
    from cfi2sframe.errors import InputError


class Asked(NamedTuple):
    """What the analysis was asked for, in the order of the questions."""

    covered: list[tuple[Span, ...]]


def leaf_state(arch: Arch, pushed: int = 0) -> RowState:
    """Return the state of a function that has pushed some bytes since its entry."""
    entry = {"AMD64": 8, "s390x": 160}.get(arch.name, 0)
    ra = at_cfa(arch.fixed_ra_offset) if arch.fixed_ra_offset else NoRule.UNSPECIFIED
    cfa = register_offset(arch.sp_register, entry + pushed)
    return RowState(cfa, ra, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)


def table_of(arch: Arch, *rows: tuple[int, int | None]) -> UnwindTable:
    """Return the table of rows (start, bytes pushed); None: a CFA that no version can express."""
    states = []
    for start, pushed in rows:
        state = leaf_state(arch, pushed or 0)
        if pushed is None:
            state = state._replace(cfa=is_expression(b"\x30\x31\x1a"))
        states.append((start, state))
    return table_of_rows(states)


def derived(arch: Arch, start: int, end: int, *rows: tuple[int, int | None]) -> RowFunction:
    """Return a function of some rows; without any, of a leaf's."""
    return RowFunction(start, end - start, table_of(arch, *(rows or ((0, 0),))))


def give(
    monkeypatch: pytest.MonkeyPatch,
    *functions: RowFunction,
    left_out: Sequence[tuple[int, int]] = (),
    error: InputError | None = None,
) -> Asked:
    """Have the analysis give these functions, or raise an error. Nothing is known to lead to what is `left_out`."""
    asked = Asked([])

    def derive(image: ElfImage, covered: Sequence[Span]) -> Derived:
        del image
        asked.covered.append(tuple(covered))
        if error is not None:
            raise error
        reasons = [Underived(start, end, CodeReason.NOT_REACHED) for start, end in left_out]
        return Derived(tuple(functions), tuple(reasons))

    replaced: Callable[[ElfImage, Sequence[Span]], Derived] = derive
    monkeypatch.setattr(door, "derive", replaced)
    return asked
