# SPDX-License-Identifier: Apache-2.0
"""Functions of Go's table as rows: depths, the outermost ones, those without true depths, and damage."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import account, load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.api import convert, verify
from cfi2sframe.conversion.sources import Cfi, UnreadSource, find_cfi, read_programs
from cfi2sframe.dwarf.fdes import CfiEntry
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.why import Reason
from tests.support.conversion.sums import convert_checked
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, debug_frame, eh_frame
from tests.support.gotable.go_table import (
    GO_1_18,
    GO_1_20,
    QUANTA,
    SP_WRITE,
    TABLE_VADDR,
    TOP_FRAME,
    GoFunction,
    GoTable,
    go_file,
)

ARCHES = (AMD64, AARCH64_LE, S390X)
DEPTHS = ((4, 0), (24, 16), (4, 0))


def cfi_of(arch: Arch, *functions: GoFunction, end: int = 0x100, magic: int = GO_1_18) -> Cfi:
    image = load(go_file(arch, GoTable(functions, end, magic), code_size=max(end, 0x1000)), "go")
    return read_programs(image, *find_cfi(image))


def rows(entry: CfiEntry) -> list[tuple[int, object, object]]:
    """Return the start, the CFA's offset from SP, and the RA's offset from the CFA of each row."""
    result: list[tuple[int, object, object]] = []
    for start, state in zip(entry.program.table.starts, entry.program.table.states, strict=True):
        cfa = state.cfa.offset if isinstance(state.cfa, Rule) else state.cfa
        result.append((start, cfa, state.ra.offset if isinstance(state.ra, Rule) else state.ra))
    return result


EXPECTED = {
    AMD64.name: [(0, 8, -8), (4, 24, -8), (28, 8, -8)],
    AARCH64_LE.name: [(0, 0, NoRule.UNSPECIFIED), (4, 16, -16), (28, 0, NoRule.UNSPECIFIED)],
    S390X.name: [(0, 160, NoRule.UNSPECIFIED), (4, 176, -176), (28, 160, NoRule.UNSPECIFIED)],
}


@given(
    st.sampled_from(ARCHES),
    st.sampled_from((GO_1_18, GO_1_20)),
    st.lists(st.tuples(st.integers(1, 40), st.integers(0, 400)), min_size=1, max_size=9),
)
def test_any_depths(arch: Arch, magic: int, steps: list[tuple[int, int]]) -> None:
    # The format has no two equal depths next to one another.
    steps = [step for step, before in zip(steps, [(0, -1), *steps], strict=False) if step[1] != before[1]]
    depths = tuple((size * QUANTA[arch.name] * 37, 8 * depth) for size, depth in steps)
    (entry,) = cfi_of(arch, GoFunction(16, depths), end=1 << 20, magic=magic).entries
    base = EXPECTED[arch.name][0][1]
    assert isinstance(base, int)
    expected: list[tuple[int, object, object]] = []
    delta = 0
    for size, depth in depths:
        ra = -8 if arch is AMD64 else -(depth + base) if depth else NoRule.UNSPECIFIED
        expected.append((delta, depth + base, ra))
        delta += size
    assert rows(entry) == expected
    assert (entry.start_vaddr, entry.size) == (TEXT_VADDR + 16, delta)
    assert entry.program.cie.ra_register == arch.ra_register


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@pytest.mark.parametrize("flags", [TOP_FRAME, TOP_FRAME | SP_WRITE])
def test_the_outermost_function(arch: Arch, flags: int) -> None:
    (entry,) = cfi_of(arch, GoFunction(0, DEPTHS, flags=flags)).entries
    assert {state.ra for state in entry.program.table.states} == {NoRule.UNDEFINED}
    assert [row[1] for row in rows(entry)] == [row[1] for row in EXPECTED[arch.name]]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_the_entry_of_signals_has_a_caller(arch: Arch) -> None:
    (entry,) = cfi_of(arch, GoFunction(0, DEPTHS, "runtime.sigtramp", TOP_FRAME)).entries
    assert rows(entry) == EXPECTED[arch.name]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@pytest.mark.parametrize(
    "function",
    [
        GoFunction(0, DEPTHS, flags=SP_WRITE),
        GoFunction(0, DEPTHS, name="runtime.sigreturn"),
        GoFunction(0, DEPTHS, name="runtime.sigreturn__sigaction"),
        # Its caller's RA is popped and pushed again.
        GoFunction(0, ((4, 0), (4, -8), (24, 0)), name="syscall.rawVforkSyscall"),
    ],
    ids=["stack switch", "trampoline", "newer trampoline", "pops"],
)
def test_functions_without_true_depths(arch: Arch, function: GoFunction) -> None:
    """They are left out, with a reason; the same list of depths is good for another function."""
    other = GoFunction(64, DEPTHS)
    image = load(go_file(arch, GoTable((function, other), 0x60)), "go")
    conversion = convert_checked(image)
    ((entry, skip),) = conversion.skips
    assert (entry.start_vaddr, entry.size) == (TEXT_VADDR, 32)
    assert skip.reason is Reason.CFA_UNDEFINED
    assert account(conversion).of_kind("left out")[0].symbol == function.name
    assert account(conversion).sources == {".gopclntab": 1}
    assert verify(convert(image)).is_clean


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_a_switch_of_stacks_has_no_rule_in_debug_frame_either(arch: Arch) -> None:
    """Go's .debug_frame keeps one rule all through such functions. For others, it is the better source."""
    switch, other = GoFunction(0, DEPTHS, "runtime.systemstack.abi0", SP_WRITE), GoFunction(64, DEPTHS)
    cie = cie_of(arch, augmentation="")
    fdes = [asm.Fde(cie, TEXT_VADDR + start, 32, ()) for start in (0, 64)]
    image = load(go_file(arch, GoTable((switch, other), 0x60), debug_frame(arch, *fdes)), "go")
    conversion = convert_checked(image)
    ((entry, skip),) = conversion.skips
    assert (entry.section.name, entry.start_vaddr) == (".gopclntab", TEXT_VADDR)
    assert skip.reason is Reason.CFA_UNDEFINED
    assert account(conversion).of_kind("left out")[0].symbol == switch.name
    (function,) = conversion.section.functions
    assert (function.start_vaddr, len(function.body.starts)) == (TEXT_VADDR + 64, 1)
    assert verify(convert(image)).is_clean
    fates = zip(conversion.cfi.entries, conversion.fates, strict=True)
    dropped = {entry.section.name for entry, fate in fates if fate.is_dropped}
    assert dropped == {".debug_frame", ".gopclntab"}


