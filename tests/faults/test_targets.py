# SPDX-License-Identifier: Apache-2.0
"""Outputs of every kind: the input itself, links, folders, devices, odd names; and a file's attributes."""

import os
import stat
from pathlib import Path

import pytest

from tests.support.faults import BY_NAME, OLD, TIMEOUT_SECONDS, Faults, contents, expected, run, start, wait_for
from tests.support.files import with_access_list
from tests.support.jobs import object_of

COPY = BY_NAME["copy"]
DATA = dict(COPY.files)["in.o"]


@pytest.fixture
def source(folder: Path) -> Path:
    path = folder / "in.o"
    path.write_bytes(DATA)
    return path


# The input is the output


@pytest.mark.parametrize("linked", ["in.o", "out.o"])
def test_an_output_that_is_a_hard_link(source: Path, linked: str) -> None:
    """Only the name that is written to becomes the new file: the other name keeps what it had."""
    folder = source.parent
    (folder / "out.o").write_bytes(OLD)
    (folder / "kept").hardlink_to(folder / linked)
    output = "kept" if linked == "in.o" else "out.o"
    assert run(folder, "in.o", "-o", output) == (0, b"", "")
    assert contents(folder) == {"in.o": DATA, "out.o": OLD, "kept": OLD, output: expected(COPY)["out.o"]}


@pytest.mark.parametrize("words", [("--in-place",), ("remove", "--in-place")])
def test_a_symbolic_link_in_place(source: Path, words: tuple[str, ...]) -> None:
    folder = source.parent
    (folder / "elsewhere").mkdir()
    link = folder / "elsewhere" / "link.o"
    link.symlink_to("../in.o")
    if words[0] == "remove":
        assert run(folder, "--in-place", "in.o").status == 0
    assert run(folder, *words, "elsewhere/link.o") == (0, b"", "")
    assert link.is_symlink()
    assert (source.read_bytes() == expected(COPY)["out.o"]) == (words[0] != "remove")
    assert [path.name for path in link.parent.iterdir()] == ["link.o"]
    assert {path.name for path in folder.iterdir()} == {"in.o", "elsewhere"}


# What is no file


@pytest.mark.parametrize(
    "words",
    [
        ("--in-place", "/dev/zero"),
        ("/dev/zero", "-o", "out"),
        ("-", "-o", "out"),
        ("coverage", "/dev/zero"),
        ("verify", "/dev/zero"),
        ("verify", "in.o", "/dev/zero"),
        ("dump", "/dev/zero"),
        ("dump", "-"),
        ("size", "/dev/zero"),
    ],
    ids=" ".join,
)
def test_inputs_without_an_end(source: Path, words: tuple[str, ...]) -> None:
    """Their first bytes show that they are neither ELF files nor sections; no more is read."""
    limits = 'ulimit -v 4000000; exec "$@" < /dev/zero'
    done = run(source.parent, *words, prefix=["sh", "-c", limits, "sh"])
    assert done.status == 3
    assert done.err.startswith("cfi2sframe: ")
    assert set(contents(source.parent)) == {"in.o"}


# Names


NAMES = (
    b"-dash.o",
    b"--in-place",
    b"-",
    b"two\nlines.o",
    b" spaces .o",
    b"\xff\xfe-no-utf-8.o",
    b"$(touch made).o",
    b"; touch made #.o",
    b"`touch made`'\".o",
    b"*.o",
    b"\x1b[31m.o",
)


@pytest.mark.parametrize("name", NAMES)
def test_odd_names(folder: Path, name: bytes) -> None:
    path = os.path.join(os.fsencode(folder), name)
    by_words = b"./-" if name == b"-" else name
    for words in ((b"--in-place", b"--", by_words), (b"--in-place", b"--", by_words, b"other.o")):
        Path(os.fsdecode(path)).write_bytes(DATA)
        (folder / "other.o").write_bytes(object_of(1))
        assert run(folder, *words) == (0, b"", "")
        assert Path(os.fsdecode(path)).read_bytes() == expected(COPY)["out.o"]
    assert run(folder, b"-o", b"./" + name, b"--", b"other.o") == (0, b"", "")
    assert set(os.listdir(os.fsencode(folder))) == {name, b"other.o"}


