# SPDX-License-Identifier: Apache-2.0
"""The tables of the dynamic loader, read as it reads them, are as large as their sections say."""

import struct
import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.dynamic import dynamic_entries
from cfi2sframe.elf.references import referred_addresses
from cfi2sframe.placing.loader_tables import extent_of
from cfi2sframe.placing.pyelftools_view import FileView
from tests.support.consumer.walk import libraries_of
from tests.support.elf.edit import File
from tests.support.oracle.targets import S390, TARGETS, Target, label
from tests.support.placing.embedded import compiled, linked_of, linked_program, without_section_headers

DT_RELACOUNT: Final = 0x6FFFFFF9
LIBRARY: Final = "int undefined(void);\nint one(void) { return undefined(); }\nint two(void) { return 2; }\n"
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
    if source == "libc":
        check_extents(libraries_of(linked_program())["libc.so.6"])
    else:
        # The plain one defines none, so its hash table is empty.
        check_extents({"ls": Path("/bin/ls"), "plain": compiled("plain.c")}.get(source) or linked_program(source))


@pytest.mark.parametrize("style", ["gnu", "sysv", "gnu -fvisibility=hidden"])
@pytest.mark.parametrize("target", [None, *TARGETS], ids=lambda target: label(target) if target else "amd64")
def test_extents_where_one_table_alone_tells(target: Target | None, style: str, tmp_path: Path) -> None:
    """No relocation names what a library defines, or no hash table what it needs; s390x has words of another size."""
    flags = f"-shared -fPIC -nostdlib -Wl,--hash-style={style}".split()
    check_extents(linked_of(tmp_path, LIBRARY, *flags, compiler=target.compiler if target else "gcc"))


def check_extents(path: Path) -> None:
    data = path.read_bytes()
    view = FileView(data)
    sections = [section for section in load(data).sections if section.name in TAGS]
    assert len(sections) > 2
    for section in sections:
        assert extent_of(view, TAGS[section.name]) == (section.vaddr, section.end_vaddr), section.name


def test_a_hash_table_without_buckets_has_no_chains() -> None:
    """No linker writes one, and the dynamic loader looks nothing up in it."""
    file = File(linked_program().read_bytes())
    table = file.section(".gnu.hash")
    _, _, bloom_count = struct.unpack_from("<3I", file, table.offset)
    struct.pack_into("<2I", file, table.offset, 0, 1)
    assert extent_of(FileView(file), c.DT_GNU_HASH) == (table.addr, table.addr + 16 + 8 * bloom_count)


def test_words_of_4_bytes_on_s390x(tmp_path: Path) -> None:
    """So lld 21 writes DT_HASH there; the dynamic loader then takes the other table."""
    flags = ["-shared", "-fPIC", "-nostdlib", "-Wl,--hash-style=sysv"]
    library = linked_of(tmp_path, LIBRARY, *flags, compiler=S390.compiler)
    file = File(library.read_bytes())
    before = referred_addresses(load(without_section_headers(bytes(file))))
    table = file.section(".hash")
    words = struct.unpack_from(f">{table.size // 8}Q", file, table.offset)
    struct.pack_into(f">{len(words)}I", file, table.offset, *words)
    table.size //= 2
    library.write_bytes(file)
    check_extents(library)
    assert referred_addresses(load(without_section_headers(bytes(file)))) == before


@pytest.mark.parametrize("replaced", ["before", "after"])
def test_the_last_of_repeated_entries_counts(replaced: str, tmp_path: Path) -> None:
    """DT_INIT precedes DT_STRTAB, and DT_RELACOUNT follows it; the loader can miss both."""
    content = bytearray(linked_program().read_bytes())
    view = FileView(content)
    good = dict(view.dynamic)[c.DT_STRTAB]
    tags = [tag for tag, _ in view.dynamic]
    number = tags.index(c.DT_INIT if replaced == "before" else DT_RELACOUNT)
    assert (number < tags.index(c.DT_STRTAB)) == (replaced == "before")
    # One byte further, no name of a library is whole.
    struct.pack_into("<QQ", content, view.dynamic_span.start + 16 * number, c.DT_STRTAB, good + 1)
    program = tmp_path / "program"
    program.write_bytes(content)
    program.chmod(0o755)
    is_good = subprocess.run([program], check=False, capture_output=True).returncode == 0
    assert is_good == (replaced == "before")
    for found in (dynamic_entries(load(content))[c.DT_STRTAB], extent_of(FileView(content), c.DT_STRTAB).start):
        assert found == (good if is_good else good + 1)
