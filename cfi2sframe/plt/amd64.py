# SPDX-License-Identifier: Apache-2.0
"""The instructions of AMD64 stubs."""

from __future__ import annotations

import re
from typing import Final

from cfi2sframe.code.amd64 import AMD64_CODE
from cfi2sframe.plt.stub_model import StubArch, StubBlock

_INSTRUCTIONS: Final = frozenset(
    {"endbr64", "pause", "lfence", "nop", "int3", "hlt", "ud2", "jmp", "call", "ret", "push"}
    | {"pop", "mov", "movabs", "add", "sub"}
)
#: Those that may write to memory, and the only word that they may write to.
_WRITERS: Final = frozenset({"pop", "mov", "movabs", "add", "sub"})
_TOP_OF_STACK: Final = "qword ptr [rsp]"
#: With an operand size prefix, processors differ: some truncate the address to 16 bits, some ignore the prefix. Pushes
#: are of 16 bits, which capstone 4 does not say.
_SIZED: Final = frozenset({"jmp", "call", "ret", "push"})
_PREFIXES: Final = rb"[\x26\x2e\x36\x3e\x40-\x4f\x64-\x67\xf0\xf2\xf3]*"
_OPERAND_SIZE: Final = re.compile(_PREFIXES + rb"\x66")
#: What comes before a number that may differ: PUSH, CALL, JMP, MOV.
_BEFORE_NUMBER: Final = re.compile(_PREFIXES + rb"(?:[\x68\x6a\xe8\xe9\xeb\xb0-\xbf]|[\xc6\xc7][\xc0-\xff])")
#: Prefixes that change what a jump checks, but not its target.
_JUMP_PREFIXES: Final = ("bnd ", "notrack ")
_DISTANCE_SIZE: Final = 4
#: The bits of a ModRM byte that tell a memory operand at a distance from the next instruction, and their values.
_MODRM_MASK: Final = 0xC7
_MODRM_RELATIVE: Final = 0x05


def constant_bits(mnemonic: str, operands: str, code: bytes) -> bytes | None:
    """Return the mask of the bits that are equal in stubs of one kind; None for what stubs do not have."""
    name = mnemonic
    for prefix in _JUMP_PREFIXES:
        name = name.removeprefix(prefix)
    if name not in _INSTRUCTIONS or (name in _SIZED and _OPERAND_SIZE.match(code)):
        return None
    target = operands.partition(",")[0]
    if name in _WRITERS and "[" in target and target != _TOP_OF_STACK:
        return None
    count = len(code)
    if before := _BEFORE_NUMBER.match(code):
        count = before.end()
    elif "rip" in operands:
        count -= _DISTANCE_SIZE
    return b"\xff" * count + bytes(len(code) - count)


def branch_delta(data: bytes, offset: int, size: int) -> int:
    """Return the target of the direct jump or call of `size` bytes at `offset`, counted from the start of `data`."""
    # The displacement is the last field: one byte in the two-byte jump, else four.
    field = data[offset + size - (1 if size == 2 else 4) : offset + size]
    return offset + size + int.from_bytes(field, "little", signed=True)


def words_read(kind: StubBlock, data: bytes, start_vaddr: int) -> frozenset[int]:
    """Return the addresses of the words that a block at an address reads relative to RIP."""
    found = set()
    for offset, size, _ in kind.instructions:
        # The first bits that are not constant are a number, or the distance of the word.
        field = kind.mask.find(0, offset, offset + size)
        if field > offset and data[field - 1] & _MODRM_MASK == _MODRM_RELATIVE:
            distance = int.from_bytes(data[field : field + _DISTANCE_SIZE], "little", signed=True)
            found.add(start_vaddr + offset + size + distance)
    return frozenset(found)


AMD64_STUBS: Final = StubArch(
    AMD64_CODE,
    constant_bits,
    branch_delta,
    words_read,
    block_sizes=(8, 16, 24, 32, 48, 64),
    header_sizes=(0, 16, 32, 48, 64),
    tail_sizes=(0,),
    literal_size=0,
    save_area_size=0,
)
