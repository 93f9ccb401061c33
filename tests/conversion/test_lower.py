# SPDX-License-Identifier: Apache-2.0
"""What SFrame can express, in which version: a case per reason to leave a function out, and what is kept."""

import re
from pathlib import Path
from typing import NamedTuple

import pytest

import cfi2sframe
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, ARCHES, S390X, Arch
from cfi2sframe.conversion.lower import InParts, Lowering, Target, check_target, pieces_within
from cfi2sframe.dwarf.entries import DwarfCie
from cfi2sframe.dwarf.rules import (
    CfaRule,
    NoCfa,
    NoRule,
    RaSigning,
    RegisterRule,
    RowState,
    UnwindTable,
    describe_cfa,
    describe_rule,
)
from cfi2sframe.errors import RequestError
from cfi2sframe.sframe.model import OUTERMOST, FrameRow, FrameState, FunctionBody
from cfi2sframe.why import Reason, Why
from tests.support.dwarf.rules import at_cfa, at_expression, in_register, is_expression, register_offset, value_at_cfa
from tests.support.dwarf.rules import at_cfa as saved
from tests.support.dwarf.rules import loaded as load
from tests.support.dwarf.rules import register_offset as at
from tests.support.elf.samples import parsed_cie
from tests.support.sframe.bodies import body_of_rows

#: CFA expressions and register expressions, with the text that messages show.
DEREF_PLUS = b"\x77\x28\x06\x23\x08"  # breg7 40; deref; plus_uconst 8
RSP_16 = b"\x77\x10"
RSP_16_DEREF = b"\x77\x10\x06"
RBX_8 = b"\x73\x08"
RBX_8_DEREF = b"\x73\x08\x06"
CFA_MINUS_24 = b"\x48\x1c"  # lit24; minus
DAMAGED = b"\x77"
ALL = (1, 2, 3)
OLD = (1, 2)


RA8 = saved(-8)
#: Stands for the CFA at a function's entry, which each ABI has elsewhere.
AT_ENTRY = register_offset(-1, 0)


def state(
    arch: Arch,
    cfa: CfaRule | None = AT_ENTRY,
    ra: RegisterRule = NoRule.UNSPECIFIED,
    fp: RegisterRule = NoRule.UNSPECIFIED,
    sp: RegisterRule = NoRule.UNSPECIFIED,
    signing: RaSigning = RaSigning.NONE,
) -> RowState:
    """Return the state at a function's entry with other rules; `cfa` left out is SP plus the ABI's offset at entry."""
    entry = {"AMD64": 8, "s390x": 160}.get(arch.name, 0)
    if arch is AMD64 and ra is NoRule.UNSPECIFIED:
        ra = at_cfa(-8)
    return RowState(register_offset(arch.sp_register, entry) if cfa is AT_ENTRY else cfa, ra, fp, sp, signing)


def table_of(*states: RowState) -> UnwindTable:
    """Return a table of rows of 4 bytes."""
    return UnwindTable(tuple(range(0, 4 * len(states), 4)), states)


def lower(
    arch: Arch, version: int, *states: RowState, errata: int = 2, cie: DwarfCie | None = None
) -> FunctionBody | InParts | Why:
    return Lowering(Target(arch, version, errata)).lower(table_of(*states), cie or parsed_cie(arch))


def body_of(result: FunctionBody | InParts | Why) -> FunctionBody:
    assert isinstance(result, FunctionBody)
    return result


def why_not(result: FunctionBody | InParts | Why) -> Why:
    """Return why a function, or a part of it, is left out: the first reason."""
    assert not isinstance(result, FunctionBody)
    return result if isinstance(result, Why) else next(why for why in result.pieces if isinstance(why, Why))


class Case(NamedTuple):
    """A row that some versions cannot express; the others have `said`, in a flexible row."""

    arch: Arch
    state: RowState
    detail: str
    versions: tuple[int, ...]
    said: FrameState | None = None


