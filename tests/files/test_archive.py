# SPDX-License-Identifier: Apache-2.0
"""An archive is one input: what is in it, its names and its messages included, costs no more than its bytes allow."""

import gc
import mmap
import os
import time
from pathlib import Path

import pytest

from cfi2sframe.cli import results
from cfi2sframe.cli.results import Result, read_source
from cfi2sframe.elf.contents import FileData
from cfi2sframe.errors import ArchiveError, ErrorKind
from cfi2sframe.files.archive import members_of
from cfi2sframe.files.find import find_sources
from cfi2sframe.process.guard import part, seconds_left
from tests.support.cli import run
from tests.support.files import ARCHIVE, THIN, member, named, sparse, zeros_packed
from tests.support.jobs import OBJECT, object_of
from tests.support.process import TOO_COSTLY, run_within_bound


def archive_of(path: Path, *members: bytes, start: bytes = ARCHIVE) -> Path:
    path.write_bytes(start + b"".join(members))
    return path


@pytest.mark.fuzz
@pytest.mark.parametrize("start", [ARCHIVE, THIN])
def test_a_table_of_names_that_is_one_name(start: bytes, tmp_path: Path) -> None:
    """Each of thousands of members is named by most of the table; the names were hundreds of megabytes."""
    members = [member(b"/%d" % n, b"\x7fELF", is_apart=start == THIN) for n in range(2_000)]
    path = archive_of(tmp_path / "lib.a", member(b"//", b"A" * 150_000), *members, start=start)
    done = run_within_bound("coverage", path, input_size=path.stat().st_size)
    assert done.status == 3
    assert done.memory_size < 64 << 20
    assert len(done.err) < 100_000
    assert done.err.endswith("1,900 more members cannot be read\n")


def test_names_of_members_are_cut_in_messages(tmp_path: Path) -> None:
    """At their start: the end tells one from another."""
    names = [b"x" * 256 + b"/\n", b"y" * 250 + b"z" * 6 + b"/\n", b"z" * 257 + b"/\n"]
    places = [b"/0", b"/%d" % len(names[0]), b"/%d" % len(names[0] + names[1])]
    damaged = [member(place, b"\x7fELF") for place in places]
    path = archive_of(tmp_path / "lib.a", member(b"//", b"".join(names)), *damaged)
    # No more of them is read than a path can have.
    for name in (member(b"//", b"n" * 9_000) + named(b"/1"), member(b"#1/9000", b"n" * 9_000)):
        assert len(next(members_of(THIN + name)).path) == 4096
    shown = ["x" * 256, "y" * 250 + "z" * 6, "..." + "z" * 253]
    assert [line.partition(": error")[0] for line in run("size", path).err] == [
        f"cfi2sframe: {path}({name})" for name in shown
    ]


