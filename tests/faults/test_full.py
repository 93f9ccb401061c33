# SPDX-License-Identifier: Apache-2.0
"""Writing that fails: full disks, limits, read-only file systems, errors of every call. Only the old file is left."""

import errno
import os
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.faults import BY_NAME, FORMS, OLD, Faults, Form, check_left, contents, expected, fill, run
from tests.support.jobs import object_of
from tests.support.needs import need

#: Larger than the pages that the file systems here have left.
LARGE = object_of(400)
ALL = pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)


def untouched(form: Form, folder: Path) -> bool:
    return contents(folder) == dict(form.files)


# Full disks


def fill_up(path: Path) -> None:
    """Write to a file until nothing more fits."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


@pytest.mark.parametrize(
    ("arguments", "target"),
    [
        (("in.o", "-o", "out.sframe"), "out.sframe"),
        (("in.o", "-o", "out.o"), "out.o"),
        (("--in-place", "out.o"), "out.o"),
        (("--in-place", "out.o", "in.o"), "out.o"),
    ],
)
def test_a_full_disk(mount: Callable[..., Path], tmp_path: Path, arguments: tuple[str, ...], target: str) -> None:
    """Not a single page is left for anything new."""
    folder = mount(tmp_path / "full", "-t", "tmpfs", "-o", "size=512k", "tmpfs")
    (folder / "in.o").write_bytes(LARGE)
    is_input = "--in-place" in arguments
    (folder / target).write_bytes(LARGE + b"\0" if is_input else OLD)
    fill_up(folder / "filler")
    before = contents(folder)
    done = run(folder, *arguments)
    message = f"cfi2sframe: {target}: error: No space left on device\n"
    if len(arguments) == 3 and is_input:
        message += "cfi2sframe: in.o: error: No space left on device\n"
    assert done == (3, b"", message)
    assert contents(folder) == before
    (folder / "filler").unlink()
    assert run(folder, *arguments).status == 0
    assert contents(folder)[target] != before[target]


@pytest.mark.parametrize("form", [form for form in FORMS if form.name != "batch"], ids=lambda form: form.name)
def test_a_limit_of_file_size(folder: Path, form: Form) -> None:
    """SIGXFSZ does not end the process; it exits with a message."""
    need("prlimit")
    fill(form, folder)
    done = run(folder, *form.arguments, prefix=["prlimit", "--fsize=64"])
    target = form.arguments[-1]
    assert done == (3, b"", f"cfi2sframe: {target}: error: File too large\n")
    assert untouched(form, folder)


# Read-only


@ALL
def test_a_read_only_file_system(mount: Callable[..., Path], tmp_path: Path, form: Form) -> None:
    """Permissions do not bind root; a mount does."""
    folder = mount(tmp_path / "read-only", "-t", "tmpfs", "-o", "size=1m", "tmpfs")
    fill(form, folder)
    subprocess.run(["mount", "-o", "remount,ro", folder], check=True)
    done = run(folder, *form.arguments)
    names = [name for name in form.arguments if name.endswith(".o")] if form.name == "batch" else [form.arguments[-1]]
    lines = [f"cfi2sframe: {name}: error: Read-only file system" for name in names]
    if form.name == "batch":
        lines.append("cfi2sframe: report: error: Read-only file system")
    assert (done.status, done.err.splitlines()) == (3, lines)
    assert untouched(form, folder)


# Errors of each call


@ALL
@pytest.mark.parametrize(
    ("call", "number"),
    [
        ("create", errno.EACCES),
        ("write", errno.ENOSPC),
        ("write", errno.EIO),
        ("write", errno.EDQUOT),
        ("fsync", errno.EIO),
        ("fsync", errno.EDQUOT),
        ("fchmod", errno.EPERM),
        ("rename", errno.ENOSPC),
        ("rename", errno.EIO),
        ("rename", errno.EROFS),
    ],
    ids=lambda value: errno.errorcode[value] if isinstance(value, int) else value,
)
def test_a_call_fails(folder: Path, faults: Faults, form: Form, call: str, number: int) -> None:
    fill(form, folder)
    done = run(folder, *form.arguments, variables=faults.of(f"{call}:error:{number}", named=call == "create"))
    assert faults.mark.exists()
    assert done.status == 3
    (line,) = done.err.splitlines()
    first = "a.o" if form.name == "batch" else form.arguments[-1]
    # A directory that cannot be written is named.
    where = f"cannot create a file in {folder}: " if (call, number) == ("create", errno.EACCES) else ""
    assert line == f"cfi2sframe: {first}: error: {where}{os.strerror(number)}"
    check_left(form, folder)
    if form.name != "batch":
        assert untouched(form, folder)
    else:
        # The others are converted nevertheless.
        left, after = contents(folder), expected(form)
        assert (left["a.o"], left["b.o"], left["c.o"]) == (dict(form.files)["a.o"], after["b.o"], after["c.o"])


@ALL
@pytest.mark.parametrize(
    ("call", "number"),
    [("link", errno.EPERM), ("link", errno.ENOENT), ("create", errno.EOPNOTSUPP), ("create", errno.EACCES)],
)
def test_a_file_that_cannot_be_without_a_name_has_one(
    folder: Path,
    faults: Faults,
    unnamed_files: bool,  # noqa: FBT001
    form: Form,
    call: str,
    number: int,
) -> None:
    """A file system, or a policy, may forbid such files, or that they get a name."""
    fill(form, folder)
    assert run(folder, *form.arguments, variables=faults.of(f"{call}:error:{number}")) == (0, b"", "")
    assert faults.mark.exists() or not unnamed_files
    assert contents(folder) == expected(form)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_directory_without_room_for_a_name(folder: Path, faults: Faults, unnamed_files: bool, number: int) -> None:  # noqa: FBT001
    form = BY_NAME["in-place"]
    fill(form, folder)
    done = run(folder, *form.arguments, variables=faults.of(f"link:error:{number}"))
    if unnamed_files:
        assert done == (3, b"", f"cfi2sframe: in.o: error: {os.strerror(number)}\n")
        assert untouched(form, folder)