ENTRY = at(7, 8)
LOADED = is_expression(RSP_16_DEREF)
BIG = 1 << 31
# fmt: off
LEFT_OUT = {
    Reason.CFA_EXPRESSION: (
        Case(AMD64, state(AMD64, is_expression(DEREF_PLUS)), "breg7 40; deref; plus_uconst 8", ALL),
        Case(AMD64, state(AMD64, is_expression(DAMAGED)), "bytes 77", ALL),
        Case(AMD64, state(AMD64, is_expression(b"")), "", ALL),
        Case(AMD64, state(AMD64, LOADED), "(rsp+16)", OLD, FrameState(load(7, 16), RA8)),
    ),
    Reason.CFA_BASE_REGISTER: (
        Case(AMD64, state(AMD64, register_offset(3, 16)), "rbx+16", OLD, FrameState(at(3, 16), RA8)),
        Case(S390X, state(S390X, register_offset(10, 160)), "r10+160", (2,), FrameState(at(10, 160))),
    ),
    Reason.CFA_UNDEFINED: (
        Case(AMD64, state(AMD64, None), "", ALL),
    ),
    Reason.CFA_OFFSET_UNKNOWN: (
        Case(AMD64, state(AMD64, NoCfa.UNKNOWN), "", ALL),
    ),
    Reason.RA_EXPRESSION: (
        Case(AMD64, state(AMD64, ra=at_expression(RBX_8_DEREF)), "breg3 8; deref", ALL),
        Case(AMD64, state(AMD64, ra=is_expression(RBX_8)), "rbx+8", OLD, FrameState(ENTRY, at(3, 8))),
        Case(AMD64, state(AMD64, ra=at_expression(RBX_8)), "(rbx+8)", OLD, FrameState(ENTRY, load(3, 8))),
    ),
    Reason.RA_IN_REGISTER: (
        Case(AMD64, state(AMD64, ra=in_register(2)), "rcx+0", OLD, FrameState(ENTRY, at(2, 0))),
        Case(AARCH64_LE, state(AARCH64_LE, ra=in_register(9)), "x9+0", OLD, FrameState(at(31, 0), at(9, 0))),
    ),
    Reason.RA_NOT_AT_FIXED_OFFSET: (
        Case(AMD64, state(AMD64, ra=at_cfa(-16)), "c-16", OLD, FrameState(ENTRY, saved(-16))),
        Case(AMD64, state(AMD64, ra=at_expression(CFA_MINUS_24)), "c-24", OLD, FrameState(ENTRY, saved(-24))),
    ),
    Reason.RA_IS_CFA_VALUE: (
        Case(AMD64, state(AMD64, LOADED, ra=value_at_cfa(-8)), "CFA-8", ALL),
        Case(AMD64, state(AMD64, ra=value_at_cfa(-8)), "CFA-8", OLD, FrameState(ENTRY, at(7, 0))),
        Case(S390X, state(S390X, ra=is_expression(CFA_MINUS_24)), "CFA-24", (2,), FrameState(at(15, 160), at(15, 136))),
    ),
    Reason.RA_UNSPECIFIED: (
        Case(AMD64, state(AMD64, ra=NoRule.SAME_VALUE), "", ALL),
        Case(AMD64, state(AMD64, ra=in_register(16)), "", ALL),
    ),
    Reason.RA_UNDEFINED: (
        Case(AMD64, state(AMD64, ra=NoRule.UNDEFINED), "", (1,), OUTERMOST),
    ),
    Reason.FP_EXPRESSION: (
        Case(AMD64, state(AMD64, fp=at_expression(RBX_8_DEREF)), "breg3 8; deref", ALL),
        Case(AMD64, state(AMD64, fp=at_expression(b"\x76\x00")), "(rbp+0)", OLD, FrameState(ENTRY, RA8, load(6, 0))),
        Case(AMD64, state(AMD64, fp=is_expression(RSP_16)), "rsp+16", OLD, FrameState(ENTRY, RA8, at(7, 16))),
    ),
    Reason.FP_IN_REGISTER: (
        Case(AMD64, state(AMD64, fp=in_register(11)), "r11+0", OLD, FrameState(ENTRY, RA8, at(11, 0))),
    ),
    Reason.FP_IS_CFA_VALUE: (
        Case(AMD64, state(AMD64, LOADED, fp=value_at_cfa(-16)), "CFA-16", ALL),
        Case(AMD64, state(AMD64, LOADED, fp=value_at_cfa(0)), "CFA+0", OLD,
             FrameState(load(7, 16), RA8, load(7, 16))),
        # GHC's code with -g.
        Case(AMD64, state(AMD64, fp=value_at_cfa(-16)), "CFA-16", OLD, FrameState(ENTRY, RA8, at(7, -8))),
    ),
    Reason.FP_UNDEFINED: (
        Case(AMD64, state(AMD64, fp=NoRule.UNDEFINED), "", ALL),
    ),
    Reason.FP_WITHOUT_RA: (
        Case(AARCH64_LE, state(AARCH64_LE, fp=at_cfa(-16)), "", OLD, FrameState(at(31, 0), None, saved(-16))),
    ),
    Reason.SP_RULE: (
        Case(AMD64, state(AMD64, sp=NoRule.UNDEFINED), "undefined", ALL),
        Case(AMD64, state(AMD64, sp=at_expression(RSP_16_DEREF)), "breg7 16; deref", ALL),
        # Two loads, a load and a sum; and an RA that counts from a loaded CFA, where SP does not.
        Case(AMD64, state(AMD64, LOADED, sp=at_cfa(-24)), "c-24", ALL),
        Case(AMD64, state(AMD64, LOADED, sp=value_at_cfa(8)), "v+8", ALL),
        Case(AMD64, state(AMD64, LOADED, sp=in_register(10)), "r10", ALL),
        Case(AMD64, state(AMD64, LOADED, sp=in_register(10), ra=in_register(2)), "r10", OLD,
             FrameState(at(10, 0), at(2, 0))),
        Case(AMD64, state(AMD64, sp=value_at_cfa(8)), "v+8", OLD, FrameState(at(7, 16), saved(-16))),
        # setcontext, longjmp
        Case(AMD64, state(AMD64, sp=at_cfa(-24)), "c-24", OLD, FrameState(load(7, -16), load(7, 0))),
        Case(AMD64, state(AMD64, sp=in_register(10)), "r10", OLD, FrameState(at(10, 0), load(7, 0))),
        Case(AMD64, state(AMD64, sp=NoRule.SAME_VALUE), "same value", OLD, FrameState(at(7, 0), saved(0))),
        Case(AMD64, state(AMD64, fp=at_cfa(-24), sp=at_expression(RSP_16)), "exp(breg7 16)", OLD,
             FrameState(load(7, 16), load(7, 0), load(7, -16))),
        Case(AARCH64_LE, state(AARCH64_LE, register_offset(0, 32), ra=at_cfa(-8), fp=at_cfa(-16),
             sp=is_expression(RSP_16)), "breg7 16", OLD,
             FrameState(at(7, 16), load(0, 24), load(0, 16))),
        Case(S390X, state(S390X, sp=at_expression(RSP_16)), "exp(breg7 16)", (2, 3)),
        Case(S390X, state(S390X, register_offset(10, 160), ra=at_cfa(-48), sp=in_register(16)), "f0", (2,),
             FrameState(at(16, 160), load(10, 112))),
    ),
    Reason.OFFSET_RANGE: (
        Case(AMD64, state(AMD64, register_offset(7, BIG)), "rsp+2147483648", ALL),
        Case(AMD64, state(AMD64, register_offset(7, -BIG - 1)), "rsp-2147483649", ALL),
        Case(AMD64, state(AMD64, fp=at_cfa(-BIG - 8)), "c-2147483656", ALL),
        Case(AARCH64_LE, state(AARCH64_LE, ra=at_cfa(BIG)), "c+2147483648", ALL),
        Case(AMD64, state(AMD64, fp=at_cfa(0)), "c+0", OLD, FrameState(ENTRY, RA8, saved(0))),
        Case(AARCH64_LE, state(AARCH64_LE, ra=at_cfa(0)), "c+0", OLD, FrameState(at(31, 0), saved(0))),
        Case(S390X, state(S390X, ra=at_cfa(-47)), "c-47", (2,), FrameState(at(15, 160), saved(-47))),
        Case(S390X, state(S390X, register_offset(15, 160 + 8 * BIG)), "r15+17179869344", (2, 3)),
    ),
    Reason.PAUTH_WITH_PC: (
        Case(AARCH64_LE, state(AARCH64_LE, ra=at_cfa(-8), signing=RaSigning.SIGNED_WITH_PC), "", ALL),
    ),
    Reason.PAUTH_UNKNOWN: (
        Case(AARCH64_LE, state(AARCH64_LE, signing=RaSigning.UNKNOWN), "", ALL),
    ),
}
# fmt: on
def test_every_reason_has_a_case() -> None:
    room = Path(cfi2sframe.__file__).parent / "conversion"
    texts = [(room / name).read_text() for name in ("reduce.py", "lower.py")]
    assert {reason.name for reason in LEFT_OUT} == set(re.findall(r"\bReason\.([A-Z_]+)", "".join(texts)))


