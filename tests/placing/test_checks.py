# SPDX-License-Identifier: Apache-2.0
"""Files that must not be rewritten are refused with a reason, and files that are only unusual are not."""

from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.constants.elf import PT_LOAD, PT_NOTE, SHF_ALLOC
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.checks import open_linked
from cfi2sframe.placing.linked import plan_insertion
from tests.support.elf.edit import File
from tests.support.needs import attempt, need, run
from tests.support.placing.embedded import LARGE, embedded, linked_program, take_out, without_section_headers, write


def _refusal(data: bytes | bytearray) -> str:
    with pytest.raises(EmbedError) as caught:
        plan_insertion(data, LARGE)
    return str(caught.value)


@pytest.mark.parametrize(
    ("number", "fields", "message"),
    [
        (0, {"memsz": 0x3000}, "the segments at 0x0 and 0x1000 overlap"),
        (0, {"memsz": 1}, "smaller in memory than in the file"),
        (0, {"align": 3}, "is aligned to 3 bytes"),
        (0, {"align": 1 << 31}, "is aligned to 2147483648 bytes"),
        (1, {"vaddr": 0x1001, "paddr": 0x1001}, "not congruent to its file offset"),
        (2, {"vaddr": 0, "paddr": 0}, "not in address order"),
        (1, {"paddr": 0x1000000}, "kernel or firmware"),
        (1, {"filesz": 1 << 40}, "extends past the end of the file"),
        (1, {"vaddr": 1 << 63, "paddr": 1 << 63}, "in the upper half of the address space"),
    ],
)
def test_segments(number: int, fields: dict[str, int], message: str) -> None:
    file = File(linked_program().read_bytes())
    file.segment(PT_LOAD, number).set(**fields)
    assert message in _refusal(file)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        (".text", {"addr": 0x123450}, "is in no segment: the section table does not fit the content"),
        (".comment", {"offset": 1 << 40}, "end of the file: the section table does not fit the content"),
        (".bss", {"offset": 1 << 63}, "which no file can have"),
        (".comment", {"offset": 32}, "the ELF header and section .comment overlap"),
        (".comment", {"name": 1 << 20}, "a section name is outside the section name table"),
        (".comment", {"addralign": 1 << 22}, "is aligned to 4194304 bytes, which would need as much padding"),
    ],
)
def test_sections(name: str, fields: dict[str, int], message: str) -> None:
    file = File(linked_program().read_bytes())
    file.section(name).set(**fields)
    assert message in _refusal(file)


def test_an_allocated_section_that_nothing_loads() -> None:
    """It has no address, as objcopy adds it, and starts where the last segment ends in the file, or later."""
    file = File(linked_program().read_bytes())
    comment, end = file.section(".comment"), max(segment.file_span.end for segment in load(bytes(file)).loads)
    assert comment.offset == end
    for vaddr, start, is_mapped in ((0, end, True), (8, end, False), (0, end - 1, False)):
        comment.set(flags=SHF_ALLOC, addr=vaddr, offset=start)
        if is_mapped:
            assert open_linked(bytes(file)).loaded_end == end + comment.size
        else:
            assert "section .comment is in no segment" in _refusal(file)


def test_other_kinds_of_files(tmp_path: Path) -> None:
    data = linked_program().read_bytes()
    refusal = _refusal(data + b"PK\3\4 an archive")
    assert "appended after the ELF data" in refusal
    # convert and remove share it.
    assert "adding or removing a section" in refusal
    aligned = File(data)
    aligned.segment(PT_NOTE).align = 1 << 22
    assert "a segment is aligned to 4194304 bytes" in _refusal(aligned)
    need("objcopy")
    run("objcopy", "--only-keep-debug", linked_program("bfd", "pie", "debug"), tmp_path / "debug")
    assert _refusal((tmp_path / "debug").read_bytes())


def test_without_section_headers(tmp_path: Path) -> None:
    """What follows the program headers is unknown: nothing moves, and the table goes to the end."""
    stripped = without_section_headers(linked_program().read_bytes())
    plan, rewritten = embedded(stripped, LARGE)
    assert "do not strip the file again" in plan.warnings[0]
    for changed in (rewritten, take_out(rewritten)):
        assert attempt(write(tmp_path / "changed", changed)) == attempt(linked_program())
