# SPDX-License-Identifier: Apache-2.0
"""Files that change while they are converted, and several runs at once."""

from pathlib import Path

import pytest

from tests.support.faults import (
    BY_NAME,
    TIMEOUT_SECONDS,
    Faults,
    check_left,
    contents,
    expected,
    fill,
    run,
    start,
    wait_for,
)
from tests.support.jobs import has_section, object_of

CHANGED = "the file was changed while it was being converted"
OTHER = object_of(5)


def converted(data: bytes, folder: Path) -> bytes:
    """Return what conversion in place makes of a file."""
    path = folder / "apart.o"
    path.write_bytes(data)
    assert run(folder, "--in-place", path.name).status == 0
    result = path.read_bytes()
    path.unlink()
    return result


@pytest.mark.parametrize("name", ["raw", "raw-new", "copy", "copy-new"])
@pytest.mark.parametrize("call", ["create", "write", "fchmod", "fsync"])
@pytest.mark.parametrize("action", ["cut:100", "cut:0", "swap:0"])
def test_an_input_that_changes(folder: Path, faults: Faults, name: str, call: str, action: str) -> None:
    form = BY_NAME[name]
    fill(form, folder)
    if action == "swap:0":
        (folder / "in.o.other").write_bytes(OTHER)
    done = run(folder, *form.arguments, variables=faults.of(f"{call}:{action}", file=folder / "in.o"))
    assert faults.mark.exists()
    assert done == (3, b"", f"cfi2sframe: in.o: error: {CHANGED}\n")
    left, before = contents(folder), dict(form.files)
    output = form.arguments[-1]
    assert left.keys() == before.keys()
    assert left.get(output) == before.get(output)


def test_a_file_that_is_truncated_in_place_stays_so(folder: Path, faults: Faults) -> None:
    """Changes by others are not undone."""
    form = BY_NAME["in-place"]
    fill(form, folder)
    done = run(folder, *form.arguments, variables=faults.of("write:cut:100", file=folder / "in.o"))
    assert faults.mark.exists()
    assert done.status == 3
    assert done.err.startswith("cfi2sframe: in.o: error: ")
    assert contents(folder) == {"in.o": dict(form.files)["in.o"][:100]}


# Several runs


@pytest.mark.parametrize("call", ["create", "write", "fchmod", "rename"])
def test_a_second_run_in_the_midst_of_the_first(folder: Path, faults: Faults, call: str) -> None:
    """Both succeed: the later one finds the section already there, unless it has read the file before."""
    form = BY_NAME["in-place"]
    fill(form, folder)
    with start(folder, *form.arguments, variables=faults.of(f"{call}:wait:0")) as first:
        wait_for(faults.mark)
        assert run(folder, *form.arguments) == (0, b"", "")
        inode = (folder / "in.o").stat().st_ino
        faults.word.touch()
        _, err = first.communicate(timeout=TIMEOUT_SECONDS)
    assert (first.returncode, err) == (0, b"")
    assert contents(folder) == expected(form)
    assert call == "rename" or (folder / "in.o").stat().st_ino == inode


@pytest.mark.parametrize("name", ["in-place", "copy", "batch"])
def test_runs_at_once(folder: Path, name: str) -> None:
    form = BY_NAME[name]
    fill(form, folder)
    processes = [start(folder, *form.arguments) for _ in range(4)]
    ends = [process.communicate(timeout=TIMEOUT_SECONDS) for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert all(out == b"" and b": error: " not in err and b": warning: " not in err for out, err in ends)
    check_left(form, folder)
    assert all(has_section(data) for path, data in contents(folder).items() if path.endswith(".o") and path != "in.o")
