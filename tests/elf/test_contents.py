# SPDX-License-Identifier: Apache-2.0
"""Bytes that are read when they are asked for are those that reading all at once gives."""

import errno
import gc
import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import convert, load
from cfi2sframe.elf.contents import FileBytes, Joined, OpenFile, Splice, spliced
from cfi2sframe.errors import ChangedError, EmbedError, InputError
from tests.support.placing.embedded import emitted, take_out

GOLDEN = sorted((Path(__file__).resolve().parents[2] / "testdata" / "golden").glob("*.o"))
DATA = bytes(range(1, 101))


def opened(path: Path) -> FileBytes:
    return FileBytes(OpenFile(os.open(path, os.O_RDONLY)), 0, path.stat().st_size, path.stat().st_size)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    return path


@pytest.fixture(scope="module")
def shared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("contents") / "file"
    path.write_bytes(DATA)
    return path


PLACES = st.none() | st.integers(-120, 120)
CUTS = st.lists(st.integers(0, 100), max_size=4).map(sorted)


@given(cuts=CUTS, start=PLACES, end=PLACES, places=st.tuples(st.integers(0, 100), st.integers(0, 100)))
def test_ranges(
    shared_file: Path, cuts: list[int], start: int | None, end: int | None, places: tuple[int, int]
) -> None:
    """Reads of a file, and of its pieces put together again, in memory or not."""
    whole = opened(shared_file)
    bounds = [0, *cuts, 100]
    pieces: list[bytes | FileBytes] = [whole.part(a, b) for a, b in pairwise(bounds)]
    mixed = [bytes(piece) if n % 2 else piece for n, piece in enumerate(pieces)]
    for data in (whole, Joined(pieces), Joined(mixed), Joined([Joined(mixed[:1]), Joined(mixed[1:])])):
        assert data[start:end] == DATA[start:end]
        assert len(data) == len(DATA)
        assert bytes(data) == b"".join(data) == DATA
        part = data.part(*places)
        assert bytes(part) == b"".join(part) == DATA[slice(*places)]
        assert len(part) == len(DATA[slice(*places)])
        assert part[1:3] == DATA[slice(*places)][1:3]


def test_a_read_that_comes_in_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One system call returns 2 GiB at most."""
    whole, read = opened(file), os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, start: read(descriptor, min(size, 7), start))
    assert whole[3:90] == DATA[3:90]


def test_a_file_that_has_become_shorter(file: Path) -> None:
    whole = opened(file)
    os.truncate(file, 50)
    assert whole[:50] == DATA[:50]
    assert whole[60:60] == b""
    for data in (whole, Joined([whole, b"more"])):
        assert len(data) >= len(DATA)
        with pytest.raises(ChangedError, match=r"^the file was changed while it was being read$"):
            data[40:51]
        with pytest.raises(ChangedError):
            list(data)


def test_a_disk_that_fails(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: int) -> bytes:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    whole = opened(file)
    monkeypatch.setattr(os, "pread", fail)
    with pytest.raises(InputError, match=r"^Input/output error$") as caught:
        whole[:1]
    assert not isinstance(caught.value, ChangedError)


def test_the_descriptor_is_closed_with_the_last_range(file: Path) -> None:
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    whole = opened(file)
    part = Joined([whole.part(10, 20)]).part(2, 5)
    del whole
    assert bytes(part) == DATA[12:15]
    assert len(os.listdir("/proc/self/fd")) == before + 1
    del part
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: path.stem)
def test_objects_are_the_same_either_way(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = convert(load(str(path)))
    monkeypatch.setattr("cfi2sframe.elf.load._LARGE_SIZE", 0)
    by_ranges = convert(load(str(path)))
    assert isinstance(by_ranges.image.data, FileBytes)
    assert by_ranges.data == at_once.data
    written = emitted(by_ranges)
    assert written == emitted(at_once)
    assert take_out(written)


def test_two_replacements_of_one_byte_are_refused() -> None:
    for splices in ([Splice(2, 2, b""), Splice(3, 1, b"")], [Splice(2, 1, b"x"), Splice(2, 1, b"y")]):
        with pytest.raises(EmbedError, match=r"0x[23]"):
            spliced(bytes(4), splices)
    with pytest.raises(EmbedError, match="0x3"):
        spliced(bytes(4), [Splice(2, 2, b""), Splice(3, 0, b"x")])


@given(st.lists(st.tuples(st.binary(max_size=2), st.one_of(st.none(), st.binary(max_size=3))), max_size=12), st.data())
def test_any_order_gives_the_same(cells: list[tuple[bytes, bytes | None]], data: st.DataObject) -> None:
    """Of each byte: what is inserted before it, and what replaces it."""
    original = bytes(range(len(cells)))
    splices = [Splice(at, 0, added) for at, (added, _) in enumerate(cells) if added]
    splices += [Splice(at, 1, replacement) for at, (_, replacement) in enumerate(cells) if replacement is not None]
    shuffled = data.draw(st.permutations(splices))
    expected = b"".join(
        added + (original[at : at + 1] if replacement is None else replacement)
        for at, (added, replacement) in enumerate(cells)
    )
    assert b"".join(spliced(original, shuffled)) == expected
