# SPDX-License-Identifier: Apache-2.0
"""ELF files are found in folders and archives; one that cannot be opened is reported, and loses no other."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.cli.answers import read_source
from cfi2sframe.errors import ErrorKind
from cfi2sframe.files.find import Source, Unusable, find_sources
from tests.support.archives import ar
from tests.support.cli import run
from tests.support.sizes import aarch64_object, library

if TYPE_CHECKING:
    from pathlib import Path

ELF = library(1)


def _opened(path: Path) -> list[str]:
    (source,) = find_sources([str(path)])
    if isinstance(source, Unusable):
        return [f"{source.name}: {source.reason}"]
    answers = read_source(source, lambda image: image.name)[1]
    return [f"{name.name}: {name.reason}" if isinstance(name, Unusable) else name for name in answers]


def _write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_folders_give_their_elf_files(tmp_path: Path) -> None:
    inner = tmp_path / "b"
    inner.mkdir()
    _write(inner / "x.so", ELF)
    _write(tmp_path / "c.so", ELF)
    _write(tmp_path / "a.txt", b"text")
    _write(tmp_path / "empty", b"")
    _write(tmp_path / "lib.a", ar([(b"m.o/", ELF)]))
    (tmp_path / "link.so").symlink_to("c.so")
    os.link(tmp_path / "c.so", tmp_path / "again.so")
    os.mkfifo(tmp_path / "pipe")
    found = list(find_sources([str(tmp_path)]))
    # The second name of a file is passed over, and so are links to it.
    assert [s.name.removeprefix(f"{tmp_path}/") for s in found] == ["again.so", "b/x.so"]
    assert [s.name for s in find_sources([str(tmp_path)], is_relative=True)] == ["again.so", "b/x.so"]


def test_a_link_that_is_named_is_followed(tmp_path: Path) -> None:
    _write(tmp_path / "a.so", ELF)
    (tmp_path / "link").symlink_to("a.so")
    assert _opened(tmp_path / "link") == [str(tmp_path / "link")]


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    assert _opened(_write(tmp_path / "text", b"text")) == [f"{tmp_path}/text: not an ELF file"]
    assert _opened(_write(tmp_path / "none", b"")) == [f"{tmp_path}/none: not an ELF file"]
    assert _opened(tmp_path / "missing") == [f"{tmp_path}/missing: No such file or directory"]


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """Opened again, a FIFO would wait for another writer, and an anonymous pipe would have lost its beginning."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    writer = threading.Thread(target=fifo.write_bytes, args=(ELF,), daemon=True)
    writer.start()
    assert _opened(fifo) == [str(fifo)]
    writer.join(60)


def test_archive_members_by_all_kinds_of_names(tmp_path: Path) -> None:
    long = b"a-member-with-a-long-name.o"
    archive = ar(
        [
            (b"/", b"\0\0\0\0"),
            (b"//", long + b"/\n"),
            (b"/0", ELF),
            (b"short.o/", aarch64_object()),
            (b"bsd.o", ELF),
            (b"#1/12", b"bsd name.o\0\0" + ELF),
            (b"notes.txt/", b"odd"),
            (b"broken.o/", b"\x7fELF\x01" + bytes(60)),
        ]
    )
    path = _write(tmp_path / "x.a", archive)
    assert [name.removeprefix(str(path)) for name in _opened(path)] == [
        f"({long.decode()})",
        "(short.o)",
        "(bsd.o)",
        "(bsd name.o)",
        "(broken.o): not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only",
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (ar([(b"m.o/", ELF)])[:-2], "archive+0x44: truncated member"),
        (b"!<arch>\n" + b"x" * 60, "archive+0x8: damaged member header"),
        (ar([], b"!<thin>\n"), "a thin archive holds no members; name the objects themselves"),
    ],
)
def test_damaged_archives(data: bytes, reason: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "x.a", data)
    assert _opened(path)[-1] == f"{path}: {reason}"


@pytest.mark.parametrize("data", [ar([(b"debian-binary", b"2.0\n")]), b"\xed\xab\xee\xdb" + bytes(92)])
def test_packages_are_not_read(data: bytes, tmp_path: Path) -> None:
    path = _write(tmp_path / "x", data)
    assert _opened(path) == [f"{path}: a package; unpack it first (dpkg-deb -x, rpm2cpio)"]


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_a_file_in_a_folder_is_exchanged_after_it_was_listed(kind: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    file = _write(tree / "x", ELF)
    (source,) = find_sources([str(tree)])
    assert isinstance(source, Source)
    file.unlink()
    if kind == "link":
        file.symlink_to(_write(tmp_path / "other", ELF))
    else:
        os.mkfifo(file)
    unusable = {
        "link": Unusable(str(file), "Too many levels of symbolic links"),
        "fifo": Unusable(str(file), "no longer a regular file", ErrorKind.CHANGED),
    }
    assert read_source(source, lambda image: image.name)[1] == (unusable[kind],)


def test_an_archive_cannot_be_converted(tmp_path: Path) -> None:
    """The message has the commands."""
    path = _write(tmp_path / "x.a", ar([(b"m.o/", ELF)]))
    done = run("--in-place", path)
    assert done.failed(3, path)
    assert all(word in done.err[0] for word in ("a static archive; convert the program", "ar x", "ar qcsD"))


def test_what_a_kill_has_left_is_no_file_of_a_folder(tmp_path: Path) -> None:
    _write(tmp_path / ".cfi2sframe-0123", ELF[:100])
    assert list(find_sources([str(tmp_path)])) == []


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    source = Source(str(tmp_path / "gone"), "gone", "elf", 4)
    assert read_source(source, lambda image: image.name)[1] == (Unusable("gone", "No such file or directory"),)
