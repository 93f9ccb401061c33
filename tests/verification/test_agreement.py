# SPDX-License-Identifier: Apache-2.0
"""What columns agree with is what a comparison address by address finds right, and both count the same addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple
from unittest.mock import patch

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfi2sframe import convert, load
from cfi2sframe.api import truth_of
from cfi2sframe.arch import AMD64
from cfi2sframe.errors import SFrameError
from cfi2sframe.padding import Padding
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule
from cfi2sframe.sframe.read import read_section
from cfi2sframe.verification import agreement, verify_section
from cfi2sframe.verification.agreement import Agreement
from cfi2sframe.verification.whole_functions import WholeFunctions
from tests.support import cfi_asm as asm
from tests.support.bodies import section_bytes, with_functions
from tests.support.samples import TEXT_VADDR, cie_of, linked_file

if TYPE_CHECKING:
    from cfi2sframe.conversion import Level
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import Section
    from cfi2sframe.verification import Truth, Verification

pytestmark = [
    pytest.mark.property,
    pytest.mark.skipif(not agreement.__file__.endswith(".py"), reason="a compiled function cannot be replaced"),
]

_PUSH: Final = (asm.advance(1), asm.def_cfa_offset(16), asm.offset(6, 2))
_PROGRAMS: Final = (
    (),
    _PUSH,
    (*_PUSH, asm.advance(4), asm.def_cfa(7, 8)),
    (*_PUSH, asm.advance(3), asm.def_cfa(6, 16), asm.advance(5), asm.def_cfa(7, 8)),
    # Nothing that version 2 can express.
    (asm.def_cfa(10, 8), asm.advance(1), asm.def_cfa(10, 16)),
)
_LEVELS: Final[tuple[Level, ...]] = (0, 1, 2)
_CIES: Final = (cie_of(AMD64), cie_of(AMD64, augmentation="zRS"))


class Case(NamedTuple):
    image: ElfImage
    truth: Truth
    decoded: Section


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return FDEs with gaps, of which parts are padding, and a section for them that is often damaged."""
    fdes: list[asm.Fde] = []
    padding: list[tuple[int, int]] = []
    position = TEXT_VADDR
    for _ in range(draw(st.integers(1, 6))):
        size, gap = draw(st.integers(1, 14)), draw(st.sampled_from((0, 0, 1, 5)))
        cie = _CIES[draw(st.sampled_from((0, 0, 0, 1)))]
        fdes.append(asm.Fde(cie, position, size, draw(st.sampled_from(_PROGRAMS))))
        position += size
        reach = draw(st.integers(0, gap))
        if reach:
            padding.append((position, position + reach))
        position += gap
    image = load(linked_file(AMD64, fdes))
    version, level = draw(st.sampled_from((2, 3, 3))), draw(st.sampled_from(_LEVELS))
    conversion = convert(image, version, level=level)
    assume(conversion.data)
    # As if ranges had been cut anywhere, with gaps between their parts.
    parts: list[Function] = []
    for function in conversion.section.functions:
        start, size, body = function.start_vaddr, function.size, function.body
        cut = draw(st.integers(0, size - 1))
        if cut:
            end = draw(st.sampled_from((cut, cut, max(cut - 1, 1))))
            parts.append(Function(start, end, body.cut(0, end)))
        parts.append(Function(start + cut, size - cut, body.cut(cut, size)))
    section = with_functions(conversion.section, parts)
    data = bytearray(section_bytes(section, AMD64, conversion.section_vaddr, share=True))
    if draw(st.booleans()):
        data[draw(st.integers(28, len(data) - 1))] ^= draw(st.integers(1, 255))
    try:
        decoded = read_section(bytes(data), conversion.section_vaddr)
    except SFrameError:
        assume(condition=False)
    # As if functions had been joined over gaps, or cut short.
    size_changes = draw(st.lists(st.sampled_from((0, 0, 0, 1, 5, -1)), min_size=12, max_size=12))
    sizes = tuple(size + change for size, change in zip(decoded.sizes, size_changes, strict=False))
    decoded = decoded._replace(sizes=sizes)
    return Case(image, truth_of(conversion)._replace(padding=Padding(tuple(padding))), decoded)


