# SPDX-License-Identifier: Apache-2.0
"""Batches as users see them: messages, reports, statuses, and what is in the files afterwards."""

import json
import os
import re
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.cli.outcomes import few_lines
from cfi2sframe.report import SCHEMA_VERSION
from tests.support.cli import PROGRAM, ROOT, run, run_process
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import Code, linked_file, push_fp
from tests.support.jobs import OBJECT, TRUNCATED, WITHOUT_CFI, object_of, object_with_gap, tree

#: Small files are converted in one process; this many bytes are not.
POOL_SIZE = 1 << 20
GAP = "left out: CFA is an expression (lit0)"
DAMAGED = "truncated: the ELF header needs 64 bytes, the file has 40"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "files"
    path.mkdir()
    for number in range(5):
        (path / f"{number}.o").write_bytes(object_of(number))
    return path


@pytest.mark.parametrize(
    ("files", "words", "status", "listed"),
    [
        ({"a": OBJECT}, (), 0, 0),
        ({"a": OBJECT, "b": object_with_gap()}, ("--strict",), 4, 4),
        ({"a": OBJECT, "b": object_with_gap(), "c": TRUNCATED}, ("--strict",), 3, 3),
        ({"a": OBJECT, "b": object_with_gap()}, ("--from", "debug_frame"), 2, 2),
        ({"a": TRUNCATED, "b": object_with_gap()}, ("--from", "debug_frame"), 3, 3),
        ({"a": OBJECT}, ("--check",), 1, 1),
        ({"a": OBJECT, "b": object_with_gap()}, ("--check", "--strict"), 4, 4),
        ({"a": OBJECT, "b": b"text"}, ("--check",), 3, 1),
        ({"a": WITHOUT_CFI, "b": b"text"}, ("--check",), 3, 0),
        ({"a": b"text"}, (), 3, 0),
    ],
)
def test_the_exit_status_is_the_worst_files(
    tmp_path: Path, files: dict[str, bytes], words: tuple[str, ...], status: int, listed: int
) -> None:
    """What is listed, and not named, may have nothing to convert."""
    for order in (list(files.items()), list(files.items())[::-1]):
        for name, data in order:
            (tmp_path / name).write_bytes(data)
        paths = [tmp_path / name for name, _ in order]
        names = b"".join(os.fsencode(path) + b"\0" for path in paths)
        assert run("--in-place", *paths, *words).status == status
        assert run("--in-place", "--files-from", "-", *words, stdin=names).status == listed


@pytest.mark.parametrize("words", ["--in-place -v", "--check -v", "remove --check -v", "verify --would-be -v"])
def test_a_named_file_has_no_sums(words: str, tmp_path: Path) -> None:
    """Even if it is missing, or has two names; one that was found or listed has."""
    folder, names, again = tmp_path / "folder", tmp_path / "names", tmp_path / "again"
    folder.mkdir()
    file = folder / "file"
    file.write_bytes(PROGRAM)
    again.symlink_to(file)
    names.write_bytes(os.fsencode(file))
    missing = tmp_path / "missing"
    for more, has_sums in (
        ([file], False), ([missing], False), ([file, again], False), ([file, missing], True), ([folder], True),
        (["--files-from", names], True),
    ):  # fmt: skip
        said = run(*words.split(), *more).err
        assert any(re.match(r"cfi2sframe: info: \d files?: ", line) for line in said) is has_sums, more


def test_a_named_file_is_no_list_of_files(tmp_path: Path) -> None:
    """`dump` names the files of a list, or of a folder, and not the one that it was given."""
    folder, names, archive = tmp_path / "folder", tmp_path / "names", tmp_path / "lib.a"
    folder.mkdir()
    file = folder / "file"
    assert run("--for", "ld", ROOT / "testdata/golden/amd64-push-rbp.o", "-o", file).status == 0
    names.write_bytes(os.fsencode(file))
    data = file.read_bytes()
    archive.write_bytes(b"!<arch>\n" + b"a.o/".ljust(48) + str(len(data)).encode().ljust(10) + b"`\n" + data)
    for words, is_list in (([file], False), ([folder], True), (["--files-from", names], True), ([archive], True)):
        assert run("dump", *words).out.startswith(b"\nFile: ") == is_list, words


