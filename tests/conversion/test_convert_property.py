# SPDX-License-Identifier: Apache-2.0
"""Random CFI through the whole program: the section agrees with it, and verification notices any damage."""

from typing import NamedTuple

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cfi2sframe import Conversion, load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch, arch_of_abi
from cfi2sframe.api import verify
from cfi2sframe.conversion.lower import Lowered, Lowering, pieces_within
from cfi2sframe.conversion.options import Options
from cfi2sframe.dwarf.rules import UnwindTable
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe.model import Function, FunctionBody, Section
from cfi2sframe.sframe.read import read_section
from cfi2sframe.why import Why
from tests.support.conversion.evaluation import dwarf_values, sframe_values
from tests.support.conversion.sums import convert_checked, owned_by_fdes
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf import cfi_strategies as cfi
from tests.support.dwarf.rules import rows_of
from tests.support.elf.samples import TEXT_VADDR, Code, linked_file

#: Steps after which every row can be expressed: with others, most sections would be empty.
PLAIN: frozenset[cfi.Operation] = frozenset(
    (
        *("advance", "def_cfa", "def_cfa_register", "def_cfa_offset", "offset", "remember_state", "restore_state"),
        *("restore", "same_value", "negate_ra_state"),
    )
)


class Drawn(NamedTuple):
    """An image of random CFI and the options to convert it with."""

    image: ElfImage
    arch: Arch
    options: Options


@st.composite
def files(draw: st.DrawFn, max_steps: int = 10, *, may_overlap: bool = True) -> Drawn:
    """Draw a linked file of a few functions, maybe overlapping ones."""
    arch = draw(st.sampled_from((AMD64, AARCH64_LE, S390X)))
    operations = draw(st.sampled_from((cfi.OPERATIONS, PLAIN, PLAIN)))
    fdes: list[asm.Fde] = []
    position = TEXT_VADDR
    for _ in range(draw(st.integers(1, 4))):
        program = draw(cfi.programs(arch, max_steps, operations))
        augmentation = draw(st.sampled_from(("zR", "zR", "zRS", "zRB" if arch is AARCH64_LE else "zR")))
        cie = program.cie._replace(augmentation=augmentation)
        fdes.append(program.fde._replace(cie=cie, pc_begin=position))
        step = draw(
            st.sampled_from(
                (
                    program.fde.size,
                    program.fde.size,
                    program.fde.size + 8,
                    program.fde.size // 2 if may_overlap else program.fde.size,
                )
            )
        )
        position += step // program.cie.code_align * program.cie.code_align
    end = max(fde.pc_begin + fde.size for fde in fdes)
    data = linked_file(arch, draw(st.permutations(fdes)), codes=(Code(size=end - TEXT_VADDR + 16),))
    version = draw(st.integers(arch.first_version, 3))
    return Drawn(load(data, "random"), arch, Options(version, draw(st.integers(0, 2)) if version == 2 else None))


# Values instead of rules: `evaluation` makes registers and memory up


@given(files())
def test_rows_give_the_values_that_dwarf_gives(drawn: Drawn) -> None:
    """SP, RA and FP of the caller, computed from a row of either side, are the same numbers; verification agrees."""
    conversion = convert_checked(drawn.image, drawn.options)
    if not conversion.data:
        return
    lookup = read_section(conversion.data, conversion.section_vaddr)
    result = verify(drawn.image, lookup, source=drawn.options.source)
    assert result.differences == ()
    assert result.left_out_count >= len(conversion.skips)
    owned = owned_by_fdes(conversion)
    for start, end, number in owned.ranges:
        entry = conversion.cfi.entries[number]
        begin = entry.start_vaddr
        rows = rows_of(entry.program.table)
        points = {start, end - 1, *(begin + row.start_delta for row in rows)}
        for pc in points:
            if not start <= pc < end:
                continue
            found = lookup.find(pc)
            assert (found is not None) == says_something(owned.results[number], pc - begin)
            if found is not None:
                assert found.row is not None
                truth = [row.state for row in rows if row.start_delta <= pc - begin][-1]
                assert sframe_values(found.row.state, drawn.arch) == dwarf_values(truth, drawn.arch)


