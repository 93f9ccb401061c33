# SPDX-License-Identifier: Apache-2.0
"""The calls in a range of code, by a linear sweep from its start.

The lengths of AArch64's and s390x's instructions are plain to see; AMD64's need capstone, imported for the first range.
What a sweep takes for a call may be data among the instructions, which compilers avoid.
"""

from __future__ import annotations

import struct
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from cfi2sframe.arch import AMD64, S390X, Arch
from cfi2sframe.code.disassembler import open_disassembler

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.budget import Budget

#: Bytes that are disassembled at one time: capstone holds some 250 bytes for each instruction.
_PIECE_SIZE: Final = 1 << 14
_MAX_AMD64_SIZE: Final = 15
#: Steps for each instruction: of AMD64 by capstone, of the others.
_AMD64_STEPS: Final = 2
_OTHER_STEPS: Final = 1

_AMD64_CALLS: Final = ("call", "lcall")
#: Calling the next instruction is how code finds its own address. Only a range's last call does call what is next.
_AMD64_CALL_NEXT: Final = b"\xe8\0\0\0\0"

_AARCH64_BL: Final = 0x94000000
_AARCH64_BL_MASK: Final = 0xFC000000
_AARCH64_BL_NEXT: Final = _AARCH64_BL | 1
#: BLR and its forms with pointer authentication.
_AARCH64_BLR: Final = 0xD63F0000
_AARCH64_BLR_MASK: Final = 0xFEFFF000

#: The ABI's link register; code links others to find its own address.
_S390X_LINK: Final = 14
_S390X_BALR_BASR: Final = (0x05, 0x0D)
_S390X_BAL_BAS: Final = (0x45, 0x4D)
#: BRAS and BRASL by their first byte and the low half of their second. The distance, in halfwords, follows.
_S390X_BRAS_BRASL: Final = (0xA7, 0xC0)
_S390X_BRAS_LOW: Final = 0x5


class CallFinder:
    """Finds the calls in code of one ABI; `budget` counts instructions.

    `is_linked`: distances in instructions are final, which they are not in objects.
    """

    def __init__(self, arch: Arch, budget: Budget, *, is_linked: bool) -> None:
        self.arch: Final = arch
        self.budget: Final = budget
        self.is_linked: Final = is_linked

    def return_addresses(self, code: bytes, vaddr: int) -> Iterator[int]:
        """Yield the address after each call in `code`, the bytes at `vaddr`, where an instruction starts.

        Calls of the next instruction in `code` do not count. Raises `BudgetError`, and `InputError` where capstone is
        needed and cannot be loaded.
        """
        if self.arch == AMD64:
            return self._amd64(code, vaddr)
        return self._s390x(code, vaddr) if self.arch == S390X else self._aarch64(code, vaddr)

    def _amd64(self, code: bytes, vaddr: int) -> Iterator[int]:
        start = 0
        while start < len(code):
            piece = code[start : start + _PIECE_SIZE + _MAX_AMD64_SIZE]
            offset = instruction_count = 0
            for address, size, mnemonic, _ in self._disassembler.disasm_lite(piece, 0):
                # The last ones may be cut off; the next piece begins with them.
                if address >= _PIECE_SIZE:
                    break
                instruction_count += 1
                offset = address + size
                # A prefix, `bnd` or `notrack`, is a word of its own.
                if mnemonic.endswith("call") and mnemonic.rpartition(" ")[2] in _AMD64_CALLS:
                    if self.is_linked and piece.startswith(_AMD64_CALL_NEXT, address) and start + offset < len(code):
                        continue
                    yield vaddr + start + offset
            self.budget.spend(_AMD64_STEPS * instruction_count, "the instructions between calls")
            start += offset

    @cached_property
    def _disassembler(self) -> Any:  # noqa: ANN401 - capstone has no types
        found = open_disassembler(self.arch, "calls are found")
        # Bytes that are no instruction are passed one by one.
        found.skipdata = True
        return found

    def _aarch64(self, code: bytes, vaddr: int) -> Iterator[int]:
        count = len(code) // 4
        self.budget.spend(_OTHER_STEPS * count, "the instructions between calls")
        # Instructions are little-endian whatever the data is.
        for number, (word,) in enumerate(struct.iter_unpack("<I", memoryview(code)[: 4 * count]), 1):
            if word & _AARCH64_BL_MASK == _AARCH64_BL:
                if not (self.is_linked and word == _AARCH64_BL_NEXT and number < count):
                    yield vaddr + 4 * number
            elif word & _AARCH64_BLR_MASK == _AARCH64_BLR:
                yield vaddr + 4 * number

    def _s390x(self, code: bytes, vaddr: int) -> Iterator[int]:
        self.budget.spend(_OTHER_STEPS * (len(code) // 2), "the instructions between calls")
        offset = 0
        while offset + 1 < len(code):
            first, second = code[offset], code[offset + 1]
            # The two highest bits: 0 is two bytes, 1 and 2 are four, 3 is six.
            size = 2 if first < 0x40 else 4 if first < 0xC0 else 6
            after = offset + size
            if second >> 4 == _S390X_LINK and after <= len(code):
                distance = self._s390x_distance(code[offset:after])
                if distance is not None and not (self.is_linked and distance == size and after < len(code)):
                    yield vaddr + after
            offset = after

    def _s390x_distance(self, code: bytes) -> int | None:
        """Return how far a call branches, 0 where that is not known; None when the instruction is no call.

        The instruction's first operand is the link register.
        """
        first, low = code[0], code[1] & 0xF
        if first in _S390X_BAL_BAS:
            return 0
        if first in _S390X_BALR_BASR:
            # Register 0 stands for no branch.
            return 0 if low else None
        if first in _S390X_BRAS_BRASL and low == _S390X_BRAS_LOW:
            return 2 * int.from_bytes(code[2:], "big", signed=True)
        return None
