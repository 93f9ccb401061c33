# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe size` from the command line: formats, exit codes, colours, what is read and what is written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.cli import main
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, EXIT_USAGE
from tests.support import cfi_asm as asm
from tests.support.demangling import needs_demangling
from tests.support.samples import TEXT_VADDR, linked_file, push_fp
from tests.support.sizes import library

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "a.so").write_bytes(library(3))
    (root / "sub/b.so").write_bytes(library(30))
    (root / "readme").write_text("text")
    return root


@pytest.mark.parametrize("form", ["text", "json", "csv", "markdown", "html"])
@pytest.mark.parametrize("jobs", ["1", "2"])
def test_formats(form: str, jobs: str, tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tree), "--format", form, "-j", jobs]) == EXIT_SUCCESS
    out, err = capsys.readouterr()
    assert "a.so" in out
    assert "sub/b.so" in out
    assert err == ""


def test_json_has_what_was_asked_for(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["size", str(tree), "--format", "json", "--top", "1", "--functions", "2", "--sort", "name"]
    assert main([*words, "--sframe-version", "2"]) == EXIT_SUCCESS
    data = json.loads(capsys.readouterr().out)
    assert (data["version"], data["omitted_files"], data["totals"]["files"]) == (2, 1, 2)
    assert [file["name"] for file in data["files"]] == [f"{tree}/a.so"]
    assert [len(data["functions"][name]) for name in ("costliest", "larger")] == [2, 2]


def test_a_file_that_cannot_be_read_is_a_line(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tree / "readme"), str(tree), str(tree / "none")]) == EXIT_UNUSABLE
    out, err = capsys.readouterr()
    assert "\nNot measured: 2 files.\n" in out
    assert f"cfi2sframe: {tree}/readme: error: not an ELF file\n" in err
    assert f"cfi2sframe: {tree}/none: error: No such file or directory\n" in err
    assert main(["size", str(tree / "readme"), str(tree), "--details"]) == EXIT_UNUSABLE
    assert "not an ELF file" in capsys.readouterr().out


def test_nothing_to_measure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    assert main(["size", str(tmp_path)]) == EXIT_UNUSABLE
    assert main(["size", "--compare", str(tmp_path), str(tmp_path)]) == EXIT_UNUSABLE
    assert "not a 64-bit ELF file" in capsys.readouterr().out


def test_failures_are_named_wherever_the_report_goes(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tree / "damaged.so").write_bytes(library(3)[:300])
    (tree / "other.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    (tmp_path / "empty").mkdir()
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
        assert main(["size", str(tmp_path / "empty"), "-o", output]) == EXIT_UNUSABLE
        assert capsys.readouterr().err == "cfi2sframe: error: there is nothing to measure\n"


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("x.html", "<!DOCTYPE html>"),
        ("x.HTM", "<!DOCTYPE html>"),
        ("x.json", "{"),
        ("x.csv", "file,"),
        ("x.md", "**Version 3 adds "),
        ("x.txt", "version 3 adds "),
        ("x", "version 3 adds "),
    ],
)
def test_the_suffix_decides(name: str, start: str, tree: Path, tmp_path: Path) -> None:
    assert main(["size", str(tree), "-o", str(tmp_path / name)]) == EXIT_SUCCESS
    assert (tmp_path / name).read_text().startswith(start)
    assert main(["size", str(tree), "-o", str(tmp_path / name), "--json"]) == EXIT_SUCCESS
    assert json.loads((tmp_path / name).read_text())["kind"] == "sizes"


def test_the_answer_comes_first(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tree)]) == EXIT_SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("version 3 adds ")
    assert lines[1:3] == ["", f".sframe  ratio  of file  GNU as+ld  rows  file, in {tree}/"]
    assert [line.split()[-1] for line in lines[3:6]] == ["sub/b.so", "a.so", "files"]
    assert len(lines) == 8
    assert main(["size", str(tree), "--details"]) == EXIT_SUCCESS
    assert "\nWhat a look-up costs\n" in capsys.readouterr().out


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
    assert (f"{30 - count} more files are in the total (--top all lists them)." in out) == (count < 30)