# Attributes


@pytest.mark.parametrize("words", [("--in-place", "in.o"), ("in.o", "-o", "out.o")])
def test_access_control_lists_and_other_attributes(source: Path, words: tuple[str, ...]) -> None:
    access_list = with_access_list(source)
    os.setxattr(source, "user.note", b"kept")
    mode = source.stat().st_mode
    assert run(source.parent, *words) == (0, b"", "")
    written = source.parent / words[-1]
    assert written.read_bytes() == expected(COPY)["out.o"]
    assert os.getxattr(written, "user.note") == b"kept"
    assert os.getxattr(written, "system.posix_acl_access") == access_list
    assert written.stat().st_mode == mode


@pytest.mark.parametrize("name", ["security.ima", "security.evm"])
@pytest.mark.parametrize(
    ("words", "written"), [(("--in-place", "in.o"), "in.o"), (("in.o", "-o", "out.o"), "out.o")], ids=["in place", "-o"]
)
def test_a_signature_of_the_old_bytes_is_named(source: Path, name: str, words: tuple[str, ...], written: str) -> None:
    """It is kept: without it the file would look as if it had never been signed."""
    seal = b"\x03\x02\x04" + bytes(range(40))
    try:
        os.setxattr(source, name, seal)
    except OSError as error:
        pytest.skip(f"only root can sign files, on a file system that keeps {name}: {error}")
    folder = source.parent
    warning = f"cfi2sframe: in.o: warning: {name} no longer matches the contents; sign the file again\n"
    assert run(folder, *words) == (0, b"", warning)
    assert os.getxattr(folder / written, name) == seal
    # Nothing is written, so nothing is stale; raw bytes are another file.
    assert run(folder, "--in-place", written) == (0, b"", "")
    assert run(folder, "in.o", "-o", "out.sframe") == (0, b"", "")
    assert name not in os.listxattr(folder / "out.sframe")
    assert run(folder, "remove", "--in-place", written) == (0, b"", warning.replace("in.o", written))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("words", [("--in-place", "in.o"), ("remove", "--in-place", "in.o")], ids=" ".join)
def test_an_owner_that_cannot_be_kept(source: Path, faults: Faults, words: tuple[str, ...]) -> None:
    """As for a user who converts another user's program: it loses its set-ID bits, and that is said."""
    if words[0] == "remove":
        assert run(source.parent, "--in-place", "in.o").status == 0
    given = source.read_bytes()

    def convert(*more: str, fault: str = "") -> tuple[int, str]:
        source.write_bytes(given)
        os.chown(source, 12345, 12345)
        source.chmod(0o6755)
        done = run(source.parent, *words, *more, variables=faults.of(fault) if fault else {})
        assert faults.mark.exists() == bool(fault)
        return done.status, done.err

    status, err = convert("--keep-rights", fault="fchown:error:1")
    assert (status, err) == (3, "cfi2sframe: in.o: error: --keep-rights: cannot keep owner, group, set-ID bits\n")
    assert (source.read_bytes(), stat.S_IMODE(source.stat().st_mode)) == (given, 0o6755)
    warning = "cfi2sframe: in.o: warning: not kept: owner, group, set-ID bits\n"
    assert convert(fault="fchown:error:1") == (0, warning)
    written = source.stat()
    assert (written.st_uid, stat.S_IMODE(written.st_mode)) == (0, 0o755)
    faults.mark.unlink()
    assert convert("--keep-rights") == (0, "")
    written = source.stat()
    assert (written.st_uid, written.st_gid, stat.S_IMODE(written.st_mode)) == (12345, 12345, 0o6755)


