# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/producers.py records what the command line says of each file, and its tables add that up."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe import convert, load
from cfi2sframe.render.coverage_json import coverage_data
from cfi2sframe.report.coverage import account
from tests.support.samples import TEXT_VADDR
from tests.support.sizes import library, s390x_library, unsayable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.support.oracle.tools import Binutils, BinutilsVersion, Tool

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
ARCHES = ("amd64", "arm64", "s390x")


@pytest.fixture(name="script", scope="module")
def _script() -> Iterator[Any]:
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("producers_tool", TOOLS / "producers.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["producers_tool"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))
    for name in ("producers_tool", "producer_runs", "producer_tables"):
        del sys.modules[name]


@pytest.fixture(name="tree")
def _tree(tmp_path: Path) -> Path:
    """Packages of two producers, with a link, a hard link, a file that is no ELF file and a damaged one."""
    root = tmp_path / "tree"
    files = {
        "amd64/ripgrep/usr/bin/rg": library(40),
        "amd64/ripgrep/usr/bin/part": library(2, more=(unsayable(TEXT_VADDR + 0x200),)),
        "amd64/ripgrep/usr/bin/broken": library(2)[:100],
        "amd64/ripgrep/usr/bin/script": b"#!/bin/sh\n",
        "s390x/crystal/usr/bin/crystal": s390x_library(),
        "amd64/unlisted/usr/bin/other": library(3),
    }
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    folder = root / "amd64/ripgrep/usr/bin"
    (folder / "link").symlink_to("rg")
    (folder / "again").hardlink_to(folder / "rg")
    return root


def _run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "producers.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env={"PYTHONPATH": str(ROOT)})


def test_the_list_names_a_package_once_for_an_architecture(script: Any) -> None:
    packages = list(script.read_list((TOOLS / "producers.list").read_text()))
    places = [(arch, package.name) for package in packages for arch in package.arches or ARCHES]
    assert len(places) == len(set(places)) > 100
    assert {arch for arch, _ in places} == set(ARCHES)
    assert {package.suite for package in packages} == {"bookworm", "trixie", "sid"}
    assert {"Swift", "OCaml", "GHC", "Go", "Free Pascal", "Linux"} <= {package.producer for package in packages}
    # The programs of the page's own table are of packages in the list.
    assert {program.split("/")[0] for program in script.page_lines.__globals__["PROGRAMS"]} <= {
        p.name for p in packages
    }


def test_list_format(script: Any) -> None:
    text = "# note\n[One, two]\nstable a\nsid @b amd64,s390x ./boot/*\n\n[Three]\nstable c any\n"
    assert [tuple(package) for package in script.read_list(text)] == [
        ("One, two", "stable", "a", ()),
        ("One, two", "sid", "b", ("amd64", "s390x")),
        ("Three", "stable", "c", ()),
    ]


def test_files_of_packages(script: Any, tree: Path) -> None:
    packages = [
        script.Package("Rust", "stable", "ripgrep", ()),
        script.Package("Crystal", "stable", "crystal", ("amd64",)),
        script.Package("Gone", "stable", "gone", ()),
    ]
    files = list(script.find_files(tree, packages, ARCHES))
    names = [(file.producer, file.key, file.size) for file in files]
    size = (tree / "amd64/ripgrep/usr/bin/rg").stat().st_size
    # Of the two names of one file, the first; the package of another architecture is not looked at.
    assert names[0] == ("Rust", "amd64/ripgrep/usr/bin/again", size)
    assert [name for _, name, _ in names[1:]] == ["amd64/ripgrep/usr/bin/broken", "amd64/ripgrep/usr/bin/part"]
    assert script.sample_of(files) == {files[0], files[2]}


def test_records_and_tables(script: Any, tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "records"
    done = _run("measure", "-o", out, "--jobs", 2, "--arch", "amd64", tree)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    records = {(record.key, record.version): record for record in script.records_of(out)}
    assert {key for key, _ in records} == {
        "amd64/ripgrep/usr/bin/again",
        "amd64/ripgrep/usr/bin/broken",
        "amd64/ripgrep/usr/bin/part",
    }
    good, part, broken = (records[f"amd64/ripgrep/usr/bin/{name}", 3] for name in ("again", "part", "broken"))
    assert (good.differences, good.odd, good.account["sources"]) == ((), (), {".eh_frame": 40})
    assert good.compared >= 40
    data = coverage_data(account(convert(load(str(tree / "amd64/ripgrep/usr/bin/part")))))
    assert part.account["functions"] == data["functions"]
    assert part.account["bytes"] == data["bytes"]
    ((reason, (count, size)),) = part.account["reasons"].items()
    assert (reason, count, size) == (data["left_out"][0]["message"], 1, 32)
    assert broken.account is None
    assert broken.error
    assert not broken.differences

    table = _run("table", out).stdout
    assert "| Rust | 2 |" in table
    assert "→" not in table
    # Both versions leave out the same; a row for each reason.
    assert table.count(f"| {reason} | 1 | 0 | 32 | Rust |") == 2
    odd = _run("odd", out)
    assert odd.returncode == 0
    assert "not rewritten: amd64/ripgrep/usr/bin/broken (3): " in odd.stdout
    assert "WRONG" not in odd.stdout


@pytest.mark.oracle
def test_a_rewritten_file_is_verified_and_shown_to_readelf(
    script: Any, tmp_path: Path, gcc: Tool, binutils: Callable[[BinutilsVersion], Binutils]
) -> None:
    path, work = tmp_path / "program", tmp_path / "work"
    work.mkdir()
    source = "int f(int n) { return n ? f(n - 1) + n : 0; } int main(void) { return f(3); }"
    command = [str(gcc.path), "-x", "c", "-", "-o", str(path)]
    subprocess.run(command, input=source, text=True, capture_output=True, check=True)
    binutils("newest")
    runs = sys.modules["producer_runs"]
    file = runs.File("Rust", "amd64", "ripgrep", "program", str(path), path.stat().st_size)

    def compare(rewritten: str) -> tuple[int, str]:
        count, problem = script.compare_with_readelf(rewritten, script.find_readelf("amd64"))
        return count, problem

    record = runs.measure(file, 3, ROOT, work, compare=compare)
    assert (record.status, record.error, record.differences, record.odd) == (0, "", (), ())
    assert record.compared > 4
    assert (record.readelf_rows, record.readelf_problem) == (record.account["rows"], "")
    assert list(work.iterdir()) == []
    # A file without a section is a problem to both.
    count, problem = compare(str(path))
    assert count == 0
    assert problem
    assert runs.measure(file, 3, ROOT, work, verifies=False).compared == 0


def test_before_and_after(script: Any, tree: Path, tmp_path: Path) -> None:
    out, old = tmp_path / "after", tmp_path / "before"
    assert _run("measure", "-o", out, tree).returncode == 0
    records = [record._asdict() for record in script.records_of(out)]
    for record in records:
        if record["account"]:
            record["account"]["functions"]["described"] -= 1
            record["account"]["text"]["default"] //= 2
            record["account"]["bytes"]["default"] //= 2
    records[0]["differences"] = ["0x1000: cfa: another"]
    # A file that was measured at one time only is in no sum.
    records.append({**records[0], "key": "amd64/ripgrep/usr/bin/gone"})
    old.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    page = tmp_path / "page.md"
    page.write_text("before\n" + "\nold\n".join(script.MARKERS) + "\nafter\n")
    assert _run("table", "--before", old, "--write", page, out).returncode == 0
    text = page.read_text()
    assert text.startswith(f"before\n{script.MARKERS[0]}\n\n### What was read\n")
    assert text.endswith(f"\n{script.MARKERS[1]}\nafter\n")
    assert "\nold\n" not in text
    # Of three FDEs in two files of AMD64, and one of s390x.
    assert "| Rust | 40 → 42 | 0 | 1 |" in text
    assert "| all | 3 |" in text
    # Written again, the page is the same.
    assert _run("table", "--before", old, "--write", page, out).returncode == 0
    assert page.read_text() == text
    odd = _run("odd", old)
    assert odd.returncode == 1
    assert "WRONG: " in odd.stdout
    page.write_text("no markers\n")
    assert _run("table", "--write", page, out).returncode == 1
    assert page.read_text() == "no markers\n"


def test_another_commit_is_measured_and_continued(tree: Path, tmp_path: Path) -> None:
    out = tmp_path / "records"
    if subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, check=False).returncode:
        pytest.skip("no repository here")
    assert _run("measure", "--commit", "HEAD", "-o", out, tree).returncode == 0
    lines = out.read_text().splitlines()
    for option in (("--commit", "HEAD"), ("--resume",)):
        out.write_text("".join(f"{line}\n" for line in lines[:-1]))
        assert _run("measure", *option, "-o", out, tree).returncode == 0
        again = out.read_text().splitlines()
        assert again[:-1] == lines[:-1]
        assert json.loads(again[-1])["key"] == json.loads(lines[-1])["key"]


def test_what_no_run_should_print(script: Any) -> None:
    runs = sys.modules["producer_runs"]
    quiet = runs.Run(3, ("cfi2sframe: x: error: no",), 0.1, 1)
    assert list(runs.odd_lines(quiet)) == []
    differs = runs.Run(1, ("x: 0x10: cfa: another", "cfi2sframe: x: info: 1 functions"), 0.1, 1)
    assert list(runs.odd_lines(differs)) == []
    assert list(runs.odd_lines(quiet._replace(messages=("Warning: what",)))) == ["Warning: what"]
    crash = runs.Run(1, ("Traceback (most recent call last):", "ValueError: x"), 0.1, 1)
    assert list(runs.odd_lines(crash)) == list(crash.messages)
    assert list(runs.odd_lines(runs.Run(-9, (), 0.1, 1))) == ["exit status -9"]
    assert script is not None


def test_cells(script: Any) -> None:
    tables = sys.modules["producer_tables"]
    assert [tables.size_text(size) for size in (0, 9_999, 10_000, 2_345_678)] == ["0", "9,999", "10.0 kB", "2.3 MB"]
    # What is not whole is never shown as whole.
    assert [tables.percent_text(value) for value in (99.999, 100.0, 0.0)] == ["99.99 %", "100 %", "0.00 %"]
    assert (tables.change("1", "1"), tables.change("1", "2")) == ("1", "1 → 2")
    plain = tables._plain("FDE 12 at 0x1f of 1,234: kernels before 6.7, AMD64")
    assert plain == "FDE N at N of N: kernels before 6.7, AMD64"
    assert script is not None
