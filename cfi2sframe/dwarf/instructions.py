# SPDX-License-Identifier: Apache-2.0
"""Call frame instruction strings cut into chunks: an advance, and the instructions up to the next one.

One table says which operands an opcode has. From it come a compiled expression, which cuts nearly every string in one
call, and a walk, which cuts the rest and finds what is wrong with those that cannot be cut.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf.leb128 import read_uleb
from cfi2sframe.errors import CfiError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Operand = Literal["leb", "block", "pointer", 1, 2, 4, 8]

#: Operands by opcode (DWARF 5, 7.24; GNU and AArch64 extensions), but for those with one in the low six bits.
OPERANDS: Final[dict[int, tuple[Operand, ...]]] = {
    d.DW_CFA_nop: (),
    d.DW_CFA_set_loc: ("pointer",),
    d.DW_CFA_advance_loc1: (1,),
    d.DW_CFA_advance_loc2: (2,),
    d.DW_CFA_advance_loc4: (4,),
    d.DW_CFA_offset_extended: ("leb", "leb"),
    d.DW_CFA_restore_extended: ("leb",),
    d.DW_CFA_undefined: ("leb",),
    d.DW_CFA_same_value: ("leb",),
    d.DW_CFA_register: ("leb", "leb"),
    d.DW_CFA_remember_state: (),
    d.DW_CFA_restore_state: (),
    d.DW_CFA_def_cfa: ("leb", "leb"),
    d.DW_CFA_def_cfa_register: ("leb",),
    d.DW_CFA_def_cfa_offset: ("leb",),
    d.DW_CFA_def_cfa_expression: ("block",),
    d.DW_CFA_expression: ("leb", "block"),
    d.DW_CFA_offset_extended_sf: ("leb", "leb"),
    d.DW_CFA_def_cfa_sf: ("leb", "leb"),
    d.DW_CFA_def_cfa_offset_sf: ("leb",),
    d.DW_CFA_val_offset: ("leb", "leb"),
    d.DW_CFA_val_offset_sf: ("leb", "leb"),
    d.DW_CFA_val_expression: ("leb", "block"),
    d.DW_CFA_MIPS_advance_loc8: (8,),
    d.DW_CFA_AARCH64_set_ra_state: ("leb", "leb"),
    d.DW_CFA_AARCH64_negate_ra_state_with_pc: (),
    d.DW_CFA_AARCH64_negate_ra_state: (),
    d.DW_CFA_GNU_args_size: ("leb",),
    d.DW_CFA_GNU_negative_offset_extended: ("leb", "leb"),
}

#: Advances by opcode -> bytes of the operand. DW_CFA_advance_loc carries it in its low six bits.
ADVANCE_SIZES: Final = {
    d.DW_CFA_advance_loc1: 1,
    d.DW_CFA_advance_loc2: 2,
    d.DW_CFA_advance_loc4: 4,
    d.DW_CFA_MIPS_advance_loc8: 8,
}

# Bounded, so that no input makes the matcher walk far for nothing; longer numbers are the walk's to judge.
_LEB: Final = rb"[\x80-\xff]{0,9}+[\x00-\x7f]"
_OPERAND_PATTERNS: Final[dict[Operand, bytes]] = {"leb": _LEB, 1: rb".", 2: rb"..", 4: rb"....", 8: rb"........"}


def _compile() -> Callable[[bytes], list[bytes]]:
    """Compile the expression: a few milliseconds, which small files do without."""
    # One alternative for all instructions with the same operands, those of nearly all programs first.
    alike: dict[tuple[Operand, ...], bytes] = {("leb",): rb"\x80-\xbf", (): rb"\xc0-\xff"}
    advances = [rb"[\x40-\x7f]"]
    for opcode, operands in OPERANDS.items():
        pattern = rb"\x%02x" % opcode
        if opcode in ADVANCE_SIZES:
            advances.append(pattern + b"".join(map(_OPERAND_PATTERNS.__getitem__, operands)))
        elif not {"block", "pointer"}.intersection(operands):
            alike[operands] = alike.get(operands, b"") + pattern
    others = [
        b"[" + opcodes + b"]" + b"".join(map(_OPERAND_PATTERNS.__getitem__, operands))
        for operands, opcodes in alike.items()
    ]
    advance, other = b"(?:" + b"|".join(advances) + b")", b"(?:" + b"|".join(others) + b")"
    return re.compile(advance + other + b"*+|" + other + b"++", re.DOTALL).findall


class Chunk(NamedTuple):
    """A piece of an instruction string: an advance (`opcode` None: none), and the instructions behind it.

    `offset` is the piece's in the string, `code_offset` that of `code`. `advance` counts units of the code alignment;
    for DW_CFA_set_loc it is the offset of the operand in the string.
    """

    offset: int
    opcode: int | None
    advance: int
    code: bytes
    code_offset: int


class Cutter:
    """Cuts strings the quick way, once so many have been seen that its preparation pays: `patience` more."""

    def __init__(self, patience: int = 100) -> None:
        self.patience = patience
        self._find: Callable[[bytes], list[bytes]] | None = None

    def cut(self, instructions: bytes) -> list[bytes] | None:
        """Cut a string into chunks, each an advance with what follows it (the first may have none).

        None: it has instructions that have to be walked, is damaged, or there is patience left.
        """
        if self.patience > 0:
            self.patience -= 1
            return None
        find = self._find
        if find is None:
            find = self._find = _compile()
        chunks = find(instructions)
        # What cannot be cut is passed over by the search, so the lengths tell.
        return chunks if sum(map(len, chunks)) == len(instructions) else None


#: The one that all files of a process share.
CUTTER: Final = Cutter()


def walk_chunks(instructions: bytes, byte_order: str, pointer_size: int | None = None) -> Iterator[Chunk]:
    """Cut a string instruction by instruction.

    `pointer_size` is the size of DW_CFA_set_loc's operand; None: it is a LEB128 number.
    Raises `CfiError`, its offset that of the instruction, when one is unknown or truncated.
    """
    start = position = code_start = 0
    opcode: int | None = None
    advance = 0
    end = len(instructions)
    while position < end:
        begin = position
        current = instructions[position]
        is_advance = d.DW_CFA_advance_loc <= current < d.DW_CFA_offset or current in ADVANCE_SIZES
        is_advance = is_advance or current == d.DW_CFA_set_loc
        if is_advance and (position > start or opcode is not None):
            yield Chunk(start, opcode, advance, instructions[code_start:position], code_start)
        try:
            position = _skip(instructions, position, pointer_size)
        except CfiError as error:
            raise CfiError(error.reason, "", begin) from None
        if is_advance:
            start, opcode, code_start = begin, current, position
            advance = begin + 1 if current == d.DW_CFA_set_loc else _advance(instructions, begin, byte_order)
    if start < end:
        yield Chunk(start, opcode, advance, instructions[code_start:], code_start)


def read_chunk(chunk: bytes, byte_order: str) -> tuple[int, bytes]:
    """Split a quick chunk into its advance (in units of the code alignment; 0 without one) and the rest."""
    opcode = chunk[0]
    if d.DW_CFA_advance_loc <= opcode < d.DW_CFA_offset:
        return opcode & 0x3F, chunk[1:]
    size = ADVANCE_SIZES.get(opcode)
    if size is None:
        return 0, chunk
    return _advance(chunk, 0, byte_order), chunk[1 + size :]


def _advance(code: bytes, position: int, byte_order: str) -> int:
    opcode = code[position]
    if d.DW_CFA_advance_loc <= opcode < d.DW_CFA_offset:
        return opcode & 0x3F
    operand = code[position + 1 : position + 1 + ADVANCE_SIZES[opcode]]
    return int.from_bytes(operand, "little" if byte_order == "<" else "big")


def _skip(code: bytes, position: int, pointer_size: int | None) -> int:
    """Return the offset past the instruction at `position`."""
    opcode = code[position]
    position += 1
    operands: tuple[Operand, ...]
    if opcode >= d.DW_CFA_advance_loc:
        operands = ("leb",) if d.DW_CFA_offset <= opcode < d.DW_CFA_restore else ()
    elif opcode in OPERANDS:
        operands = OPERANDS[opcode]
    else:
        raise CfiError(f"unknown call frame instruction 0x{opcode:02x}")
    for operand in operands:
        if operand == "leb" or (operand == "pointer" and pointer_size is None):
            _, position = read_uleb(code, position)
        elif operand == "block":
            size, position = read_uleb(code, position)
            position += size
        else:
            position += pointer_size or 0 if operand == "pointer" else int(operand)
        if position > len(code):
            raise CfiError("truncated call frame instruction")
    return position
