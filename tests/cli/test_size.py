# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe size` from the command line: formats, exit codes, what is read and what is written."""

import json
from pathlib import Path

import pytest

from cfi2sframe import __version__
from cfi2sframe.cli import main
from tests.support.cli import run
from tests.support.placing.linked_by_hand import BASE_VADDR, DATA_END, DATA_OFFSET, sparse_file
from tests.support.report import library


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "sub").mkdir(parents=True)
    (root / "a.so").write_bytes(library(3))
    (root / "sub/b.so").write_bytes(library(30))
    (root / "readme").write_text("text")
    return root


def test_json_has_all_files(tree: Path) -> None:
    assert run("size", tree, "-O0").out.startswith(b"version 3 at -O0 adds ")
    words = ("--format", "json", "--top", "1", "--sort", "name", "--sframe-version", "2", "-j", "2")
    status, out, err = run("size", tree, *words)
    assert (status, err) == (0, ())
    data = json.loads(out)
    assert [(file["file"], file["sframe_version"]) for file in data["files"]] == [
        (f"{tree}/a.so", 2),
        (f"{tree}/sub/b.so", 2),
    ]
    (total,) = data["totals"]
    for key in ("sframe_size", "gnu_size", "function_count", "file_count"):
        assert total[key] == sum(file[key] for file in data["files"])
    assert data["failures"] == []


def test_what_is_skipped_is_counted(tree: Path) -> None:
    (tree / "other.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    skipped = b"\nSkipped: 1 file (not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only).\n"
    status, out, err = run("size", tree)
    assert (status, out.endswith(skipped), err) == (0, True, ())


def test_nothing_to_measure(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    for words in ((tmp_path,), ("--compare", tmp_path, tmp_path)):
        assert run("size", *words) == (3, b"", ("cfi2sframe: error: there is nothing to measure",))


def test_failures_are_named_wherever_the_report_goes(tree: Path, tmp_path: Path) -> None:
    (tree / "damaged.so").write_bytes(library(3)[:300])
    (tree / "other.so").write_bytes(b"\x7fELF\x01" + bytes(60))
    for output in ("-", str(tmp_path / "report")):
        for form in ("html", "text", "json"):
            done = run("size", tree, tmp_path / "none", "--format", form, "-o", output)
            first, second = done.err
            assert (done.status, first) == (3, f"cfi2sframe: {tmp_path}/none: error: No such file or directory")
            assert second.startswith(f"cfi2sframe: {tree}/damaged.so: error: ")
        done = run("size", tree / "other.so", "-o", output)
        assert done.status == 3
        assert done.err[0].startswith(f"cfi2sframe: {tree}/other.so: error: not a 64-bit ELF file")
    (failure,) = json.loads(run("size", tree / "readme", tree / "a.so", "--format", "json").out)["failures"]
    assert failure == {"file": f"{tree}/readme", "kind": "not_elf", "reason": "not an ELF file"}


def test_the_answer_comes_first(tree: Path) -> None:
    lines = run("size", tree).out.decode().splitlines()
    assert lines[0].startswith("version 3 adds ")
    assert lines[1:3] == ["", f".sframe  ratio  of file  GNU as+ld  file, in {tree}/"]
    assert [line.split()[-1] for line in lines[3:6]] == ["sub/b.so", "a.so", "files"]
    assert len(lines) == 7


@pytest.mark.parametrize(
    ("words", "count"),
    [([], 25), *((["--top", str(n)], min(n, 30)) for n in (0, 1, 3, 29, 30, 31)), (["--top", "all"], 30)],
)
def test_lines(words: list[str], count: int, tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.so").write_bytes(library(1))
    out = run("size", tmp_path, "-j", "1", *words).out.decode()
    assert out.count(".so\n") == count
    assert "  30 files\n" in out
    assert (f"  {30 - count} more file{'s' * (count != 29)} (--top all)\n" in out) == (count < 30)


def test_compare(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    (other / "sub").mkdir(parents=True)
    (other / "a.so").write_bytes(library(3))
    (other / "sub/b.so").write_bytes(library(20))
    data = json.loads(run("size", "--compare", tree, other, "--format", "json").out)
    changes = {pair["file"]: pair["new_sframe_size"] - pair["old_sframe_size"] for pair in data["files"]}
    assert changes["sub/b.so"] < 0
    assert changes["a.so"] == 0
    assert run("size", "--compare", tree / "a.so", other / "sub/b.so").out.startswith(b"version 3 grows by ")
    # One side is nothing to compare with.
    (tmp_path / "empty").mkdir()
    assert run("size", "--compare", tree, tmp_path / "empty").failed(3)
    missing = tmp_path / "missing"
    assert run("size", "--compare", missing, tree).err == ("cfi2sframe: missing: error: No such file or directory",)


def test_a_page_says_how_it_was_made(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["/bin/cfi2sframe", "size", "a <b>"])
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    page = run("size", tree, "--format", "html").out.decode()
    assert f"cfi2sframe size &#39;a &lt;b&gt;&#39; (version {__version__}, 2023-11-14)" in page


def test_zeros_in_place_of_bss_are_added(tmp_path: Path) -> None:
    """They are most of what such a file grows by."""
    program = tmp_path / "program"
    program.write_bytes(sparse_file(BASE_VADDR + DATA_OFFSET, BASE_VADDR + DATA_END + (2 << 20)))
    status, out, err = run("size", program, "--fail-over", "100")
    (message,) = err
    assert (status, "adds 31" in message) == (4, True)
    assert out.startswith(b"version 3 adds 2.00 MiB (31")
    assert b"2.00 MiB of what is added are zeros in place of .bss." in out
    (file,) = json.loads(run("size", program, "--format", "json").out)["files"]
    assert file["padding_size"] == 2 << 20
    assert main([str(program), "-q", "-o", str(tmp_path / "converted")]) == 0
    growth = (tmp_path / "converted").stat().st_size - program.stat().st_size
    assert 0 <= growth - file["padding_size"] - file["sframe_size"] < 2000
