# SPDX-License-Identifier: Apache-2.0
"""Any section of any version survives encoding and decoding. Docstrings quote what the format promises."""

from typing import Literal

from hypothesis import example, given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.abi import AMD64, ARCHES, S390X, Arch
from cfi2sframe.constants.sframe import SFRAME_F_FRAME_POINTER
from cfi2sframe.sframe.model import (
    NO_BLOCK_SIZE,
    OUTERMOST,
    Found,
    FrameRow,
    FrameState,
    Function,
    FunctionBody,
    Rule,
    Section,
)
from cfi2sframe.sframe.read import DecodedSection, read_section
from cfi2sframe.verification.readers import unmet_demands
from tests.support.elf.samples import object_file, push_fp
from tests.support.sframe import literal_reader
from tests.support.sframe.bodies import body_of_rows, section_bytes, with_functions

WORD_EDGES = tuple(sign * (1 << bits) + near for bits in (7, 8, 15, 16) for sign in (1, -1) for near in (-1, 0, 1))
START_EDGES = (0xFE, 0xFF, 0x100, 0xFFFE, 0xFFFF, 0x10000, 0xFFFFFF)
AMD64_RA = Rule(None, AMD64.fixed_ra_offset, deref=True)
ORDERS: tuple[Literal["<", ">"], ...] = ("<", ">")


def words() -> st.SearchStrategy[int]:
    """Return numbers of 32 signed bits, and often those at the limits of 8 and 16."""
    limits = st.sampled_from((-(1 << 31), (1 << 31) - 1, *WORD_EDGES))
    return st.integers(-20, 20) | limits | st.integers(-(1 << 31), (1 << 31) - 1)


def saved(offsets: st.SearchStrategy[int]) -> st.SearchStrategy[Rule]:
    return offsets.map(lambda offset: Rule(None, offset, deref=True))


def cfa_rules(arch: Arch, registers: st.SearchStrategy[int], loads: st.SearchStrategy[bool]) -> st.SearchStrategy[Rule]:
    def rule(register: int, word: int, load: bool) -> Rule:  # noqa: FBT001
        return Rule(register, word * arch.cfa_offset_scale + arch.cfa_offset_bias, load)

    return st.builds(rule, registers, words(), loads)


def default_states(arch: Arch, version: int) -> st.SearchStrategy[FrameState]:
    """Draw what default rows can express."""
    cfa = cfa_rules(arch, st.sampled_from((arch.sp_register, arch.fp_register)), st.just(value=False))
    mangled = st.booleans()
    none = st.none()
    if arch.fixed_ra_offset:
        ra = st.just(Rule(None, arch.fixed_ra_offset, deref=True))
        return st.builds(FrameState, cfa, ra, none | saved(words()), mangled)
    if not arch.pads_ra:
        both = st.builds(FrameState, cfa, saved(words()), none | saved(words()), mangled)
        return both | st.builds(FrameState, cfa, none, none, mangled)
    # s390x: a word of 0 is the padding, an odd one names a register.
    place: st.SearchStrategy[Rule] = saved(words().filter(lambda word: word != 0 and word % 2 == 0))
    if version == 2:
        place |= st.integers(0, 31).map(lambda register: Rule(register, 0, deref=False))
    return st.builds(FrameState, cfa, none | place, none | place, mangled)


def flexible_states(arch: Arch) -> st.SearchStrategy[FrameState]:
    """Draw what flexible rows can express: any base, with a load or without, but no sum with the CFA."""
    registers = st.integers(0, 40) | st.sampled_from((8191, 8192, (1 << 29) - 1))
    based = st.builds(Rule, registers, words(), st.booleans()) | saved(words())
    cfa = cfa_rules(arch, registers, st.booleans())
    # What is fixed by the ABI takes no word, so it cannot be absent.
    ra = st.just(Rule(None, arch.fixed_ra_offset, deref=True)) if arch.fixed_ra_offset else st.none()
    return st.builds(FrameState, cfa, ra | based, st.none() | based, st.booleans())