def says_something(result: Lowered, delta: int) -> bool:
    """Whether there is a row at a place in an FDE's function, bytes from its start."""
    ((_, _, piece),) = pieces_within(result, delta, delta + 1)
    return not isinstance(piece, Why)


@given(files())
def test_parts_are_all_that_can_be_said(drawn: Drawn) -> None:
    """A row that is in a hole cannot be expressed in a function of its own either, and each part is as it would be."""
    conversion = convert_checked(drawn.image, drawn.options)
    lowering = Lowering(conversion.target)
    results = owned_by_fdes(conversion).results
    for entry in conversion.in_parts:
        if isinstance(results[entry.fde], Why):
            # Something else owns the rest.
            continue
        starts, states = entry.program.table.starts, entry.program.table.states
        for start, end, which in pieces_within(results[entry.fde], 0, max(starts[-1] + 1, entry.size)):
            rows = [number for number, row_start in enumerate(starts) if start <= row_start < end]
            for number in rows:
                alone = lowering.lower(UnwindTable((0,), (states[number],)), entry.program.cie)
                if isinstance(which, Why):
                    assert isinstance(alone, Why)
                    assert alone.reason is which.reason
                else:
                    assert isinstance(alone, FunctionBody)
            if isinstance(which, FunctionBody):
                assert which.starts[0] == 0
                assert rows[0] == starts.index(start)


# Damage


def meaning(decoded: Section) -> list[tuple[object, ...]]:
    """Return the rules of a section in one form, however they are stored."""
    arch = arch_of_abi(decoded.abi_id)
    assert arch is not None
    return sorted(function_meaning(f, decoded, arch) for f in decoded.functions)


def function_meaning(function: Function, decoded: Section, arch: Arch) -> tuple[object, ...]:
    rows: list[tuple[int, str]] = []
    is_signed = False
    for start, state in function:
        is_signed |= state.mangled_ra and state.cfa is not None
        # Values, since a rule may count from the CFA or from a register.
        text = repr(sframe_values(state, arch))
        if not rows or rows[-1][1] != text:
            rows.append((start, text))
    return (
        function.start_vaddr,
        function.size,
        # Version 1 repeats no block: with one row, both PC types have the same at every address.
        function.body.is_pcmask and (decoded.version > 1 or len(rows) > 1),
        max(function.body.repeat_size, 0),
        function.body.is_signal_frame,
        function.body.uses_b_key and is_signed,
        tuple(rows),
        # Not rules, but how readers find them: verification looks at these too.
        [row.start_delta for row in function.rows] != sorted({row.start_delta for row in function.rows}),
    )


def judged(drawn: Drawn, conversion: Conversion, data: bytes) -> str:
    """Say what becomes of a changed section: refused, the same in meaning, found to be wrong, or unseen."""
    try:
        decoded = read_section(data, conversion.section_vaddr)
    except SFrameError:
        return "refused"
    if not verify(drawn.image, decoded, source=drawn.options.source).is_clean:
        return "found"
    original = read_section(conversion.data, conversion.section_vaddr)
    return "the same" if meaning(decoded) == meaning(original) else "unseen"


@settings(max_examples=150)
@given(files(max_steps=6, may_overlap=False), st.data())
def test_every_change_of_a_byte_is_noticed(drawn: Drawn, data: st.DataObject) -> None:
    """A section with one byte changed cannot be decoded, or does not verify, or still has the same rules.

    Where FDEs overlap, the truth is open, and so is what a change does.
    """
    conversion = convert_checked(drawn.image, drawn.options)
    assume(conversion.data)
    offset = data.draw(st.integers(4, len(conversion.data) - 1))
    old = conversion.data[offset]
    near = st.sampled_from([old ^ 1 << bit for bit in range(8)] + [(old + 1) % 256, (old - 1) % 256, 0])
    new = data.draw(near | st.integers(0, 255))
    changed = conversion.data[:offset] + bytes((new,)) + conversion.data[offset + 1 :]
    assert judged(drawn, conversion, changed) != "unseen"
