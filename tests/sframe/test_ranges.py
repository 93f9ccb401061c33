# SPDX-License-Identifier: Apache-2.0
"""Functions cut and joined into ranges (-O2): the same answer at every PC, in fewer bytes."""

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_LE, AMD64, ARCHES, S390X, Arch
from cfi2sframe.sframe.model import Attributes, FrameRow, FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.ranges import make_ranges
from cfi2sframe.sframe.read import read_section
from cfi2sframe.sframe.segments import MAX_ROWS, make_text
from tests.support.sframe.bodies import body_of_rows, section_bytes, with_functions

CFA_OFFSETS = (8, 16, 24, 32, 304)
#: For -O1 and -O2; the section is far from its functions.
SECTION_VADDR = 0x10000000
FUNCTION_SIZE = 0x400


def state(offset: int, arch: Arch = AMD64) -> FrameState:
    """Return a new object, so equal states are not one."""
    ra = Rule(None, -8, deref=True) if arch.fixed_ra_offset else None
    return FrameState(Rule(arch.sp_register, offset + arch.cfa_offset_bias, deref=False), ra)


def body(*rows: tuple[int, int], arch: Arch = AMD64) -> FunctionBody:
    """Return a function's rows as (start, CFA offset)."""
    return body_of_rows(FrameRow(start, state(offset, arch)) for start, offset in rows)


def zigzag(count: int, distance: int, offsets: tuple[int, ...] = CFA_OFFSETS[:2]) -> FunctionBody:
    """Return rows at one distance, whose states take turns."""
    return body(*[(distance * number, offsets[number % len(offsets)]) for number in range(count)])


def apart(bodies: list[FunctionBody], size: int = FUNCTION_SIZE) -> list[Function]:
    """Return functions of one size, with a gap between them."""
    return [Function(0x1000 + (size + 16) * number, size, each) for number, each in enumerate(bodies)]


def section_of(functions: list[Function], version: int = 3, arch: Arch = AMD64) -> Section:
    return with_functions(Section(version, arch.abi_id, start_is_pcrel=version > 1), functions)


def ranges_of(functions: list[Function], version: int = 3) -> list[Function]:
    return list(make_ranges(section_of(functions, version), AMD64).functions)


def encode(section: Section, arch: Arch = AMD64) -> bytes:
    return section_bytes(section, arch, SECTION_VADDR, share=True)


def prologue_and_epilogue(middle: int) -> FunctionBody:
    """Return a body whose ends recur, at a distance of its own."""
    entry = ((0, 8), (1, 16), (2, 24), (4, 32))
    leave = ((middle, 24), (middle + 1, 16), (middle + 2, 8), (middle + 3, 32))
    return body(*entry, *leave)


# Examples


def test_recurring_ends_become_ranges_of_their_own() -> None:
    functions = apart([prologue_and_epilogue(0x40 + 8 * n) for n in range(40)])
    made = ranges_of(functions)
    assert len(made) == 80
    assert {len(each.body.starts) for each in made} == {4}
    assert len({each.body for each in made}) == 2
    assert len(encode(section_of(made))) < len(encode(section_of(functions)))


def test_what_does_not_recur_stays_whole() -> None:
    functions = apart([prologue_and_epilogue(0x40)])
    assert ranges_of(functions) == functions


def test_equal_functions_stay_whole() -> None:
    functions = apart([zigzag(12, 9)] * 5)
    assert ranges_of(functions) == functions


def test_small_functions_without_a_gap_are_joined() -> None:
    """A function that begins with the state in which the one before it ends needs no row for that."""
    functions = [
        Function(0x1000, 10, body((0, 8))),
        Function(0x100A, 20, body((0, 8), (1, 16), (19, 8))),
        Function(0x101E, 30, body((0, 24))),
    ]
    assert ranges_of(functions) == [Function(0x1000, 60, body((0, 8), (11, 16), (29, 8), (30, 24)))]


def test_words_reach_from_one_function_into_the_next() -> None:
    """Each pair of functions ends and begins alike; no list is the rows of a whole function."""
    rng = Random(1)  # noqa: S311 - no secret
    functions: list[Function] = []
    position = 0x1000
    for _ in range(60):
        middle = 0x30 + rng.randrange(0x60)
        functions.append(Function(position, middle + 4, body((0, 8), (1, 16), (middle, 24), (middle + 1, 8))))
        position += middle + 4
    made = ranges_of(functions)
    starts = {each.start_vaddr for each in functions}
    assert sum(each.start_vaddr not in starts for each in made) > len(made) / 2
    assert len(encode(section_of(made))) < len(encode(section_of(functions))) * 0.7


