# SPDX-License-Identifier: Apache-2.0
"""Names that strip leaves in a file: Go's own table, and symbols in `.gnu_debugdata`."""

import lzma
import re
from pathlib import Path

from cfi2sframe import load
from cfi2sframe.trace.store import functions_of
from tests.support import cli
from tests.support.gotable.go_programs import go_build
from tests.support.needs import need, run
from tests.support.placing.embedded import linked_of

SOURCE = """
__attribute__((noinline)) static int hidden(int n) { volatile char room[64]; room[n] = 1; return room[n]; }
int main(int n, char **words) { (void)words; return hidden(n) + 1; }
"""


def test_a_stripped_go_program_has_the_names_of_its_symbols(tmp_path: Path) -> None:
    source = 'package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("hello") }\n'
    program = go_build(tmp_path, source)
    symbols = {vaddr: symbol.name.removesuffix(".abi0") for vaddr, symbol in load(program).functions().items()}
    run(need("strip"), "-o", tmp_path / "stripped", program)
    found = {vaddr: name for vaddr, _, name in functions_of(load(tmp_path / "stripped"))}
    assert "main.main" in found.values()
    # In both tables, names of instances of types are shortened differently.
    plain = {vaddr: name for vaddr, name in found.items() if "[" not in name}
    assert {vaddr: symbols.get(vaddr, name) for vaddr, name in plain.items()} == plain
    assert len(found) > 1000
    assert cli.run(tmp_path / "stripped", "-o", tmp_path / "converted").status == 0
    dumped = cli.run("dump", tmp_path / "converted", "--function", "runtime.main")
    assert dumped.status == 0
    assert len(re.findall(r"func idx", dumped.out.decode())) == 1


def test_symbols_in_gnu_debugdata(tmp_path: Path) -> None:
    """As Fedora makes them: a copy of the symbols alone, by xz; damaged ones do not matter."""
    program, stripped = linked_of(tmp_path, SOURCE), tmp_path / "stripped"
    run(need("objcopy"), "--only-keep-debug", program, tmp_path / "debug")
    run("objcopy", "--strip-all", program, stripped)
    assert "hidden" not in {name for _, _, name in functions_of(load(stripped))}
    packed = lzma.compress((tmp_path / "debug").read_bytes())
    for data, is_known in ((packed, True), (packed[:-40], False), (lzma.compress(b"none"), False), (b"", False)):
        (tmp_path / "packed").write_bytes(data or b"\0")
        run("objcopy", "--add-section", f".gnu_debugdata={tmp_path / 'packed'}", stripped, tmp_path / "mini")
        vaddrs = {name: vaddr for vaddr, _, name in functions_of(load(tmp_path / "mini"))}
        assert ("hidden" in vaddrs) == is_known
        assert not is_known or load(program).functions()[vaddrs["hidden"]].name == "hidden"
