# SPDX-License-Identifier: Apache-2.0
"""The row machine, opcode by opcode (DWARF 5, 6.4.2): right, cut off at every byte, and where it does not belong.

The CIE's factors are 3 and -5: with the usual 1 and -8 a factor that is forgotten, or taken for the other, can pass.
Operands have the sign bit of their last LEB128 byte set, which makes signed and unsigned readings differ.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest

from cfi2sframe.arch import AARCH64_BE, AARCH64_LE, AMD64, ARCHES, S390X
from cfi2sframe.dwarf import constants as d
from cfi2sframe.dwarf import row_machine
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.instructions import Cutter
from cfi2sframe.dwarf.pointer import PointerBases
from cfi2sframe.dwarf.program_cache import ProgramCache
from cfi2sframe.dwarf.row_machine import Location, run
from cfi2sframe.dwarf.rules import (
    AtCfa,
    AtExpression,
    CfaExpression,
    CfiRow,
    InRegister,
    IsExpression,
    NoRule,
    RaSigning,
    RegisterOffset,
    RowState,
    ValueAtCfa,
)
from cfi2sframe.errors import CfiError
from tests.support import cfi_asm as asm

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.rules import UnwindTable

CODE_ALIGN, DATA_ALIGN = 3, -5
RA = 200  # needs two bytes as LEB128
OTHER = 300  # a register that no row tells of
UNSIGNED = 8292  # e4 40: read as signed it is -8092
SIGNED = -100  # 9c 7f: read as unsigned it is 16284
EXPRESSION = b"\x77\x08" + b"\x96" * 200
PC_BEGIN, INSTRUCTIONS_VADDR, TABLE_VADDR = 0x5000, 0x9001, 0x20000
AARCH64 = (AARCH64_LE, AARCH64_BE)


def run_by_cache(cie: DwarfCie, instructions: bytes, arch: Arch, location: Location | None = None) -> UnwindTable:
    cache = ProgramCache(arch, Cutter(0))
    if location is None:
        return cache.of(cie).run(instructions)
    return cache.of(cie, location.bases).run(instructions, location.pc_begin_vaddr, location.instructions_vaddr)


@pytest.fixture(autouse=True, params=[row_machine.run, run_by_cache], ids=["plain", "cached"])
def _each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs by the reference and by the cache."""
    monkeypatch.setitem(globals(), "run", request.param)


