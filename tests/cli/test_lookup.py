# SPDX-License-Identifier: Apache-2.0
"""The verb `lookup`: addresses and symbols as addr2line takes them, and what section and CFI say there."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import PUSH, SECTION, run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file, object_file, push_fp
from tests.support.needs import need
from tests.support.placing.embedded import linked_of


def looked_up(*words: str | Path, stdin: bytes = b"") -> list[dict[str, Any]]:
    (file,) = json.loads(run("lookup", "--format", "json", *words, stdin=stdin).out)["files"]
    found: list[dict[str, Any]] = file["addresses"]
    return found


def readelf_rows(path: Path) -> dict[int, tuple[str, str]]:
    """Return the CFA and the RA of each row of a program's CFI, by address, as GNU readelf prints them."""
    text = subprocess.run([need("readelf"), "-wF", path], capture_output=True, text=True, check=True).stdout
    rows: dict[int, tuple[str, str]] = {}
    for block in text.split("\n\n"):
        columns = next((line.split() for line in block.splitlines() if line.split()[:2] == ["LOC", "CFA"]), [])
        for line in block.splitlines() if "FDE" in block else ():
            if re.match(r"[0-9a-f]{16} \S+\+\d+ ", line):
                cells = dict(zip(columns, line.split(), strict=False))
                rows[int(cells["LOC"], 16)] = cells["CFA"], cells["ra"]
    return rows


def test_rows_are_those_of_readelf_and_symbols_those_of_nm(tmp_path: Path) -> None:
    need("nm")
    path = linked_of(
        tmp_path,
        'int printf(const char *, ...); static __attribute__((noinline)) int add(int *v) { return v[0] + printf(""); }'
        "int main(int c, char **v) { int a[99]; a[c] = c; return add(a) + (v != 0); }\n",
    )
    rows = readelf_rows(path)
    assert len(rows) > 5
    assert run("--in-place", path).status == 0
    found = looked_up(path, *(f"{vaddr:x}" for vaddr in rows))
    for (vaddr, (cfa, ra)), each in zip(rows.items(), found, strict=True):
        assert each["place"] == hex(vaddr)
        if ra != "u":
            assert each["cfi"]["row"].startswith(f"cfa={cfa} ra={ra} "), each
            assert each["section"]["row"] == each["cfi"]["row"]
        assert each["agrees"]
    names = subprocess.run(["nm", path], capture_output=True, text=True, check=True).stdout
    code = re.findall(r"^([0-9a-f]{16} [tT] (\w+))$", names, re.MULTILINE)
    # The first word of a line counts, also from a pipe.
    by_line = looked_up(path, stdin="\n".join(line for line, _ in code).encode())
    by_name = looked_up(path, *(name for _, name in code))
    assert [each["place"] for each in by_line] == [each["place"] for each in by_name] != []
    # A name that is a number, too, is a name.
    (first, second) = looked_up(path, "add", "add+0x1")
    assert (first["function"], first["offset"], second["offset"]) == ("add", 0, 1)
    assert int(second["place"], 0) == int(first["place"], 0) + 1