def test_members_that_fail_are_named_up_to_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line counts the rest, and so does the report; those after them are read."""
    monkeypatch.setattr(results, "_MAX_FAILURE_COUNT", 2)
    members = [member(b"%d/" % n, b"\x7fELF") for n in range(5)]
    path = archive_of(tmp_path / "lib.a", *members[:2], member(b"good/", OBJECT))
    assert [line.partition(" error")[0] for line in run("size", path).err] == [
        f"cfi2sframe: {path}({n}):" for n in range(2)
    ]
    path = archive_of(tmp_path / "lib.a", *members, member(b"good/", OBJECT))
    done = run("size", path)
    assert done.status == 3
    assert len(done.err) == 3
    assert done.err[2] == f"cfi2sframe: {path}: error: 3 more members cannot be read"
    assert b"lib.a(good)" in done.out
    assert b"Not read: 5 files." in done.out
    # What has nothing that is asked for is no failure.
    unfit = bytearray(OBJECT)
    unfit[4] = 1
    path = archive_of(tmp_path / "lib.a", *[member(b"%d/" % n, bytes(unfit)) for n in range(5)], member(b"o/", OBJECT))
    done = run("size", path)
    assert (done.status, done.err) == (0, ())
    assert b"Skipped: 5 files" in done.out


def test_a_file_that_a_thin_archive_names_often_is_one_file(tmp_path: Path) -> None:
    """By any name, of any size; and what it has of it is read once."""
    (tmp_path / "a.o").write_bytes(OBJECT)
    os.link(tmp_path / "a.o", tmp_path / "b.o")
    (tmp_path / "c.o").symlink_to("a.o")
    archive_of(tmp_path / "inner.a", member(b"d.o/", object_of(2)))
    sizes = [named(b"a.o/", size) for size in (0, 1, len(OBJECT), 9_999_999_999)]
    others = [named(b"./a.o/"), named(b"b.o/"), named(b"c.o/")]
    table = member(b"//", b"inner.a/\n")
    inner = [named(b"/0:8", len(object_of(2))), named(b"/0:8", len(object_of(2)) + 1)]
    path = archive_of(tmp_path / "lib.a", table, *sizes, *others, *inner, start=THIN)
    done = run("size", "--format", "csv", path)
    assert done.status == 0
    assert [line.split(b",")[0] for line in done.out.splitlines()[1:]] == [
        f'"{path}({name})"'.encode() for name in ("a.o", "inner.a:8")
    ]


def test_names_in_a_thin_archive_that_are_no_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    (tmp_path / "text").write_bytes(b"text")
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    names = [
        b"fifo",
        b"folder",
        b"text",
        b"empty",
        b"/dev/zero",
        b"/dev/ptmx",
        b"missing",
        b"loop",
        b"a\0b",
        b"n" * 5_000,
    ]
    places = [sum(len(name) + 2 for name in names[:n]) for n in range(len(names))]
    table = member(b"//", b"".join(name + b"/\n" for name in names))
    path = archive_of(tmp_path / "lib.a", table, *(named(b"/%d" % place) for place in places), start=THIN)
    done = run("size", path)
    assert done.status == 3
    assert [line.partition("lib.a")[2] for line in done.err] == [
        "(missing): error: No such file or directory",
        "(loop): error: Too many levels of symbolic links",
        "(a\\x00b): error: not a path",
        f"(...{'n' * 253}): error: File name too long",
    ]


def test_a_member_ends_with_its_archive() -> None:
    """One byte less is missing; the byte that makes its size even may be."""
    for content in (b"even", b"odd"):
        whole = ARCHIVE + member(b"a/", content)
        size = 68 + len(content)
        for end in range(size, len(whole) + 1):
            assert [(each.start, each.end) for each in members_of(whole[:end])] == [(68, size)]
        for end in (9, 67, 68, size - 1):
            with pytest.raises(ArchiveError, match=r"truncated or damaged at 0x8$"):
                list(members_of(whole[:end]))


@pytest.mark.fuzz
def test_holes_of_a_member_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "lib.a"
    begun = ARCHIVE + member(b"a.o/", OBJECT, 1 << 30)[: 60 + len(OBJECT)]
    done = run_within_bound("size", path, input_size=sparse(path, {0: begun}, 68 + (1 << 30)))
    assert done.status == 0
    assert done.memory_size < 64 << 20


def limits_of(path: Path) -> list[tuple[str, int, float]]:
    """Return of each file in an archive its name, its size, and the seconds left with a debug file of 100 MiB."""
    (source,) = find_sources([str(path)], with_archives=True)

    def question(_data: FileData, _name: str) -> float:
        end = time.process_time() + 0.01
        while time.process_time() < end:
            pass
        with part(100 << 20):
            return seconds_left()

    results = read_source(source, question)
    return [(r.source.name.rpartition("(")[2], r.source.size, r.answer) for r in results if r.answer is not None]


def test_members_share_the_limits_of_their_archive(tmp_path: Path) -> None:
    """Whatever debug files they name."""
    path = archive_of(tmp_path / "lib.a", *(member(b"a.o/", OBJECT) for _ in range(3)))
    found = limits_of(path)
    assert [(name, size) for name, size, _ in found] == [("a.o)", len(OBJECT))] * 3
    lefts = [left for _, _, left in found]
    assert 2.1 > lefts[0] > lefts[1] > lefts[2]


def test_each_file_that_a_thin_archive_names_has_limits_of_its_own(tmp_path: Path) -> None:
    """What it has of one file shares those of that file; the sizes add up to no more than is stored."""
    (tmp_path / "a.o").write_bytes(OBJECT)
    (tmp_path / "b.a").write_bytes(OBJECT * 50)
    size = (tmp_path / "b.a").stat().st_size
    inner = [named(b"/0:%d" % (n * len(OBJECT) - 60), size) for n in range(1, 50)]
    found = limits_of(archive_of(tmp_path / "lib.a", member(b"//", b"b.a/\n"), named(b"a.o/"), *inner, start=THIN))
    assert len(found) == 50
    assert sum(each[1] for each in found[1:]) == size
    # A single image may have a debug file.
    assert found[0][2] > 1_000
    lefts = [left for _, _, left in found[1:]]
    assert 2.1 + 10 * size / (1 << 20) > lefts[0] > lefts[-1]


def test_memory_of_members_is_free_for_those_after_them(tmp_path: Path) -> None:
    """Errors keep what they came from until cycles are collected, which the program does itself."""
    path = archive_of(tmp_path / "lib.a", *(member(b"a.o/", OBJECT + bytes(1 << 20)) for _ in range(20)))
    (source,) = find_sources([str(path)], with_archives=True)

    def question(_data: FileData, _name: str) -> bool:
        cycle: list[object] = [mmap.mmap(-1, 1 << 29)]
        cycle.append(cycle)
        return True

    gc.disable()
    try:
        assert [result.answer for result in read_source(source, question)] == [True] * 20
    finally:
        gc.enable()


def test_a_file_is_exchanged_after_it_was_named(tmp_path: Path) -> None:
    """By a device, which is looked at before it is opened."""
    for name in ("a.o", "b.o"):
        (tmp_path / name).write_bytes(OBJECT)
    path = archive_of(tmp_path / "lib.a", named(b"a.o/"), named(b"b.o/"), start=THIN)
    (source,) = find_sources([str(path)], with_archives=True)

    def question(_data: FileData, name: str) -> str:
        (tmp_path / "b.o").unlink()
        (tmp_path / "b.o").symlink_to("/dev/null")
        return name

    read, refused = read_source(source, question)
    assert read.answer == f"{path}(a.o)"
    assert refused.source.name == f"{path}(b.o)"
    assert refused == Result(refused.source, None, "not a regular file, or empty", ErrorKind.UNUSABLE)


@pytest.mark.fuzz
def test_what_exceeds_the_limits_of_an_archive_ends_the_work_on_it(tmp_path: Path) -> None:
    """What was read before is kept, and so are the other files of a run."""
    path, other = tmp_path / "lib.a", tmp_path / "other.o"
    other.write_bytes(OBJECT)
    archive_of(path, member(b"a.o/", OBJECT), member(b"b.o/", zeros_packed(1 << 30)), member(b"c.o/", OBJECT))
    done = run_within_bound("size", path, other, input_size=path.stat().st_size + len(OBJECT))
    assert done.status == 3
    assert TOO_COSTLY in done.err
    assert "after 1 member" in done.err
    assert "lib.a(a.o)" in done.out
    assert "other.o" in done.out
    assert "c.o" not in done.out
