# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: the largest places, readable names, JSON, several files, and the format by a suffix."""

import json
import os
import re
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.needs import need


def test_coverage_names_the_largest(tmp_path: Path) -> None:
    """`--top all` names all of them; a page, a file for programs and the text have the same."""
    path = tmp_path / "in"
    starts = range(TEXT_VADDR, TEXT_VADDR + 12 * 0x40, 0x40)
    unsayable = cie_of(AMD64, asm.def_cfa_expression(b"\x30"))
    whole = [asm.Fde(unsayable, start, 8 + number) for number, start in enumerate(starts)]
    partly = [
        asm.Fde(cie_of(AMD64), start + 0x20, 30 - number, (asm.advance(4), asm.def_cfa_expression(b"\x30")))
        for number, start in enumerate(starts)
    ]
    broken = [asm.Fde(cie_of(AMD64), 0x400 + start, 16, (b"\x3f",)) for start in starts]
    path.write_bytes(linked_file(AMD64, [*whole, *partly, *broken]))
    counts = []
    for words in ((), ("--top", "1"), ("--top", "all")):
        lines = run("coverage", *words, path).out.decode().splitlines()
        counts.append(sum("CFA is an expression (lit0)" in line for line in lines))
        more = [line for line in lines if "more not shown" in line]
        assert bool(more) == (words != ("--top", "all"))
    # Code without CFI is the largest.
    assert counts[1] == 0
    assert 0 < counts[0] < 10
    assert counts[2] == 24
    status, _, err = run("coverage", "--top", "few", path)
    assert (status, "--top" in err[-1]) == (2, True)


def test_coverage_demangles(tmp_path: Path) -> None:
    """In text and warnings; JSON has both forms."""
    need("c++filt")
    path = tmp_path / "in"
    expression = asm.def_cfa_expression(b"\x30")
    fdes = (
        push_fp(AMD64),
        asm.Fde(cie_of(AMD64, expression), TEXT_VADDR + 0x40, 16),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x60, 16, (asm.advance(4), expression)),
    )
    names = {0x40: ("_ZN6second1fEv", "second::f()"), 0x60: ("_ZN1a1gEv", "a::g()"), 0x80: ("_Z1hi", "h(int)")}
    symbols = [asm.Symbol(mangled, TEXT_VADDR + offset, 16) for offset, (mangled, _) in names.items()]
    path.write_bytes(linked_file(AMD64, fdes, symbols=(*symbols, asm.Symbol("_Zx", TEXT_VADDR + 0xA0, 16))))
    text = run("coverage", path).out.decode()
    for line in (
        r"16 +0x20040 +\.text +left out +CFA is an expression \(lit0\) +second::f\(\)",
        r"12 +0x20064 +\.text +in part +CFA is an expression \(lit0\) +a::g\(\)",
        r"16 +0x20080 +\.text +without CFI +h\(int\)",
        r"16 +0x200a0 +\.text +without CFI +_Zx",
    ):
        assert re.search(rf"^ *{line}$", text, re.MULTILINE)
    (data,) = json.loads(run("coverage", "--format", "json", path).out)["files"]
    found = [(item["kind"], item["symbol"], item["function"]) for item in data["missing"]]
    assert found[:2] == [("left out", *names[0x40]), ("in part", *names[0x60])]
    assert set(found[2:]) == {("without CFI", *each) for each in (("", ""), names[0x80], ("_Zx", "_Zx"))}
    status, _, err = run(path, "-o", tmp_path / "out.sframe", "-v")
    assert status == 0
    first = "second::f() (0x20040) left out: CFA is an expression (lit0)"
    second = "a::g() (0x20060): 12 of 16 bytes left out: CFA is an expression (lit0) at 0x20064"
    assert err[:2] == tuple(f"cfi2sframe: {path}: warning: {warning}" for warning in (first, second))


def test_coverage_of_several_files(good: Path, raw: Path) -> None:
    """One that cannot be read does not stop the others; one with two names, or named twice, is one file."""
    status, out, err = run("coverage", raw, good)
    assert (status, len(err)) == (3, 1)
    assert out.startswith(f"{good}: SFrame version 3 describes 0.78 % of 4,096 bytes of code".encode())
    assert out.endswith(b"\nNot read: 1 file.\n")
    (good.parent / "link").symlink_to(good)
    os.link(good, good.parent / "again")
    names = (good, raw, good.parent, good, good.parent / "link")
    status, out, err = run("coverage", "--sframe-version", "2", "--errata", "1", "--format", "json", *names)
    assert (status, len(err)) == (3, 1)
    report = json.loads(out)
    assert [(account["file"], account["errata"]) for account in report["files"]] == [(str(good), 1)]
    assert [failure["file"] for failure in report["failures"]] == [str(raw)]
    assert run("coverage", "--format", "json", raw) == (3, b"", err)


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("x.html", "<!DOCTYPE html>"),
        ("x.json", "{"),
        ("x.csv", '"file",'),
        ("x.md", "**"),
        ("x.txt", "/"),
        ("x.log", "/"),
        ("x.OUT", "/"),
        ("x.1", "/"),
        ("x.2026-11", "/"),
        ("x", "/"),
    ],
)
def test_the_suffix_decides(name: str, start: str, good: Path, tmp_path: Path) -> None:
    assert run("coverage", good, "-o", tmp_path / name).status == 0
    assert (tmp_path / name).read_text().startswith(start)


@pytest.mark.parametrize("words", [("coverage", "--fail-under", "99"), ("size", "--fail-over", "1"), ("audit",)])
def test_a_quiet_report_is_printed_where_it_is_asked_for(words: tuple[str, ...], tmp_path: Path) -> None:
    path, report = tmp_path / "in", tmp_path / "report.json"
    path.write_bytes(linked_file(AMD64, [push_fp(AMD64)]))
    asked, quiet = run(*words, path), run(*words, "-q", path)
    assert (asked.status, bool(asked.out), quiet.out) == (quiet.status, True, b"")
    assert quiet.err == tuple(line for line in asked.err if "error:" in line)
    assert run(*words, "-q", path, "--format", "csv").out == run(*words, path, "--format", "csv").out != b""
    run(*words, "-q", path, "-o", report)
    assert json.loads(report.read_text())["schema"]