@st.composite
def bodies(draw: st.DrawFn, arch: Arch, version: int) -> FunctionBody:
    is_flexible = version == 3 and draw(st.booleans())
    kept = flexible_states(arch) if is_flexible else default_states(arch, version)
    states = draw(st.lists(kept | st.just(OUTERMOST) if version > 1 else kept, min_size=1, max_size=6))
    repeat_size = draw(st.sampled_from((0, 0, 0, 8, 16, 200)))
    limit = st.integers(1, repeat_size - 1) if repeat_size else st.integers(1, 400) | st.sampled_from(START_EDGES)
    starts = [0, *sorted(draw(st.sets(limit, min_size=len(states) - 1, max_size=len(states) - 1)))]
    return body_of_rows(
        tuple(FrameRow(start, state) for start, state in zip(starts, states, strict=True)),
        is_flexible=is_flexible,
        is_signal_frame=version == 3 and draw(st.booleans()),
        uses_b_key=draw(st.booleans()),
        repeat_size=repeat_size,
    )


@st.composite
def sections(draw: st.DrawFn) -> tuple[Section, Arch, int]:
    """Draw a section, the ABI, and the section's address."""
    arch = draw(st.sampled_from(ARCHES))
    version = draw(st.sampled_from((1, 2, 3) if arch is not S390X else (2, 3)))
    pool = draw(st.lists(bodies(arch, version), min_size=1, max_size=4))
    functions: list[Function] = []
    position = draw(st.integers(0, 1 << 20))
    for body in draw(st.lists(st.sampled_from(pool), min_size=1, max_size=6)):
        size = body.rows[-1].start_delta + draw(st.integers(1, 300))
        functions.append(Function(position, size, body))
        position += size + draw(st.integers(0, 50))
    is_sorted = draw(st.booleans())
    if not is_sorted:
        functions = draw(st.permutations(functions))
    section = Section(
        version, arch.abi_id, is_sorted=is_sorted, start_is_pcrel=version == 3 or (version == 2 and draw(st.booleans()))
    )
    section = with_functions(section, functions)
    vaddr = draw(st.integers(0, 1 << 30) | st.sampled_from((0, (1 << 30) - 1)))
    return section, arch, vaddr


def encode(section: Section, arch: Arch, vaddr: int, *, share: bool = False) -> bytes:
    return section_bytes(section, arch, vaddr, share=share)


def as_stored(section: Section) -> Section:
    """Return what a section keeps: version 1 stores no block size; the PC type is all there is."""
    if section.version > 1:
        return section
    bodies = [f.body._replace(repeat_size=NO_BLOCK_SIZE) if f.body.is_pcmask else f.body for f in section]
    return section._replace(bodies=tuple(bodies))


@given(sections(), st.sampled_from(ORDERS))
def test_decoding_returns_the_encoded_section(drawn: tuple[Section, Arch, int], order: Literal["<", ">"]) -> None:
    """Every field of every version is stored "in the endianness of the target system", and can be read back."""
    section, arch, vaddr = drawn
    decoded = read_section(encode(section, arch._replace(byte_order=order), vaddr), vaddr)
    assert decoded == as_stored(section)
    header = decoded.header
    assert (header.version, header.abi_id, header.byte_order) == (section.version, arch.abi_id, order)
    assert header.start_is_pcrel == section.start_is_pcrel
    assert not header.flags & SFRAME_F_FRAME_POINTER
    assert header.fixed_ra_offset == arch.fixed_ra_offset
    assert header.fixed_fp_offset == header.auxhdr_size == header.fde_offset == 0


def smallest(number: int, *, signed: bool) -> int:
    """Return the fewest bytes, of 1, 2 and 4, that hold a number."""
    return next(size for size in (1, 2, 4) if fits(number, size, signed=signed))


def fits(number: int, size: int, *, signed: bool) -> bool:
    low = -(1 << (8 * size - 1)) if signed else 0
    return low <= number < low + (1 << 8 * size)