@pytest.mark.parametrize(
    ("reason", "case"),
    [pytest.param(r, c, id=f"{r.name}-{c.arch.name}-{c.detail}") for r in LEFT_OUT for c in LEFT_OUT[r]],
)
def test_left_out_or_flexible(reason: Reason, case: Case) -> None:
    before = state(case.arch)
    for version in range(case.arch.first_version, 4):
        result = lower(case.arch, version, before, case.state)
        if version in case.versions:
            assert why_not(result) == Why(reason, case.detail, 4)
        else:
            rows = body_of(result).rows
            assert rows[1] == FrameRow(4, case.said or OUTERMOST)
            # An outermost row needs no flexible FDE.
            assert body_of(result).is_flexible == (case.said != OUTERMOST)


def test_a_cfa_offset_that_s390x_cannot_encode() -> None:
    for arch in ARCHES:
        entry = {"AMD64": 8, "s390x": 160}.get(arch.name, 0)
        for version in range(arch.first_version, 4):
            result = lower(arch, version, state(arch, register_offset(arch.sp_register, entry + 4)))
            if arch is S390X:
                detail = "r15+164" if version == 3 else "CFA=r15+164"
                assert result == Why(Reason.OFFSET_RANGE, detail, 0)
            else:
                assert not body_of(result).is_flexible


