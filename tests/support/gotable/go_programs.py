# SPDX-License-Identifier: Apache-2.0
"""Programs that Go builds, and Go's own `.debug_frame` as the judge of what its table of functions says."""

import os
import subprocess
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe.abi.rule import Rule
from cfi2sframe.conversion.sources import find_cfi, read_programs
from cfi2sframe.dwarf.fdes import CfiEntry
from cfi2sframe.dwarf.rules import NoRule, RowState
from cfi2sframe.elf.image import ElfImage
from tests.support.dwarf.rules import in_register
from tests.support.needs import need

#: Go's names of the ABIs.
GO_ARCHES: Final = ("amd64", "arm64", "s390x")


def go_build(folder: Path, source: str, *flags: str, arch: str = "amd64", cgo: bool = False) -> Path:
    """Build a program of one source file with the machine's Go; skips the test without Go."""
    go = need(os.environ.get("CFI2SFRAME_GO", "go"))
    (folder / "main.go").write_text(source, encoding="utf-8")
    env = {
        **os.environ,
        "GOARCH": arch,
        "CGO_ENABLED": str(int(cgo)),
        "GOFLAGS": "",
        "GOPROXY": "off",
        "GOTOOLCHAIN": "local",
        "GO111MODULE": "off",
        "GOPATH": str(folder / "path"),
    }
    env.setdefault("GOCACHE", str(folder / "cache"))
    made = subprocess.run(
        [go, "build", *flags, "-o", "program", "main.go"], cwd=folder, env=env, check=False, capture_output=True
    )
    if made.returncode:
        pytest.skip(f"go cannot build this here: {made.stderr.decode(errors='replace').strip()[-200:]}")
    return folder / "program"


class TableVerdict(NamedTuple):
    """Go's table against `.debug_frame`: functions and addresses that were compared, and differences.

    `others` are the names of functions that were not compared: "without rules" or "outermost" here, "ended" where only
    `.debug_frame` has an undefined RA, and "absent" of those that only `.debug_frame` has. Assembly's end in `.abi0`.
    """

    function_count: int
    point_count: int
    differences: list[str]
    others: dict[str, set[str]]


def judge_table(image: ElfImage) -> TableVerdict:
    """Compare the rows of all functions, at each address where a row of either starts, by where they say things are."""
    judge = {e.start_vaddr: e for e in read_programs(image, *find_cfi(image, "debug_frame")).entries}
    cfi = read_programs(image, *find_cfi(image, "gopclntab"))
    differences = [f"damaged: {damaged.error}" for damaged in cfi.damaged]
    names = {vaddr: name.removesuffix(".abi0") for vaddr, name in image.names_of(judge).items()}
    others: dict[str, set[str]] = {kind: set() for kind in ("without rules", "outermost", "ended")}
    point_count = count = 0
    for entry in cfi.entries:
        other = judge.pop(entry.start_vaddr, None)
        name = names.get(entry.start_vaddr, f"0x{entry.start_vaddr:x}")
        state = entry.program.table.states[0]
        if other is None:
            differences.append(f"{name}: not in .debug_frame")
        elif state.cfa is None:
            others["without rules"].add(name)
        elif state.ra is NoRule.UNDEFINED:
            others["outermost"].add(name)
        elif other.program.table.states[0].ra is NoRule.UNDEFINED:
            others["ended"].add(name)
        else:
            count += 1
            if entry.size != other.size:
                differences.append(f"{name}: {entry.size} bytes, not {other.size}")
            points = {*entry.program.table.starts, *other.program.table.starts}
            for delta in sorted(point for point in points if point < entry.size):
                point_count += 1
                mine, theirs = _meaning(entry, delta, image), _meaning(other, delta, image)
                if mine != theirs:
                    differences.append(f"{name}+{delta}: {mine}, not {theirs}")
    others["absent"] = {names.get(start, "") for start in judge}
    return TableVerdict(count, point_count, differences, others)


def _meaning(entry: CfiEntry, delta: int, image: ElfImage) -> tuple[object, ...]:
    """Return the caller's SP, counted from this frame's, and where the RA is, counted from the caller's SP."""
    table = entry.program.table
    state: RowState = table.states[[start <= delta for start in table.starts].count(True) - 1]
    if not isinstance(state.cfa, Rule):
        return (state.cfa,)
    # Where no rule says otherwise, the ABI has the caller's SP at a fixed distance from the CFA.
    sp_from_cfa = image.arch.sp_offset_from_cfa
    if isinstance(state.sp, Rule) and state.sp.register is None and not state.sp.deref:
        sp_from_cfa = state.sp.offset
    ra: object = state.ra
    if isinstance(state.ra, Rule) and state.ra.is_saved_at_cfa:
        ra = state.ra.offset - sp_from_cfa
    elif state.ra in (NoRule.SAME_VALUE, NoRule.UNSPECIFIED, in_register(image.arch.ra_register)):
        ra = "register"
    return (state.cfa.register, state.cfa.offset + sp_from_cfa, ra)