def test_each_address_is_judged_as_verify_judges_it(tmp_path: Path) -> None:
    """A row that is wrong, a function that is left out and one too many, padding, and code without either."""
    expression = asm.def_cfa_expression(b"\x30")
    fdes = (
        push_fp(AMD64),
        push_fp(AMD64, TEXT_VADDR + 0x40),
        asm.Fde(cie_of(AMD64, expression), TEXT_VADDR + 0x80, 16),
    )
    # CFA, RA and FP of the second row: the CFA is off by 8.
    wrong = PUSH._replace(rows=bytes.fromhex("00 03 08  04 05 18 f0  08 04 10 f0"))
    section = SECTION._replace(functions=(wrong, PUSH._replace(start=TEXT_VADDR + 0xC0)))
    sframe = asm.Section(".sframe", section.assemble(), 0x6FFFFFF4, 2, section.vaddr, align=8)
    path = tmp_path / "file"
    # NOPs after each function, over which the section's do not reach; then HLT.
    code = Code(data=b"\x90" * 0xA0 + b"\xf4" * 0x60)
    path.write_bytes(linked_file(AMD64, fdes, codes=(code,), more=(sframe,)))
    words = [f"{TEXT_VADDR + offset:x}" for offset in range(0x100)]
    verdicts = [each["verdict"] for each in looked_up(path, *words)]
    assert verdicts[:0x20] == ["agree"] * 4 + ["differ"] * 4 + ["agree"] * 24
    assert verdicts[0x40:0x60] == ["differ"] * 32
    assert verdicts[0x80:0x90] == ["cannot be expressed"] * 16
    assert verdicts[0xC0:0xE0] == ["only the section"] * 32
    assert {*verdicts[0x20:0x40], *verdicts[0x60:0x80], *verdicts[0x90:0xC0], *verdicts[0xE0:]} == {"neither"}
    differing = [line.split(b": ")[1:3] for line in run("verify", path).out.splitlines()]
    assert differing == [[b"0x20004", b"wrong"], [b"0x20040", b"missing"], [b"0x200c0", b"extra"]]
    status, out, _ = run("lookup", path, words[4])
    assert status == 1
    assert b"\n  differ: CFA is rsp+16, the row has rsp+24\n" in out
    assert run("lookup", path, words[0]).status == 0


@pytest.mark.parametrize("verb", [(), ("--in-place",)])
def test_stubs_have_a_row_at_each_address(verb: tuple[str, ...], tmp_path: Path) -> None:
    need("objdump")
    code = "int puts(const char *); int main(int c, char **v) { return puts(v[c - 1]); }\n"
    path = linked_of(tmp_path, code, "-Wl,-z,lazy")
    assert not verb or run(*verb, path).status == 0
    listing = subprocess.run(["objdump", "-d", "-j", ".plt", path], capture_output=True, text=True, check=True).stdout
    places = re.findall(r"^ *([0-9a-f]+):\t(?=[0-9a-f ]*\t(?:push|jmp|bnd|endbr64))", listing, re.MULTILINE)
    found = looked_up(path, *places)
    assert found
    assert {each["verdict"] for each in found} == ({"agree"} if verb else {"only the CFI"})
    assert len({each["cfi"]["row"] for each in found}) > 1


def test_places_in_objects(tmp_path: Path) -> None:
    path = tmp_path / "in.o"
    data = {".text": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 0),)}
    path.write_bytes(object_file(AMD64, data, symbols=(asm.Symbol("f", 4, 28, section=".text.b"),)))
    places = [each["place"] for each in looked_up(path, "f", "f+0x2", ".text.b+5", "0x8", "8", ".text")]
    assert places == [".text.b+0x4", ".text.b+0x6", ".text.b+0x5", ".text+0x8", ".text+0x8", ".text+0x0"]
    out = tmp_path / "out.o"
    assert run(path, "-o", out).status == 0
    assert [each["verdict"] for each in looked_up(out, "f", ".text+8")] == ["agree", "agree"]


def test_words_that_mean_nothing(good: Path, raw: Path) -> None:
    """They stop nobody, and are failures of the report, too."""
    done = run("lookup", good, "20000", "nothing", "0x20004+0x1", "--format", "json")
    assert done.status == 3
    assert done.err[0] == f"cfi2sframe: {good}: error: no symbol or address 'nothing'"
    data = json.loads(done.out)
    assert len(data["files"][0]["addresses"]) == 1
    assert [each["file"] for each in data["failures"]] == [str(good)] * 2
    assert run("lookup", "-").failed(2)
    assert run("lookup", raw, "0").failed(3, raw)
    assert run("lookup", raw.parent / "none", "0").failed(3, raw.parent / "none")
