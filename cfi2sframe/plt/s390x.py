# SPDX-License-Identifier: Apache-2.0
"""The instructions of s390x stubs, which move no SP, and store in the caller's save area only."""

from __future__ import annotations

from typing import Final

from cfi2sframe.code.s390x import S390X_CODE
from cfi2sframe.plt.stub_model import StubArch, StubBlock

_SP: Final = 15
#: Operation codes: of one byte, or the first byte and the low half of the second, or the first and the last byte.
_BCR: Final = 0x07
_BASR: Final = 0x0D
_MVC: Final = 0xD2
_RELATIVE: Final = 0xC0
_LARL: Final = 0
_WITH_NUMBER: Final = (_LARL, 1, 4)  # LARL, LGFI, BRCL
_LONG: Final = 0xE3
_LOADS: Final = (0x04, 0x14)  # LG, LGF
_STG: Final = 0x24


def constant_bits(_mnemonic: str, _operands: str, code: bytes) -> bytes | None:
    """Return the mask of the bits that are equal in stubs of one kind; None for what stubs do not have."""
    first, low = code[0], code[1] & 0xF
    if first == _RELATIVE:
        return b"\xff\xff\0\0\0\0" if low in _WITH_NUMBER else None
    is_known = (
        first == _BCR
        or (first == _BASR and low == 0)  # without a branch
        or (first == _LONG and code[5] in _LOADS)
        or (first == _LONG and code[5] == _STG and low == 0 and code[2] >> 4 == _SP)
        or (first == _MVC and code[2] >> 4 == _SP)
    )
    return b"\xff" * len(code) if is_known else None


def branch_delta(data: bytes, offset: int, _size: int) -> int:
    """Return the target of the `jg` (or `larl`) at `offset`, counted from the start of `data`."""
    return offset + 2 * int.from_bytes(data[offset + 2 : offset + 6], "big", signed=True)


def words_read(kind: StubBlock, data: bytes, start_vaddr: int) -> frozenset[int]:
    """Return the addresses that a block at `start_vaddr` computes by LARL, and loads from."""
    return frozenset(
        start_vaddr + branch_delta(data, insn.offset, insn.size)
        for insn in kind.instructions
        if data[insn.offset] == _RELATIVE and data[insn.offset + 1] & 0xF == _LARL
    )


S390X_STUBS: Final = StubArch(
    S390X_CODE,
    constant_bits,
    branch_delta,
    words_read,
    block_sizes=(16, 32),
    header_sizes=(0, 32),
    tail_sizes=(0,),
    # The offset of the stub's relocation, which its second half loads.
    literal_size=4,
    # The register save area; the slots of r6 to r15 start at 48.
    save_area_size=160,
)
