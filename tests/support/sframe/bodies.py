# SPDX-License-Identifier: Apache-2.0
"""Function bodies written row by row, and sections of functions that are given as records; their bytes."""

from collections.abc import Iterable

from cfi2sframe.abi import Arch
from cfi2sframe.sframe.model import FrameRow, Function, FunctionBody, Section
from cfi2sframe.sframe.write import store_rows, write_section


def body_of_rows(
    rows: Iterable[FrameRow],
    is_flexible: bool = False,  # noqa: FBT001, FBT002 - in the order of the record's fields
    is_signal_frame: bool = False,  # noqa: FBT001, FBT002
    uses_b_key: bool = False,  # noqa: FBT001, FBT002
    repeat_size: int = 0,
) -> FunctionBody:
    """Return a body with these rows."""
    kept = tuple(rows)
    starts, states = tuple(row.start_delta for row in kept), tuple(row.state for row in kept)
    return FunctionBody(starts, states, is_flexible, is_signal_frame, uses_b_key, repeat_size)


def with_functions(section: Section, functions: Iterable[Function]) -> Section:
    """Return a section with these functions in place of its own."""
    records = tuple(functions)
    return section._replace(
        starts=tuple([function.start_vaddr for function in records]),
        sizes=tuple([function.size for function in records]),
        bodies=tuple([function.body for function in records]),
    )


def section_bytes(section: Section, arch: Arch, section_vaddr: int, *, share: bool = False) -> bytes:
    """Return the bytes of a section at an address."""
    return write_section(section, arch, store_rows(section, arch, share=share), section_vaddr)
