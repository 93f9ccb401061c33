# SPDX-License-Identifier: Apache-2.0
"""ELF files are found in folders, archives and packages; one that cannot be opened is reported, and loses no other."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import tarfile
import threading
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ErrorKind
from cfi2sframe.files import Source, Unusable, find_relative, find_sources, open_source
from tests.support.package_files import ar, cpio, deb, rpm, tar, tar_header, tar_padded
from tests.support.sizes import aarch64_object, library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ELF = library(1)


def _opened(path: Path) -> list[str]:
    (source,) = find_sources([str(path)])
    if isinstance(source, Unusable):
        return [f"{source.name}: {source.reason}"]
    return [
        image.name if isinstance(image, ElfImage) else f"{image.name}: {image.reason}" for image in open_source(source)
    ]


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
    assert [s.name for s in find_relative(str(tmp_path))] == ["again.so", "b/x.so"]


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


@pytest.mark.parametrize("kind", ["link", "fifo"])
def test_names_that_are_exchanged_in_a_folder(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is replaced by a link, or a FIFO without a writer, between listing and opening."""
    tree = tmp_path / "tree"
    tree.mkdir()
    outside = _write(tmp_path / "outside", ELF)
    looked_at = os.lstat(outside)
    if kind == "link":
        (tree / "x").symlink_to(outside)
    else:
        os.mkfifo(tree / "x")
    monkeypatch.setattr(os, "lstat", lambda _path: looked_at)
    assert [found for found in find_sources([str(tree)]) if isinstance(found, Source)] == []


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


# Packages


def _zstd(data: bytes) -> bytes:
    zstandard = pytest.importorskip("zstandard")
    packed: bytes = zstandard.ZstdCompressor().compress(data)
    return packed


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": _zstd,
}


def _deb(compression: str) -> bytes:
    files = {"./usr/share/doc/x": b"text", "./usr/lib/x.so": ELF, "./usr/lib/y.so": ELF}
    return deb(COMPRESSIONS[compression](tar(files)), compression)


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_debian_packages(compression: str, tmp_path: Path) -> None:
    path = _write(tmp_path / "x.deb", _deb(compression))
    assert _opened(path) == [f"{path}(usr/lib/x.so)", f"{path}(usr/lib/y.so)"]


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT])
def test_long_names_in_debian_packages(form: int, tmp_path: Path) -> None:
    names = ["usr/lib/short.so", "usr/" + "folder/" * 13 + "x.so", "usr/" + "f" * 90 + "/" + "n" * 95, "usr/last.so"]
    if form != tarfile.USTAR_FORMAT:
        names[2:2] = ["usr/" + "f" * 300 + "/x.so", "usr/\u00fc/" + "n" * 120]
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form, pax_headers={"comment": "for all"}) as made:
        for name in names:
            entry = tarfile.TarInfo("./" + name)
            entry.size, entry.mtime = len(ELF), 1.5 if form == tarfile.PAX_FORMAT else 1
            made.addfile(entry, io.BytesIO(ELF))
            link = tarfile.TarInfo("./" + name + ".link")
            link.type, link.linkname = tarfile.LNKTYPE, "./x" if form == tarfile.USTAR_FORMAT else "./" + name
            made.addfile(link)
    path = _write(tmp_path / "x.deb", deb(out.getvalue()))
    assert _opened(path) == [f"{path}({name})" for name in names]


def test_large_sizes_in_debian_packages(tmp_path: Path) -> None:
    """In binary as GNU writes them from 8 GiB on, and in an extended header as POSIX does."""
    size = b"13 size=%d\n" % len(ELF)
    assert int(size.split()[0]) == len(size)
    for start in (
        tar_header(b"x.so", len(ELF)).replace(b"%011o\0" % len(ELF), b"\x80" + len(ELF).to_bytes(11, "big"), 1),
        tar_header(b"x", len(size), b"x") + tar_padded(size) + tar_header(b"x.so", 0),
    ):
        changed = bytearray(start)
        checked = memoryview(changed)[-512:]
        checked[148:156] = b" " * 8
        checked[148:156] = b"%06o\0 " % sum(checked)
        path = _write(tmp_path / "x.deb", deb(bytes(changed) + tar_padded(ELF) + bytes(1024)))
        assert _opened(path) == [f"{path}(x.so)"]