def encode(arch: Arch, *instructions: asm.Instruction) -> bytes:
    """The bytes of instructions; the address of DW_CFA_set_loc as 8 absolute bytes."""
    order: Literal["little", "big"] = "little" if arch.byte_order == "<" else "big"
    out = bytearray()
    for instruction in instructions:
        out.append(instruction.opcode)
        for kind, value in instruction.operands:
            if kind in {"uleb", "sleb"}:
                out += asm.uleb128(value) if kind == "uleb" else asm.sleb128(value)
            else:
                out += value.to_bytes(8 if kind == "address" else int(kind[1:]) // 8, order)
        out += instruction.tail
    return bytes(out)


def make_cie(
    arch: Arch, *instructions: asm.Instruction, fde_encoding: int = d.DW_EH_PE_absptr, ra_register: int = RA
) -> DwarfCie:
    code = encode(arch, *instructions)
    return DwarfCie(
        version=3,
        augmentation="zR",
        code_alignment=CODE_ALIGN,
        data_alignment=DATA_ALIGN,
        ra_register=ra_register,
        fde_encoding=fde_encoding,
        lsda_encoding=d.DW_EH_PE_omit,
        is_signal_frame=False,
        uses_b_key=False,
        instructions=code,
    )


def usual_cie(arch: Arch, fde_encoding: int = d.DW_EH_PE_absptr) -> DwarfCie:
    """CFA = SP + 40, RA at CFA - 5, FP at CFA - 20."""
    return make_cie(
        arch,
        asm.def_cfa(arch.sp_register, 40),
        asm.offset_extended(RA, 1),
        asm.offset(arch.fp_register, 4),
        fde_encoding=fde_encoding,
    )


def start_state(arch: Arch) -> RowState:
    """The rules of `usual_cie`."""
    return RowState(RegisterOffset(arch.sp_register, 40), AtCfa(-5), AtCfa(-20), NoRule.UNSPECIFIED, RaSigning.NONE)


def location(arch: Arch) -> Location:
    return Location(PC_BEGIN, INSTRUCTIONS_VADDR, PointerBases(arch.byte_order, TABLE_VADDR, lambda _: None))


def rows_of(arch: Arch, *instructions: asm.Instruction, cie: DwarfCie | None = None) -> tuple[CfiRow, ...]:
    cie = usual_cie(arch) if cie is None else cie
    return run(cie, encode(arch, *instructions), arch, location(arch)).rows


class Case(NamedTuple):
    """An instruction in the state of `usual_cie`, after `setup`: the rules after it, and how far it advances."""

    instruction: asm.Instruction
    expected: RowState
    setup: tuple[asm.Instruction, ...] = ()
    advance_delta: int = 0
    of_other_register: asm.Instruction | None = None


def table(arch: Arch) -> dict[str, Case]:
    """One case for each opcode, under the name of its constant."""
    fp, start = arch.fp_register, start_state(arch)
    changed = (asm.def_cfa(fp, 999), asm.undefined(fp), asm.undefined(RA), asm.undefined(arch.sp_register))
    signed = start._replace(signing=RaSigning.SIGNED)
    with_pc = start._replace(signing=RaSigning.SIGNED_WITH_PC)
    in_cfa = start._replace(cfa=RegisterOffset(RA, UNSIGNED))
    ra_up, ra_down = start._replace(ra=AtCfa(500)), start._replace(ra=AtCfa(-41460))
    cases = {
        "nop": Case(asm.nop(), start),
        "set_loc": Case(asm.set_loc(PC_BEGIN + 0x1234), start, advance_delta=0x1234),
        "advance_loc": Case(asm.advance0(37), start, advance_delta=111),
        "advance_loc1": Case(asm.advance1(200), start, advance_delta=600),
        "advance_loc2": Case(asm.advance2(0x9234), start, advance_delta=3 * 0x9234),
        "advance_loc4": Case(asm.advance4(0x92345678), start, advance_delta=3 * 0x92345678),
        "MIPS_advance_loc8": Case(asm.advance8(0x12345678_9ABCDEF0), start, advance_delta=3 * 0x12345678_9ABCDEF0),
        "offset": Case(
            asm.offset(fp, UNSIGNED), start._replace(fp=AtCfa(-41460)), of_other_register=asm.offset(5, UNSIGNED)
        ),
        "offset_extended": Case(
            asm.offset_extended(RA, UNSIGNED), ra_down, of_other_register=asm.offset_extended(OTHER, UNSIGNED)
        ),
        "offset_extended_sf": Case(
            asm.offset_extended_sf(RA, SIGNED), ra_up, of_other_register=asm.offset_extended_sf(OTHER, SIGNED)
        ),
        "GNU_negative_offset_extended": Case(
            asm.gnu_negative_offset_extended(RA, UNSIGNED),
            start._replace(ra=AtCfa(41460)),
            of_other_register=asm.gnu_negative_offset_extended(OTHER, UNSIGNED),
        ),
        "val_offset": Case(
            asm.val_offset(RA, UNSIGNED),
            start._replace(ra=ValueAtCfa(-41460)),
            of_other_register=asm.val_offset(OTHER, UNSIGNED),
        ),
        "val_offset_sf": Case(
            asm.val_offset_sf(RA, SIGNED),
            start._replace(ra=ValueAtCfa(500)),
            of_other_register=asm.val_offset_sf(OTHER, SIGNED),
        ),
        "register": Case(
            asm.register(RA, UNSIGNED),
            start._replace(ra=InRegister(UNSIGNED)),
            of_other_register=asm.register(OTHER, fp),
        ),
        "expression": Case(
            asm.expression(RA, EXPRESSION),
            start._replace(ra=AtExpression(EXPRESSION)),
            of_other_register=asm.expression(OTHER, EXPRESSION),
        ),
        "val_expression": Case(
            asm.val_expression(RA, EXPRESSION),
            start._replace(ra=IsExpression(EXPRESSION)),
            of_other_register=asm.val_expression(OTHER, EXPRESSION),
        ),
        "undefined": Case(
            asm.undefined(RA), start._replace(ra=NoRule.UNDEFINED), of_other_register=asm.undefined(OTHER)
        ),
        "same_value": Case(
            # RA's column is not the ABI's, so that RA is in its register.
            asm.same_value(RA),
            start._replace(ra=InRegister(RA)),
            of_other_register=asm.same_value(OTHER),
        ),
        "restore": Case(asm.restore(fp), start, (asm.undefined(fp),), of_other_register=asm.restore(5)),
        "restore_extended": Case(
            asm.restore_extended(RA), start, (asm.undefined(RA),), of_other_register=asm.restore_extended(OTHER)
        ),
        "def_cfa": Case(asm.def_cfa(RA, UNSIGNED), in_cfa),
        "def_cfa_sf": Case(asm.def_cfa_sf(RA, SIGNED), start._replace(cfa=RegisterOffset(RA, 500))),
        "def_cfa_register": Case(asm.def_cfa_register(RA), start._replace(cfa=RegisterOffset(RA, 40))),
        "def_cfa_offset": Case(
            asm.def_cfa_offset(UNSIGNED), start._replace(cfa=RegisterOffset(arch.sp_register, UNSIGNED))
        ),
        "def_cfa_offset_sf": Case(
            asm.def_cfa_offset_sf(SIGNED), start._replace(cfa=RegisterOffset(arch.sp_register, 500))
        ),
        "def_cfa_expression": Case(asm.def_cfa_expression(EXPRESSION), start._replace(cfa=CfaExpression(EXPRESSION))),
        "remember_state": Case(asm.remember_state(), start),
        "restore_state": Case(asm.restore_state(), start, (asm.remember_state(), *changed)),
        "GNU_args_size": Case(asm.gnu_args_size(UNSIGNED), start),
    }
    if arch in AARCH64:
        cases["AARCH64_negate_ra_state"] = Case(asm.aarch64_negate_ra_state(), signed)
        cases["AARCH64_set_ra_state"] = Case(asm.aarch64_set_ra_state(2, -300), with_pc)
        cases["AARCH64_negate_ra_state_with_pc"] = Case(asm.aarch64_negate_ra_state_with_pc(), with_pc)
    return {f"DW_CFA_{name}": case for name, case in cases.items()}


class Misuse(NamedTuple):
    """A program in which an instruction does not belong; `in_fde` runs after `in_cie`."""

    in_cie: tuple[asm.Instruction, ...]
    in_fde: tuple[asm.Instruction, ...]
    message: str


def misuses(arch: Arch) -> dict[str, Misuse]:
    """The wrong context of each opcode that has one; each other may stand anywhere, which is tested too."""
    define = (asm.def_cfa(arch.sp_register, 8),)
    no_rule = "before any rule of the CFA"
    wrong = {
        "set_loc": Misuse(define, (asm.advance1(100), asm.set_loc(PC_BEGIN + 299)), "set_loc goes back"),
        "def_cfa_register": Misuse((), (asm.def_cfa_register(6),), no_rule),
        "def_cfa_offset": Misuse((), (asm.def_cfa_offset(6),), no_rule),
        "def_cfa_offset_sf": Misuse((), (asm.def_cfa_offset_sf(6),), no_rule),
        "restore_state": Misuse(
            define,
            (asm.remember_state(), asm.restore_state(), asm.restore_state()),
            "restore_state without a remembered state",
        ),
    }
    if arch not in AARCH64:
        unknown = "unknown call frame instruction 0x"
        wrong["AARCH64_set_ra_state"] = Misuse(define, (asm.aarch64_set_ra_state(1),), unknown + "2b")
        wrong["AARCH64_negate_ra_state"] = Misuse(define, (asm.aarch64_negate_ra_state(),), unknown + "2d")
        wrong["AARCH64_negate_ra_state_with_pc"] = Misuse(
            define, (asm.aarch64_negate_ra_state_with_pc(),), unknown + "2c"
        )
    else:
        wrong["AARCH64_set_ra_state"] = Misuse(define, (asm.aarch64_set_ra_state(3),), "set_ra_state to 3")
    return {f"DW_CFA_{name}": case for name, case in wrong.items()}


ALL_OPCODES = tuple(name for name in vars(d) if name.startswith("DW_CFA_"))
CASES = [pytest.param(arch, name, id=f"{arch.name}-{name[7:]}") for arch in ARCHES for name in table(arch)]
MISUSES = [pytest.param(arch, name, id=f"{arch.name}-{name[7:]}") for arch in ARCHES for name in misuses(arch)]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_every_opcode_is_in_the_table(arch: Arch) -> None:
    of_aarch64_only = set() if arch in AARCH64 else {name for name in ALL_OPCODES if "AARCH64" in name}
    assert set(table(arch)) == set(ALL_OPCODES) - of_aarch64_only
    assert of_aarch64_only <= set(misuses(arch))
    for name, case in table(arch).items():
        mask = 0xFF if vars(d)[name] < 0x40 else 0xC0
        assert case.instruction.opcode & mask == vars(d)[name]


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_right(arch: Arch, name: str) -> None:
    case = table(arch)[name]
    # What follows shows that the instruction ended where it should.
    follow = (asm.advance0(2), asm.same_value(arch.sp_register))
    changed = case.expected._replace(sp=NoRule.SAME_VALUE)
    rows = rows_of(arch, *case.setup, case.instruction, *follow)
    assert rows == (CfiRow(0, case.expected), CfiRow(case.advance_delta + 6, changed))


@pytest.mark.parametrize("register", [0, 1, 62, 63])
def test_registers_and_advances_in_the_low_six_bits(register: int) -> None:
    """The ends of the three opcodes that carry an operand."""
    cie = make_cie(AMD64, asm.def_cfa(7, 40), asm.same_value(register), ra_register=register)
    instructions = (asm.offset(register, 2), asm.advance0(register), asm.restore(register), asm.def_cfa_offset(48))
    rows = rows_of(AMD64, *instructions, cie=cie)
    expected = [(0, AtCfa(-10), 40)] if register else []
    expected_rows = [*expected, (CODE_ALIGN * register, InRegister(register), 48)]
    found = [(row.start_delta, row.state.ra, row.state.cfa) for row in rows]
    assert found == [(delta, ra, RegisterOffset(7, offset)) for delta, ra, offset in expected_rows]


@pytest.mark.parametrize(
    ("arch", "name"),
    [case for case in CASES if table(case.values[0])[case.values[1]].of_other_register],  # type: ignore[arg-type,index]
)
def test_other_registers_are_stepped_over(arch: Arch, name: str) -> None:
    instruction = table(arch)[name].of_other_register
    assert instruction is not None
    changed = start_state(arch)._replace(sp=NoRule.SAME_VALUE)
    assert rows_of(arch, instruction, asm.same_value(arch.sp_register)) == (CfiRow(0, changed),)


@pytest.mark.parametrize(("arch", "name"), CASES)
def test_truncated_at_every_byte(arch: Arch, name: str) -> None:
    case = table(arch)[name]
    setup, whole = encode(arch, *case.setup), encode(arch, case.instruction)
    step = 1 if len(whole) < 32 else 17
    for size in [1, *range(2, len(whole), step)]:
        if size >= len(whole):
            continue
        with pytest.raises(CfiError, match=r"truncated|leaves the entry") as caught:
            run(usual_cie(arch), setup + whole[:size], arch, location(arch))
        assert caught.value.offset == len(setup)
        with pytest.raises(CfiError, match=r"truncated|leaves the entry"):
            run(usual_cie(arch)._replace(instructions=whole[:size]), b"", arch, location(arch))


@pytest.mark.parametrize(("arch", "name"), MISUSES)
def test_wrong_context(arch: Arch, name: str) -> None:
    misuse = misuses(arch)[name]
    cie, code = make_cie(arch, *misuse.in_cie), encode(arch, *misuse.in_fde)
    with pytest.raises(CfiError, match=misuse.message) as caught:
        run(cie, code, arch, location(arch))
    if misuse.in_fde:
        assert caught.value.offset == len(encode(arch, *misuse.in_fde[:-1]))


@pytest.mark.parametrize(("arch", "name"), [case for case in CASES if case.values[1] not in misuses(AMD64)])
def test_no_other_context_is_wrong(arch: Arch, name: str) -> None:
    instruction = table(arch)[name].instruction
    assert rows_of(arch, instruction, cie=make_cie(arch))[0].start_delta == 0
    assert rows_of(arch, cie=make_cie(arch, instruction))[0].start_delta == 0


@pytest.mark.parametrize("opcode", sorted(set(range(0x40)) - {vars(d)[name] for name in ALL_OPCODES}))
def test_unknown_opcodes(opcode: int) -> None:
    code = encode(AMD64, asm.advance0(1), asm.def_cfa_offset(16)) + bytes((opcode,)) + bytes(8)
    with pytest.raises(CfiError, match=f"unknown call frame instruction 0x{opcode:02x}") as caught:
        run(usual_cie(AMD64), code, AMD64)
    assert caught.value.offset == 3


# --- Rows ---------------------------------------------------------------------------------------------------


def cfa_rows(*instructions: asm.Instruction) -> list[tuple[int, int]]:
    """Starts and CFA offsets of AMD64 rows whose CFA is SP + something."""
    pairs = []
    for row in rows_of(AMD64, *instructions):
        assert isinstance(row.state.cfa, RegisterOffset)
        assert row.state.cfa.register == AMD64.sp_register
        pairs.append((row.start_delta, row.state.cfa.offset))
    return pairs


def test_an_advance_in_a_cie_moves_nothing() -> None:
    cie = make_cie(AMD64, asm.def_cfa(7, 8), asm.advance0(5), asm.def_cfa_offset(16))
    rows = rows_of(AMD64, asm.advance0(1), asm.def_cfa_offset(24), cie=cie)
    assert [(row.start_delta, row.state.cfa) for row in rows] == [
        (0, RegisterOffset(7, 16)),
        (3, RegisterOffset(7, 24)),
    ]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_the_column_of_ra_without_a_rule(arch: Arch) -> None:
    """The ABI's column has the ABI's default; of any other column the CIE says that RA is there."""
    for column in (arch.ra_register, 5):
        unspecified = NoRule.UNSPECIFIED if column == arch.ra_register else InRegister(5)
        cie = make_cie(arch, asm.def_cfa(arch.sp_register, 8), ra_register=column)
        steps = (asm.offset(column, 1), asm.advance0(1), asm.restore(column), asm.advance0(1), asm.same_value(column))
        rules = [row.state.ra for row in rows_of(arch, *steps, cie=cie)]
        same = [NoRule.SAME_VALUE] if column == arch.ra_register else []
        assert rules == [AtCfa(-5), unspecified, *same]
        assert run(cie, b"", arch).states[0].ra == unspecified


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_a_column_of_ra_that_is_fp_or_sp(arch: Arch) -> None:
    """One rule for both."""
    for column, name in ((arch.fp_register, "fp"), (arch.sp_register, "sp")):
        cie = make_cie(arch, asm.def_cfa(7, 8), ra_register=column)
        steps = (asm.advance0(1), asm.offset(column, 1), asm.advance0(1), asm.same_value(column))
        states = [row.state for row in rows_of(arch, *steps, cie=cie)]
        assert [state.ra for state in states] == [InRegister(column), AtCfa(-5), InRegister(column)]
        own = [getattr(state, name) for state in states]
        assert own == [NoRule.UNSPECIFIED, AtCfa(-5), NoRule.SAME_VALUE]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_restore_in_a_cie_is_no_rule(arch: Arch) -> None:
    """GNU as makes such CIEs (PR gas/33170). Later the CIE's rules, which are none, are what is restored."""
    fp, sp = arch.fp_register, arch.sp_register
    define = (asm.def_cfa(sp, 8), asm.offset(fp, 2), asm.undefined(RA), asm.same_value(5), asm.same_value(sp))
    cie = make_cie(arch, *define, asm.restore(fp), asm.restore_extended(RA), asm.restore(5), asm.restore_extended(sp))
    nothing = NoRule.UNSPECIFIED
    unspecified = RowState(RegisterOffset(sp, 8), InRegister(RA), nothing, nothing, RaSigning.NONE)
    changed = unspecified._replace(fp=AtCfa(-5), ra=NoRule.UNDEFINED)
    steps = (asm.advance0(1), asm.offset(fp, 1), asm.undefined(RA))
    rows = rows_of(arch, *steps, asm.advance0(1), asm.restore(fp), asm.restore_extended(RA), cie=cie)
    assert [row.state for row in rows] == [unspecified, changed, unspecified]


@pytest.mark.parametrize("data_align", [0, 1, 7, -16])
def test_any_data_alignment(data_align: int) -> None:
    cie = usual_cie(AMD64)._replace(data_alignment=data_align)
    (row,) = rows_of(AMD64, asm.offset(6, 2), asm.def_cfa_offset_sf(-3), cie=cie)
    assert row.state.fp == AtCfa(2 * data_align)
    assert row.state.cfa == RegisterOffset(7, -3 * data_align)


# --- Expressions as CFA -------------------------------------------------------------------------------------


def cfa_after(*instructions: asm.Instruction) -> RegisterOffset | CfaExpression | None:
    return rows_of(AMD64, *instructions)[-1].state.cfa


def test_an_offset_hidden_by_an_expression_makes_no_row() -> None:
    rows = rows_of(
        AMD64,
        *(asm.def_cfa_expression(EXPRESSION), asm.advance0(1), asm.def_cfa_offset(48), asm.advance0(1)),
        *(asm.def_cfa_offset(56), asm.advance0(1), asm.def_cfa_register(6)),
    )
    assert [(row.start_delta, row.state.cfa) for row in rows] == [
        (0, CfaExpression(EXPRESSION)),
        (9, RegisterOffset(6, 56)),
    ]


def test_remember_state_keeps_what_an_expression_hides() -> None:
    rows = (
        *(asm.def_cfa_offset(48), asm.def_cfa_expression(EXPRESSION), asm.remember_state(), asm.def_cfa(3, 16)),
        asm.restore_state(),
    )
    assert cfa_after(*rows) == CfaExpression(EXPRESSION)
    assert cfa_after(*rows, asm.def_cfa_register(6)) == RegisterOffset(6, 48)


# --- AArch64's signed return addresses ----------------------------------------------------------------------


@pytest.mark.parametrize("arch", AARCH64, ids=lambda arch: arch.name)
def test_signing_with_the_pc_toggles(arch: Arch) -> None:
    """DWARF for the Arm 64-bit Architecture: both low bits of RA_SIGN_STATE are negated."""
    toggle = (asm.advance0(1), asm.aarch64_negate_ra_state_with_pc())
    rows = rows_of(arch, *toggle, *toggle)
    assert [row.state.signing for row in rows] == [RaSigning.NONE, RaSigning.SIGNED_WITH_PC, RaSigning.NONE]


# --- DW_CFA_set_loc -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [AMD64, S390X], ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    ("encoding", "base", "size"),
    [
        (d.DW_EH_PE_absptr, 0, 8),
        (d.DW_EH_PE_udata4, 0, 4),
        (d.DW_EH_PE_udata2, 0, 2),
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4, INSTRUCTIONS_VADDR + 2, 4),
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata8, INSTRUCTIONS_VADDR + 2, 8),
        (d.DW_EH_PE_datarel | d.DW_EH_PE_sdata4, TABLE_VADDR, 4),
        (d.DW_EH_PE_uleb128, 0, 0),
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sleb128, INSTRUCTIONS_VADDR + 2, 0),
    ],
)
def test_set_loc_in_the_encoding_of_the_cie(arch: Arch, encoding: int, base: int, size: int) -> None:
    order: Literal["little", "big"] = "little" if arch.byte_order == "<" else "big"
    value = PC_BEGIN + 0x111 - base
    if size:
        operand = (value & ((1 << 8 * size) - 1)).to_bytes(size, order)
    else:
        operand = asm.sleb128(value) if encoding & 0x0F == d.DW_EH_PE_sleb128 else asm.uleb128(value)
    code = b"\x00\x01" + operand + encode(arch, asm.def_cfa_offset(48))
    program = run(usual_cie(arch, encoding), code, arch, location(arch))
    assert [row.start_delta for row in program.rows] == [0, 0x111]
    assert program.depends_on_location
    for cut in range(1, len(operand)):
        with pytest.raises(CfiError, match="truncated") as caught:
            run(usual_cie(arch, encoding), code[: 2 + cut], arch, location(arch))
        assert caught.value.offset == 1


