# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies of well-formed CFI programs: a CIE and an FDE of drawn instructions."""

from typing import Final, Literal, NamedTuple, TypeAlias, get_args

from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import cie_of

Operation: TypeAlias = Literal[
    "advance",
    "def_cfa",
    "def_cfa_register",
    "def_cfa_offset",
    "def_cfa_expression",
    "offset",
    "val_offset",
    "register",
    "undefined",
    "same_value",
    "expression",
    "val_expression",
    "restore",
    "remember_state",
    "restore_state",
    "negate_ra_state",
    "no_effect",
]
OPERATIONS: Final[frozenset[Operation]] = frozenset(get_args(Operation))
#: Registers beside SP, FP and RA that programs use, as DWARF numbers.
OTHERS: Final = {
    AMD64.name: (0, 3, 10, 12, 15, 17, 66),
    **dict.fromkeys((AARCH64_LE.name, AARCH64_BE.name), (0, 9, 16, 19, 28, 72, 79)),
    S390X.name: (0, 1, 6, 12, 16, 24, 31, 68),
}
DATA_ALIGN: Final = -8


def code_align(arch: Arch) -> int:
    """Return the size of an instruction, at least."""
    return 4 if arch in (AARCH64_LE, AARCH64_BE) else 1


class Program(NamedTuple):
    """A drawn program."""

    arch: Arch
    cie: asm.Cie
    fde: asm.Fde

    def section(self, address: int = 0, *, debug_frame: bool = False) -> asm.EhFrame:
        """Return a section of this CIE and FDE alone, in the byte order of the ABI."""
        entries: tuple[asm.Entry, ...] = (self.cie, self.fde)
        if not debug_frame:
            entries = (*entries, asm.Terminator())
        return asm.EhFrame(entries, address, little_endian=self.arch.byte_order == "<", debug_frame=debug_frame)


def _breg(register: int, offset: int) -> bytes:
    if register < 32:
        return bytes((0x70 + register,)) + asm.sleb128(offset)
    return b"\x92" + asm.uleb128(register) + asm.sleb128(offset)


def cfa_offsets() -> st.SearchStrategy[int]:
    """Offsets of a CFA in bytes, in the widths that 8, 16 and 32 bits can and cannot hold."""
    edges = (0, 8, 16, 120, 127, 128, 160, 248, 255, 256, 32767, 32768, 65536, (1 << 31) - 8, 1 << 31)
    return st.sampled_from(edges) | st.integers(0, 64).map(lambda words: 8 * words) | st.integers(0, 1 << 32)


def _save_offsets() -> st.SearchStrategy[int]:
    edges = (-8, -16, -128, -136, 0, 8, 120, 128, -32768, -32776, -(1 << 31), -(1 << 31) - 8)
    return st.sampled_from(edges) | st.integers(-64, 64).map(lambda words: 8 * words)


def expressions(arch: Arch) -> st.SearchStrategy[bytes]:
    """Expressions of shapes that compilers and linkers emit, and some that only a fuzzer would."""
    register = st.sampled_from((arch.sp_register, arch.fp_register, *OTHERS[arch.name]))
    small = st.integers(-40, 40).map(lambda words: 8 * words)
    shape = st.sampled_from((b"", b"\x06", b"\x06\x23\x08", b"\x06\x06", b"\x23\x10", b"\x96", b"\x06\x38\x1c"))
    based = st.builds(lambda reg, off, tail: _breg(reg, off) + tail, register, small, shape)
    plt = st.sampled_from(
        tuple(b"\x77\x08\x80\x00\x3f\x1a" + bytes((0x30 + limit,)) + b"\x2a\x33\x24\x22" for limit in (9, 10, 11))
    )
    vg_scaled = st.builds(lambda off: _breg(arch.sp_register, off) + b"\x92\x2e\x00\x38\x1e\x22", small)
    odd = st.sampled_from((b"", b"\x30", b"\x9c", b"\x12", b"\x22", b"\xff", b"\x03" + bytes(8), b"\x08"))
    return based | plt | vg_scaled | odd


def _registers(arch: Arch) -> st.SearchStrategy[int]:
    return st.sampled_from((arch.fp_register, arch.ra_register)) | st.sampled_from(
        (arch.sp_register, *OTHERS[arch.name])
    )


@st.composite
def _advances(draw: st.DrawFn) -> tuple[int, asm.Instruction]:
    """Draw code units, and an instruction that advances by them."""
    units = draw(st.sampled_from((0, 1, 1, 2, 4, 63, 64, 255, 256, 65535, 65536)) | st.integers(0, 300))
    forms = ((asm.advance0, 1 << 6), (asm.advance1, 1 << 8), (asm.advance2, 1 << 16), (asm.advance4, 1 << 32))
    return units, draw(st.sampled_from([form(units) for form, limit in forms if units < limit]))


