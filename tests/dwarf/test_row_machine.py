# SPDX-License-Identifier: Apache-2.0
"""The row machine, opcode by opcode (DWARF 5, 6.4.2): right, cut off at every byte, and where it does not belong.

The CIE's factors are 3 and -5: with the usual 1 and -8 a factor that is forgotten, or taken for the other, can pass.
Operands have the sign bit of their last LEB128 byte set, which makes signed and unsigned readings differ.
"""

from typing import Literal, NamedTuple

import pytest

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, ARCHES, S390X, Arch
from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf import row_machine
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.numbers import Location, PointerBases
from cfi2sframe.dwarf.row_machine import RowMachine
from cfi2sframe.dwarf.rules import CfaRule, NoCfa, NoRule, RaSigning, RowState, UnwindTable
from cfi2sframe.errors import CfiError
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.rules import (
    CfiRow,
    at_cfa,
    at_expression,
    in_register,
    is_expression,
    register_offset,
    value_at_cfa,
)
from tests.support.dwarf.rules import rows_of as table_rows
from tests.support.elf.samples import parsed_cie

CODE_ALIGN, DATA_ALIGN = 3, -5
RA = 200  # needs two bytes as LEB128
UNSIGNED = 8292  # e4 40: read as signed it is -8092
SIGNED = -100  # 9c 7f: read as unsigned it is 16284
EXPRESSION = b"\x77\x08" + b"\x96" * 200
PC_BEGIN, INSTRUCTIONS_VADDR, TABLE_VADDR = 0x5000, 0x9001, 0x20000
AARCH64 = (AARCH64_LE, AARCH64_BE)


