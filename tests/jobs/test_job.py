# SPDX-License-Identifier: Apache-2.0
"""One file converted in place: what it becomes, when it is left alone, and what is kept in any case."""

import errno
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode_existing, verify
from cfi2sframe.audit.compare import audit
from cfi2sframe.constants.elf import PF_X
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import ChangedError
from cfi2sframe.files.new_file import DirectoryEntry, give_names
from cfi2sframe.files.write import InputFile
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Request
from tests.support.cli import ROOT
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file, push_fp
from tests.support.jobs import (
    BIG_ENDIAN_OBJECT,
    OBJECT,
    convert_one,
    has_section,
    jobs_for,
    object_of,
    object_with_gap,
    remove_one,
    snapshot,
)
from tests.support.needs import need
from tests.support.placing.embedded import linked_of


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.o"
    path.write_bytes(OBJECT)
    return path


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return linked_of(tmp_path, "int main(void) { return 7; }\n")


#: An FDE of 64 KiB for a function of one byte, in the segment that the section is put into.
PAST_THE_CODE = """
start: ret
    .section .eh_frame, "a", @progbits
cie: .long 2f - 1f
1:  .long 0
    .byte 1; .asciz "zR"; .uleb128 1; .sleb128 -8; .byte 16; .uleb128 1; .byte 0x1b
    .byte 0x0c, 7, 8, 0x90, 1
    .balign 8
2:  .long 4f - 3f
3:  .long 3b - cie, start - ., 0x10000, 0
    .balign 8
4:  .long 0
"""


@pytest.mark.oracle
def test_an_fde_past_the_code_is_cut_where_the_section_does_not_move_the_end(tmp_path: Path) -> None:
    path = tmp_path / "past.so"
    (tmp_path / "past.S").write_text(PAST_THE_CODE)
    options = ("-shared", "-nostdlib", "-Wl,-z,noseparate-code,--build-id")
    subprocess.run([need("x86_64-linux-gnu-gcc"), *options, "-o", path, tmp_path / "past.S"], check=True)
    assert convert_one(path).status == "converted"
    image = load(path)
    segment = image.sframe_segment
    assert segment is not None
    assert any(s.flags & PF_X and s.vaddr <= segment.vaddr < s.end_vaddr for s in image.loads)
    assert verify(image).differences == ()
    assert decode_existing(image).sizes == (1,)


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize(
    "use",
    [
        lambda program: [convert_one(program, Request(replaces=True, options=Options(version=v))) for v in (3, 2)],
        lambda program: convert(program, source="code"),
        lambda program: audit(load(program)),
    ],
    ids=["a job", "rows from code", "audit"],
)
def test_no_circle_of_references_keeps_what_is_done(program: Path, use: Callable[[Path], object]) -> None:
    """A run over a distribution would keep all of each file until the next collection."""
    # What is loaded once stays.
    use(program)
    gc.collect()
    gc.disable()
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        use(program)
        gc.collect()
        assert {type(each) for each in gc.garbage if type(each).__module__.startswith("cfi2sframe.")} == set()
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()


def test_functions_that_are_left_out_and_damaged_ones_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "in.so"
    unsayable = asm.Fde(cie_of(AMD64, asm.def_cfa_expression(b"\x30")), TEXT_VADDR + 0x40, 16)
    damaged = asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x60, 16, (b"\x3f",))
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64), unsayable, damaged), codes=(Code(size=0, data=bytes(0x100)),)))
    outcome = convert_one(path)
    assert (outcome.status, outcome.described_count, outcome.left_out_count) == ("converted", 1, 2)


# Again


