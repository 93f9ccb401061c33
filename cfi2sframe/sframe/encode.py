# SPDX-License-Identifier: Apache-2.0
"""A section plan to bytes. Decides nothing."""

from __future__ import annotations

import struct
import sys
from array import array
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.sframe.layout import SectionPlan

_NATIVE_ORDER: Final = "<" if sys.byteorder == "little" else ">"
#: Fields of a function record, by version, as type codes of `array`; in version 2 two bytes of padding follow.
_RECORD_FIELDS: Final = {1: "iIIIB", 2: "iIIIBB", 3: "qII"}


def encode_section(plan: SectionPlan) -> bytes:
    """Return the section's bytes: header, function table, rows (version 3: attributes and rows)."""
    order = plan.arch.byte_order
    return b"".join([_header(plan, order), _function_table(plan, order), *[body.data for body in plan.bodies]])


def _function_table(plan: SectionPlan, order: str) -> bytearray:
    """Return the function table, filled by columns of bytes: no Python code runs for a single record."""
    columns: list[Sequence[int]] = [plan.start_fields, plan.sizes, plan.fre_offsets]
    if plan.version < s.SFRAME_VERSION_3:
        columns += [[body.row_count for body in plan.function_bodies], [body.info for body in plan.function_bodies]]
    if plan.version == s.SFRAME_VERSION_2:
        columns.append([body.repeat_size for body in plan.function_bodies])
    size = s.FDE_SIZE[plan.version]
    table = bytearray(size * len(plan.sizes))
    offset = 0
    for code, column in zip(_RECORD_FIELDS[plan.version], columns, strict=True):
        values = array(code, column)
        if order != _NATIVE_ORDER:
            values.byteswap()
        data, width = values.tobytes(), values.itemsize
        for byte in range(width):
            table[offset + byte :: size] = data[byte::width]
        offset += width
    return table


def _header(plan: SectionPlan, order: str) -> bytes:
    table_size = s.FDE_SIZE[plan.version] * len(plan.sizes)
    return struct.pack(
        order + "HBBBbbBIIIII",
        s.SFRAME_MAGIC,
        plan.version,
        plan.flags,
        plan.arch.abi_id,
        0,  # sfh_cfa_fixed_fp_offset: FP is tracked row by row in every ABI
        plan.arch.fixed_ra_offset,
        0,  # sfh_auxhdr_len
        len(plan.sizes),
        plan.fre_count,
        plan.fre_size,
        0,  # sfh_fdeoff
        table_size,  # sfh_freoff
    )
