# SPDX-License-Identifier: Apache-2.0
"""The functions that have lost their rows since another build: by name, whatever their addresses are."""

import json
import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file
from tests.support.needs import need

_EXPRESSION: Final = asm.def_cfa_expression(b"\x30")
_SIZE: Final = 32


def build(functions: str, *, has_symbols: bool = True) -> bytes:
    """Return a program of functions such as `f g- h/`: whole, left out, in part, or without CFI (`i?`)."""
    fdes: list[asm.Entry] = []
    symbols: list[asm.Symbol] = []
    for number, word in enumerate(functions.split()):
        name, start = word.rstrip("-/?"), TEXT_VADDR + _SIZE * number
        if not word.endswith("?"):
            cie = cie_of(AMD64, _EXPRESSION) if word.endswith("-") else cie_of(AMD64)
            fdes.append(asm.Fde(cie, start, _SIZE, (asm.advance(16), _EXPRESSION) if word.endswith("/") else ()))
        symbols.append(asm.Symbol(name, start, _SIZE))
    # HLT, which is no padding.
    codes = (Code(data=b"\xf4" * _SIZE * len(symbols)),)
    return linked_file(AMD64, fdes, codes=codes, symbols=tuple(symbols) if has_symbols else ())


@pytest.mark.parametrize(
    ("old", "new", "lost"),
    [
        ("f g- h/", "f g- h/", ""),
        # Other addresses are no loss, nor is a function that is gone, or has won rows.
        ("f g- h/", "x h/ f g-", ""),
        ("f g- h/", "f g h", ""),
        ("f g h", "f g- h/", "g described left out, h described in part"),
        ("f/ g- h?", "f- g? h-", "f in part left out"),
        ("f", "f g- h/ i?", "g absent left out, h absent in part, i absent without CFI"),
        # Several functions may have one name.
        ("f f- g", "f- f g", ""),
        ("f f- g", "f- f- g", "f described left out"),
        ("f f/ g", "f f- g", "f in part left out"),
    ],
)
def test_functions_are_known_by_their_names(old: str, new: str, lost: str, tmp_path: Path) -> None:
    for name, functions in (("old", old), ("new", new)):
        (tmp_path / name).write_bytes(build(functions))
    words = ("coverage", "--compare", tmp_path / "old", tmp_path / "new", "--format", "json", "--fail-on-new")
    done = run(*words)
    (file,) = json.loads(done.out)["files"]
    found = [f"{each['symbol']} {each['before']} {each['now']}" for each in file["lost"] if each["symbol"]]
    assert sorted(found) == sorted(filter(None, lost.split(", ")))
    assert done.status == (4 if file["lost"] else 0)
    assert run(*words[:-1]).status == 0


@pytest.mark.parametrize(
    ("old", "new", "size"), [("f g-", "g- f", 0), ("f g-", "f- g-", 32), ("f g h", "f- g- h/", 80)]
)
def test_code_without_names_counts_by_its_bytes(old: str, new: str, size: int, tmp_path: Path) -> None:
    for name, functions in (("old", old), ("new", new)):
        (tmp_path / name).write_bytes(build(functions, has_symbols=False))
    done = run("coverage", "--compare", tmp_path / "old", tmp_path / "new", "--fail-on-new", "--format", "json")
    (file,) = json.loads(done.out)["files"]
    assert sum(each["size"] for each in file["lost"]) == size
    assert done.status == (4 if size else 0)


def test_a_program_that_a_compiler_built_without_tables(tmp_path: Path) -> None:
    """In trees, files are matched by name; one that has lost all of its CFI is not passed over."""
    need("gcc", "objcopy")
    (tmp_path / "main.c").write_text("int half(int n); int main(int c, char **v) { return half(c) - !v; }\n")
    (tmp_path / "half.c").write_text("int half(int n) { return n / 2; }\n")
    for folder, option in (("old", "-fasynchronous-unwind-tables"), ("new", "-fno-asynchronous-unwind-tables")):
        (tmp_path / folder).mkdir()
        for words in (("-c", "half.c", option, "-o", f"{folder}.o"), ("main.c", f"{folder}.o", "-o", f"{folder}/p")):
            subprocess.run(["gcc", "-O2", *words], cwd=tmp_path, check=True)
    compare = ("coverage", "--compare", tmp_path / "old", tmp_path / "new", "--fail-on-new")
    status, out, err = run(*compare)
    assert (status, err) == (4, (f"cfi2sframe: {tmp_path}/new: error: 1 place newly without rows, wholly or in part",))
    first, *_, row = out.decode().splitlines()
    assert first.startswith("newly without rows: 1 function; described: ")
    assert row.split()[1:4] + row.split()[-1:] == ["described", "without", "CFI", "half"]
    assert run(*compare, "--fail-under", "100").status == 4
    assert run("coverage", "--compare", tmp_path / "new", tmp_path / "old", "--fail-on-new").status == 0
    subprocess.run(["objcopy", "-R", ".eh_frame", tmp_path / "new/p"], check=True)
    status, out, _ = run(*compare)
    assert (status, b" bytes without a name; " in out) == (4, True)


def test_what_cannot_be_compared_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(build("f"))
    for verb in ("coverage", "size"):
        assert run(verb, "--compare", path, tmp_path).failed(2)
        assert run(verb, "--compare", path, path, path).failed(2)
    assert run("coverage", path, "--fail-on-new").failed(2)
