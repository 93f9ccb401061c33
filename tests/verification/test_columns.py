# SPDX-License-Identifier: Apache-2.0
"""What a walk over two columns finds is what looking at every single address finds."""

import re
from bisect import bisect_right
from typing import Final, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.conversion.options import Level
from cfi2sframe.dwarf.fdes import CfiEntries
from cfi2sframe.dwarf.rules import RowState
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import SFrameError
from cfi2sframe.range_map import Span
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.read import read_section
from cfi2sframe.verification.row_difference import row_difference
from cfi2sframe.verification.verify import Asked, verify_section
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file
from tests.support.sframe.bodies import section_bytes, with_functions

pytestmark = pytest.mark.property

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
    entries: CfiEntries
    decoded: Section
    padding: tuple[Span, ...]


def code_with(padding: tuple[Span, ...]) -> tuple[Code]:
    """Return code of `ret`, with int3 where there is padding."""
    data = bytearray(b"\xc3" * 0x400)
    for start, end in padding:
        data[start - TEXT_VADDR : end - TEXT_VADDR] = b"\xcc" * (end - start)
    return (Code(data=bytes(data)),)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Return FDEs with gaps, of which parts are padding, and a section for them that is often damaged."""
    fdes: list[asm.Fde] = []
    padding: list[Span] = []
    position = TEXT_VADDR
    for _ in range(draw(st.integers(1, 6))):
        size, gap = draw(st.integers(1, 14)), draw(st.sampled_from((0, 0, 1, 5)))
        cie = _CIES[draw(st.sampled_from((0, 0, 0, 1)))]
        fdes.append(asm.Fde(cie, position, size, draw(st.sampled_from(_PROGRAMS))))
        position += size
        reach = draw(st.integers(0, gap))
        if reach:
            padding.append(Span(position, position + reach))
        position += gap
    image = load(linked_file(AMD64, fdes, codes=code_with(tuple(padding))))
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
    return Case(image, conversion.cfi.entries, decoded, tuple(padding))


class Seen(NamedTuple):
    """Addresses: where a row differs, where a function is missing, where one has no FDE; and FDEs that lack a mark."""

    wrong: set[int]
    missing: set[int]
    extra: set[int]
    unmarked: set[int]


#: Where functions are looked for; damaged sizes and starts reach further.
WINDOW: Final = range(TEXT_VADDR - 10, TEXT_VADDR + 400)


def is_expressible(row: RowState, version: int) -> bool:
    return version == 3 or (isinstance(row.cfa, Rule) and row.cfa.register in (6, 7))


def look_at_every_address(case: Case) -> Seen:
    """Compare the row that a look-up finds at each address with that of the FDE there, or before the padding there."""
    entries, section = case.entries, case.decoded
    seen = Seen(set(), set(), set(), set())
    padding = {start: end - start for start, end in case.padding}
    known = set[int]()
    for number, (begin, size) in enumerate(zip(entries.starts, entries.sizes, strict=True)):
        cie, table = entries[number].program.cie, entries[number].program.table
        for vaddr in range(begin, begin + size + padding.get(begin + size, 0)):
            known.add(vaddr)
            row = table.states[bisect_right(table.starts, min(vaddr - begin, size - 1)) - 1]
            where = section.find(vaddr)
            if where is not None:
                state = where.row.state if where.row else None
                if row_difference(row, state, AMD64) is not None:
                    seen.wrong.add(vaddr)
                if section.version == 3 and cie.is_signal_frame != where.function.body.is_signal_frame:
                    seen.unmarked.add(max(begin, where.function.start_vaddr))
            elif vaddr < begin + size and is_expressible(row, section.version):
                seen.missing.add(begin)
    seen.extra.update(vaddr for vaddr in WINDOW if vaddr not in known and section.find(vaddr) is not None)
    return seen


def check(case: Case) -> int:
    """Hold what verification reports to what is seen; return how much that is."""
    seen = look_at_every_address(case)
    found = verify_section(case.image, case.entries, case.decoded, Asked(in_parts=True)).differences
    wrong = {d.vaddr for d in found if d.kind == "wrong" and "marked" not in d.message}
    assert wrong <= seen.wrong
    assert {vaddr for vaddr in seen.wrong if vaddr - 1 not in seen.wrong} <= wrong
    assert {d.vaddr for d in found if "marked" in d.message} == seen.unmarked
    assert {d.vaddr for d in found if d.kind == "missing"} == seen.missing
    extra = set[int]()
    for difference in found:
        if difference.kind == "extra":
            (size,) = re.findall(r"no CFI for ([\d,]+) byte", difference.message)
            extra.update(vaddr for vaddr in WINDOW if 0 <= vaddr - difference.vaddr < int(size.replace(",", "")))
    assert extra == seen.extra
    return len(found)


@settings(max_examples=300)
@given(cases())
def test_columns_find_what_every_address_shows(case: Case) -> None:
    check(case)


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
    padding = tuple([Span(fde.pc_begin + 16, fde.pc_begin + 24) for fde in fdes])
    image = load(linked_file(AMD64, fdes, codes=code_with(padding)))
    conversion = convert(image, level=0)
    parts: list[Function] = []
    for start, body in zip(conversion.section.starts, conversion.section.bodies, strict=True):
        for begin, end in ((0, 7), *places):
            parts.append(Function(start + begin, end - begin, body.cut(begin, end)))
        if other_body is not None:
            parts[-1] = parts[-1]._replace(body=other_body)
    data = section_bytes(with_functions(conversion.section, parts), AMD64, conversion.section_vaddr)
    return Case(image, conversion.cfi.entries, read_section(data, conversion.section_vaddr), padding)


@pytest.mark.parametrize("name", _IN_PADDING)
def test_parts_and_padding(name: str) -> None:
    assert check(in_parts(_IN_PADDING[name])) == 0


@pytest.mark.parametrize("name", ["alone", "in parts"])
def test_wrong_rows_in_padding(name: str) -> None:
    states = (FrameState(Rule(7, 80, deref=False), Rule(None, -8, deref=True)),)
    assert check(in_parts(_IN_PADDING[name], FunctionBody((0,), states))) == 12