def test_attributes_that_cannot_be_kept(source: Path, faults: Faults) -> None:
    """Without the list, the group's bits would be the group's own rights."""
    with_access_list(source)
    os.setxattr(source, "user.note", b"lost")
    done = run(source.parent, "-v", "--in-place", "in.o", variables=faults.of(*["fsetxattr:error:95"] * 2))
    first, *_ = done.err.splitlines()
    assert sorted(first.removeprefix("cfi2sframe: in.o: warning: not kept: ").split(", ")) == [
        "system.posix_acl_access",
        "user.note",
    ]
    assert (done.status, stat.S_IMODE(source.stat().st_mode) & stat.S_IRWXG) == (0, 0)


def test_a_default_list_of_the_folder_adds_no_rights(source: Path) -> None:
    """The new file gets one when it is made, and the old file had none."""
    with_access_list(source.parent, "system.posix_acl_default")
    source.chmod(0o750)
    for words in (("--in-place", "in.o"), ("in.o", "-o", "out.o")):
        assert run(source.parent, *words) == (0, b"", "")
        written = source.parent / words[-1]
        assert "system.posix_acl_access" not in os.listxattr(written)
        assert stat.S_IMODE(written.stat().st_mode) == 0o750


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_copy_of_another_users_program(source: Path) -> None:
    """It is the caller's, without rights of its own; that it is the caller's needs no word."""
    os.chown(source, 12345, 12345)
    assert run(source.parent, "in.o", "-o", "out.o") == (0, b"", "")
    source.chmod(0o4755)
    warning = "cfi2sframe: in.o: warning: not kept: set-ID bits\n"
    assert run(source.parent, "in.o", "-o", "out.o") == (0, b"", warning)
    written = (source.parent / "out.o").stat()
    assert (written.st_uid, stat.S_IMODE(written.st_mode)) == (0, 0o755)
    assert run(source.parent, "in.o", "-o", "none.o", "--keep-rights").status == 3
    assert not (source.parent / "none.o").exists()


@pytest.mark.parametrize("named", [False, True])
def test_others_cannot_read_it_while_it_is_written(
    source: Path,
    faults: Faults,
    unnamed_files: bool,  # noqa: FBT001
    named: bool,  # noqa: FBT001
) -> None:
    """Until it has the mode that it is to have, also if that is one for all."""
    source.chmod(0o644)
    with start(source.parent, "--in-place", "in.o", variables=faults.of("fchmod:wait:0", named=named)) as writing:
        wait_for(faults.mark)
        opened = [path.stat() for path in Path(f"/proc/{writing.pid}/fd").iterdir() if path.exists()]
        faults.word.touch()
        assert writing.communicate(timeout=TIMEOUT_SECONDS) == (b"", b"")
    (new,) = {(each.st_nlink, stat.S_IMODE(each.st_mode)) for each in opened if each.st_ino == source.stat().st_ino}
    assert new == (1 if named or not unnamed_files else 0, 0o600)
    assert stat.S_IMODE(source.stat().st_mode) == 0o644


# Files that are open already


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "to-stdout"])
def test_a_log_that_the_shell_has_opened(source: Path, name: str) -> None:
    """It is written to where the shell is, and nothing of it is lost."""
    folder, log = source.parent, source.parent / "log"
    log.write_bytes(OLD)
    (folder / "to-stdout").symlink_to("/dev/stdout")
    before = log.stat().st_ino
    with log.open("ab") as file:
        assert run(folder, "in.o", "-o", name, stdout=file.fileno()).status == 0
        assert run(folder, "coverage", "in.o", "-o", name, stdout=file.fileno()).status == 0
    data = log.read_bytes()
    assert data.startswith(OLD + expected(COPY)["out.o"])
    assert len(data) > len(OLD + expected(COPY)["out.o"])
    assert log.stat().st_ino == before


def test_a_report_to_standard_error(source: Path) -> None:
    done = run(source.parent, "--in-place", "in.o", "missing.o", "--report", "/dev/stderr")
    lines = done.err.splitlines()
    assert lines[0].startswith("cfi2sframe: missing.o: error: ")
    assert [line[0] for line in lines[1:]] == ["{", "{"]
    assert set(contents(source.parent)) == {"in.o"}
