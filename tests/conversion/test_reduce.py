# SPDX-License-Identifier: Apache-2.0
"""Whatever rules a row of the DWARF table has: its SFrame row gives the same values, or there is no such row."""

from typing import Final, NamedTuple

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.conversion.lower import InParts, Lowering, Target
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.rules import NoRule, RaSigning, RegisterRule, RowState, UnwindTable
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.read import read_section
from cfi2sframe.verification.expressible import row_for
from cfi2sframe.verification.row_difference import row_difference
from cfi2sframe.why import Why
from tests.support.conversion.evaluation import WORD, Values, address_of, dwarf_values, register_value, sframe_values
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.rules import at_cfa, at_expression, in_register, is_expression, register_offset, value_at_cfa
from tests.support.elf.samples import parsed_cie
from tests.support.sframe.bodies import section_bytes, with_functions

pytestmark = pytest.mark.property

#: An offset of 4 bytes is one that s390x's CFA cannot have.
OFFSETS: Final = (*range(-48, 56, 8), -160, -168, 160, 4)
DEREF: Final = b"\x06"
REACH: Final = 1 << 20
AMD_3: Final = Target(AMD64, 3)


class Drawn(NamedTuple):
    """A row, and what it is lowered for."""

    state: RowState
    target: Target


def registers_of(arch: Arch) -> tuple[int, ...]:
    return (0, 3, 10, 16, arch.sp_register, arch.fp_register, arch.ra_register)


def sums(arch: Arch) -> st.SearchStrategy[bytes]:
    """Expressions of a register plus an offset."""
    return st.builds(
        lambda register, offset: (
            b"\x92" + asm.uleb128(register) + asm.sleb128(offset)
            if register > 31
            else bytes((0x70 + register,)) + asm.sleb128(offset)
        ),
        st.sampled_from(registers_of(arch)),
        st.sampled_from(OFFSETS),
    )


def cfa_sums() -> st.SearchStrategy[bytes]:
    """Expressions of the CFA, on the stack already, plus an offset."""
    return st.sampled_from(OFFSETS).map(lambda offset: b"\x11" + asm.sleb128(offset) + b"\x22")


@st.composite
def rows(draw: st.DrawFn) -> Drawn:
    arch = draw(st.sampled_from((AMD64, AARCH64_LE, S390X)))
    target = Target(arch, draw(st.integers(arch.first_version, 3)), 2)
    offsets, registers = st.sampled_from(OFFSETS), st.sampled_from(registers_of(arch))
    cfa = draw(
        st.builds(register_offset, registers, offsets)
        | st.builds(register_offset, st.sampled_from((arch.sp_register, arch.fp_register)), offsets)
        | (sums(arch) | sums(arch).map(lambda code: code + DEREF)).map(is_expression)
    )
    code = sums(arch) | cfa_sums()
    saved: st.SearchStrategy[RegisterRule] = (
        st.just(NoRule.SAME_VALUE)
        | st.builds(at_cfa, offsets)
        | st.builds(value_at_cfa, offsets)
        | st.builds(in_register, registers)
        | st.builds(at_expression, code)
        | st.builds(at_expression, code.map(lambda expression: expression + DEREF))
        | st.builds(is_expression, code | code.map(lambda expression: expression + DEREF))
    )
    usual: st.SearchStrategy[RegisterRule] = st.just(NoRule.UNSPECIFIED)
    call = st.just(at_cfa(arch.fixed_ra_offset)) if arch.fixed_ra_offset else usual
    lost: st.SearchStrategy[RegisterRule] = st.just(NoRule.UNDEFINED)
    state = RowState(
        cfa,
        draw(call | saved),
        draw(usual | saved | lost),
        draw(usual | saved | lost),
        draw(st.sampled_from((RaSigning.NONE, RaSigning.SIGNED)) if arch.ra_may_be_signed else st.just(RaSigning.NONE)),
    )
    return Drawn(state, target)


def lowered(drawn: Drawn) -> FrameState | Why:
    """Return the row after it has been written and read again, or why it is left out."""
    target = drawn.target
    body = Lowering(target).lower(UnwindTable((0,), (drawn.state,)), parsed_cie(target.arch))
    assert not isinstance(body, InParts), "one row has no parts"
    if isinstance(body, Why):
        return body
    section = with_functions(Section(target.version, target.arch.abi_id), (Function(0x1000, 16, body),))
    (row,) = read_section(section_bytes(section, target.arch, 0x2000), 0x2000).functions[0].rows
    return row.state


