# SPDX-License-Identifier: Apache-2.0
"""Properties of reading and interpreting CFI: drawn programs, as the naive evaluator and pyelftools read them."""

from functools import cache
from operator import ne
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, ARCHES, Arch
from cfi2sframe.dwarf import row_machine as machine_module
from cfi2sframe.dwarf.entries import DwarfCie, DwarfFde
from cfi2sframe.dwarf.numbers import Location, PointerBases
from cfi2sframe.dwarf.row_machine import RowMachine
from cfi2sframe.dwarf.rules import UnwindTable
from cfi2sframe.elf.cfi import CfiKind, CfiSection
from cfi2sframe.errors import CfiError
from tests.support.dwarf import cfi_strategies as cfi
from tests.support.dwarf import naive
from tests.support.dwarf.entries import CfiTable, parse_entries
from tests.support.dwarf.naive_compare import problems_of
from tests.support.elf.samples import parsed_cie

SECTION_VADDR = 0x2000
KINDS: st.SearchStrategy[CfiKind] = st.sampled_from(("eh_frame", "debug_frame"))
each_arch = pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)


def evaluate(program: cfi.Program) -> naive.Fde:
    """Return the FDE of a program as the naive evaluator reads it."""
    data, arch = program.section(SECTION_VADDR).assemble(), program.arch
    is_aarch64 = arch in (AARCH64_LE, AARCH64_BE)
    (fde,) = naive.fdes_in(data, SECTION_VADDR, little=arch.byte_order == "<", is_aarch64=is_aarch64)
    return fde


# --- Reading ------------------------------------------------------------------------------------------------


def _bases(arch: Arch) -> PointerBases:
    return PointerBases(arch.byte_order, None, lambda _: None)


def _parse(data: bytes, arch: Arch, kind: CfiKind) -> CfiTable:
    vaddr = 0 if kind == "debug_frame" else SECTION_VADDR
    section = CfiSection("." + kind, kind, data, vaddr, {}, frozenset(), None)
    return parse_entries(section, _bases(arch))


def _read(program: cfi.Program, arch: Arch, kind: CfiKind) -> DwarfFde:
    is_debug_frame = kind == "debug_frame"
    section = program.section(0 if is_debug_frame else SECTION_VADDR, debug_frame=is_debug_frame)
    table = _parse(section.assemble(), arch, kind)
    assert table.failures == ()
    (fde,) = table.fdes
    return fde


class _Run(Protocol):
    def __call__(self, cie: DwarfCie, code: bytes, location: Location | None = None) -> UnwindTable: ...


def _machines(arch: Arch) -> tuple[_Run, _Run, _Run]:
    """Machines that are made anew for each program, those of a file, and those that take instructions one by one."""
    of_file = cache(lambda cie: RowMachine(cie, arch))

    def anew(cie: DwarfCie, code: bytes, location: Location | None = None) -> UnwindTable:
        return RowMachine(cie, arch).run(code, location)

    def shared(cie: DwarfCie, code: bytes, location: Location | None = None) -> UnwindTable:
        return of_file(cie).run(code, location)

    def singly(cie: DwarfCie, code: bytes, location: Location | None = None) -> UnwindTable:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(machine_module, "cut", lambda _: [])
            return anew(cie, code, location)

    return anew, shared, singly


def _check_rows(program: UnwindTable) -> None:
    deltas = list(program.starts)
    assert deltas[0] == 0
    assert deltas == sorted(set(deltas))
    assert all(map(ne, program.states, program.states[1:]))


@each_arch
@settings(max_examples=40)
@given(st.data(), KINDS)
def test_rows_are_what_the_steps_mean(arch: Arch, data: st.DataObject, kind: CfiKind) -> None:
    """DWARF 5, 6.4.3: a row is what the instructions up to its end have made of the row before it.

    One machine for all programs of a file gives the rows of a new one for each, however often it is asked.
    """
    programs = data.draw(st.lists(cfi.programs(arch), min_size=1, max_size=3))
    told = [evaluate(program) for program in programs]
    fdes = [_read(program, arch, kind) for program in programs]
    # Twice: what was interpreted once is looked up the second time.
    for row_machine in _machines(arch) * 2:
        for program, each, fde in zip(programs, told, fdes, strict=True):
            assert (fde.pc_begin_vaddr, fde.pc_range) == (program.fde.pc_begin, program.fde.size)
            location = Location(fde.pc_begin_vaddr, SECTION_VADDR + fde.instructions_offset, _bases(arch))
            found = row_machine(fde.cie, fde.instructions, location)
            assert list(problems_of(found, each.rows, each.ra_column, arch)) == []
            _check_rows(found)
            assert not found.depends_on_location


# --- Garbage ------------------------------------------------------------------------------------------------


@settings(max_examples=150)
@given(st.sampled_from(ARCHES), st.binary(max_size=12), st.binary(max_size=40), st.sampled_from((0, 1, 4)))
def test_garbage_gives_rows_or_an_error(arch: Arch, initial: bytes, code: bytes, code_alignment: int) -> None:
    cie = parsed_cie(AMD64)._replace(instructions=initial, code_alignment=code_alignment)
    location = Location(0x1000, 0x2000, _bases(arch))
    outcomes: list[object] = []
    for machine in _machines(arch) * 2:
        try:
            program = machine(cie, code, location)
        except CfiError as error:
            outcomes.append((error.reason, error.offset))
        else:
            _check_rows(program)
            outcomes.append(program)
    assert outcomes == outcomes[:1] * 6