def test_several_streams(tmp_path: Path) -> None:
    """As parallel compressors write them; those of xz may be padded."""
    data = tar({"./usr/lib/x.so": ELF})
    for suffix, filling in ((".xz", bytes(8)), (".bz2", b""), (".gz", b""), (".zst", b"")):
        pack = COMPRESSIONS[suffix]
        packed = filling.join(pack(data[at : at + 700]) for at in range(0, len(data), 700))
        path = _write(tmp_path / "x.deb", deb(packed, suffix))
        assert _opened(path) == [f"{path}(usr/lib/x.so)"], suffix


@pytest.mark.parametrize("compression", [".gz", ".xz", ".zst"])
def test_damaged_debian_packages(compression: str, tmp_path: Path) -> None:
    data = COMPRESSIONS[compression](tar({"./usr/lib/x.so": os.urandom(100_000)}))
    for broken in (data[: len(data) // 2], bytes(100)):
        members = [(b"debian-binary", b"2.0\n"), (b"data.tar" + compression.encode(), broken)]
        path = _write(tmp_path / "x.deb", ar(members))
        assert "damaged package" in _opened(path)[-1]
    path = _write(tmp_path / "y.deb", ar([(b"debian-binary", b"2.0\n")]))
    assert _opened(path) == [f"{path}: a Debian package without data.tar"]


RPM_COMPRESSIONS = {b"none": "", b"gzip": ".gz", b"xz": ".xz", b"bzip2": ".bz2", b"zstd": ".zst"}


@pytest.mark.parametrize("compressor", RPM_COMPRESSIONS)
def test_rpm_packages(compressor: bytes, tmp_path: Path) -> None:
    files = {"./usr/share/doc/x": b"text", "./usr/lib/x.so": ELF, "./usr/lib/yy.so": ELF}
    payload = COMPRESSIONS[RPM_COMPRESSIONS[compressor]](cpio(files))
    path = _write(tmp_path / "x.rpm", rpm(payload))
    assert _opened(path) == [f"{path}(usr/lib/x.so)", f"{path}(usr/lib/yy.so)"]


def test_damaged_rpm_packages(tmp_path: Path) -> None:
    payload = cpio({"./usr/lib/x.so": ELF})
    for data, reason in (
        (rpm(gzip.compress(payload)[:-100]), r"payload\+0x[0-9a-f]+: damaged package"),
        (rpm(gzip.compress(payload[:200])), r"payload\+0xc8: damaged package: truncated"),
        (rpm(gzip.compress(b"x" * 200)), r"payload\+0x6e: damaged package: damaged or unknown cpio header"),
        (rpm(b"\x04\x22\x4d\x18" + bytes(200)), "cpio header, or unknown compression"),
        (b"\xed\xab\xee\xdb" + bytes(92), r"headers\+0x60: damaged package: truncated"),
    ):
        path = _write(tmp_path / "x.rpm", data)
        assert re.search(reason, _opened(path)[-1])


def test_packages_without_their_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _write(tmp_path / "x.deb", _deb(".zst"))
    other = _write(tmp_path / "y.deb", _deb(".xz"))
    monkeypatch.setitem(sys.modules, "zstandard", None)
    assert _opened(path) == [f"{path}: compressed with zstd; pip install 'cfi2sframe[packages]' reads it"]
    assert len(_opened(other)) == 2


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
    assert list(open_source(source)) == [unusable[kind]]


def test_a_file_that_goes_away(tmp_path: Path) -> None:
    source = Source(str(tmp_path / "gone"), "gone", "elf", 4)
    assert list(open_source(source)) == [Unusable("gone", "No such file or directory")]
