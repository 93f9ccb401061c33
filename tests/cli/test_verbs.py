# SPDX-License-Identifier: Apache-2.0
"""The verbs that write nothing: `dump`, `verify` and `coverage`."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.cli.parsers import VERBS
from tests.support.cli import ROOT, run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, object_file, push_fp
from tests.support.jobs import object_with_gap
from tests.support.needs import need
from tests.support.sframe.raw_sframe import RawFunction, RawSection

ROWS = bytes.fromhex("00 03 08  04 05 10 f0  08 04 10 f0")
PUSH = RawFunction(TEXT_VADDR, 32, ROWS, 3)
GOOD = RawSection((PUSH,))


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64),)))
    return path


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw.sframe"
    path.write_bytes(GOOD.assemble())
    return path


def with_section(path: Path, section: RawSection) -> Path:
    """Write a linked file that holds a section already."""
    sframe = asm.Section(".sframe", section.assemble(), 0x6FFFFFF4, 2, section.vaddr, align=8)
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64),), more=(sframe,)))
    return path


# dump


def test_dump_of_raw_bytes_and_of_a_file(raw: Path, tmp_path: Path) -> None:
    """The same from a file and from standard input, in either byte order."""
    status, out, err = run("dump", raw, "--section-address", "0x30000")
    assert (status, err) == (0, ())
    assert b"func idx [0]: pc = 0x20000, size = 32 bytes" in out
    assert run("dump", "-", "--section-address", "0x30000", stdin=raw.read_bytes()).out == out
    path = with_section(tmp_path / "in", GOOD)
    assert run("dump", path).out == run("dump", "-", stdin=path.read_bytes()).out == out
    raw.write_bytes(GOOD._replace(order=">").assemble())
    assert run("dump", raw, "--section-address", "0x30000").out == out


# verify


def test_verify_at_an_address(good: Path, raw: Path) -> None:
    raw.write_bytes(GOOD._replace(vaddr=0x50000).assemble())
    assert run("verify", good, raw, "--section-address", "0x50000") == (0, b"", ())
    assert run("verify", good, raw).status == 1


def test_verify_without_any_cfi(tmp_path: Path) -> None:
    """One sentence, and a status of its own, also for a reader that reads the section."""
    path, report = tmp_path / "in", tmp_path / "report"

    def write(section: RawSection) -> None:
        sframe = asm.Section(".sframe", section.assemble(), 0x6FFFFFF4, 2, section.vaddr, align=8)
        path.write_bytes(linked_file(AMD64, (), more=(sframe,)))

    write(GOOD)
    sentence = f"{path}: not compared: the file has no call frame information for its section; verify it before"
    status, out, err = run("verify", path, "--report", report)
    assert (status, err, out.decode().count("\n")) == (5, (), 1)
    assert out.startswith(sentence.encode())
    assert json.loads(report.read_text())["status"] == "uncompared"
    status, out, _ = run("verify", path, "--for", "libsframe")
    assert (status, b"libsframe (2.47): reads it" in out, out.count(b"not compared")) == (5, True, 1)
    write(GOOD._replace(functions=(PUSH._replace(start=0x90000),)))
    status, out, err = run("verify", path)
    assert (status, err) == (1, ())
    assert b": invariant: " in out


def test_verify_of_an_object(tmp_path: Path) -> None:
    path, section = tmp_path / "in.o", tmp_path / "out.sframe"
    path.write_bytes(object_file(AMD64, {".text": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 16),)}))
    assert run("verify", "--would-be", path) == (0, b"", ())
    assert run(path, "-o", section) == (0, b"", ())
    assert run("verify", path, section) == (0, b"", ())
    data = section.read_bytes()
    section.write_bytes(data[:-1] + b"\xe8")
    status, out, _ = run("verify", path, section)
    # The last function's: in objects, each has rows of its own.
    assert status == 1
    assert out.startswith(f"{path}: .text.b+0x18: wrong: FP is ".encode())


# dump


def test_dump_names_functions(tmp_path: Path) -> None:
    """As objdump does; in an object by section, too. A name or an address selects its rows."""
    path, out = tmp_path / "in.o", tmp_path / "out.o"
    need("c++filt")
    function = asm.Symbol("first", 0, 16)
    mangled = asm.Symbol("_ZN1a1gEv", 4, 12, section=".text.b")
    data = {".text": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 0),)}
    path.write_bytes(object_file(AMD64, data, symbols=(function, mangled)))
    assert run(path, "-o", out).status == 0
    lines = [line.strip() for line in run("dump", out).out.decode().splitlines() if "func idx" in line]
    assert lines == [
        "func idx [0]: pc = .text+0x0, size = 32 bytes <first>",
        "func idx [1]: pc = .text.b+0x0, size = 32 bytes <a::g()>",
    ]
    for word, count in (("first", 1), ("a::g()", 1), ("_ZN1a1gEv", 1), ("0x3", 2)):
        assert run("dump", out, "--function", word).out.count(b"func idx") == count, word
    assert run("dump", out, "--function", "first", "--function", "a::g()").out.count(b"func idx") == 2
    assert run("dump", out, "--function", "none") == (3, b"", (f"cfi2sframe: {out}: error: no rows of none",))
    section = json.loads(run("dump", out, "--function", "first", "--format", "json").out)
    assert [(each["place"], each["function"]) for each in section["functions"]] == [(".text+0x0", "first")]


# coverage


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
    found = [(item["kind"], item["name"], item["demangled"]) for item in data["missing"]]
    assert found[:2] == [("left out", *names[0x40]), ("in part", *names[0x60])]
    assert set(found[2:]) == {("without CFI", *each) for each in (("", ""), names[0x80], ("_Zx", "_Zx"))}
    status, _, err = run(path, "-o", tmp_path / "out.sframe", "-v")
    assert status == 0
    first = "second::f() (0x20040) left out: CFA is an expression (lit0)"
    second = "a::g() (0x20060): 12 of 16 bytes left out: CFA is an expression (lit0) at 0x20064"
    assert err[:2] == tuple(f"cfi2sframe: {path}: warning: {warning}" for warning in (first, second))


def test_coverage_as_json(good: Path, raw: Path) -> None:
    status, out, err = run("coverage", "--format", "json", good)
    report = json.loads(out)
    (data,) = report["files"]
    assert (status, err, report["schema"]) == (0, (), 2)
    assert data["file"] == str(good)
    assert (data["arch"], data["sframe_version"], data["errata"]) == ("AMD64", 3, None)
    assert data["function_count"] == data["described_count"] == 1
    assert data["code_size"] == 4096
    assert data["sframe_size"] == len(raw.read_bytes())
    assert {item["kind"] for item in data["missing"]} == {"without CFI"}
    (data,) = json.loads(run("coverage", "--format", "json", good, "--sframe-version", "2", "--errata", "1").out)[
        "files"
    ]
    assert (data["sframe_version"], data["errata"]) == (2, 1)


def test_coverage_of_several_files(good: Path, raw: Path) -> None:
    """One that cannot be read does not stop the others."""
    status, out, err = run("coverage", raw, good)
    assert (status, len(err)) == (3, 1)
    assert out.startswith(f"{good}: SFrame version 3 describes 0.78 % of 4,096 bytes of code".encode())
    assert out.endswith(b"\nNot read: 1 file.\n")
    status, out, err = run("coverage", "--format", "json", good, raw, good)
    assert (status, len(err)) == (3, 1)
    report = json.loads(out)
    assert [account["file"] for account in report["files"]] == [str(good)] * 2
    assert [failure["file"] for failure in report["failures"]] == [str(raw)]
    assert run("coverage", "--format", "json", raw) == (3, b"", err)


def test_coverage_as_a_table(good: Path, tmp_path: Path) -> None:
    other = tmp_path / "other\nfile"
    other.write_bytes(good.read_bytes())
    table = run("coverage", good, other).out.decode()
    assert table.startswith("2 files: ")
    assert "  other\\nfile\n" in table


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


# What all verbs share


def test_help_and_version_take_words(tmp_path: Path) -> None:
    assert run("help", "dump").out == run("dump", "--help").out
    assert run("help").out == run("--help").out
    assert run("--version", tmp_path).out == run("--version").out


@pytest.mark.parametrize("verb", VERBS)
def test_a_help_is_a_screen_with_statuses(verb: str) -> None:
    lines = run("help", verb).out.decode().splitlines()
    assert len(lines) <= 50
    assert sum(line.startswith("exit status: 0 ") for line in lines) == 1


def test_quiet_and_color(good: Path) -> None:
    """Colors are for terminals, unless they are asked for; errors are always said."""
    missing = good.parent / "missing"
    red = f"cfi2sframe: {missing}: \x1b[1;31merror:\x1b[0m No such file or directory"
    plain = red.replace("\x1b[1;31m", "").replace("\x1b[0m", "")
    for words, line in ((("--color=always",), red), (("--color=never",), plain), ((), plain), (("-q",), plain)):
        assert run("--in-place", *words, missing).err == (line,)
    terminal, end = os.openpty()
    with os.fdopen(end, "wb") as stream:
        for variables in ({}, {"NO_COLOR": "1"}):
            env = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
            subprocess.run([sys.executable, "-m", "cfi2sframe", "dump", missing], stderr=stream, env=env, check=False)
    shown = os.read(terminal, 1 << 12).decode().splitlines()
    os.close(terminal)
    assert shown == [red, plain]
    gap = good.parent / "gap.o"
    for words, has_warning in (((), True), (("-q",), False)):
        gap.write_bytes(object_with_gap())
        done = run("--in-place", *words, gap)
        assert (done.status, bool(done.err)) == (0, has_warning)


def test_raw_bytes_do_not_go_to_a_terminal(good: Path) -> None:
    terminal, end = os.openpty()
    with os.fdopen(end, "wb") as stream:
        command = [sys.executable, "-m", "cfi2sframe", str(good), "-o", "-"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, env=env, text=True, check=False)
    os.close(terminal)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a terminal cannot show raw bytes" in done.stderr


def test_gates_of_ci_change_nothing(good: Path) -> None:
    """A share of code that is described, a share of the file that a section may cost."""
    before = good.read_bytes()
    percent = json.loads(run("coverage", "--format", "json", good).out)["files"][0]
    share = 100 * percent["described_size"] / percent["code_size"]
    assert 0 < share < 100
    for words, status in (
        (("coverage", "--fail-under", f"{share - 0.1}"), 0),
        (("coverage", "--fail-under", f"{share + 0.1}"), 4),
        (("size", "--fail-over", "100"), 0),
        (("size", "--fail-over", "0"), 4),
        (("size", "--for", "glibc", "--fail-over", "0"), 4),
    ):
        done = run(*words, good)
        assert (done.status, len(done.err)) == (status, 1 if status else 0), words
    assert run("size", "--compare", good, good, "--fail-over", "0").status == 0
    assert good.read_bytes() == before


def test_directories_are_searched_by_every_verb(tmp_path: Path) -> None:
    """With -r, which others need, and without."""
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "in.o").write_bytes(object_file(AMD64, {".text": (push_fp(AMD64, 0),)}))
    for words in (
        ("--in-place", "--for", "ld"),
        ("verify",),
        ("dump",),
        ("coverage", "-r"),
        ("size",),
        ("audit",),
        ("remove", "--in-place", "-r"),
    ):
        assert run(*words, tmp_path / "tree").status == 0, words


def test_a_number_is_no_core_file() -> None:
    assert run("trace", "1234") == (
        2, b"", ("cfi2sframe: error: no core file 1234; for a process: cfi2sframe trace --pid 1234",)
    )  # fmt: skip
