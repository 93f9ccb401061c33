# SPDX-License-Identifier: Apache-2.0
"""Packages and archives with large claims or high compression: within the bound, and without loss of other results."""

from __future__ import annotations

import bz2
import lzma
import os
import struct
from typing import TYPE_CHECKING, Final

import pytest

from tests.fuzz.harness import CORPUS, FINDING_PREFIX
from tests.support import package_files as make
from tests.support.bounds import MIB, run_within_bound
from tests.support.sizes import library

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.bounds import BoundedRun

pytestmark = pytest.mark.fuzz

TIB: Final = 1 << 40
ELF_START: Final = b"\x7fELF\x02\x01\x01"
#: What the program needs for itself, three times over.
LITTLE_MEMORY: Final = 150 * MIB


def _size(path: Path, stored_size: int | None = None) -> BoundedRun:
    """Measure a package beside a good file, whose result is not to be lost."""
    good = path.with_name("good.so")
    good.write_bytes(library(1))
    size = path.stat().st_size if stored_size is None else stored_size
    run = run_within_bound("size", path, good, "-j", "1", "--format", "csv", input_size=size + good.stat().st_size)
    assert f"\n{good},AMD64,linked," in run.out
    return run


def _packed(encoder: bz2.BZ2Compressor | lzma.LZMACompressor, start: bytes, size: int) -> bytes:
    """Compress `start` and `size` zeros piece by piece: what this process needs, its children seem to need."""
    pieces = [encoder.compress(start)]
    pieces += [encoder.compress(bytes(MIB)) for _ in range(size // MIB)]
    return b"".join((*pieces, encoder.flush()))


@pytest.mark.parametrize("suffix", [".bz2", ".xz"])
@pytest.mark.parametrize("start", [b"text", ELF_START])
def test_contents_out_of_proportion(suffix: str, start: bytes, tmp_path: Path) -> None:
    """A file that is passed over counts like one that is read."""
    size = 64 * MIB
    for name, header in (("x.deb", make.tar_header(b"./x", size)), ("x.rpm", make.cpio_header(b"./x", size))):
        encoder = bz2.BZ2Compressor() if suffix == ".bz2" else lzma.LZMACompressor(preset=0)
        packed = _packed(encoder, header + start, size)
        path = tmp_path / name
        path.write_bytes(make.deb(packed, suffix) if name == "x.deb" else make.rpm(packed))
        run = _size(path)
        assert run.status == 3
        assert "bytes of input may" in run.out
        assert run.seconds < 1.5
        assert run.memory_size < LITTLE_MEMORY


def test_many_small_files(tmp_path: Path) -> None:
    """Each costs a header, a record and a line of the report, and compresses to almost nothing."""
    content = ELF_START.ljust(512, b"\0")
    entry = make.tar_header(b"./usr/lib/x.so", len(content)) + content
    path = tmp_path / "x.deb"
    path.write_bytes(make.deb(lzma.compress(entry * 5000), ".xz"))
    run = _size(path)
    assert "its files take more work than" in run.out
    assert run.seconds < 1.5


def test_much_call_frame_information(tmp_path: Path) -> None:
    """Equal functions compress to nothing, and each is converted."""
    path = tmp_path / "x.deb"
    path.write_bytes(make.deb(lzma.compress(make.tar(dict.fromkeys(map(str, range(14)), library(2000)))), ".xz"))
    run = _size(path)
    assert "its files take more work than" in run.out


TAR_HEADERS: Final[dict[str, Callable[[], bytes]]] = {
    "nested": lambda: (make.tar_header(b"x", 1, b"L") + make.tar_padded(b"x")) * 3000,
    "digits": lambda: make.tar_header(b"x", 60_000, b"x") + make.tar_padded(b"1" * 60_000),
    "long name": lambda: make.tar_header(b"x", 20 * MIB, b"L") + b"x" * (20 * MIB),
    "long header": lambda: make.tar_header(b"x", 20 * MIB, b"x") + b"8 abc=d\n" * (20 * MIB // 8),
    "many records": lambda: (make.tar_header(b"x", 65_535, b"x") + make.tar_padded(b"5 a=\n" * 13_107)) * 100,
    "size": lambda: make.tar_header(b"x", 8 * TIB),
    "sparse": lambda: (
        make.tar_header(b"x", 512, b"S", bytes(129) + b"%011o\0" % (1 << 32)) + ELF_START.ljust(512, b"\0")
    ),
}


@pytest.mark.parametrize("name", TAR_HEADERS)
def test_headers_of_tar_files(name: str, tmp_path: Path) -> None:
    path = tmp_path / "x.deb"
    path.write_bytes(make.deb(lzma.compress(TAR_HEADERS[name](), preset=0), ".xz"))
    run = _size(path)
    assert run.status == 3
    assert ": damaged package: " in run.out or "bytes of input may" in run.out
    assert run.seconds < 1.5
    assert run.memory_size < LITTLE_MEMORY


def test_headers_of_rpm_packages(tmp_path: Path) -> None:
    """Each entry claims an array of all that follows."""
    count = 4000
    header = b"\x8e\xad\xe8\x01" + bytes(4) + struct.pack(">II", count, count)
    header += b"".join(struct.pack(">IIII", number, 8, 0, count) for number in range(count)) + bytes(count)
    path = tmp_path / "x.rpm"
    path.write_bytes(make.rpm(make.cpio({"./usr/lib/x.so": library(1)}), header))
    run = _size(path)
    assert run.status == 0
    assert f"\n{path}(usr/lib/x.so),AMD64," in run.out


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        (b"n" * 200_000, "a member's name is too long"),
        (b"n" * 200_000 + b"\n", "a member's name is too long"),
        (b"n" * 4000 + b"\n", "the names of its members take more work than"),
    ],
)
def test_members_of_one_long_name(names: bytes, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "x.a"
    path.write_bytes(make.ar([(b"//", names), *[(b"/0", ELF_START + bytes(57))] * 3000]))
    run = _size(path)
    assert run.status == 3
    assert reason in run.out
    assert run.seconds < 1.5


def test_windows_of_zstd(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    tar = make.tar({"./usr/lib/x.so": library(1)})
    path = tmp_path / "x.deb"
    path.write_bytes(make.deb(make.stored_zstd(tar, 27), ".zst"))
    assert _size(path).status == 0
    path.write_bytes(make.deb(make.stored_zstd(tar, 31), ".zst"))
    assert ": damaged package: " in _size(path).out


def test_dictionaries_of_lzma(tmp_path: Path) -> None:
    """The header of the window asks for 2 GiB of memory."""
    packed = bytearray(lzma.compress(make.tar({"./usr/lib/x.so": library(1)}), lzma.FORMAT_ALONE))
    packed[1:5] = b"\0\0\0\x80"
    path = tmp_path / "x.deb"
    path.write_bytes(make.deb(bytes(packed), ".lzma"))
    assert "Memory usage limit exceeded" in _size(path).out


@pytest.mark.parametrize("kind", ["deb", "deb with a size", "rpm", "archive"])
def test_sparse_files(kind: str, tmp_path: Path) -> None:
    """Holes are no input, and are not read."""
    size = 9 << 30
    if kind == "archive":
        data = make.ar([]) + make.ar_header(b"//", size)
    elif kind == "rpm":
        data = make.rpm(make.cpio_header(b"./x", (1 << 32) - 1))
    else:
        start = make.tar_header(b"./x", 8 << 30) if kind == "deb with a size" else make.tar_header(b"./x", 0)
        data = make.ar([(b"debian-binary", b"2.0\n")]) + make.ar_header(b"data.tar", size) + start
    path = tmp_path / "x"
    with open(path, "wb") as file:
        file.write(data)
        file.truncate(len(data) + size)
    if os.stat(path).st_blocks * 512 > MIB:
        pytest.skip("this file system has no holes")
    run = _size(path, len(data))
    assert run.seconds < 1.5
    assert ("bytes of input may" in run.out) == (kind != "deb")


def test_nothing_but_errors_leaves_the_readers(tmp_path: Path) -> None:
    """Inputs of five kinds of exception, in one run with a good file."""
    paths = sorted((CORPUS / "package").glob(f"{FINDING_PREFIX}*"))
    assert len(paths) > 10
    good = tmp_path / "good.so"
    good.write_bytes(library(1))
    run = run_within_bound("size", *paths, good, "-j", "1", "--format", "csv", input_size=MIB)
    assert run.status == 3
    assert f"\n{good},AMD64,linked," in run.out
    assert run.out.count("damaged package: ") > 5