@given(sections())
def test_widths_are_minimal(drawn: tuple[Section, Arch, int]) -> None:
    """The FRE type holds the function's last row start, a row's data words hold its widest number: no byte more."""
    section, arch, vaddr = drawn
    decoded = read_section(encode(section, arch, vaddr), vaddr)
    for function, record in zip(decoded, decoded.records, strict=True):
        assert (1, 2, 4)[record.fre_type] == smallest(function.body.starts[-1], signed=False)
        for row, (word_size, words) in zip(function, decoded.words_of(record), strict=True):
            if not function.body.is_flexible:
                needed = max((smallest(word, signed=True) for word in words), default=1)
            else:
                needed = flexible_width(words, word_size)
                assert not words or len(words) == 2 or words[-2:] != (0, 0) or row.fp
            assert word_size == needed


def flexible_width(stored: tuple[int, ...], size: int) -> int:
    """Return the width that a flexible row's controls (unsigned) and offsets (signed) need."""
    needed, rest = 1, list(stored)
    while rest:
        control = rest.pop(0) % (1 << 8 * size)
        needed = max(needed, smallest(control, signed=False))
        if control:
            needed = max(needed, smallest(rest.pop(0), signed=True))
    return needed


IMAGES = {arch: load(object_file(arch, {".text": (push_fp(arch, 0),)})) for arch in ARCHES}


def complaints(section: DecodedSection) -> list[str]:
    """Return what `verify` has against a section, wherever its functions are."""
    broken, unusual = unmet_demands(section, IMAGES[section.arch])
    return [
        message
        for _, message in (*broken, *unusual)
        if message != "starts outside the executable sections and segments"
    ]


@given(sections(), st.sampled_from(ORDERS))
def test_sharing_changes_no_meaning(drawn: tuple[Section, Arch, int], order: Literal["<", ">"]) -> None:
    """Functions that share rows decode as they do with rows of their own, from no more bytes."""
    section, arch, vaddr = drawn
    is_native, arch = order == arch.byte_order, arch._replace(byte_order=order)
    apart, shared = encode(section, arch, vaddr), encode(section, arch, vaddr, share=True)
    assert len(shared) <= len(apart)
    expected, found = read_section(apart, vaddr), read_section(shared, vaddr)
    assert found == expected
    assert found.header._replace(fre_size=0) == expected.header._replace(fre_size=0)
    for each in (found, expected):
        assert [text for text in complaints(each) if is_native or "byte order" not in text] == []
    # Equal functions take their rows' bytes once.
    assert len({record.fre_offset for record in found.records}) <= len({*expected.bodies})


def told(found: Found | None) -> literal_reader.Row | str | None:
    """Return what the model says at a PC, in the words of the literal reader."""
    state = None if found is None else found.state
    if state is None:
        return None
    if state.cfa is None:
        return "outermost"
    return (*state[:3], state.mangled_ra)


def of_one_row(arch: Arch, state: FrameState) -> tuple[Section, Arch, int]:
    body = body_of_rows((FrameRow(0, state),), is_flexible=True)
    return with_functions(Section(3, arch.abi_id, start_is_pcrel=True), [Function(0x1000, 16, body)]), arch, 0


# A control word 0 for an RA whose place is in the header, as in GCC's realigned functions; one with its highest bit.
@example(of_one_row(AMD64, FrameState(Rule(10, 0, deref=False), AMD64_RA, Rule(6, 0, deref=True))))
@example(of_one_row(S390X, FrameState(Rule(16, 160, deref=False))))
@given(sections())
def test_the_page_for_authors_of_readers_suffices(drawn: tuple[Section, Arch, int]) -> None:
    """docs/writing-a-reader.md: a reader that takes it literally finds what was encoded, at the edges of every row."""
    section, arch, vaddr = drawn
    read = literal_reader.Section(encode(section, arch, vaddr), "little" if arch.byte_order == "<" else "big", vaddr)
    section = as_stored(section)
    for function in section:
        blocks = range(function.start_vaddr, function.end_vaddr, function.body.repeat_size or function.size)
        starts = [block + start for block in blocks for start in function.body.starts]
        for pc in {near for start in (*starts, function.end_vaddr) for near in (start - 1, start, start + 1)}:
            if pc >= 0:
                assert literal_reader.find(read, pc) == told(section.find(pc)), hex(pc)