def test_blocks_of_one_row_are_a_row_like_another() -> None:
    blocks = Function(0x1000, 1600, body((0, 8))._replace(repeat_size=16))
    assert ranges_of([blocks, Function(0x1640, 16, body((0, 8)))]) == [Function(0x1000, 1616, body((0, 8)))]


def test_rows_are_cut_where_starts_would_outgrow_a_byte() -> None:
    """Starts of two bytes for all rows would cost more than another record."""
    near = body(*[(number * number, 8 + 8 * (number % 3)) for number in range(12)])
    far = body(*[(number * (number + 3), 24 + 8 * (number % 2)) for number in range(12)])
    both = FunctionBody((*near.starts, *[0x2000 + start for start in far.starts]), near.states + far.states)
    made = ranges_of([Function(0x1000, 0x4000, both)])
    assert [each.body for each in made] == [near, far]
    few = body((0, 8), (0x2000, 16))
    assert ranges_of([Function(0x1000, 0x4000, few)]) == [Function(0x1000, 0x4000, few)]


def test_rows_far_apart_are_cut_where_starts_would_outgrow_two_bytes() -> None:
    near, far = zigzag(8, 5, (8, 16, 304)), zigzag(8, 7, (24, 304, 32))
    both = FunctionBody((*near.starts, *[0x20000 + start for start in far.starts]), near.states + far.states)
    made = ranges_of([Function(0x1000, 0x40000, both)])
    assert [each.body for each in made] == [near, far]
    few = Function(0x1000, 0x40000, body((0, 8), (0x20000, 16)))
    assert ranges_of([few]) == [few]


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_function_of_too_many_rows_is_cut_whatever_it_costs(version: int) -> None:
    long = Function(0x1000, 0x400, zigzag(MAX_ROWS + 1, 9))
    functions = [long, Function(0x2000, 9, body((0, 8)))]
    made = ranges_of(functions, version)
    assert max(len(each.body.starts) for each in made) <= MAX_ROWS
    assert len(encode(section_of(made, version))) > len(encode(section_of(functions, version)))


def test_functions_are_not_cut_where_records_would_be_most_of_the_section() -> None:
    """A thousand functions share one list, whose ranges would be a thousand times as many."""
    functions = apart([zigzag(4_000, 3)] * 1_000, 0x4000)
    assert ranges_of(functions) == functions


# Properties


@st.composite
def random_functions(draw: st.DrawFn, arch: Arch = AMD64, max_runs: int = 4) -> list[Function]:
    """Draw functions of recurring runs of rows, with and without gaps, some of them of repeating blocks."""
    offset = st.sampled_from(CFA_OFFSETS)
    run = st.lists(st.tuples(st.integers(1, 9), offset), min_size=1, max_size=4)
    runs = draw(st.lists(run, min_size=1, max_size=3))
    attributes = st.builds(Attributes, *[st.sampled_from((False, False, False, True))] * 3)
    functions: list[Function] = []
    position = 0x1000
    for _ in range(draw(st.integers(1, 12))):
        rows, start = [(0, 8)], 0
        for _ in range(draw(st.integers(0, max_runs))):
            start += draw(st.sampled_from((0, 5, 40, 100, 0x900)))
            for distance, cfa_offset in draw(st.sampled_from(runs)):
                start += distance
                if cfa_offset != rows[-1][1]:
                    rows.append((start, cfa_offset))
        size = start + draw(st.integers(1, 20))
        each = body(*rows, arch=arch)._replace(**draw(attributes)._asdict())
        if draw(st.integers(0, 5)) == 0:
            each, size = body((0, 8), (11, 16), arch=arch)._replace(repeat_size=16), 16 * draw(st.integers(1, 6))
        functions.append(Function(position, size, each))
        position += size + draw(st.sampled_from((0, 0, 3)))
    return functions