@given(rows())
@example(Drawn(RowState(register_offset(5, 0), at_cfa(168), NoRule.UNSPECIFIED, at_cfa(160), RaSigning.NONE), AMD_3))
@example(
    Drawn(
        RowState(register_offset(15, 160), at_cfa(-8), NoRule.UNSPECIFIED, value_at_cfa(0), RaSigning.NONE),
        Target(S390X, 2),
    )
)
def test_a_row_has_the_values_that_dwarf_gives(drawn: Drawn) -> None:
    """Both by made-up registers and memory, and by what verification says."""
    state, arch = lowered(drawn), drawn.target.arch
    if isinstance(state, FrameState):
        assert sframe_values(state, arch) == dwarf_values(drawn.state, arch)
        assert row_difference(drawn.state, state, arch) is None


@given(rows())
def test_version_3_leaves_nothing_out_that_it_has_a_row_for(drawn: Drawn) -> None:
    arch, rules = drawn.target.arch, (drawn.state.ra, drawn.state.fp, drawn.state.sp)
    # Two loads, the inner one of which may happen to be the CFA.
    assume(not any(isinstance(rule, Expression) and rule.deref and rule.code.endswith(DEREF) for rule in rules))
    state = lowered(drawn._replace(target=Target(arch, 3)))
    values = dwarf_values(drawn.state, arch)
    assert values is not None
    assert isinstance(state, FrameState) == has_a_row(values, arch), state


def has_a_row(values: Values, arch: Arch) -> bool:
    """Whether flexible rows have a rule for each value, by trying all registers of `rows`."""
    bases = {register: register_value(register) for register in registers_of(arch)}
    if values.sp is None or values.ra is None or values.fp is None:
        return False
    if arch.fixed_ra_offset and values.ra == bases[arch.ra_register]:
        # The column of RA is no register there.
        return False
    cfa = (values.sp - arch.sp_offset_from_cfa) % WORD
    # Words of s390x hold a CFA's offset in units of 8.
    offsets = [distance(value, base) for value in (cfa, address_of(cfa)) for base in bases.values()]
    if not any(abs(offset) < REACH and offset % arch.cfa_offset_scale == 0 for offset in offsets):
        return False
    return all(
        any(abs(distance(value, base)) < REACH for base in bases.values())
        or any(abs(distance(address_of(value), base)) < REACH for base in (cfa, *bases.values()))
        for value in (values.ra, values.fp)
    )


def distance(left: int, right: int) -> int:
    """Return how far a word is above another, as a signed number."""
    return (left - right + WORD // 2) % WORD - WORD // 2


@given(rows(), st.data())
def test_verification_finds_each_other_value(drawn: Drawn, data: st.DataObject) -> None:
    """For any SFrame row: no difference if, and only if, the values are the same."""
    arch = drawn.target.arch
    state = lowered(drawn._replace(target=Target(arch, 3)))
    if isinstance(state, Why):
        state = FrameState(Rule(arch.sp_register, 0, deref=False))
    assert state.cfa is not None
    registers = st.sampled_from(registers_of(arch))
    rules = st.builds(Rule, registers, st.sampled_from(OFFSETS), st.booleans())
    others = st.none() | rules | st.builds(Rule, st.none(), st.sampled_from(OFFSETS), st.booleans())
    changed = FrameState(
        data.draw(st.just(state.cfa) | rules),
        data.draw(st.just(state.ra) | others),
        data.draw(st.just(state.fp) | others),
        data.draw(st.just(state.mangled_ra) | st.booleans()),
    )
    truth = dwarf_values(drawn.state, arch)
    assert truth is not None
    is_known = None not in truth
    is_same = is_known and sframe_values(changed, arch) == truth
    found = row_difference(drawn.state, changed, arch)
    assert (found is None) == is_same, found


@given(rows(), st.sampled_from((0, 1, 2)))
def test_verification_knows_by_itself_what_a_version_can_express(drawn: Drawn, errata: int) -> None:
    """No less, or a right section would lack functions; no more, or a fault could leave functions out."""
    target = drawn.target._replace(errata=errata)
    body = Lowering(target).lower(UnwindTable((0,), (drawn.state,)), parsed_cie(target.arch))
    found = row_for(drawn.state, target.arch, target.version, errata)
    assert not isinstance(body, InParts)
    assert (None if not isinstance(body, FunctionBody) else (body.states[0], body.is_flexible)) == found
