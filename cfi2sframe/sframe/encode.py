# SPDX-License-Identifier: Apache-2.0
"""A section plan -> bytes. Decides nothing."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from cfi2sframe.sframe.layout import PlannedBody, SectionPlan

_START_CODES: Final = ("B", "H", "I")
_WORD_CODES: Final = ("b", "h", "i")
#: struct codes of a function record, see `_record`.
_RECORD_CODES: Final = {1: "iIIIB", 2: "iIIIBBxx", 3: "qII"}


def encode_section(plan: SectionPlan) -> bytes:
    """Return the section's bytes: header, function table, rows (version 3: attributes and rows)."""
    order = plan.arch.byte_order
    encoded: dict[int, bytes] = {}
    parts: list[bytes] = [_header(plan, order)]
    record = struct.Struct(order + _RECORD_CODES[plan.version]).pack
    for start_field, size, fre_offset, body in plan.functions:
        if plan.version >= s.SFRAME_VERSION_3:
            parts.append(record(start_field, size, fre_offset))
        elif plan.version == s.SFRAME_VERSION_2:
            parts.append(record(start_field, size, fre_offset, len(body.rows), body.info, body.repeat_size))
        else:
            parts.append(record(start_field, size, fre_offset, len(body.rows), body.info))
    for body in plan.bodies:
        # Equal functions share one planned body, so its identity will do; the plan keeps it alive.
        data = encoded.get(id(body))
        if data is None:
            data = encoded[id(body)] = encode_body(body, plan.version, order)
        parts.append(data)
    return b"".join(parts)


def _header(plan: SectionPlan, order: str) -> bytes:
    table_size = s.FDE_SIZE[plan.version] * len(plan.functions)
    return struct.pack(
        order + "HBBBbbBIIIII",
        s.SFRAME_MAGIC,
        plan.version,
        plan.flags,
        plan.arch.abi_id,
        0,  # sfh_cfa_fixed_fp_offset: FP is tracked row by row in every ABI
        plan.arch.fixed_ra_offset,
        0,  # sfh_auxhdr_len
        len(plan.functions),
        plan.fre_count,
        plan.fre_size,
        0,  # sfh_fdeoff
        table_size,  # sfh_freoff
    )


def encode_body(body: PlannedBody, version: int, order: str) -> bytes:
    """Return a function's rows, in version 3 behind their attribute."""
    parts = []
    if version >= s.SFRAME_VERSION_3:
        parts.append(struct.pack(order + "HBBB", len(body.rows), body.info, body.info2, body.repeat_size))
    start_code = _START_CODES[body.fre_type]
    for start_delta, info, size_code, words in body.rows:
        form = f"{order}{start_code}B{len(words)}{_WORD_CODES[size_code]}"
        parts.append(struct.pack(form, start_delta, info, *words))
    return b"".join(parts)