def test_set_loc_of_an_aligned_pointer_is_refused() -> None:
    """Otherwise its padding would be read as instructions."""
    code = b"\x01" + bytes(6) + (PC_BEGIN + 9).to_bytes(8, "little")
    with pytest.raises(CfiError, match="aligned pointer is not supported") as caught:
        run(usual_cie(AMD64, d.DW_EH_PE_aligned), code, AMD64, location(AMD64))
    assert caught.value.offset == 0


def test_set_loc_and_advances_mix() -> None:
    rows = cfa_rows(
        *(asm.advance0(1), asm.def_cfa_offset(48), asm.set_loc(PC_BEGIN + 10), asm.def_cfa_offset(56)),
        *(asm.advance0(2), asm.def_cfa_offset(64), asm.set_loc(PC_BEGIN + 17), asm.def_cfa_offset(72)),
    )
    assert rows == [(0, 40), (3, 48), (10, 56), (16, 64), (17, 72)]


@pytest.mark.parametrize("vaddr", [PC_BEGIN + 2, PC_BEGIN, PC_BEGIN - 1, 0])
def test_set_loc_goes_back(vaddr: int) -> None:
    code = encode(AMD64, asm.advance0(1), asm.set_loc(vaddr), asm.def_cfa_offset(48))
    with pytest.raises(CfiError, match="set_loc goes back") as caught:
        run(usual_cie(AMD64), code, AMD64, location(AMD64))
    assert caught.value.offset == 1


def test_set_loc_needs_a_location() -> None:
    with pytest.raises(CfiError, match="set_loc outside a function") as caught:
        run(usual_cie(AMD64), encode(AMD64, asm.nop(), asm.set_loc(PC_BEGIN + 1)), AMD64)
    assert caught.value.offset == 1


def test_set_loc_through_an_unknown_encoding() -> None:
    with pytest.raises(CfiError, match="encoding"):
        run(usual_cie(AMD64, d.DW_EH_PE_omit), b"\x01" + bytes(16), AMD64, location(AMD64))


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_only_set_loc_depends_on_the_location(arch: Arch) -> None:
    for name, case in table(arch).items():
        program = run(usual_cie(arch), encode(arch, *case.setup, case.instruction), arch, location(arch))
        assert program.depends_on_location == (name == "DW_CFA_set_loc")