def by_address(case: Case) -> Verification:
    with patch.object(Agreement, "count", lambda _self, _fde: False):
        return verify_section(*case)


def by_columns(case: Case) -> Verification:
    """Verify a section of which nothing may be left to the comparison address by address."""
    with (
        patch.object(WholeFunctions, "function_of") as function_of,
        patch("cfi2sframe.verification.verify.compare_points") as compare_points,
        patch("cfi2sframe.verification.verify.compare_padding") as compare_padding,
    ):
        found = verify_section(*case)
    assert not function_of.called
    assert not compare_points.called
    assert not compare_padding.called
    return found


@settings(max_examples=300)
@given(cases())
def test_both_ways_find_the_same(case: Case) -> None:
    assert verify_section(*case) == by_address(case)


@pytest.mark.parametrize("level", _LEVELS)
@pytest.mark.parametrize("gap_size", [0, 8])
def test_what_is_right_is_compared_by_columns(gap_size: int, level: Level) -> None:
    """Nothing is left to the comparison address by address, at any level, with and without gaps between functions."""
    fdes = [asm.Fde(_CIES[0], TEXT_VADDR + (16 + gap_size) * n, 16, _PROGRAMS[n % 4]) for n in range(40)]
    image = load(linked_file(AMD64, fdes))
    conversion = convert(image, level=level)
    decoded = read_section(conversion.data, conversion.section_vaddr)
    found = by_columns(Case(image, truth_of(conversion), decoded))
    assert found.is_clean
    assert found.function_count == 40


#: What a section may say of 8 bytes of padding: ranges from the start of an FDE of 16 bytes that they follow.
_IN_PADDING: Final = {
    "nothing": ((7, 16),),
    "joined": ((7, 24),),
    "joined in part": ((7, 20),),
    "alone": ((7, 16), (16, 24)),
    "in parts": ((7, 16), (16, 17), (17, 21), (22, 24)),
}


def in_parts(places: tuple[tuple[int, int], ...], other_body: FunctionBody | None = None) -> Case:
    """Return FDEs, each followed by padding, and a section with functions at places of each.

    `other_body` is that of each FDE's last function.
    """
    fdes = [asm.Fde(_CIES[0], TEXT_VADDR + 24 * n, 16, _PROGRAMS[n % 4]) for n in range(12)]
    image = load(linked_file(AMD64, fdes))
    conversion = convert(image, level=0)
    parts: list[Function] = []
    for start, body in zip(conversion.section.starts, conversion.section.bodies, strict=True):
        for begin, end in ((0, 7), *places):
            parts.append(Function(start + begin, end - begin, body.cut(begin, end)))
        if other_body is not None:
            parts[-1] = parts[-1]._replace(body=other_body)
    data = section_bytes(with_functions(conversion.section, parts), AMD64, conversion.section_vaddr)
    ends = tuple([fde.pc_begin + 16 for fde in fdes])
    truth = truth_of(conversion)._replace(padding=Padding(tuple([(end, end + 8) for end in ends])))
    return Case(image, truth, read_section(data, conversion.section_vaddr))


@pytest.mark.parametrize("name", _IN_PADDING)
def test_parts_and_padding_are_compared_by_columns(name: str) -> None:
    case = in_parts(_IN_PADDING[name])
    found = by_columns(case)
    assert found.is_clean
    assert found == by_address(case)


@pytest.mark.parametrize("name", ["alone", "in parts"])
def test_wrong_rows_in_padding(name: str) -> None:
    states = (FrameState(Rule(7, 80, deref=False), Rule(None, -8, deref=True)),)
    case = in_parts(_IN_PADDING[name], FunctionBody((0,), states))
    found = verify_section(*case)
    assert len(found.differences) == 12
    assert found == by_address(case)
