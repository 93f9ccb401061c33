# SPDX-License-Identifier: Apache-2.0
"""The command line's ways to write a file: whole or not at all, with the rights that it had."""

import errno
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.api import decode_raw
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import VerificationError
from tests.support.cli import run
from tests.support.files import with_access_list
from tests.support.jobs import snapshot
from tests.support.placing.emitted import GOLDEN, headers_of, named

OBJECT = GOLDEN / "amd64-push-rbp.o"
NOTHING_IN_VERSION_1 = GOLDEN / "amd64-ra-undefined.o"
OLD_TIME_NS = 1_000_000_000_123_456_789
SOMEBODY = 65534


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.o"
    path.write_bytes(OBJECT.read_bytes())
    return path


def version_of(path: Path) -> int:
    return named(headers_of(path.read_bytes()), ".sframe").content[2]


def only(folder: Path) -> list[str]:
    """The names in a folder: no temporary file may be left."""
    return sorted(os.listdir(folder))


@pytest.mark.parametrize(
    ("name", "is_elf"),
    [
        ("out.sframe", False),
        ("out.bin", True),
        ("out.o", True),
        ("out", True),
        ("sframe", True),
    ],
)
def test_form_by_name(source: Path, name: str, *, is_elf: bool) -> None:
    out = source.with_name(name)
    assert run(source, "-o", out).status == 0
    data = out.read_bytes()
    assert data.startswith(b"\x7fELF" if is_elf else b"\xe2\xde\x03")
    raw = named(headers_of(data), ".sframe").content if is_elf else data
    if not is_elf:
        assert len(decode_raw(load(source), raw, 0).functions) == 1
    # Rows sp+8, sp+16 with FP, fp+16 with FP, sp+8.
    assert len(raw) == 28 + 16 + 5 + (3 + 4 + 4 + 3)
    assert source.read_bytes() == OBJECT.read_bytes()


@pytest.mark.parametrize("mode", [0o644, 0o600, 0o444, 0o755])
def test_in_place_keeps_mode_and_times(source: Path, mode: int) -> None:
    source.chmod(mode)
    # Reading a file sets its time of access, but not (on most file systems) when that is later than its last change.
    accessed_ns = time.time_ns() + 60_000_000_000
    os.utime(source, ns=(accessed_ns, OLD_TIME_NS))
    assert run("--in-place", source).status == 0
    status = source.stat()
    assert stat.S_IMODE(status.st_mode) == mode
    assert (status.st_atime_ns, status.st_mtime_ns) == (accessed_ns, OLD_TIME_NS)
    assert version_of(source) == 3
    assert only(source.parent) == ["in.o"]


def test_a_copy_has_the_mode_of_its_input_and_a_new_time(source: Path) -> None:
    source.chmod(0o751)
    os.utime(source, ns=(OLD_TIME_NS, OLD_TIME_NS))
    out = source.with_name("out.o")
    assert run(source, "-o", out).status == 0
    assert stat.S_IMODE(out.stat().st_mode) == 0o751
    assert out.stat().st_mtime_ns > OLD_TIME_NS


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize("words", [(), ("remove",)])
def test_a_copy_belongs_to_the_caller(source: Path, words: tuple[str, ...], *, is_old: bool) -> None:
    """As with `cp`: the owners of the input and of the replaced file do not matter."""
    if words:
        assert run("--in-place", source).status == 0
    os.chown(source, SOMEBODY, SOMEBODY)
    source.chmod(0o6773)
    try:
        os.setxattr(source, "user.note", b"another owner's")
    except OSError as error:
        pytest.skip(f"no extended attributes here: {error}")
    out = source.with_name("out.o")
    if is_old:
        out.write_bytes(b"old")
        os.chown(out, SOMEBODY, SOMEBODY)
        out.chmod(0o6777)
    mask = os.umask(0o027)
    try:
        assert run(*words, source, "-o", out).status == 0
    finally:
        os.umask(mask)
    status = out.stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (0, os.getegid(), 0o750)
    assert os.listxattr(out) == []


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o4755), (0o077, 0o4700), (0, 0o4777)])
def test_the_umask_applies_to_a_copy(source: Path, mask: int, mode: int) -> None:
    """As with `cp`, `strip` and `objcopy`; a file that is rewritten in place keeps its mode."""
    source.chmod(0o4777)
    before = os.umask(mask)
    try:
        assert run(source, "-o", source.with_name("out.o")).status == 0
        assert run("--in-place", source).status == 0
        assert run("remove", source, "-o", source.with_name("removed.o")).status == 0
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in source.parent.iterdir()}
    assert modes == {"in.o": 0o4777, "out.o": mode, "removed.o": mode}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_copy_has_no_list_of_another_owner(source: Path) -> None:
    """Nor the group's rights, which the list may have denied; the umask applies to the others."""
    with_access_list(source)
    source.chmod(0o777)
    os.chown(source, SOMEBODY, SOMEBODY)
    out, before = source.with_name("out.o"), os.umask(0o002)
    try:
        result = run(source, "-o", out)
    finally:
        os.umask(before)
    assert result.err == (f"cfi2sframe: {source}: warning: not kept: system.posix_acl_access",)
    assert (stat.S_IMODE(out.stat().st_mode), os.listxattr(out)) == (0o705, [])


UNLISTED: Final = "extended attributes that cannot be listed"


