# SPDX-License-Identifier: Apache-2.0
"""The tables of the dynamic loader, read as it reads them, are as large as their sections say."""

from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.constants import elf as c
from cfi2sframe.placing.loader_tables import extent_of
from cfi2sframe.placing.pyelftools_view import FileView
from tests.support.placing.embedded import compiled, linked_program

TAGS: Final = {
    ".dynstr": c.DT_STRTAB,
    ".dynsym": c.DT_SYMTAB,
    ".hash": c.DT_HASH,
    ".gnu.hash": c.DT_GNU_HASH,
    ".gnu.version": c.DT_VERSYM,
    ".gnu.version_r": c.DT_VERNEED,
    ".gnu.version_d": c.DT_VERDEF,
}


@pytest.mark.parametrize("source", ["bfd", "gold", "lld", "libc", "ls", "plain"])
def test_extents(source: str) -> None:
    """The C library has both hash tables, and versions; of programs' symbols, relocations alone name some."""
    maps = Path("/proc/self/maps").read_text().split()
    files = {"libc": next(Path(word) for word in maps if "/libc.so" in word), "ls": Path("/bin/ls")}
    # This one defines none, so its hash table is empty.
    path = files.get(source) or (compiled("plain.c") if source == "plain" else linked_program(source))
    data = path.read_bytes()
    view = FileView(data)
    sections = [section for section in load(data).sections if section.name in TAGS]
    assert len(sections) > 3
    for section in sections:
        assert extent_of(view, TAGS[section.name]) == (section.vaddr, section.end_vaddr), section.name