@pytest.mark.parametrize(
    "name", ["runtime.sigpanic", "runtime.sigpanic0", "runtime.asyncPreempt", "runtime.debugCallV2"]
)
def test_calls_that_a_signal_handler_fakes(name: str) -> None:
    """On AMD64 they are calls, from between two instructions; elsewhere SP is not where the depths have it."""
    function = GoFunction(0, DEPTHS, name=name)
    (entry,) = cfi_of(AMD64, function).entries
    assert entry.program.cie.is_signal_frame
    assert rows(entry) == EXPECTED[AMD64.name]
    for arch in (AARCH64_LE, S390X):
        (entry,) = cfi_of(arch, function).entries
        assert rows(entry) == [(0, None, NoRule.UNSPECIFIED)]
    (plain,) = cfi_of(AMD64, function._replace(name=name + "X")).entries
    assert not plain.program.cie.is_signal_frame


BAD: dict[str, tuple[GoFunction, str]] = {
    "an odd depth": (GoFunction(32, ((4, 0), (4, 12))), "a frame of 12 bytes"),
    "a huge depth": (GoFunction(32, ((4, 0), (4, 1 << 31))), "a frame of 2147483648 bytes"),
    "PCs that stand still": (GoFunction(32, ((4, 0), (0, 8), (4, 0))), "the PCs of its depths do not ascend"),
    "PCs past 32 bits": (GoFunction(32, ((1 << 32, 0),)), "the PCs of its depths do not ascend"),
    "another's record": (GoFunction(32, DEPTHS, own_start=33), f"its record is that of 0x{TEXT_VADDR + 33:x}"),
    "depths elsewhere": (GoFunction(32, DEPTHS, depths_offset=1 << 20), "truncated or oversized LEB128 number"),
}


def test_two_functions_at_one_address() -> None:
    """The first has no code."""
    conversion = convert_checked(load(go_file(AMD64, GoTable((GoFunction(0, DEPTHS),) * 2, 0x20)), "go"))
    assert [e.size for e in conversion.cfi.entries] == [0x20]
    (damaged,) = account(conversion).of_kind("damaged")
    assert damaged.message == f"the function at 0x{TEXT_VADDR:x}: the next function of the table starts before it"


@pytest.mark.parametrize("name", BAD)
def test_a_damaged_function_costs_itself(name: str) -> None:
    function, reason = BAD[name]
    image = load(go_file(AMD64, GoTable((GoFunction(0, DEPTHS), function, GoFunction(64, DEPTHS)), 0x60)), "go")
    conversion = convert_checked(image)
    assert [e.start_vaddr - TEXT_VADDR for e in conversion.cfi.entries] == [0, 64]
    (damaged,) = account(conversion).of_kind("damaged")
    assert (damaged.section, damaged.message) == (".gopclntab", f"the function at 0x{TEXT_VADDR + 32:x}: {reason}")
    # The place of the function's entry, in the file's section.
    table = image.bytes_at(TABLE_VADDR + damaged.address, 4)
    assert table == struct.pack("<I", 32)
    assert verify(convert(image)).is_clean


def with_c_code(table: GoTable | bytes, *instructions: asm.Instruction) -> ElfImage:
    """Return the image of a file whose .eh_frame describes eight bytes of the code, too."""
    fde = asm.Fde(cie_of(AMD64), TEXT_VADDR + 16, 8, instructions)
    return load(go_file(AMD64, table, eh_frame(AMD64, fde)), "both")


def test_c_code_comes_first() -> None:
    """Where .eh_frame describes code inside of the table's functions, it holds."""
    image = with_c_code(GoTable((GoFunction(0, DEPTHS),), 32), asm.def_cfa_offset(64))
    conversion = convert_checked(image)
    assert account(conversion).sources == {".eh_frame": 1, ".gopclntab": 1}
    assert verify(convert(image)).is_clean


def test_a_damaged_table_costs_nothing_else() -> None:
    whole = GoTable((GoFunction(0, DEPTHS),), 32).assemble(AMD64)
    for data in (whole[:90], whole[:40], b"\xfb" + whole[1:], bytes(80)):
        conversion = convert_checked(with_c_code(data))
        (unread,) = conversion.cfi.unread
        assert isinstance(unread, UnreadSource)
        assert unread.name == ".gopclntab"
        assert len(conversion.section.starts) == 1
        assert not conversion.is_whole