def test_another_return_column() -> None:
    """Rows say where RA is: the row machine follows the CIE's column."""
    for arch in ARCHES:
        for version in range(arch.first_version, 4):
            result = lower(arch, version, state(arch, ra=in_register(3)), cie=parsed_cie(arch, ra_register=3))
            if version == 3 or arch is S390X:
                assert [found.state.ra for found in body_of(result).rows] == [at(3, 0)]
            else:
                assert result == Why(Reason.RA_IN_REGISTER, f"{arch.register_name(3)}+0", 0)


def test_a_return_column_that_is_no_register() -> None:
    """Version 2 has words for registers of s390x: those that the ABI has, since readers refuse others."""
    for number, is_described in ((31, True), (32, False), (142, False)):
        row, cie = state(S390X, ra=in_register(number)), parsed_cie(S390X, ra_register=number)
        skip = Why(Reason.RA_IN_REGISTER, f"r{number}+0", 0)
        assert (lower(S390X, 2, row, cie=cie) == skip) is not is_described


# What default rows hold


@pytest.mark.parametrize(
    ("arch", "row", "said"),
    [
        (AMD64, state(AMD64, fp=in_register(6)), FrameState(at(7, 8), RA8)),
        (AMD64, state(AMD64, is_expression(RSP_16)), FrameState(at(7, 16), RA8)),
        (AMD64, state(AMD64, ra=at_expression(b"\x38\x1c")), FrameState(at(7, 8), RA8)),
        (AMD64, state(AMD64, register_offset(7, BIG - 1)), FrameState(at(7, BIG - 1), RA8)),
        (AMD64, state(AMD64, register_offset(7, -BIG)), FrameState(at(7, -BIG), RA8)),
        (AMD64, state(AMD64, fp=at_cfa(-BIG)), FrameState(at(7, 8), RA8, saved(-BIG))),
        (AMD64, state(AMD64, fp=at_cfa(-15)), FrameState(at(7, 8), RA8, saved(-15))),
        (AARCH64_LE, state(AARCH64_LE, ra=in_register(30)), FrameState(at(31, 0))),
        (AARCH64_BE, state(AARCH64_BE, ra=at_cfa(-8), fp=at_cfa(-16)), FrameState(at(31, 0), RA8, saved(-16))),
        (
            AARCH64_LE,
            state(AARCH64_LE, ra=at_cfa(-8), signing=RaSigning.SIGNED),
            FrameState(at(31, 0), RA8, None, mangled_ra=True),
        ),
        # Go counts from the caller's SP.
        (S390X, state(S390X, ra=at_cfa(-8), sp=value_at_cfa(0)), FrameState(at(15, 320), saved(-168))),
        (AMD64, state(AMD64, register_offset(6, 16), fp=value_at_cfa(-16)), FrameState(at(6, 16), RA8)),
        (S390X, state(S390X, sp=at_cfa(-40)), FrameState(at(15, 160))),
        (S390X, state(S390X, register_offset(11, 320), sp=in_register(16)), FrameState(at(11, 320))),
        (S390X, state(S390X, register_offset(15, 160 + 8 * (BIG - 1))), FrameState(at(15, 160 + 8 * (BIG - 1)))),
    ],
)
def test_default_rows(arch: Arch, row: RowState, said: FrameState) -> None:
    """Of other rules than those that `test_reduce` draws for each version."""
    for version in range(arch.first_version, 4):
        assert lower(arch, version, row) == body_of_rows((FrameRow(0, said),))