def test_a_section_that_stays_is_a_failure_unless_the_file_was_found(tmp_path: Path) -> None:
    """What a list names is expected to be fit for this, too."""
    folder, names = tmp_path / "folder", tmp_path / "names"
    folder.mkdir()
    damaged = asm.Section(".sframe", b"damaged", 0x6FFFFFF4, 2, 0x40000, align=8)
    code = Code(size=0, data=bytes(0x100))
    (folder / "file").write_bytes(linked_file(AMD64, (push_fp(AMD64),), codes=(code,), more=(damaged,)))
    names.write_bytes(os.fsencode(folder / "file"))
    found, listed, named = (
        run("--in-place", *words) for words in ([folder], ["--files-from", names], [folder / "file"])
    )
    assert (found.status, listed.status, named.status) == (0, 3, 3)
    assert "1 skipped (another section: 1)" in found.err[-1]
    assert listed.err[0] == named.err[0]


def test_a_file_that_is_refused_after_its_conversion_has_an_account(folder: Path, tmp_path: Path) -> None:
    path, report = folder / "0.o", tmp_path / "report"
    path.write_bytes(object_with_gap())
    assert run("--in-place", path, "--strict", "--report", report).status == 4
    line = json.loads(report.read_text())
    assert (line["status"], line["account"]["sframe_version"]) == ("failed", 3)
    report.unlink()
    assert run(path, "-o", tmp_path / "out.o", "--strict", "--report", report).status == 4
    assert json.loads(report.read_text())["account"] == line["account"]


def test_a_report_has_a_line_per_file_in_their_order(folder: Path) -> None:
    gap = folder / "2.o"
    gap.write_bytes(object_with_gap())
    (folder / "3.o").write_bytes(TRUNCATED)
    os.link(folder / "4.o", folder / "other.o")
    paths = [folder / f"{number}.o" for number in (4, 2, 0, 3)]
    report = folder.parent / "report"
    account = {"schema": SCHEMA_VERSION, **json.loads(run("coverage", "--format", "json", gap).out)["files"][0]}
    assert run("--in-place", *paths, folder / "other.o", "--report", report).status == 3
    lines = [json.loads(line) for line in report.read_text().splitlines()]
    assert [line["file"] for line in lines] == list(map(str, paths))
    assert [line["status"] for line in lines] == ["converted", "converted", "converted", "failed"]
    assert [line["exit_status"] for line in lines] == [0, 0, 0, 3]
    assert [line["described_count"] for line in lines] == [5, 1, 1, 0]
    assert lines[0]["other_names"] == [str(folder / "other.o")]
    assert (lines[1]["account"], lines[1]["left_out_count"]) == (account, 1)
    assert lines[1]["warnings"] == [f"function at 0x40 {GAP}"]
    assert (lines[3]["account"], lines[3]["reason"]) == (None, DAMAGED)
    assert run("--in-place", paths[0], "--report", "-").out.count(b"\n") == 1


def test_the_same_for_a_pool(folder: Path, tmp_path: Path) -> None:
    """Enough bytes for several processes: output and files are those of one process."""
    for number in range(5):
        (folder / f"large{number}.o").write_bytes(object_of(200 + number) + bytes(POOL_SIZE // 4))
    (folder / "bad.o").write_bytes(TRUNCATED)
    (folder / "gap.o").write_bytes(object_with_gap())
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    results = []
    for root, jobs in ((folder, "1"), (copy, "2")):
        report = tmp_path / f"report{jobs}"
        done = run_process("--in-place", "-r", "--for", "ld", root, "-j", jobs, "--report", report)
        err = re.sub(r"[\d.]+ s$", "", done.stderr)
        said = (done.returncode, done.stdout, err, report.read_text())
        results.append([text.replace(str(root), "") if isinstance(text, str) else text for text in said])
    assert results[0] == results[1]
    assert results[0][0] == 3
    assert {n: f.data for n, f in tree(folder).items()} == {n: f.data for n, f in tree(copy).items()}
    before = tree(copy)
    assert run_process("--in-place", "-r", "--for", "ld", copy, "-j", "2").returncode == 3
    assert tree(copy) == before


def test_never_more_than_eight_lines() -> None:
    kinds = "abcdefghijklm"
    found = [(f"{kind}{number}", f"{kind} is wrong", (f"{kind} is wrong",)) for kind in kinds for number in range(3)]
    lines = list(few_lines(found))
    assert len(lines) == 8
    assert lines[0] == ("", "3 files, such as a0: a is wrong")
    assert lines[7] == ("", "6 more kinds of these, in 18 files (-v has them)")


def test_check_of_a_file_that_cannot_be_used_is_an_error(tmp_path: Path) -> None:
    """As without `--check`, also of one file."""
    for verb in ((), ("remove",)):
        assert run(*verb, "--check", tmp_path / "missing").failed(3, tmp_path / "missing")
