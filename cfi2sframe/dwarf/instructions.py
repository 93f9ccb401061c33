# SPDX-License-Identifier: Apache-2.0
"""Call frame instructions: a table of their operands, a reader of single ones, and `cut`, which cuts whole strings.

`cut` compiles the table into one regular expression, which cuts nearly every string at its advances in a single call.
The other strings are read instruction by instruction, which also finds the error in damaged ones.
"""

import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, Final, Literal, NamedTuple

from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.numbers import read_sleb, read_uleb
from cfi2sframe.errors import CfiError

Operand = Literal["uleb", "sleb", "block", "pointer", 1, 2, 4, 8]

#: Operands by opcode (DWARF 5, 7.24; GNU and AArch64 extensions). Numbers are sizes in bytes.
OPERANDS: Final[dict[int, tuple[Operand, ...]]] = {
    d.DW_CFA_nop: (),
    d.DW_CFA_set_loc: ("pointer",),
    d.DW_CFA_advance_loc1: (1,),
    d.DW_CFA_advance_loc2: (2,),
    d.DW_CFA_advance_loc4: (4,),
    d.DW_CFA_offset_extended: ("uleb", "uleb"),
    d.DW_CFA_restore_extended: ("uleb",),
    d.DW_CFA_undefined: ("uleb",),
    d.DW_CFA_same_value: ("uleb",),
    d.DW_CFA_register: ("uleb", "uleb"),
    d.DW_CFA_remember_state: (),
    d.DW_CFA_restore_state: (),
    d.DW_CFA_def_cfa: ("uleb", "uleb"),
    d.DW_CFA_def_cfa_register: ("uleb",),
    d.DW_CFA_def_cfa_offset: ("uleb",),
    d.DW_CFA_def_cfa_expression: ("block",),
    d.DW_CFA_expression: ("uleb", "block"),
    d.DW_CFA_offset_extended_sf: ("uleb", "sleb"),
    d.DW_CFA_def_cfa_sf: ("uleb", "sleb"),
    d.DW_CFA_def_cfa_offset_sf: ("sleb",),
    d.DW_CFA_val_offset: ("uleb", "uleb"),
    d.DW_CFA_val_offset_sf: ("uleb", "sleb"),
    d.DW_CFA_val_expression: ("uleb", "block"),
    d.DW_CFA_MIPS_advance_loc8: (8,),
    d.DW_CFA_AARCH64_set_ra_state: ("uleb", "sleb"),
    d.DW_CFA_AARCH64_negate_ra_state_with_pc: (),
    d.DW_CFA_AARCH64_negate_ra_state: (),
    d.DW_CFA_GNU_args_size: ("uleb",),
    d.DW_CFA_GNU_negative_offset_extended: ("uleb", "uleb"),
}
#: Opcodes whose low six bits hold their first operand, and the operands that follow it.
_PACKED_OPERANDS: Final[dict[int, tuple[Operand, ...]]] = {
    d.DW_CFA_advance_loc: (),
    d.DW_CFA_offset: ("uleb",),
    d.DW_CFA_restore: (),
}
_PACKED_OPCODE_MASK: Final = 0xC0
_PACKED_OPERAND_MASK: Final = 0x3F

#: Opcodes that advance the location by their operand, in units of the code alignment.
ADVANCES: Final = frozenset(
    {
        d.DW_CFA_advance_loc,
        d.DW_CFA_advance_loc1,
        d.DW_CFA_advance_loc2,
        d.DW_CFA_advance_loc4,
        d.DW_CFA_MIPS_advance_loc8,
    }
)


class Instruction(NamedTuple):
    """One call frame instruction, the bytes from `offset` to `end` of its string.

    An operand in the low six bits of the opcode is not in `opcode` but the first of `operands`. For DW_CFA_set_loc,
    `operands` has the offset of its operand in the string, since the value depends on the string's address.
    """

    offset: int
    opcode: int
    operands: tuple[Any, ...]
    end: int


def read_instructions(code: bytes, byte_order: str, pointer_size: int | None = None) -> Iterator[Instruction]:
    """Yield the instructions of a string.

    `pointer_size` is the size in bytes of DW_CFA_set_loc's operand; None: it is a LEB128 number.
    Raises `CfiError`, its offset that of the instruction, when one is unknown or truncated.
    """
    offset = 0
    while offset < len(code):
        try:
            instruction = _read_instruction(code, offset, byte_order, pointer_size)
        except CfiError as error:
            raise CfiError(error.reason, "", offset) from None
        yield instruction
        offset = instruction.end


def _read_instruction(code: bytes, offset: int, byte_order: str, pointer_size: int | None) -> Instruction:
    opcode, position = code[offset], offset + 1
    values: list[int | bytes] = []
    if opcode & _PACKED_OPCODE_MASK:
        values.append(opcode & _PACKED_OPERAND_MASK)
        opcode &= _PACKED_OPCODE_MASK
        operands = _PACKED_OPERANDS[opcode]
    elif opcode in OPERANDS:
        operands = OPERANDS[opcode]
    else:
        raise CfiError(f"unknown call frame instruction 0x{opcode:02x}")
    value: int | bytes
    for operand in operands:
        match operand:
            case "uleb":
                value, position = read_uleb(code, position)
            case "sleb":
                value, position = read_sleb(code, position)
            case "block":
                size, position = read_uleb(code, position)
                value = code[position : position + size]
                position += size
            case "pointer":
                value = position
                position = read_uleb(code, position)[1] if pointer_size is None else position + pointer_size
            case size:
                value = int.from_bytes(code[position : position + size], "little" if byte_order == "<" else "big")
                position += size
        if position > len(code):
            raise CfiError("truncated call frame instruction")
        values.append(value)
    return Instruction(offset, opcode, tuple(values), position)


# Bounded, because a run of continuation bytes must not make the matcher walk far; longer numbers are read one by one.
_LEB: Final = rb"[\x80-\xff]{0,9}[\x00-\x7f]"
_OPERAND_PATTERNS: Final[dict[Operand, bytes]] = {
    "uleb": _LEB,
    "sleb": _LEB,
    1: rb".",
    2: rb"..",
    4: rb"....",
    8: rb"........",
}


@cache
def _finder() -> Callable[[bytes], list[bytes]]:
    """Compile the table to a search for chunks."""
    # One alternative for all instructions with the same kinds of operands; the most frequent ones come first.
    alike: dict[bytes, bytes] = {_LEB: rb"\x80-\xbf", b"": rb"\xc0-\xff"}
    advances = [rb"[\x40-\x7f]"]
    for opcode, operands in OPERANDS.items():
        if {"block", "pointer"}.intersection(operands):
            continue
        pattern = b"".join(map(_OPERAND_PATTERNS.__getitem__, operands))
        if opcode in ADVANCES:
            advances.append(rb"\x%02x" % opcode + pattern)
        else:
            alike[pattern] = alike.get(pattern, b"") + rb"\x%02x" % opcode
    others = [b"[" + opcodes + b"]" + pattern for pattern, opcodes in alike.items()]
    advance, other = b"(?:" + b"|".join(advances) + b")", b"(?:" + b"|".join(others) + b")"
    return re.compile(advance + other + b"*|" + other + b"+", re.DOTALL).findall


def cut(instructions: bytes) -> list[bytes]:
    """Return chunks of a string, each an advance with the instructions that follow it; the first may have no advance.

    There are none for a string that is damaged or has an instruction with an expression or an address.
    """
    chunks = _finder()(instructions)
    # The search skips bytes that the expression does not match: then the chunks do not add up to the string.
    return chunks if sum(map(len, chunks)) == len(instructions) else []