@st.composite
def _instructions(draw: st.DrawFn, arch: Arch, operation: Operation) -> asm.Instruction:
    """Draw an instruction of a kind, in any form that has room for its numbers."""
    register = draw(_registers(arch))
    base = draw(st.sampled_from((arch.sp_register, arch.fp_register)) | st.sampled_from(OTHERS[arch.name]))
    plain: dict[Operation, list[asm.Instruction]] = {
        "def_cfa_register": [asm.def_cfa_register(base)],
        "undefined": [asm.undefined(register)],
        "same_value": [asm.same_value(register)],
        "restore": [asm.restore_extended(register)] + ([asm.restore(register)] if register < 0x40 else []),
        "remember_state": [asm.remember_state()],
        "restore_state": [asm.restore_state()],
        "negate_ra_state": [asm.aarch64_negate_ra_state()],
        "no_effect": [asm.nop(), asm.gnu_args_size(0), asm.gnu_args_size(200)],
    }
    forms = plain.get(operation, [])
    match operation:
        case "def_cfa" | "def_cfa_offset":
            offset, registers = draw(cfa_offsets()), (base,) if operation == "def_cfa" else ()
            forms = [(asm.def_cfa if registers else asm.def_cfa_offset)(*registers, offset)]
            if offset % DATA_ALIGN == 0:
                factored = asm.def_cfa_sf if registers else asm.def_cfa_offset_sf
                forms.append(factored(*registers, offset // DATA_ALIGN))
        case "def_cfa_expression":
            forms = [asm.def_cfa_expression(draw(expressions(arch)))]
        case "offset" | "val_offset":
            forms = _saves(register, draw(_save_offsets()) // DATA_ALIGN, is_value=operation == "val_offset")
        case "register":
            forms = [asm.register(register, draw(_registers(arch)))]
        case "expression":
            forms = [asm.expression(register, draw(expressions(arch)))]
        case "val_expression":
            forms = [asm.val_expression(register, draw(expressions(arch)))]
    return draw(st.sampled_from(forms))


def _saves(register: int, factored: int, *, is_value: bool) -> list[asm.Instruction]:
    if is_value:
        forms = [asm.val_offset_sf(register, factored)]
        return forms if factored < 0 else [*forms, asm.val_offset(register, factored)]
    forms = [asm.offset_extended_sf(register, factored)]
    if factored >= 0:
        forms.append(asm.offset_extended(register, factored))
        if register < 0x40:
            forms.append(asm.offset(register, factored))
    if factored <= 0:
        forms.append(asm.gnu_negative_offset_extended(register, -factored))
    return forms


@st.composite
def _cies(draw: st.DrawFn, arch: Arch) -> asm.Cie:
    extra: list[Operation] = draw(st.lists(st.sampled_from(("same_value", "undefined", "offset")), max_size=2))
    cie = cie_of(arch, *(draw(_instructions(arch, operation)) for operation in extra))
    return cie._replace(version=draw(st.sampled_from((1, 3))), code_align=code_align(arch), data_align=DATA_ALIGN)


@st.composite
def programs(
    draw: st.DrawFn, arch: Arch, max_steps: int = 24, operations: frozenset[Operation] = OPERATIONS
) -> Program:
    """Draw a program; `operations` restricts its instructions to some kinds, for tests of one feature.

    Remembered states are all restored by the end, the advances fit in the function (a last row may be
    empty), and a register's number fits the opcode that names it.
    """
    cfa_is_expression, remembered = False, list[bool]()
    length, code = 0, list[asm.Instruction]()
    for _ in range(draw(st.integers(0, max_steps))):
        barred: set[Operation] = {"advance"}
        if cfa_is_expression:
            barred |= {"def_cfa_register", "def_cfa_offset"}
        if not remembered:
            barred.add("restore_state")
        if not arch.ra_may_be_signed:
            barred.add("negate_ra_state")
        # Row ends matter more than any single rule: without them a program has one row only.
        if draw(st.booleans()):
            units, advance = draw(_advances())
            length += units
            code.append(advance)
            continue
        operation = draw(st.sampled_from(sorted(operations - barred)))
        code.append(draw(_instructions(arch, operation)))
        if operation in ("def_cfa", "def_cfa_expression"):
            cfa_is_expression = operation == "def_cfa_expression"
        elif operation == "remember_state":
            remembered.append(cfa_is_expression)
        elif operation == "restore_state":
            cfa_is_expression = remembered.pop()
    code += [asm.restore_state(), asm.advance(1)] * len(remembered)
    length += len(remembered)
    tail = draw(st.sampled_from((0, 1, 1, 5, 300))) if length else draw(st.integers(1, 300))
    cie = draw(_cies(arch))
    return Program(arch, cie, asm.Fde(cie, 0x1000, (length + tail) * code_align(arch), tuple(code)))
