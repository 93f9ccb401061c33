# SPDX-License-Identifier: Apache-2.0
"""A section plan -> bytes. Decides nothing."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from cfi2sframe.sframe.layout import PlannedBody, PlannedState, SectionPlan

_START_CODES: Final = ("B", "H", "I")
_WORD_CODES: Final = ("b", "h", "i")
#: struct codes of a function record, see `_record`.
_RECORD_CODES: Final = {1: "iIIIB", 2: "iIIIBBxx", 3: "qII"}


def encode_section(plan: SectionPlan) -> bytes:
    """Return the section's bytes: header, function table, rows (version 3: attributes and rows)."""
    order = plan.arch.byte_order
    encoder = _BodyEncoder(plan.version, order)
    encoded: dict[int, bytes] = {}
    parts: list[bytes] = [_header(plan, order)]
    record = struct.Struct(order + _RECORD_CODES[plan.version]).pack
    for start_field, size, fre_offset, body in plan.functions:
        if plan.version >= s.SFRAME_VERSION_3:
            parts.append(record(start_field, size, fre_offset))
        elif plan.version == s.SFRAME_VERSION_2:
            parts.append(record(start_field, size, fre_offset, len(body.starts), body.info, body.repeat_size))
        else:
            parts.append(record(start_field, size, fre_offset, len(body.starts), body.info))
    for body in plan.bodies:
        # Equal functions share one planned body, so its identity will do; the plan keeps it alive.
        data = encoded.get(id(body))
        if data is None:
            data = encoded[id(body)] = encoder.encode(body)
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


class _BodyEncoder:
    """Encodes functions' rows. Rows differ by their starts and little else: each state's bytes are made once."""

    def __init__(self, version: int, order: str) -> None:
        self.version = version
        self.order = order
        self.pack_attribute = struct.Struct(order + "HBBB").pack
        self.pack_start = tuple(struct.Struct(order + code).pack for code in _START_CODES)
        self.tails: dict[int, tuple[bytes, PlannedState]] = {}

    def encode(self, body: PlannedBody) -> bytes:
        """Return a function's rows, in version 3 behind their attribute."""
        known = self.tails.get
        pack = self.pack_start[body.fre_type]
        parts = []
        if self.version >= s.SFRAME_VERSION_3:
            parts.append(self.pack_attribute(len(body.starts), body.info, body.info2, body.repeat_size))
        for start_delta, state in zip(body.starts, body.states, strict=True):
            entry = known(id(state))
            parts.append(pack(start_delta) + (self.tail(state) if entry is None else entry[0]))
        return b"".join(parts)

    def tail(self, state: PlannedState) -> bytes:
        """Return what follows a row's start: its info byte and data words."""
        form = f"{self.order}B{len(state.words)}{_WORD_CODES[state.size_code]}"
        data = struct.pack(form, state.info, *state.words)
        # The entry keeps the state alive, so that its identity stays its own.
        self.tails[id(state)] = (data, state)
        return data