@pytest.fixture(autouse=True, params=["one by one", "in chunks"])
def _each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs programs instruction by instruction, and in chunks."""
    if request.param == "one by one":
        monkeypatch.setattr(row_machine, "cut", lambda _: [])


def run(cie: DwarfCie, instructions: bytes, arch: Arch, location: Location | None = None) -> UnwindTable:
    return RowMachine(cie, arch).run(instructions, location)


def encode(arch: Arch, *instructions: asm.Instruction) -> bytes:
    return asm.code_of(*instructions, little_endian=arch.byte_order == "<")


def make_cie(
    arch: Arch, *instructions: asm.Instruction, fde_encoding: int = d.DW_EH_PE_absptr, ra_register: int = RA
) -> DwarfCie:
    cie = parsed_cie(arch, ra_register=ra_register)._replace(code_alignment=CODE_ALIGN, data_alignment=DATA_ALIGN)
    return cie._replace(fde_encoding=fde_encoding, instructions=encode(arch, *instructions))


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
    return RowState(register_offset(arch.sp_register, 40), at_cfa(-5), at_cfa(-20), NoRule.UNSPECIFIED, RaSigning.NONE)


def location(arch: Arch) -> Location:
    return Location(PC_BEGIN, INSTRUCTIONS_VADDR, PointerBases(arch.byte_order, TABLE_VADDR, lambda _: None))


def rows_of(arch: Arch, *instructions: asm.Instruction, cie: DwarfCie | None = None) -> tuple[CfiRow, ...]:
    cie = usual_cie(arch) if cie is None else cie
    return table_rows(run(cie, encode(arch, *instructions), arch, location(arch)))


class Case(NamedTuple):
    """An instruction in the state of `usual_cie`, after `setup`: the rules after it, and how far it advances."""

    instruction: asm.Instruction
    expected: RowState
    setup: tuple[asm.Instruction, ...] = ()
    advance_delta: int = 0


def table(arch: Arch) -> dict[str, Case]:
    """One case for each opcode, under the name of its constant."""
    fp, start = arch.fp_register, start_state(arch)
    changed = (asm.def_cfa(fp, 999), asm.undefined(fp), asm.undefined(RA), asm.undefined(arch.sp_register))
    signed = start._replace(signing=RaSigning.SIGNED)
    with_pc = start._replace(signing=RaSigning.SIGNED_WITH_PC)
    in_cfa = start._replace(cfa=register_offset(RA, UNSIGNED))
    ra_up, ra_down = start._replace(ra=at_cfa(500)), start._replace(ra=at_cfa(-41460))
    cases = {
        "nop": Case(asm.nop(), start),
        "set_loc": Case(asm.set_loc(PC_BEGIN + 0x1234), start, advance_delta=0x1234),
        "advance_loc": Case(asm.advance0(37), start, advance_delta=111),
        "advance_loc1": Case(asm.advance1(200), start, advance_delta=600),
        "advance_loc2": Case(asm.advance2(0x9234), start, advance_delta=3 * 0x9234),
        "advance_loc4": Case(asm.advance4(0x92345678), start, advance_delta=3 * 0x92345678),
        "MIPS_advance_loc8": Case(asm.advance8(0x12345678_9ABCDEF0), start, advance_delta=3 * 0x12345678_9ABCDEF0),
        "offset": Case(asm.offset(fp, UNSIGNED), start._replace(fp=at_cfa(-41460))),
        "offset_extended": Case(asm.offset_extended(RA, UNSIGNED), ra_down),
        "offset_extended_sf": Case(asm.offset_extended_sf(RA, SIGNED), ra_up),
        "GNU_negative_offset_extended": Case(
            asm.gnu_negative_offset_extended(RA, UNSIGNED), start._replace(ra=at_cfa(41460))
        ),
        "val_offset": Case(asm.val_offset(RA, UNSIGNED), start._replace(ra=value_at_cfa(-41460))),
        "val_offset_sf": Case(asm.val_offset_sf(RA, SIGNED), start._replace(ra=value_at_cfa(500))),
        "register": Case(asm.register(RA, UNSIGNED), start._replace(ra=in_register(UNSIGNED))),
        "expression": Case(asm.expression(RA, EXPRESSION), start._replace(ra=at_expression(EXPRESSION))),
        "val_expression": Case(asm.val_expression(RA, EXPRESSION), start._replace(ra=is_expression(EXPRESSION))),
        "undefined": Case(asm.undefined(RA), start._replace(ra=NoRule.UNDEFINED)),
        "same_value": Case(
            # RA's column is not the ABI's, so that RA is in its register.
            asm.same_value(RA),
            start._replace(ra=in_register(RA)),
        ),
        "restore": Case(asm.restore(fp), start, (asm.undefined(fp),)),
        "restore_extended": Case(asm.restore_extended(RA), start, (asm.undefined(RA),)),
        "def_cfa": Case(asm.def_cfa(RA, UNSIGNED), in_cfa),
        "def_cfa_sf": Case(asm.def_cfa_sf(RA, SIGNED), start._replace(cfa=register_offset(RA, 500))),
        "def_cfa_register": Case(asm.def_cfa_register(RA), start._replace(cfa=register_offset(RA, 40))),
        "def_cfa_offset": Case(
            asm.def_cfa_offset(UNSIGNED), start._replace(cfa=register_offset(arch.sp_register, UNSIGNED))
        ),
        "def_cfa_offset_sf": Case(
            asm.def_cfa_offset_sf(SIGNED), start._replace(cfa=register_offset(arch.sp_register, 500))
        ),
        "def_cfa_expression": Case(asm.def_cfa_expression(EXPRESSION), start._replace(cfa=is_expression(EXPRESSION))),
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


def has_operands(arch: Arch, name: str) -> bool:
    """Return whether the instruction of a case can be cut off."""
    return len(encode(arch, table(arch)[name].instruction)) > 1


ALL_OPCODES = tuple(name for name in vars(d) if name.startswith("DW_CFA_"))
CASES = [pytest.param(arch, name, id=f"{arch.name}-{name[7:]}") for arch in ARCHES for name in table(arch)]
WITH_OPERANDS = [(arch, name) for arch in ARCHES for name in table(arch) if has_operands(arch, name)]
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


@pytest.mark.parametrize(("arch", "name"), WITH_OPERANDS)
def test_truncated_at_every_byte(arch: Arch, name: str) -> None:
    case = table(arch)[name]
    setup, whole = encode(arch, *case.setup), encode(arch, case.instruction)
    step = 1 if len(whole) < 32 else 17
    for size in [1, *range(2, len(whole), step)]:
        with pytest.raises(CfiError, match="truncated") as caught:
            run(usual_cie(arch), setup + whole[:size], arch, location(arch))
        assert caught.value.offset == len(setup)
        with pytest.raises(CfiError, match="truncated"):
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


def test_an_advance_in_a_cie_moves_nothing() -> None:
    cie = make_cie(AMD64, asm.def_cfa(7, 8), asm.advance0(5), asm.set_loc(9), asm.def_cfa_offset(16))
    rows = rows_of(AMD64, asm.advance0(1), asm.def_cfa_offset(24), cie=cie)
    assert [(row.start_delta, row.state.cfa) for row in rows] == [
        (0, register_offset(7, 16)),
        (3, register_offset(7, 24)),
    ]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_the_column_of_ra_without_a_rule(arch: Arch) -> None:
    """The ABI's column has the ABI's default; of any other column the CIE says that RA is there."""
    for column in (arch.ra_register, 5):
        unspecified = NoRule.UNSPECIFIED if column == arch.ra_register else in_register(5)
        cie = make_cie(arch, asm.def_cfa(arch.sp_register, 8), ra_register=column)
        steps = (asm.offset(column, 1), asm.advance0(1), asm.restore(column), asm.advance0(1), asm.same_value(column))
        rules = [row.state.ra for row in rows_of(arch, *steps, cie=cie)]
        same = [NoRule.SAME_VALUE] if column == arch.ra_register else []
        assert rules == [at_cfa(-5), unspecified, *same]
        assert run(cie, b"", arch).states[0].ra == unspecified


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_a_column_of_ra_that_is_fp_or_sp(arch: Arch) -> None:
    """One rule for both."""
    for column, name in ((arch.fp_register, "fp"), (arch.sp_register, "sp")):
        cie = make_cie(arch, asm.def_cfa(7, 8), ra_register=column)
        steps = (asm.advance0(1), asm.offset(column, 1), asm.advance0(1), asm.same_value(column))
        states = [row.state for row in rows_of(arch, *steps, cie=cie)]
        assert [state.ra for state in states] == [in_register(column), at_cfa(-5), in_register(column)]
        own = [getattr(state, name) for state in states]
        assert own == [NoRule.UNSPECIFIED, at_cfa(-5), NoRule.SAME_VALUE]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_restore_in_a_cie_is_no_rule(arch: Arch) -> None:
    """GNU as makes such CIEs (PR gas/33170). Later the CIE's rules, which are none, are what is restored."""
    fp, sp = arch.fp_register, arch.sp_register
    define = (asm.def_cfa(sp, 8), asm.offset(fp, 2), asm.undefined(RA), asm.same_value(5), asm.same_value(sp))
    cie = make_cie(arch, *define, asm.restore(fp), asm.restore_extended(RA), asm.restore(5), asm.restore_extended(sp))
    nothing = NoRule.UNSPECIFIED
    unspecified = RowState(register_offset(sp, 8), in_register(RA), nothing, nothing, RaSigning.NONE)
    changed = unspecified._replace(fp=at_cfa(-5), ra=NoRule.UNDEFINED)
    steps = (asm.advance0(1), asm.offset(fp, 1), asm.undefined(RA))
    rows = rows_of(arch, *steps, asm.advance0(1), asm.restore(fp), asm.restore_extended(RA), cie=cie)
    assert [row.state for row in rows] == [unspecified, changed, unspecified]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_offsets_are_words(arch: Arch) -> None:
    """A negative offset as a word without a sign, and products that overflow, are what unwinders make of them."""
    minus_8 = (1 << 64) - 8
    assert rows_of(arch, asm.def_cfa_offset(minus_8))[0].state.cfa == register_offset(arch.sp_register, -8)
    assert rows_of(arch, asm.def_cfa(3, minus_8))[0].state.cfa == register_offset(3, -8)
    assert rows_of(arch, asm.offset_extended(RA, (1 << 64) - 1))[0].state.ra == at_cfa(5)
    assert rows_of(arch, asm.val_offset(RA, (1 << 64) - 1))[0].state.ra == value_at_cfa(5)


