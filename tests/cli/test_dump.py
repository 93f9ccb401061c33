# SPDX-License-Identifier: Apache-2.0
"""The verb `dump`: a section of a file, of raw bytes or of standard input, whole or some functions of it."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode_existing
from tests.support.cli import PUSH, SECTION, run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import Code, linked_file, object_file, push_fp
from tests.support.needs import need
from tests.support.placing.embedded import linked_of


def test_dump_of_raw_bytes_and_of_a_file(raw: Path, tmp_path: Path) -> None:
    """The same from a file and from standard input, in either byte order."""
    status, out, err = run("dump", raw, "--section-address", "0x30000")
    assert (status, err) == (0, ())
    assert b"func idx [0]: pc = 0x20000, size = 32 bytes" in out
    assert run("dump", "-", "--section-address", "0x30000", stdin=raw.read_bytes()).out == out
    path = tmp_path / "in"
    sframe = asm.Section(".sframe", SECTION.assemble(), 0x6FFFFFF4, 2, SECTION.vaddr, align=8)
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64),), more=(sframe,)))
    assert run("dump", path).out == run("dump", "-", stdin=path.read_bytes()).out == out
    raw.write_bytes(SECTION._replace(order=">").assemble())
    assert run("dump", raw, "--section-address", "0x30000").out == out


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
    assert run("dump", out, "--function", "none") == (
        3,
        b"",
        (f"cfi2sframe: {out}: error: no function none in the section",),
    )
    (section,) = json.loads(run("dump", out, "--function", "first", "--format", "json").out)["files"]
    assert [(each["place"], each["function"]) for each in section["functions"]] == [(".text+0x0", "first")]


def test_json_has_one_shape(good: Path, raw: Path, tmp_path: Path) -> None:
    """Whatever is named, and whatever fails: a section that can be read in part is there, and has failed."""
    missing, cut = tmp_path / "missing", tmp_path / "cut.sframe"
    two = SECTION._replace(functions=(PUSH, PUSH._replace(start=PUSH.start + 64, row_count=9)))
    cut.write_bytes(two.assemble())
    data: dict[str, list[dict[str, Any]]] = {}
    read: dict[str, list[Any]] = {}
    for names, status in (((raw,), 0), ((tmp_path,), 3), ((missing,), 3), ((cut,), 3), ((raw, cut, good, missing), 3)):
        done = run("dump", *names, "--format", "json")
        data = json.loads(done.out)
        assert (done.status, sorted(data)) == (status, ["failures", "files", "schema"])
        assert len(done.err) == max(len(data["failures"]), not data["files"])
        read |= {each["file"]: each["functions"] for each in data["files"]}
    assert {name: len(functions) for name, functions in read.items()} == {str(raw): 1, str(cut): 1}
    assert [each["file"] for each in data["failures"]] == [str(missing), str(cut), str(good)]


@pytest.mark.parametrize("function", [None, "main", "0x1020"])
def test_instructions_are_those_of_objdump_after_their_rows(function: str | None, tmp_path: Path) -> None:
    """At each, the row that was printed last is in force; without the instructions, it is the plain dump."""
    need("objdump")
    path = linked_of(tmp_path, "int puts(const char *); int main(int c, char **v) { return c + puts(v[c - 1]); }\n")
    assert run("--in-place", path).status == 0
    words = () if function is None else ("--function", function)
    text = run("dump", path, "--disassemble", *words).out.decode()
    listing = subprocess.run(["objdump", "-d", "--insn-width=16", path], capture_output=True, text=True, check=True)
    known = dict(re.findall(r"^ *([0-9a-f]+):\t((?:[0-9a-f]{2} )+)", listing.stdout, re.MULTILINE))
    found = re.findall(r"^ *([0-9a-f]+):\t((?:[0-9a-f]{2} )+)", text, re.MULTILINE)
    assert found
    assert {vaddr: stored.strip() for vaddr, stored in found} == {vaddr: known[vaddr].strip() for vaddr, _ in found}
    sizes = re.findall(r"size = (\d+) bytes", text)
    assert sum(map(int, sizes)) == sum(len(stored.split()) for _, stored in found)
    plain = "".join(line for line in text.splitlines(keepends=True) if not re.match(r" *[0-9a-f]+:\t", line))
    assert plain == run("dump", path, *words).out.decode()
    section, printed = decode_existing(path), ""
    for line in text.splitlines():
        if re.match(r"    [0-9a-f]{16}  ", line):
            printed = line.split()[1]
        elif match := re.match(r" *([0-9a-f]+):\t", line):
            at = section.find(int(match[1], 16))
            assert at is not None
            cfa = "RA" if at.is_outermost else str(at.cfa).replace("rsp", "sp").replace("rbp", "fp")
            # The rows of a block come before all of its code.
            assert cfa == printed or at.function.body.is_pcmask


def test_what_cannot_be_disassembled(raw: Path, tmp_path: Path) -> None:
    assert run("dump", raw, "--disassemble").failed(2, raw)
    assert run("dump", raw, "--disassemble", "--format", "json").failed(2)
    path = tmp_path / "bad"
    sframe = asm.Section(".sframe", SECTION.assemble(), 0x6FFFFFF4, 2, SECTION.vaddr, align=8)
    code = Code(data=b"\x55" + b"\x06" * 63)
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64),), codes=(code,), more=(sframe,)))
    lines = run("dump", path, "--disassemble").out.decode().splitlines()
    assert [line.split("\t")[1].strip() for line in lines if ":\t" in line] == ["55", "(bad)", "(bad)", "(bad)"]
