# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe size` from the command line: formats, exit codes, what is read and what is written."""

import json
from pathlib import Path

import pytest

from cfi2sframe.cli import main
from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE
from tests.support.report import library


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "a.so").write_bytes(library(3))
    (root / "sub/b.so").write_bytes(library(30))
    (root / "readme").write_text("text")
    return root


def test_json_has_all_files(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["size", str(tree), "--format", "json", "--top", "1", "--sort", "name", "--sframe-version", "2", "-j", "2"]
    assert main(words) == EXIT_SUCCESS
    out, err = capsys.readouterr()
    assert err == ""
    data = json.loads(out)
    assert [(file["file"], file["sframe_version"]) for file in data["files"]] == [
        (f"{tree}/a.so", 2),
        (f"{tree}/sub/b.so", 2),
    ]
    (total,) = data["totals"]
    for key in ("sframe_size", "gnu_size", "function_count", "file_count"):
        assert total[key] == sum(file[key] for file in data["files"])
    assert data["failures"] == []


def test_a_file_that_cannot_be_read_is_named(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tree / "readme"), str(tree), str(tree / "none")]) == EXIT_UNUSABLE
    out, err = capsys.readouterr()
    assert "\nNot read: 2 files.\n" in out
    assert f"cfi2sframe: {tree}/readme: error: not an ELF file\n" in err
    assert f"cfi2sframe: {tree}/none: error: No such file or directory\n" in err
    assert main(["size", str(tree / "readme"), str(tree), "--format", "json"]) == EXIT_UNUSABLE
    (failure,) = json.loads(capsys.readouterr().out)["failures"]
    assert failure == {"file": f"{tree}/readme", "kind": "not_elf", "reason": "not an ELF file"}


def test_what_is_skipped_is_counted(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tree / "other.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    assert main(["size", str(tree)]) == EXIT_SUCCESS
    out, err = capsys.readouterr()
    assert (out.splitlines()[-1], err) == (
        "Skipped: 1 file (not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only).",
        "",
    )


def test_nothing_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    for words in ([str(tmp_path)], ["--compare", str(tmp_path), str(tmp_path)]):
        assert main(["size", *words]) == EXIT_UNUSABLE
        assert capsys.readouterr() == ("", "cfi2sframe: error: there is nothing to measure\n")


def test_failures_are_named_wherever_the_report_goes(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "damaged.so").write_bytes(library(3)[:300])
    (tree / "other.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    for output in ("-", str(tmp_path / "report")):
        for form in ("html", "text"):
            words = ["size", str(tree), str(tmp_path / "none"), "--format", form, "-o", output]
            assert main(words) == EXIT_UNUSABLE
            lines = capsys.readouterr().err.splitlines()
            assert lines[0] == f"cfi2sframe: {tmp_path}/none: error: No such file or directory"
            assert lines[1].startswith(f"cfi2sframe: {tree}/damaged.so: error: ")
            assert len(lines) == 2
        assert main(["size", str(tree / "other.so"), "-o", output]) == EXIT_UNUSABLE
        assert capsys.readouterr().err.startswith(f"cfi2sframe: {tree}/other.so: error: not a 64-bit ELF file")


def test_the_answer_comes_first(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tree)]) == EXIT_SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("version 3 adds ")
    assert lines[1:3] == ["", f".sframe  ratio  of file  GNU as+ld  file, in {tree}/"]
    assert [line.split()[-1] for line in lines[3:6]] == ["sub/b.so", "a.so", "files"]
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("words", "count"), [([], 25), (["--top", "3"], 3), (["--top", "0"], 0), (["--top", "all"], 30)]
)
def test_lines(words: list[str], count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(30):
        (tmp_path / f"{number}.so").write_bytes(library(1))
    assert main(["size", str(tmp_path), "-j", "1", *words]) == EXIT_SUCCESS
    out = capsys.readouterr().out
    assert out.count(".so\n") == count
    assert "  30 files\n" in out
    assert (f"  {30 - count} more files (--top all)\n" in out) == (count < 30)


def test_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.so").write_bytes(library(30))
    sizes = []
    for level in "012":
        assert main(["size", str(tmp_path), "--format", "json", "-O", level]) == EXIT_SUCCESS
        sizes.append(json.loads(capsys.readouterr().out)["files"][0]["sframe_size"])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2]
    assert main(["size", str(tmp_path), "-O0"]) == EXIT_SUCCESS
    assert capsys.readouterr().out.startswith("version 3 at -O0 adds ")


def test_compare(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    (other / "sub").mkdir(parents=True)
    (other / "a.so").write_bytes(library(3))
    (other / "sub/b.so").write_bytes(library(20))
    assert main(["size", "--compare", str(tree), str(other), "--format", "json"]) == EXIT_SUCCESS
    data = json.loads(capsys.readouterr().out)
    changes = {pair["file"]: pair["new_sframe_size"] - pair["old_sframe_size"] for pair in data["files"]}
    assert changes["sub/b.so"] < 0
    assert changes["a.so"] == 0
    assert main(["size", "--compare", str(tree / "a.so"), str(other / "sub/b.so")]) == EXIT_SUCCESS
    assert capsys.readouterr().out.startswith("version 3 grows by ")
