# SPDX-License-Identifier: Apache-2.0
"""A section plan -> bytes. Decides nothing."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from cfi2sframe.sframe.layout import SectionPlan

#: struct codes of a function record, by version.
_RECORD_CODES: Final = {1: "iIIIB", 2: "iIIIBBxx", 3: "qII"}


def encode_section(plan: SectionPlan) -> bytes:
    """Return the section's bytes: header, function table, rows (version 3: attributes and rows)."""
    order = plan.arch.byte_order
    pack = struct.Struct(order + _RECORD_CODES[plan.version]).pack
    columns: list[tuple[int, ...] | list[int]] = [plan.start_fields, plan.sizes, plan.fre_offsets]
    if plan.version < s.SFRAME_VERSION_3:
        columns += [[body.row_count for body in plan.function_bodies], [body.info for body in plan.function_bodies]]
    if plan.version == s.SFRAME_VERSION_2:
        columns.append([body.repeat_size for body in plan.function_bodies])
    parts = [_header(plan, order), *map(pack, *columns)]
    parts += [body.data for body in plan.bodies]
    return b"".join(parts)


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
