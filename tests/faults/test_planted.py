# SPDX-License-Identifier: Apache-2.0
"""Faults planted in the program itself (planted.txt), each alone: the check of a job refuses before it writes.

A fault that no check sees is a hole in a judge, and is mended there.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe import emit, load
from tests.faults.planted import Answer
from tests.support.cli import ROOT

HERE: Final = Path(__file__).resolve().parent
DATA: Final = ROOT / "testdata"
#: Programs that lose their section first, so that they are as they were before they got one.
CONVERTED: Final = ("amd64-new-segment", "amd64-no-section-headers", "aarch64-linked", "s390x-linked")
#: With stubs, flexible rows, a signed RA, a signal frame, an outermost frame, two rows of one start.
OTHERS: Final = (
    *("fuzz/file/ld-amd64", "fuzz/file/ld-amd64-ibt", "golden/amd64-drap.o", "golden/aarch64-negate-ra-state.o"),
    *("golden/amd64-signal-frame.o", "golden/amd64-ra-undefined.o", "golden/amd64-same-pc-offset-then-register.o"),
)
REMOVED: Final = ("amd64-slack", "amd64-new-segment", "amd64-object.o")
#: So many processes share the work.
PARTS: Final = 4


class Fault(NamedTuple):
    """Some text of a module, and what takes its place."""

    name: str
    module: str
    old: str
    new: str


def faults() -> list[Fault]:
    """Return the faults of the table."""
    found, module = [], ""
    for line in (HERE / "planted.txt").read_text().splitlines():
        if line.startswith("    "):
            name, _, change = line[4:].partition(": ")
            old, arrow, new = change.replace("\\n", "\n").partition(" =>")
            assert arrow, line
            found.append(Fault(name, module, old, new.removeprefix(" ")))
        elif line and not line.startswith("#"):
            module = line
    return found


def test_each_fault_has_its_place() -> None:
    """Whoever changes such a line learns at once that a fault has to be planted anew."""
    sources = {fault.module: ROOT.joinpath(*fault.module.split(".")).with_suffix(".py") for fault in faults()}
    counts = {fault.name: sources[fault.module].read_text().count(fault.old) for fault in faults()}
    assert {name: count for name, count in counts.items() if count != 1} == {}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for name in CONVERTED:
        (folder / name).write_bytes(bytes(emit.remove(load(DATA / "converted" / name)).content))
    for name in OTHERS:
        shutil.copy(DATA / name, folder)
    for name in REMOVED:
        shutil.copy(DATA / "converted" / name, folder / f"remove-{name}")
    return folder


@pytest.mark.parametrize("part", range(PARTS))
def test_a_check_refuses_what_comes_of_a_fault(part: int, files: Path) -> None:
    planted = faults()[part::PARTS]
    command = [sys.executable, "-m", "tests.faults.planted", str(files)]
    given = json.dumps([(), *(fault[1:] for fault in planted)])
    done = subprocess.run(command, input=given, cwd=ROOT, capture_output=True, text=True, check=True)
    right, *found = [
        {name: Answer(*answer) for name, answer in json.loads(line).items()} for line in done.stdout.splitlines()
    ]
    assert all(answer.written for answer in right.values())
    wrong = [
        f"{fault.name}: {problem}"
        for fault, made in zip(planted, found, strict=True)
        if (problem := _problem(made, right))
    ]
    assert wrong == []


def _problem(made: dict[str, Answer], right: dict[str, Answer]) -> str:
    """Return what is wrong with the answers of a faulty program; nothing if a check has refused all that is wrong."""
    if made.keys() != right.keys():
        return f"it does not run: {made}"
    accepted = [name for name, answer in made.items() if answer.written not in (None, right[name].written)]
    if accepted:
        return f"accepted, and other bytes than without it: {accepted}"
    refused = [answer for answer in made.values() if answer.written is None]
    if not any(answer.is_refused_by_check for answer in refused):
        return f"no check has refused it: {[answer.said for answer in refused]}"
    return "".join(
        answer.said for answer in refused if "internal error" in answer.said or ": error: " not in answer.said
    )


def test_many_faults_of_many_modules() -> None:
    assert len(faults()) >= 60
    assert len({fault.module for fault in faults()}) >= 8
