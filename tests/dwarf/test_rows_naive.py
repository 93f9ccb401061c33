# SPDX-License-Identifier: Apache-2.0
"""The rows of every FDE of large files equal those of an evaluator that shares nothing with the package."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import UNKNOWN_CFA, NoRule, RaSigning
from cfi2sframe.rules import Rule
from cfi2sframe.sources import find_cfi
from tests.support import cfi_asm as asm
from tests.support import naive
from tests.support.rules import state_at
from tests.support.samples import TEXT_VADDR, cie_of, linked_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from tests.support.oracle.tools import CorpusArch

#: Where a file is, and the fewest FDEs that it must have.
OF_CORPUS = {
    "libc.so.6": 3_000,
    "libstdc++.so.6": 4_000,
    "libcrypto.so.3": 10_000,
    "libpython3.13.so.1.0": 6_000,
}
OF_MACHINE = {
    "/lib/x86_64-linux-gnu/libc.so.6": 3_000,
    "/usr/lib/x86_64-linux-gnu/libgcrypt.so.20": 1_000,
    "/usr/aarch64-linux-gnu/lib/libc.so.6": 2_000,
    "/usr/s390x-linux-gnu/lib/libc.so.6": 2_000,
    "/usr/aarch64-linux-gnu/lib/libstdc++.so.6": 3_000,
    "/usr/s390x-linux-gnu/lib/libstdc++.so.6": 3_000,
}
SIGNING = {RaSigning.NONE: (0, 2), RaSigning.SIGNED: (1,), RaSigning.SIGNED_WITH_PC: (3,)}


def said(rule: CfaRule | RegisterRule | None) -> naive.Rule | None:
    """Return a rule as the evaluator has it."""
    if isinstance(rule, NoRule):
        return {NoRule.UNSPECIFIED: None, NoRule.UNDEFINED: ("undefined",), NoRule.SAME_VALUE: ("same value",)}[rule]
    if isinstance(rule, Rule):
        if rule.register is not None:
            assert (rule.offset, rule.deref) == (0, False)
            return "register", rule.register
        return "offset" if rule.deref else "val_offset", rule.offset
    return None if rule is None else ("expression" if rule.deref else "val_expression", rule.code)


def said_of_cfa(rule: CfaRule | None) -> naive.Rule | None:
    if rule == UNKNOWN_CFA:
        return ("unknown",)
    if isinstance(rule, Rule):
        assert not rule.deref
        return "sum", rule.register, rule.offset
    return None if rule is None else ("value", rule.code)


def differences(ours: RowState, theirs: naive.Row, column: int, arch: Arch) -> Iterator[str]:
    if said_of_cfa(ours.cfa) != theirs.cfa:
        yield f"CFA {ours.cfa}, {theirs.cfa}"
    for name, register, rule in (("FP", arch.fp_register, ours.fp), ("SP", arch.sp_register, ours.sp)):
        if said(rule) != theirs.rules.get(register):
            yield f"{name} {rule}, {theirs.rules.get(register)}"
    ra = theirs.rules.get(column)
    if column != arch.ra_register and ra in (None, ("same value",)):
        ra = ("register", column)
    if said(ours.ra) != ra:
        yield f"RA {ours.ra}, {ra}"
    if arch.ra_may_be_signed:
        state = theirs.rules.get(naive.RA_SIGN_STATE, ("state", 0))
        if ours.signing is RaSigning.UNKNOWN or state[0] != "state" or state[1] not in SIGNING[ours.signing]:
            yield f"signing {ours.signing!r}, {state}"


def compare(path: Path) -> tuple[int, int, list[str]]:
    """Return how many FDEs and rows were compared, and every difference."""
    image = load(str(path))
    cfi = read_programs(image, find_cfi(image, "eh_frame"))
    assert cfi.damaged == ()
    numbers = {offset: number for number, offset in enumerate(cfi.entries.offsets)}
    rows, problems, fdes = 0, [], 0
    for fde in naive.fdes_of(path):
        number = numbers.pop(fde.offset)
        fdes += 1
        table = cfi.programs[cfi.entries.program_numbers[number]].table
        place = f"{fde.start_vaddr:#x}"
        if (cfi.entries.starts[number], cfi.entries.sizes[number]) != (fde.start_vaddr, fde.size):
            problems.append(f"{place}: another range")
        own = [row for row in fde.rows if row.start < max(fde.size, 1)]
        for row in own:
            rows += 1
            state = state_at(table, row.start)
            problems += [f"{place}+{row.start}: {text}" for text in differences(state, row, fde.ra_column, image.arch)]
        # A row of ours that begins where none of theirs does would hold at an address that was not compared.
        problems += [f"{place}+{start}: only here" for start in set(table.starts) - {row.start for row in own}]
    return fdes, rows, problems + [f"+{offset:#x}: only here" for offset in numbers]


@pytest.mark.corpus
@pytest.mark.parametrize("name", OF_CORPUS)
def test_rows_of_the_corpus(name: str, corpus: Callable[[CorpusArch], Path]) -> None:
    found = compare(corpus("amd64") / "usr/lib/x86_64-linux-gnu" / name)
    assert found[2] == []
    assert found[0] >= OF_CORPUS[name]
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize("name", OF_MACHINE)
def test_rows_of_the_machine(name: str) -> None:
    if not Path(name).exists():
        pytest.skip(f"no {name}")
    found = compare(Path(name))
    assert found[2] == []
    assert found[0] >= OF_MACHINE[name]
    assert found[1] > 2 * found[0]


@pytest.mark.parametrize(
    "spoiled",
    [asm.def_cfa_offset(24), asm.offset(6, 3), asm.undefined(16), asm.advance(1)],
    ids=["CFA", "FP", "RA", "location"],
)
def test_differences_are_seen(spoiled: asm.Instruction, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from cfi2sframe.arch import AMD64

    good = (asm.advance(1), asm.def_cfa_offset(16), asm.offset(6, 2), asm.advance(3), asm.def_cfa_register(6))
    files = []
    for name, instructions in (("good", good), ("spoiled", (*good[:3], spoiled, *good[3:]))):
        files.append(tmp_path / name)
        files[-1].write_bytes(linked_file(AMD64, [asm.Fde(cie_of(AMD64), TEXT_VADDR, 32, instructions)]))
        assert compare(files[-1])[2] == []
    theirs = list(naive.fdes_of(files[1]))
    monkeypatch.setattr(naive, "fdes_of", lambda _path: iter(theirs))
    assert compare(files[0])[2] != []