# --- Expressions as CFA -------------------------------------------------------------------------------------


def cfa_after(*instructions: asm.Instruction) -> CfaRule | None:
    return rows_of(AMD64, *instructions)[-1].state.cfa


#: breg31 16; bregx 46 0; lit8; mul; plus: SP + 16 + 8 * VG.
SCALED = b"\x8f\x10\x92\x2e\x00\x38\x1e\x22"


@pytest.mark.parametrize(
    "expression",
    [SCALED, b"\x8f\x10\x92\x2e\x00\x22", b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22", b"\x77"],
    ids=["VG", "two registers", "PLT", "damaged"],
)
def test_a_register_after_an_expression_that_scales_has_no_offset(expression: bytes) -> None:
    """Clang's functions with a frame of vectors: the old offset is without the vectors."""
    changed = (asm.def_cfa_expression(expression), asm.def_cfa_register(6))
    assert cfa_after(*changed) == NoCfa.UNKNOWN
    assert cfa_after(*changed, asm.def_cfa_register(7)) == NoCfa.UNKNOWN
    assert cfa_after(*changed, asm.def_cfa_offset(48)) == register_offset(6, 48)
    assert cfa_after(*changed, asm.def_cfa(7, 16)) == register_offset(7, 16)
    between = (changed[0], asm.def_cfa_offset(48), changed[1])
    assert cfa_after(*between) == register_offset(6, 48)


def test_a_register_after_an_expression_that_loads_keeps_the_offset() -> None:
    """*(rsp+152)+8, as in libgcrypt."""
    loads = asm.def_cfa_expression(b"\x77\x98\x01\x06\x23\x08")
    assert cfa_after(loads, asm.def_cfa_register(6)) == register_offset(6, 40)


def test_an_expression_may_be_the_first_rule_of_the_cfa() -> None:
    """As libgcc and LLVM's unwinder read it, which then take an offset of 0: nothing says so."""
    cie = make_cie(AMD64, asm.def_cfa_expression(EXPRESSION))
    assert rows_of(AMD64, cie=cie)[0].state.cfa == is_expression(EXPRESSION)
    changed = asm.def_cfa_register(6)
    assert rows_of(AMD64, changed, cie=cie)[0].state.cfa == NoCfa.UNKNOWN
    assert rows_of(AMD64, changed, asm.def_cfa_offset(16), cie=cie)[0].state.cfa == register_offset(6, 16)
    assert rows_of(AMD64, asm.def_cfa_offset(16), changed, cie=cie)[0].state.cfa == register_offset(6, 16)


# --- AArch64's signed return addresses ----------------------------------------------------------------------


LIT0, LIT1, LIT2 = b"\x30", b"\x31", b"\x32"
RA_SIGN_STATE = 34
SIGN_RULES = {
    "plain": (asm.val_expression(RA_SIGN_STATE, LIT0), RaSigning.NONE),
    "sum": (asm.val_expression(RA_SIGN_STATE, LIT2 + LIT1 + b"\x1c"), RaSigning.SIGNED),
    "other constant": (asm.val_expression(RA_SIGN_STATE, LIT2), RaSigning.UNKNOWN),
    "no constant": (asm.val_expression(RA_SIGN_STATE, b"\x8f\x08"), RaSigning.UNKNOWN),
    "damaged": (asm.val_expression(RA_SIGN_STATE, b"\x8f"), RaSigning.UNKNOWN),
    "saved": (asm.offset(RA_SIGN_STATE, 1), RaSigning.UNKNOWN),
    "at the CFA": (asm.val_offset(RA_SIGN_STATE, 0), RaSigning.UNKNOWN),
    "at an expression": (asm.expression(RA_SIGN_STATE, LIT1), RaSigning.UNKNOWN),
    "in a register": (asm.register(RA_SIGN_STATE, 3), RaSigning.UNKNOWN),
    "undefined": (asm.undefined(RA_SIGN_STATE), RaSigning.UNKNOWN),
    "same value": (asm.same_value(RA_SIGN_STATE), RaSigning.UNKNOWN),
}


@pytest.mark.parametrize("arch", AARCH64, ids=lambda arch: arch.name)
@pytest.mark.parametrize("name", SIGN_RULES)
def test_rules_of_ra_sign_state(arch: Arch, name: str) -> None:
    """AADWARF64, 4.4: it is a register with a value like any other, but that two instructions negate its bits."""
    rule, signing = SIGN_RULES[name]
    for before in ((), (asm.aarch64_negate_ra_state(),)):
        (row,) = rows_of(arch, *before, rule)
        assert row.state == start_state(arch)._replace(signing=signing)


def test_ra_sign_state_is_restored() -> None:
    negate, rule = asm.aarch64_negate_ra_state(), asm.val_expression(RA_SIGN_STATE, LIT1)
    restore = asm.restore_extended(RA_SIGN_STATE)
    rows = rows_of(AARCH64_LE, rule, asm.advance0(1), restore, asm.advance0(1), negate, asm.advance0(1), restore)
    signed, plain = RaSigning.SIGNED, RaSigning.NONE
    assert [row.state.signing for row in rows] == [signed, plain, signed, plain]
    cie = make_cie(AARCH64_LE, asm.def_cfa(31, 0), rule)
    rows = rows_of(AARCH64_LE, asm.undefined(RA_SIGN_STATE), asm.advance0(1), restore, cie=cie)
    assert [row.state.signing for row in rows] == [RaSigning.UNKNOWN, signed]
    cie = make_cie(AARCH64_LE, asm.def_cfa(31, 0), negate)
    rows = rows_of(AARCH64_LE, negate, asm.advance0(1), restore, cie=cie)
    assert [row.state.signing for row in rows] == [plain, signed]


@pytest.mark.parametrize(
    "toggle",
    [asm.aarch64_negate_ra_state(), asm.aarch64_negate_ra_state_with_pc(), asm.aarch64_set_ra_state(1)],
    ids=["negate", "with the PC", "set"],
)
def test_rules_of_ra_sign_state_do_not_mix(toggle: asm.Instruction) -> None:
    """AADWARF64, 4.4, forbids it. libgcc aborts, and LLVM's unwinder negates a bit of the expression's address."""
    (row,) = rows_of(AARCH64_LE, asm.val_expression(RA_SIGN_STATE, LIT1), toggle)
    assert row.state.signing is RaSigning.UNKNOWN


def test_register_34_is_like_any_other_elsewhere() -> None:
    for arch in (AMD64, S390X):
        assert rows_of(arch, asm.val_expression(RA_SIGN_STATE, LIT1)) == (CfiRow(0, start_state(arch)),)


def test_both_ways_to_toggle_mix() -> None:
    """As in LLVM's unwinder: the bits "signed" and "with the PC" are negated whatever they are."""
    negate, with_pc = asm.aarch64_negate_ra_state(), asm.aarch64_negate_ra_state_with_pc()
    instructions = (negate, with_pc, negate, negate, with_pc, asm.aarch64_set_ra_state(2), negate, with_pc)
    rows = [rows_of(AARCH64_LE, *instructions[: count + 1])[0] for count in range(len(instructions))]
    plain, signed, signed_with_pc = RaSigning.NONE, RaSigning.SIGNED, RaSigning.SIGNED_WITH_PC
    expected = [signed, plain, signed_with_pc, plain, signed, signed_with_pc, plain, signed]
    assert [row.state.signing for row in rows] == expected


# --- DW_CFA_set_loc -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", [AMD64, S390X], ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    ("encoding", "base", "size"),
    [
        (d.DW_EH_PE_udata2, 0, 2),
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4, INSTRUCTIONS_VADDR + 2, 4),
        (d.DW_EH_PE_datarel | d.DW_EH_PE_sdata8, TABLE_VADDR, 8),
    ],
)
def test_set_loc_in_the_encoding_of_the_cie(arch: Arch, encoding: int, base: int, size: int) -> None:
    """Other forms are for `test_numbers`."""
    order: Literal["little", "big"] = "little" if arch.byte_order == "<" else "big"
    operand = ((PC_BEGIN + 0x111 - base) & ((1 << 8 * size) - 1)).to_bytes(size, order)
    code = b"\x00\x01" + operand + encode(arch, asm.def_cfa_offset(48))
    program = run(usual_cie(arch, encoding), code, arch, location(arch))
    assert program.starts == (0, 0x111)
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
    rows = rows_of(
        AMD64,
        *(asm.advance0(1), asm.def_cfa_offset(48), asm.set_loc(PC_BEGIN + 10), asm.def_cfa_offset(56)),
        *(asm.advance0(2), asm.def_cfa_offset(64), asm.set_loc(PC_BEGIN + 17), asm.def_cfa_offset(72)),
    )
    expected = [(0, 40), (3, 48), (10, 56), (16, 64), (17, 72)]
    assert [(row.start_delta, row.state.cfa) for row in rows] == [(at, register_offset(7, n)) for at, n in expected]


def test_set_loc_needs_a_location() -> None:
    with pytest.raises(CfiError, match="set_loc outside a function") as caught:
        run(usual_cie(AMD64), encode(AMD64, asm.nop(), asm.set_loc(PC_BEGIN + 1)), AMD64)
    assert caught.value.offset == 1