@pytest.mark.parametrize("words", [("--in-place",), ("-o", "out.o")])
@pytest.mark.parametrize(
    ("call", "number", "lost"),
    [
        ("listxattr", errno.E2BIG, UNLISTED),
        ("listxattr", errno.EIO, UNLISTED),
        ("getxattr", errno.EIO, "system.posix_acl_access"),
        ("both", errno.EIO, f"{UNLISTED}, security.capability, system.posix_acl_access"),
        ("listxattr", errno.ENOTSUP, ""),
        ("removexattr", errno.EIO, "system.posix_acl_access"),
    ],
)
def test_attributes_that_cannot_be_read(
    source: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, lost: str, words: tuple[str, ...]
) -> None:
    """They are not known to be absent: a warning or an error, and the group gains no rights."""
    with_access_list(source)
    if call == "removexattr":
        # What a new file has from its directory stays, although the source has none.
        os.removexattr(source, "system.posix_acl_access")

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    for name in ("listxattr", "getxattr") if call == "both" else (call,):
        monkeypatch.setattr(os, name, fail)
    monkeypatch.chdir(source.parent)
    written = source.with_name(words[-1]) if words[1:] else source
    if lost:
        refused = run(source, *words, "--keep-rights")
        assert refused.err == (f"cfi2sframe: {source}: error: --keep-rights: cannot keep {lost}",)
        assert refused.status == 3
    result = run(source, *words)
    assert result == (0, b"", (f"cfi2sframe: {source}: warning: not kept: {lost}",) if lost else ())
    monkeypatch.undo()
    has_list = "system.posix_acl_access" in os.listxattr(written)
    assert has_list == (call == "listxattr" and number != errno.ENOTSUP)
    if not has_list and number != errno.ENOTSUP:
        assert written.stat().st_mode & stat.S_IRWXG == 0


@pytest.mark.parametrize("replace", [(), ("--replace",)])
def test_a_section_that_is_right_already_is_copied(source: Path, tmp_path: Path, replace: tuple[str, ...]) -> None:
    """One answer for `-o` and `--in-place`: there is nothing to do."""
    assert run("--in-place", source).status == 0
    before = snapshot(source)
    out = tmp_path / "out.o"
    done = run(source, "-o", out, "-v", *replace)
    assert (done.status, done.err[-1]) == (0, f"cfi2sframe: {source}: info: unchanged")
    assert out.read_bytes() == before.data
    assert snapshot(source) == before


def test_a_file_without_describable_functions_is_copied(tmp_path: Path) -> None:
    source, out = tmp_path / "in.o", tmp_path / "out.o"
    source.write_bytes(NOTHING_IN_VERSION_1.read_bytes())
    status, _, (warning,) = run(source, "-o", out, "--sframe-version", "1")
    assert status == 0
    assert "can describe none of the functions; the file gets no .sframe section" in warning
    assert out.read_bytes() == source.read_bytes()
    assert run("--in-place", source, "--sframe-version", "1").status == 0
    assert source.read_bytes() == NOTHING_IN_VERSION_1.read_bytes()
    # Raw bytes of nothing would be an empty file.
    assert run(source, "-o", tmp_path / "out.sframe", "--sframe-version", "1").status == 3
    assert only(tmp_path) == ["in.o", "out.o"]


def test_a_failed_check_writes_nothing(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise VerificationError("made up")

    monkeypatch.setattr("cfi2sframe.emit.check_asked", fail)
    status, _, (error,) = run("--in-place", source)
    assert (status, "made up" in error) == (3, True)
    assert source.read_bytes() == OBJECT.read_bytes()
    assert run(source, "-o", source.with_name("out.o")).status == 3
    assert only(source.parent) == ["in.o"]
    # Who asks for no check gets none.
    assert run(source, "-o", source.with_name("out.o"), "--no-verify").status == 0


@pytest.fixture
def fifo(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A pipe with a name, and the descriptor that reads from it; it holds more than is written here."""
    path = tmp_path / "fifo"
    os.mkfifo(path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    yield path, descriptor
    os.close(descriptor)


@pytest.mark.parametrize("words", [(), ("--no-verify",)])
def test_a_pipe_gets_checked_bytes(
    source: Path, fifo: tuple[Path, int], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def refuse(_emitted: object, rewritten: ElfImage, **_: object) -> None:
        checked.append(bytes(rewritten.data))
        raise VerificationError("a difference")

    checked: list[bytes] = []
    wanted = source.with_name("out.o")
    assert run(source, "-o", wanted, *words).status == 0
    monkeypatch.setattr("cfi2sframe.emit.check_asked", refuse)
    verifies = "--no-verify" not in words
    path, reader = fifo
    assert run(source, "-o", path, *words).status == (3 if verifies else 0)
    assert os.read(reader, 1 << 16) == (b"" if verifies else wanted.read_bytes())
    assert checked == [wanted.read_bytes()] * verifies
    assert path.is_fifo()


def test_a_pipe_gets_nothing_from_an_input_that_changes(
    source: Path, fifo: tuple[Path, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cfi2sframe.emit.check_asked", lambda *_, **__: source.write_bytes(b"another file"))
    path, reader = fifo
    done = run(source, "-o", path)
    assert (done.status, os.read(reader, 1 << 16)) == (3, b"")
    assert done.err[0].endswith("the file was changed while it was being converted")