def test_levels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.so").write_bytes(library(30))
    sizes = []
    for level in "012":
        assert main(["size", str(tmp_path), "--json", "-O", level]) == EXIT_SUCCESS
        data = json.loads(capsys.readouterr().out)
        assert str(data["level"]) == level
        sizes.append(data["totals"]["versions"][2]["cfi2sframe"]["size"])
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[2]
    assert main(["size", str(tmp_path), "-O0"]) == EXIT_SUCCESS
    assert capsys.readouterr().out.startswith("version 3 at -O0 adds ")


def test_names_of_functions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """People read names; programs have those of the linker."""
    needs_demangling()
    symbols = (asm.Symbol("_ZN3one3twoEv", TEXT_VADDR, 32, 0x12, ".text"),)
    (tmp_path / "a.so").write_bytes(linked_file(AMD64, (push_fp(AMD64),), symbols=symbols))
    for words, name in ((("--format", "text"), "one::two()"), (("--json",), "_ZN3one3twoEv")):
        assert main(["size", str(tmp_path), "--functions", "1", *words]) == EXIT_SUCCESS
        assert name in capsys.readouterr().out


def test_by_folder(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", str(tree), "--by", "folder"]) == EXIT_SUCCESS
    assert [line.split()[-1] for line in capsys.readouterr().out.splitlines()[3:6]] == [
        f"{tree}/sub",
        str(tree),
        "folders",
    ]
    assert main(["size", str(tree), "--by", "folder", "--format", "csv"]) == EXIT_SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[:2] for line in lines] == [["folder", "files"], [f"{tree}/sub", "1"], [str(tree), "1"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--compare", "x", "y", "--by", "folder"], "--compare goes by file, not by folder"),
        (["x", "--format", "xml"], "invalid choice: 'xml'"),
    ],
)
def test_what_does_not_go_together(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *words]) == EXIT_USAGE
    assert message in capsys.readouterr().err


def test_compare(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = tmp_path / "other"
    (other / "sub").mkdir(parents=True)
    (other / "a.so").write_bytes(library(3))
    (other / "sub/b.so").write_bytes(library(20))
    assert main(["size", "--compare", str(tree), str(other), "--format", "json"]) == EXIT_SUCCESS
    data = json.loads(capsys.readouterr().out)
    assert {pair["name"]: pair["verdict"] for pair in data["files"]} == {"sub/b.so": "shrank", "a.so": "same"}
    assert main(["size", "--compare", str(tree / "a.so"), str(other / "sub/b.so")]) == EXIT_SUCCESS
    assert "grew" in capsys.readouterr().out


def test_output_file(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.html"
    assert main(["size", str(tree), "--format", "html", "-o", str(target)]) == EXIT_SUCCESS
    assert capsys.readouterr().out == ""
    assert target.read_text(encoding="utf-8").endswith("</html>\n")
    assert main(["size", str(tree), "-o", str(tmp_path / "no/such/folder")]) == EXIT_UNUSABLE
    assert "error" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words", [[], ["x", "--compare", "a", "b"], ["--compare", "a"], ["x", "-j", "0"], ["x", "--top", "-1"]]
)
def test_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["size", *words]) == EXIT_USAGE
    assert capsys.readouterr().err


def test_colour(tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for choice, is_terminal, no_color, expected in (
        ("auto", False, "", False),
        ("auto", True, "", True),
        ("auto", True, "1", False),
        ("always", False, "1", True),
        ("never", True, "", False),
    ):
        monkeypatch.setenv("NO_COLOR", no_color)
        monkeypatch.setattr("sys.stdout.isatty", lambda answer=is_terminal: answer)
        assert main(["size", str(tree), "--color", choice, "-j", "1"]) == EXIT_SUCCESS
        assert ("\x1b[" in capsys.readouterr().out) == expected


def test_progress_on_a_terminal_only(
    tree: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["size", str(tree), "-j", "1"]) == EXIT_SUCCESS
    err = capsys.readouterr().err
    assert "1 of 2 files" in err
    assert err.endswith("\r\x1b[K")