@pytest.mark.parametrize(("change_count", "status"), [(0, "converted"), (2, "converted"), (3, "failed")])
def test_a_file_that_changes_is_tried_three_times(
    source: Path, change_count: int, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other writer is done by then, or the file stays as that one left it."""
    changes, check = iter(range(change_count)), InputFile.check

    def check_changed(file: InputFile) -> None:
        for _ in changes:
            raise ChangedError("changed")
        check(file)

    monkeypatch.setattr(InputFile, "check", check_changed)
    assert convert_one(source).status == status
    assert has_section(source.read_bytes()) is (status == "converted")


@pytest.mark.parametrize("data", [OBJECT, BIG_ENDIAN_OBJECT, object_of(5), object_with_gap()])
@pytest.mark.parametrize("asked", [Request(), Request(replaces=True), Request(options=Options(version=2))])
def test_the_second_run_touches_nothing(tmp_path: Path, data: bytes, asked: Request) -> None:
    path = tmp_path / "in.o"
    path.write_bytes(data)
    first = convert_one(path, asked)
    assert (first.status, first.kind, first.section_size > 0) == ("converted", None, True)
    before = snapshot(path)
    assert verify(load(str(path)), decode_existing(load(str(path))), source=asked.options.source).is_clean
    second = convert_one(path, asked)
    assert snapshot(path) == before
    assert second == first._replace(status="unchanged", placement="")


@pytest.mark.parametrize("asked", [Request(), Request(replaces=True)])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_the_second_run_touches_no_program(program: Path, version: int, asked: Request) -> None:
    asked = asked._replace(options=Options(version=version))
    assert convert_one(program, asked).status == "converted"
    before = snapshot(program)
    assert convert_one(program, asked).status == "unchanged"
    assert snapshot(program) == before
    assert subprocess.run([program], check=False).returncode == 7


@pytest.mark.parametrize(
    "other",
    [
        Request(options=Options(version=2)),
        Request(options=Options(version=2, errata=0)),
    ],
)
@pytest.mark.parametrize("is_program", [True, False])
def test_an_own_section_is_brought_up_to_date(source: Path, program: Path, other: Request, *, is_program: bool) -> None:
    path = program if is_program else source
    original = path.read_bytes()
    assert convert_one(path).status == "converted"
    wanted = path.read_bytes()
    path.write_bytes(original)
    assert convert_one(path, other).status == "converted"
    assert path.read_bytes() != wanted
    assert convert_one(path, Request(only_checks=True)).status == "would convert"
    assert convert_one(path).status == "converted"
    assert path.read_bytes() == wanted
    assert remove_one(path).status == "removed"
    assert path.read_bytes() == original


def test_a_section_of_another_type_is_different(source: Path) -> None:
    """The older linkers want the same bytes as PROGBITS."""
    options = Options(version=2, errata=0)
    assert convert_one(source, Request(options, reader="ld-2.41")).status == "converted"
    before = source.read_bytes()
    assert convert_one(source, Request(options)).status == "converted"
    assert source.read_bytes() != before


@pytest.mark.parametrize("offset_from_end", range(1, 40, 3))
def test_a_changed_byte_of_the_section_is_mended(source: Path, offset_from_end: int) -> None:
    """Unless a relocation writes there: then it has no meaning."""
    convert_one(source)
    good = source.read_bytes()
    image = load(str(source))
    section = next(image.sections_named(".sframe"))
    relocations = next(image.sections_named(".rela.sframe"))
    for part in (section, relocations):
        position = part.file_offset + part.size - min(offset_from_end, part.size)
        source.write_bytes(good[:position] + bytes((good[position] ^ 0x10,)) + good[position + 1 :])
        start = position - section.file_offset
        is_relocated = part is section and any(at <= start < at + 8 for at, _, _ in image.records(relocations, "QQq"))
        assert convert_one(source).status == ("unchanged" if is_relocated else "converted")
        assert is_relocated or source.read_bytes() == good


# Names


def test_all_given_names_of_a_file_are_the_new_file(source: Path) -> None:
    folder = source.parent / "folder"
    folder.mkdir()
    others = [source.with_name("other.o"), folder / "third.o"]
    for other in others:
        os.link(source, other)
    (job,) = jobs_for((source, *others))
    outcome = run_job(job)
    assert (outcome.status, outcome.warnings) == ("converted", ())
    assert has_section(source.read_bytes())
    assert {path.stat().st_ino for path in (source, *others)} == {source.stat().st_ino}
    assert source.stat().st_nlink == 3
    assert (names(source.parent), names(folder)) == ({"in.o", "other.o", "folder"}, {"third.o"})
    (again,) = jobs_for((source, *others))
    assert run_job(again).status == "unchanged"


@pytest.mark.parametrize(
    ("count", "warning"),
    [
        (1, "1 other hard link keeps the old file"),
        (2, "2 other hard links keep the old file"),
    ],
)
def test_a_name_that_was_not_given_keeps_the_old_file(source: Path, count: int, warning: str) -> None:
    """A cache that hands out hard links must not find its own copy changed."""
    others = [source.with_name(f"cached{number}") for number in range(count)]
    for other in others:
        os.link(source, other)
    told, done = convert_one(source, Request(only_checks=True)), convert_one(source)
    assert told.warnings == done.warnings == (warning,)
    assert has_section(source.read_bytes())
    assert {other.read_bytes() for other in others} == {OBJECT}
    assert convert_one(source).warnings == ()


@pytest.mark.parametrize("step", ["link", "replace"])
def test_names_that_cannot_be_exchanged_leave_no_temporary_files(
    source: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    other = source.with_name("other.o")
    os.link(source, other)

    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    (job,) = jobs_for([source, other])
    monkeypatch.setattr(os, step, fail)
    outcome = run_job(job)
    monkeypatch.undo()
    assert (outcome.status, outcome.reason) == ("failed", "Operation not permitted")
    assert source.read_bytes() == other.read_bytes() == OBJECT
    assert names(source.parent) == {"in.o", "other.o"}


# What has changed between the making of the list and the run


@pytest.mark.parametrize("recurse", [False, True])
def test_a_folder_that_has_become_a_link_leads_nowhere(tmp_path: Path, *, recurse: bool) -> None:
    tree, outside = tmp_path / "tree", tmp_path / "outside"
    for folder in (tree / "d", outside):
        folder.mkdir(parents=True)
        (folder / "in.o").write_bytes(OBJECT)
    (job,) = jobs_for([tree if recurse else tree / "d" / "in.o"], Request(reader="ld"))
    (tree / "d").rename(tree / "moved")
    (tree / "d").symlink_to(outside)
    outcome = run_job(job)
    assert (outcome.status, outcome.reason) == ("failed", "Not a directory")
    assert {path.read_bytes() for path in (outside / "in.o", tree / "moved" / "in.o")} == {OBJECT}


def test_a_file_that_has_become_a_link_leads_nowhere(source: Path) -> None:
    (job,) = jobs_for([source])
    other = source.rename(source.with_name("other.o"))
    source.symlink_to(other)
    assert run_job(job).status == "failed"
    assert source.is_symlink()
    assert other.read_bytes() == OBJECT


def test_a_fifo_is_not_waited_for(source: Path) -> None:
    (job,) = jobs_for([source])
    source.unlink()
    os.mkfifo(source)
    assert run_job(job).reason == "not a regular file"


@pytest.mark.parametrize("number", [0, 1])
def test_a_name_that_now_belongs_to_another_file_is_not_replaced(
    source: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file's names become those of the new file only as long as all are its names: here, until it is written."""
    paths = [source, source.with_name("other.o")]
    os.link(*paths)

    def exchange(*_: object, **__: object) -> None:
        paths[number].unlink()
        paths[number].write_bytes(b"somebody else's")

    (job,) = jobs_for(paths)
    monkeypatch.setattr("cfi2sframe.emit.check_asked", exchange)
    outcome = run_job(job)
    changed = "the file was changed while it was being converted"
    assert (outcome.status, outcome.reason) == ("failed", changed if number else "not an ELF file")
    assert (paths[number].read_bytes(), paths[1 - number].read_bytes()) == (b"somebody else's", OBJECT)
    assert names(source.parent) == {"in.o", "other.o"}


@pytest.mark.parametrize("count", [1, 2])
def test_a_temporary_name_that_now_belongs_to_another_file(
    source: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """A user who may write to a folder can exchange names in it, but reach no other folder."""
    targets = [source]
    if count == 2:
        (source.parent / "elsewhere").mkdir()
        targets.append(source.parent / "elsewhere" / "in.o")
        os.link(source, targets[1])

    def exchange(descriptor: int, entries: Sequence[DirectoryEntry], *, is_named: bool) -> None:
        give_names(descriptor, entries, is_named=is_named)
        (stray,) = source.parent.glob(".cfi2sframe-*")
        stray.unlink()
        stray.write_bytes(b"somebody else's")

    (job,) = jobs_for(targets)
    monkeypatch.setattr("cfi2sframe.files.write.give_names", exchange)
    outcome = run_job(job)
    monkeypatch.undo()
    assert (outcome.status, outcome.reason) == ("failed", "the file was changed while it was being converted")
    assert {target.read_bytes() for target in targets} == {OBJECT}
    assert names(source.parent) - {"elsewhere"} == {"in.o"}


@pytest.mark.parametrize("words", [("--in-place", "in.o"), ("in.o", "-o", "out.o")])
def test_few_descriptors_are_enough(source: Path, words: tuple[str, ...]) -> None:
    """Four beside the standard streams: a file and its directory, old and new."""
    program = [sys.executable, "-P", "-m", "cfi2sframe", *words]
    limited = ["sh", "-c", 'ulimit -n 7; exec "$@"', "sh", *program]
    done = subprocess.run(limited, cwd=source.parent, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False)
    assert done.returncode == 0
