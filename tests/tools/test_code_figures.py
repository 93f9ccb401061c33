# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/code_figures.py records what conversions make of code without CFI, and its tables add that up."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from cfi2sframe import Options, account, convert, load
from tests.support.sizes import library

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
#: A function with rows, one that changes SP by an unknown number, and one that nothing refers to.
SOURCE = """
    .text
    .globl plain, unknown
    .type plain, @function
plain:
    push %rbx
    sub $32, %rsp
    call *%rdi
    add $32, %rsp
    pop %rbx
    ret
    .size plain, .-plain
    .type unknown, @function
unknown:
    sub %rdi, %rsp
    call *%rsi
    hlt
    .size unknown, .-unknown
    .balign 16
    mov %rdi, %rax
    add $1, %rax
    ret
    .section .note.GNU-stack,"",@progbits
"""


@pytest.fixture(name="script", scope="module")
def _script() -> Iterator[Any]:
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("code_figures_tool", TOOLS / "code_figures.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["code_figures_tool"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))
    for name in ("code_figures_tool", "code_runs"):
        del sys.modules[name]


@pytest.fixture(name="assembly", scope="module")
def _assembly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("x86_64-linux-gnu-gcc")
    if compiler is None:
        pytest.skip("no compiler for AMD64 here")
    folder = tmp_path_factory.mktemp("assembly")
    (folder / "code.s").write_text(SOURCE)
    command = [compiler, "-nostdlib", "-shared", "-o", str(folder / "code.so"), str(folder / "code.s")]
    subprocess.run(command, check=True)
    return folder / "code.so"


def _tool(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TOOLS / "code_figures.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(name="measured", scope="module")
def _measured(assembly: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("measured")
    shutil.copyfile(assembly, folder / "assembly.so")
    (folder / "compiled.so").write_bytes(library(40))
    (folder / "broken.so").write_bytes(library(2)[:100])
    out = folder / "records"
    done = _tool("measure", "-o", out, folder / "assembly.so", folder / "compiled.so", folder / "broken.so")
    assert done.returncode == 0, done.stderr
    return out


def test_records_are_those_of_conversions(script: Any, measured: Path) -> None:
    files = {file.name: file for file in script.read_results(str(measured))}
    path = measured.parent / "assembly.so"
    counted = account(convert(load(str(path)), Options(source="code")))
    assert counted.from_code is not None
    run = files["assembly.so"].with_code
    assert run.described_size == counted.bytes.from_code > 0
    assert files["assembly.so"].size == counted.bytes.from_code + counted.bytes.uncovered
    assert {reason: size for reason, (size, _) in run.reasons.items()} == {
        reason: counts.bytes for reason, counts in counted.from_code.reasons.items()
    }
    assert len(run.reasons) > 1
    assert run.functions == counted.from_code.functions
    assert run.section_size == counted.sizes.sframe
    assert run.point_count > 0
    assert not run.differences
    assert not run.refusals
    assert 0 < run.derive_seconds < run.cpu_seconds
    # It has no CFI.
    assert files["assembly.so"].without.error
    plain = convert(load(str(measured.parent / "compiled.so")))
    assert files["compiled.so"].without.section_size == len(plain.data)


def test_tables_have_the_sums(script: Any, measured: Path, tmp_path: Path) -> None:
    files = script.read_results(str(measured))
    assembly = next(file for file in files if file.name == "assembly.so")
    described, size = assembly.with_code.described_size, assembly.size
    done = _tool("table", "--least", 1, measured)
    assert done.returncode == 0, done.stderr
    assert f"| assembly.so | {size:,} | {described:,} |" in done.stdout
    assert "| **all** |" in done.stdout
    assert "0 files with differences" in done.stdout
    assert "2 of 3 files have CFI" in done.stdout
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.MARKERS[0]}\nold\n{script.MARKERS[1]}\nafter\n")
    for _ in range(2):
        assert _tool("table", "--least", 1, "--write", page, measured).returncode == 0
        text = page.read_text()
        assert text.startswith("before\n")
        assert text.endswith("after\n")
        assert "old" not in text
        assert text.count("### AMD64") == 1
    page.write_text("no marker\n")
    assert _tool("table", "--write", page, measured).returncode != 0


def test_seconds_are_those_of_the_quickest_loop(script: Any) -> None:
    quiet = script.Run(
        arch="AMD64", cpu_seconds=1.0, derive_seconds=0.5, loop_seconds=0.1, described_size=1_000_000, functions=1
    )
    busy = quiet._replace(cpu_seconds=3.0, derive_seconds=1.5, loop_seconds=0.3)
    files = [script.File(name, run, run) for name, run in (("quiet", quiet), ("busy", busy))]
    lines = [line for line in script.tables_of(files, 1) if line.startswith(("| quiet | 0.50", "| busy | 0.50"))]
    assert len(lines) == 2
    assert lines[0].split("|")[2:] == lines[1].split("|")[2:]


def test_a_difference_fails(measured: Path, tmp_path: Path) -> None:
    records = [json.loads(line) for line in measured.read_text().splitlines()]
    for record in records:
        record["with"]["differences"] = ["0x10: wrong: a row"]
    path = tmp_path / "records"
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    done = _tool("table", path)
    assert done.returncode == 1
    assert "0x10: wrong: a row" in done.stdout


def test_names_of_what_has_no_rows(measured: Path) -> None:
    done = _tool("names", measured.parent / "assembly.so")
    assert done.returncode == 0, done.stderr
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert {line[3] for line in lines} == {"", "unknown"}
    sizes = [int(line[2]) for line in lines]
    assert sizes == sorted(sizes, reverse=True)
    only = _tool("names", "--reason", "no known entry", measured.parent / "assembly.so")
    assert [line.split("\t")[3] for line in only.stdout.splitlines()] == [""]


def test_continued(assembly: Path, tmp_path: Path) -> None:
    out = tmp_path / "records"
    assert _tool("measure", "-o", out, assembly).returncode == 0
    before = out.read_text()
    other = tmp_path / "other.so"
    other.write_bytes(library(3))
    assert _tool("measure", "--resume", "-o", out, assembly, other).returncode == 0
    assert out.read_text().startswith(before)
    assert len(out.read_text().splitlines()) == 2


def test_the_list_of_packages_has_no_twin() -> None:
    lines = (TOOLS / "code.list").read_text().splitlines()
    names = [line.split()[1] for line in lines if line and not line.startswith(("#", "["))]
    assert len(set(names)) == len(names) > 10