@pytest.mark.parametrize(("register", "name"), [(0, "r0"), (16, "f0"), (17, "f2")])
def test_s390x_keeps_ra_and_fp_in_registers(register: int, name: str) -> None:
    """Version 2 has a register number in the offset's word; version 3 has flexible rows for it."""
    row = state(S390X, ra=in_register(register), fp=in_register(register))
    said = FrameState(at(15, 160), at(register, 0), at(register, 0))
    assert lower(S390X, 2, row) == body_of_rows((FrameRow(0, said),))
    assert lower(S390X, 3, row) == body_of_rows((FrameRow(0, said),), is_flexible=True)
    assert S390X.register_name(register) == name


def test_a_signal_frame_of_linux() -> None:
    """The C library's __restore_rt: CFA = *(rsp+160), SP from the same word, RA and FP beside it."""
    row = state(
        AMD64,
        is_expression(b"\x77\xa0\x01\x06"),
        ra=at_expression(b"\x77\xa8\x01"),
        fp=at_expression(b"\x77\xf8\x00"),
        sp=at_expression(b"\x77\xa0\x01"),
    )
    cie = parsed_cie(AMD64, is_signal_frame=True)
    said = FrameRow(0, FrameState(load(7, 160), load(7, 168), load(7, 120)))
    assert lower(AMD64, 3, row, cie=cie) == body_of_rows((said,), is_flexible=True, is_signal_frame=True)
    assert lower(AMD64, 2, row, cie=cie) == Why(Reason.CFA_EXPRESSION, "(rsp+160)", 0)


def test_the_largest_register_of_a_control_word() -> None:
    last = (1 << 29) - 1
    assert body_of(lower(AMD64, 3, state(AMD64, register_offset(last, 0)))).is_flexible
    result = lower(AMD64, 3, state(AMD64, register_offset(last + 1, 0)))
    assert why_not(result) == Why(Reason.OFFSET_RANGE, "r536870912+0", 0)


# Errata, flags and rows


@pytest.mark.parametrize(
    ("version", "errata", "is_said", "is_pcrel"),
    [
        (1, 2, False, False),
        (2, 0, False, False),
        (2, 1, False, True),
        (2, 2, True, True),
        (3, 0, True, True),
        (3, 2, True, True),
    ],
)
def test_errata(version: int, errata: int, is_said: bool, is_pcrel: bool) -> None:  # noqa: FBT001
    target = Target(AMD64, version, errata)
    assert (target.has_outermost_rows, target.start_is_pcrel) == (is_said, is_pcrel)
    result = lower(AMD64, version, state(AMD64), state(AMD64, ra=NoRule.UNDEFINED), errata=errata)
    if is_said:
        assert body_of(result).rows == (FrameRow(0, FrameState(ENTRY, RA8)), FrameRow(4, OUTERMOST))
    else:
        assert why_not(result) == Why(Reason.RA_UNDEFINED, "", 4)


def test_an_outermost_frame_needs_nothing_else() -> None:
    """Where RA is undefined there is no caller, so the other rules of the row do not matter."""
    row = RowState(None, NoRule.UNDEFINED, NoRule.UNDEFINED, in_register(3), RaSigning.SIGNED_WITH_PC)
    assert lower(AARCH64_LE, 3, row) == body_of_rows((FrameRow(0, OUTERMOST),))


@pytest.mark.parametrize("version", ALL)
def test_equal_neighbours_merge(version: int) -> None:
    """A rule that SFrame need not store makes another row of the CFI, and none of the section; also from the cache."""
    entry, other = state(AMD64), state(AMD64, register_offset(7, 16))
    lowering, cie = Lowering(Target(AMD64, version)), parsed_cie(AMD64)
    states = (entry, state(AMD64, fp=NoRule.SAME_VALUE), other, other, state(AMD64, sp=value_at_cfa(0)))
    first = body_of(lowering.lower(table_of(*states), cie))
    assert first.starts == (0, 8, 16)
    assert lowering.lower(table_of(*states), cie) == first
    # And where none are equal, the quick way gives what the other one does; also for other starts.
    distinct = (entry, other, entry)
    for starts in (first.starts, (0, 6, 7)):
        for _ in range(2):
            assert lowering.lower(UnwindTable(starts, distinct), cie) == first._replace(starts=starts)
    # What belongs to the CIE is another one's.
    for _ in range(2):
        signal = lowering.lower(UnwindTable(first.starts, distinct), parsed_cie(AMD64, is_signal_frame=True))
        assert signal == first._replace(is_signal_frame=version == 3)