def edges(section: Section) -> set[int]:
    """Return the addresses at which an answer may change, and those beside them."""
    found = {start + size for start, size in zip(section.starts, section.sizes, strict=True)}
    for each in section:
        blocks = range(each.start_vaddr, each.end_vaddr, each.body.repeat_size or each.size)
        found |= {block + delta for block in blocks for delta in each.body.starts}
    return {address + distance for address in found for distance in (-1, 0, 1)}


def answers(section: Section, arch: Arch, addresses: set[int]) -> list[tuple[FrameState, Attributes] | None]:
    """Return what a stack tracer finds at each address: the row in force, and what the function says of all rows."""
    lookup = read_section(encode(section, arch), SECTION_VADDR)
    found: list[tuple[FrameState, Attributes] | None] = []
    for pc in sorted(addresses):
        hit = lookup.find(pc)
        if hit is None or hit.row is None:
            found.append(None)
        else:
            found.append((hit.row.state, hit.function.body.attributes))
    return found


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, S390X], ids=str)
@given(data=st.data())
def test_every_address_keeps_its_row_and_its_attributes(arch: Arch, version: int, data: st.DataObject) -> None:
    functions = data.draw(random_functions(arch))
    if version == 2:
        plain = [each.body._replace(is_flexible=False, is_signal_frame=False) for each in functions]
        functions = [each._replace(body=one) for each, one in zip(functions, plain, strict=True)]
    before = section_of(functions, version, arch)
    after = make_ranges(before, arch)
    addresses = edges(before) | edges(after)
    # Readers search for starts, and expect no row past the end.
    assert all(one.end_vaddr <= other.start_vaddr for one, other in pairwise(after))
    assert all(each.body.starts[-1] < each.size for each in after)
    assert answers(after, arch, addresses) == answers(before, arch, addresses)


@given(random_functions(max_runs=12), st.sampled_from((1, 2, 3)))
def test_no_section_grows_and_no_range_has_too_many_rows(functions: list[Function], version: int) -> None:
    before = section_of(functions, version)
    after = make_ranges(before, AMD64)
    had_few_rows = max(len(each.starts) for each in before.bodies) <= MAX_ROWS
    size, most = len(encode(after)), len(encode(before))
    if had_few_rows:
        assert size <= most
    else:
        assert size <= most * 3 // 2
    if had_few_rows or after != before:
        assert max(len(each.starts) for each in after.bodies) <= MAX_ROWS


def fresh(functions: list[Function]) -> list[Function]:
    """Return copies that have no tuple in common, neither with one another nor with the originals."""

    def copy(rule: Rule | None) -> Rule | None:
        return None if rule is None else Rule(*rule)

    made: list[Function] = []
    for each in functions:
        body = each.body
        states = [FrameState(copy(one.cfa), copy(one.ra), copy(one.fp), one.mangled_ra) for one in body.states]
        made.append(each._replace(body=body._replace(starts=(*body.starts,), states=tuple(states))))
    return made


def interned(functions: list[Function]) -> list[Function]:
    """Return the functions with one object for equal bodies."""
    known: dict[FunctionBody, FunctionBody] = {}
    return [each._replace(body=known.setdefault(each.body, each.body)) for each in functions]


@given(random_functions(max_runs=8), st.sampled_from((1, 2, 3)))
def test_bytes_do_not_depend_on_which_equal_objects_are_one(functions: list[Function], version: int) -> None:
    each_way = [section_of(way(functions), version) for way in (interned, fresh, lambda same: same)]
    made = [make_ranges(section, AMD64) for section in each_way]
    assert len({encode(section) for section in made}) == 1
    assert made[0] == made[1] == made[2]


# Work: what is bound by the text, and the text by the input


@given(st.sampled_from(ARCHES), random_functions(max_runs=12))
def test_the_text_has_long_bodies_once(arch: Arch, functions: list[Function]) -> None:
    """So it has no more rows than the distinct bodies, and fewer than half a range for each other function."""
    distinct_rows = sum(len(each.starts) for each in {function.body for function in functions})
    for repeated in (functions, [*functions, *_moved(functions, 0x100000), *_moved(functions, 0x200000)]):
        text = make_text(section_of(repeated), arch)
        assert len(text.letters) <= distinct_rows + MAX_ROWS // 2 * len(repeated)
        assert all(last - first < MAX_ROWS + 300 for last, first in enumerate(text.first_wide))


def _moved(functions: list[Function], distance: int) -> list[Function]:
    return [each._replace(start_vaddr=each.start_vaddr + distance) for each in functions]
