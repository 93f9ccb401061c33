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
_BYTES: Final = tuple(bytes((value,)) for value in range(256))
#: struct codes of a function record, see `_record`.
_RECORD_CODES: Final = {1: "iIIIB", 2: "iIIIBBxx", 3: "qII"}


def encode_section(plan: SectionPlan) -> bytes:
    """Return the section's bytes: header, function table, rows (version 3: attributes and rows)."""
    order = plan.arch.byte_order
    encoder = _BodyEncoder(plan.version, order)
    encoded: dict[int, bytes] = {}
    parts: list[bytes] = [_header(plan, order)]
    record = struct.Struct(order + _RECORD_CODES[plan.version]).pack
    if plan.version >= s.SFRAME_VERSION_3:
        parts += [record(start, size, offset) for start, size, offset, _ in plan.functions]
    elif plan.version == s.SFRAME_VERSION_2:
        parts += [
            record(start, size, offset, len(body.starts), body.info, body.repeat_size)
            for start, size, offset, body in plan.functions
        ]
    else:
        parts += [
            record(start, size, offset, len(body.starts), body.info) for start, size, offset, body in plan.functions
        ]
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
        tails = self.tails
        try:
            ends = [tails[id(state)][0] for state in body.states]
        except KeyError:
            ends = [self.tail(state) for state in body.states]
        if body.fre_type == s.SFRAME_FRE_TYPE_ADDR1:
            rows = [_BYTES[start] + end for start, end in zip(body.starts, ends, strict=True)]
        else:
            pack = self.pack_start[body.fre_type]
            rows = [pack(start) + end for start, end in zip(body.starts, ends, strict=True)]
        if self.version >= s.SFRAME_VERSION_3:
            rows.insert(0, self.pack_attribute(len(body.starts), body.info, body.info2, body.repeat_size))
        return b"".join(rows)

    def tail(self, state: PlannedState) -> bytes:
        """Return what follows a row's start: its info byte and data words."""
        known = self.tails.get(id(state))
        if known is not None:
            return known[0]
        form = f"{self.order}B{len(state.words)}{_WORD_CODES[state.size_code]}"
        data = struct.pack(form, state.info, *state.words)
        # The entry keeps the state alive, so that its identity stays its own.
        self.tails[id(state)] = (data, state)
        return data