@pytest.mark.parametrize("version", ALL)
def test_the_key_matters_where_ra_is_signed(version: int) -> None:
    cie = parsed_cie(AARCH64_LE)._replace(uses_b_key=True)
    plain, signed = state(AARCH64_LE), state(AARCH64_LE, ra=at_cfa(-8), signing=RaSigning.SIGNED)
    lowering = Lowering(Target(AARCH64_LE, version))
    assert not body_of(lowering.lower(table_of(plain), cie)).uses_b_key
    assert body_of(lowering.lower(table_of(plain, signed), cie)).uses_b_key
    assert not body_of(lowering.lower(table_of(signed), parsed_cie(AARCH64_LE))).uses_b_key


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_versions_of_an_abi(arch: Arch) -> None:
    for version in ALL:
        if version >= arch.first_version:
            check_target(Target(arch, version))
        else:
            with pytest.raises(RequestError, match=r"^SFrame version 1 does not define s390x; version 2 does$"):
                check_target(Target(arch, version))
    for version in (0, 4):
        with pytest.raises(RequestError, match=f"^SFrame version {version} is unknown; there are 1, 2 and 3$"):
            check_target(Target(arch, version))


def test_rows_before_the_end_of_a_function() -> None:
    table = table_of(state(AMD64), state(AMD64, fp=at_cfa(-16)), state(AMD64))
    assert [table.before(end).starts for end in (0, 4, 5, 8, 9)] == [(0,), (0,), (0, 4), (0, 4), (0, 4, 8)]


# For people; other rules of registers are among the details above


def test_rules_in_words() -> None:
    assert describe_rule(at_cfa(0), AMD64) == "c+0"
    rules = (None, NoCfa.UNKNOWN, register_offset(6, -8), register_offset(6, 0), is_expression(RSP_16))
    assert [describe_cfa(rule, AMD64) for rule in rules] == ["none", "unknown", "rbp-8", "rbp+0", "breg7 16"]


# Parts


def starts_of(piece: FunctionBody | Why) -> tuple[int, ...] | Why:
    return piece if isinstance(piece, Why) else piece.starts


def test_rows_that_cannot_be_expressed_leave_holes() -> None:
    """Rows in between are bodies of their own, and a hole has one reason and one detail."""
    entry, rbx, r12 = state(AMD64), state(AMD64, register_offset(3, 8)), state(AMD64, register_offset(12, 8))
    expression = state(AMD64, is_expression(DEREF_PLUS))
    pushed = state(AMD64, register_offset(7, 16))
    result = lower(AMD64, 2, rbx, entry, pushed, rbx, r12, expression, pushed, entry)
    assert isinstance(result, InParts)
    base, shape = Reason.CFA_BASE_REGISTER, Reason.CFA_EXPRESSION
    assert list(zip(result.starts, map(starts_of, result.pieces), strict=True)) == [
        (0, Why(base, "rbx+8", 0)),
        (4, (0, 4)),
        (12, Why(base, "rbx+8", 12)),
        (16, Why(base, "r12+8", 16)),
        (20, Why(shape, "breg7 40; deref; plus_uconst 8", 20)),
        (24, (0, 4)),
    ]


def test_only_parts_that_need_them_get_flexible_rows() -> None:
    rbx, expression = state(AMD64, register_offset(3, 8)), state(AMD64, is_expression(DEREF_PLUS))
    result = lower(AMD64, 3, state(AMD64), expression, state(AMD64), rbx)
    assert isinstance(result, InParts)
    assert [piece.is_flexible for piece in result.pieces if isinstance(piece, FunctionBody)] == [False, True]


def test_within() -> None:
    """What a range has of each part and hole: cut to it, ascending, nothing outside."""
    rbx = state(AMD64, register_offset(3, 8))
    result = lower(AMD64, 2, state(AMD64), rbx, state(AMD64))
    assert isinstance(result, InParts)
    first, hole, last = result.pieces
    assert list(pieces_within(result, 0, 20)) == [(0, 4, first), (4, 8, hole), (8, 20, last)]
    assert list(pieces_within(result, 3, 9)) == [(3, 4, first), (4, 8, hole), (8, 9, last)]
    assert list(pieces_within(result, 5, 6)) == [(5, 6, hole)]
    assert list(pieces_within(result, 8, 8)) == []
