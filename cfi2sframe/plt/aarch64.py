# SPDX-License-Identifier: Apache-2.0
"""The instructions of AArch64 stubs. They are little-endian, whatever the byte order of data."""

from __future__ import annotations

from typing import Final

from cfi2sframe.code.aarch64 import AARCH64_CODE
from cfi2sframe.plt.stub_model import StubArch, StubBlock

_ALL_BITS: Final = 0xFFFFFFFF
#: The bits that tell an instruction, their value, and the bits that are equal in stubs of one kind.
_INSTRUCTIONS: Final = (
    (_ALL_BITS, 0xD503201F, _ALL_BITS),  # NOP
    (_ALL_BITS, 0xD503219F, _ALL_BITS),  # AUTIA1716
    (_ALL_BITS, 0xD50321DF, _ALL_BITS),  # AUTIB1716
    (0xFFFFFF3F, 0xD503241F, _ALL_BITS),  # BTI
    (0xFFFFFC1F, 0xD61F0000, _ALL_BITS),  # BR
    (0xFC000000, 0x14000000, 0xFC000000),  # B
    (0xFFE003E0, 0xA9A003E0, _ALL_BITS),  # STP Xt1, Xt2, [SP, #-n]!
    (0x1F000000, 0x10000000, 0x9F00001F),  # ADR, ADRP
    # With an unsigned offset of 12 bits, without writeback.
    (0xFFC00000, 0xF9400000, 0xFFC003FF),  # LDR Xt
    (0xFFC00000, 0x91000000, 0xFFC003FF),  # ADD Xd
)
_ADD_SP_MASK: Final = 0xFFC0001F
_ADD_SP: Final = 0x9100001F
_PAGE_BITS: Final = 12


def constant_bits(_mnemonic: str, _operands: str, code: bytes) -> bytes | None:
    """Return the mask of the bits that are equal in stubs of one kind; None for what stubs do not have."""
    word = int.from_bytes(code, "little")
    if word & _ADD_SP_MASK == _ADD_SP:
        return None
    found = next((constant for bits, value, constant in _INSTRUCTIONS if word & bits == value), None)
    return None if found is None else found.to_bytes(4, "little")


def branch_delta(data: bytes, offset: int, _size: int) -> int:
    """Return the target of the `b` at `offset`, counted from the start of `data`."""
    distance = int.from_bytes(data[offset : offset + 4], "little") & 0x3FFFFFF
    return offset + 4 * ((distance ^ 0x2000000) - 0x2000000)


def words_read(kind: StubBlock, data: bytes, start_vaddr: int) -> frozenset[int]:
    """Return the addresses of the words that a block at an address loads by ADRP and LDR."""
    pages: dict[int, int] = {}
    found = set()
    for insn in kind.instructions:
        word = int.from_bytes(data[insn.offset : insn.offset + 4], "little")
        target, base = word & 0x1F, word >> 5 & 0x1F
        if word & 0x9F000000 == 0x90000000:
            distance = ((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3) << _PAGE_BITS
            limit = 1 << 20 + _PAGE_BITS
            pages[target] = ((start_vaddr + insn.offset) >> _PAGE_BITS << _PAGE_BITS) + (distance ^ limit) - limit
        elif word & 0xFFC00000 == 0xF9400000 and base in pages:
            found.add(pages[base] + (word >> 10 & 0xFFF) * 8)
    return frozenset(found)


AARCH64_STUBS: Final = StubArch(
    AARCH64_CODE,
    constant_bits,
    branch_delta,
    words_read,
    block_sizes=(16, 24, 32),
    header_sizes=(0, 32, 48),
    # The trampoline of lazy TLS descriptors follows the last stub.
    tail_sizes=(0, 32),
    literal_size=0,
    save_area_size=0,
)
