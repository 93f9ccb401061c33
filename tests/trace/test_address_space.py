# SPDX-License-Identifier: Apache-2.0
"""Where files are in memory: by all of their mappings, by executable ones alone, or by pieces of these."""

from pathlib import Path

import pytest

from cfi2sframe.constants.elf import PF_X
from cfi2sframe.elf.load import load
from cfi2sframe.trace import AddressSpace, FileMapping, FileStore, Snapshot
from tests.support.needs import need, run

BASE = 0x7F12_3456_0000
PAGE = 0x1000
SOURCE = """
int far(int);
__asm__(".text; .skip 8192, 0x90");
__attribute__((noinline)) int wanted(int n) { return far(n) + 1; }
const int table[3] = {1};
int data[5] = {2};
"""


@pytest.mark.parametrize("option", ["-fuse-ld=bfd", "-Wl,-z,noseparate-code", "-fuse-ld=gold", "-fuse-ld=lld"])
def test_a_library_is_found_by_any_of_its_mappings(tmp_path: Path, option: str) -> None:
    """Segments may share a page of the file (lld, Rust), so that the offset alone does not tell which one is mapped."""
    need("ld", "ld.gold", "ld.lld")
    (tmp_path / "lib.c").write_text(SOURCE)
    path = str(tmp_path / "lib.so")
    run(need("gcc"), "-shared", "-fPIC", "-nostdlib", option, tmp_path / "lib.c", "-o", path)
    image = load(path)
    ((wanted, name),) = [(vaddr, s.name) for vaddr, s in image.functions().items() if s.name == "wanted"]
    every, code = list[FileMapping](), list[FileMapping]()
    for p in image.loads:
        start, end = p.vaddr // PAGE * PAGE, -(-(p.vaddr + p.file_size) // PAGE) * PAGE
        mapping = FileMapping(BASE + start, BASE + end, p.file_offset // PAGE * PAGE, path)
        every.append(mapping)
        code += [mapping] * bool(p.flags & PF_X)
    rests = [m._replace(start=m.start + PAGE, file_offset=m.file_offset + PAGE) for m in code]
    # A second load of the same file does not disturb the first.
    twice = [*every, *(m._replace(start=m.start + (1 << 30), end=m.end + (1 << 30)) for m in every)]
    store = FileStore()
    for mappings, biases in ((every, (BASE,)), (code, (BASE,)), (rests, (BASE,)), (twice, (BASE, BASE + (1 << 30)))):
        space = AddressSpace(Snapshot(image.arch, mappings), store)
        for bias in biases:
            assert space.symbol_at(bias + wanted + 1) == (name, 1)
            module = space.module_at(bias + wanted)
            assert module is not None
            assert module.bias == bias
