# SPDX-License-Identifier: Apache-2.0
"""The table of docs/deploying.md, row by row: what each verb does with a file that has a section."""

import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from cfi2sframe import convert, load, verify
from cfi2sframe.constants.elf import PT_GNU_SFRAME, SHF_ALLOC, SHT_GNU_SFRAME
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import InputError, SFrameError, UnfitError
from cfi2sframe.existing import Presence, existing_section
from cfi2sframe.jobs.records import Request
from cfi2sframe.placing.undo import record_span
from cfi2sframe.trace.store import FileStore
from tests.support.cli import ROOT, run
from tests.support.elf.edit import File
from tests.support.jobs import OBJECT, convert_one, remove_one
from tests.support.needs import attempt, need
from tests.support.oracle.gas import assembled
from tests.support.oracle.tools import find_binutils
from tests.support.placing.embedded import converted, emitted, linked_program, without_record

HEADING = "## A file that has a section\n"
HEADER_ALONE = struct.pack("<HBBBbbBIIIII", 0xDEE2, 3, 5, 3, 0, -8, 0, 0, 0, 0, 0, 0)
COLUMNS = ("convert", "in a directory", "remove", "verify", "dump", "trace")
#: With a wrong CFA for the old row at its end: GNU as has the offset of the row before (2.40 to 2.47).
WRONG = """\
f:      .cfi_startproc
        push    %rbp
        .cfi_def_cfa rbp, 32
        .cfi_adjust_cfa_offset -16
        .cfi_def_cfa_register rsp
        ret
        .cfi_endproc
"""
RIGHT = """\
f:      .cfi_startproc
        push    %rbx
        .cfi_def_cfa_offset 16
        pop     %rbx
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
"""


def rows_of_the_table() -> dict[str, tuple[str, ...]]:
    _, _, text = (ROOT / "docs/deploying.md").read_text().partition(HEADING)
    lines = [line for line in text.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [cell.replace("`", "") for cell in cells[0][1:]] == list(COLUMNS)
    return {first: tuple(rest) for first, *rest in cells[1:]}


def of_gas(source: str) -> bytes:
    """Return an object with the section of GNU as."""
    return assembled(source, Path(), find_binutils("newest").tool("as"), "--gsframe").read_bytes()


def with_more_rows(data: bytes) -> bytes:
    """Rows from instructions, too, for start-up code without CFI; nothing tells that they are this program's."""
    return without_record(emitted(convert(load(data), source="code")))


def without_segment(data: bytes) -> bytes:
    """Take away the program header by which readers find the section: nobody loses its rows."""
    file = File(data)
    file.segment(PT_GNU_SFRAME).type = 0
    return bytes(file)


def damaged(data: bytes) -> bytes:
    image = load(converted(data))
    (section,) = (section for section in image.sections if section.is_sframe)
    changed = bytearray(without_record(bytes(image.data)))
    changed[section.file_offset + 2] = 9
    return bytes(changed)


def debug_file(data: bytes) -> bytes:
    Path("full").write_bytes(converted(data))
    assert attempt("objcopy", "--only-keep-debug", "full", "full.debug").status == 0
    return Path("full.debug").read_bytes()


#: By row of the table: files of that kind, as functions of a linked program without a section.
KINDS: dict[str, tuple[Callable[[bytes], bytes], ...]] = {
    "none": (lambda data: data, lambda _: OBJECT),
    "no bytes (some start files)": (lambda _: with_sections(b""),),
    "a header without functions": (lambda _: with_sections(HEADER_ALONE),),
    "the same answers at every PC, whoever wrote or moved it": (
        converted,
        lambda data: without_record(emitted(convert(load(data), level=0))),
        lambda _: without_record(converted(OBJECT)),
    ),
    "this program's, of another version, errata or release": (
        lambda data: converted(data, 2),
        lambda data: emitted(convert(load(data), source="code")),
        lambda _: converted(OBJECT, 2),
    ),
    "another producer's, correct and complete": (lambda _: of_gas(RIGHT),),
    "another producer's, of another version or wrong; the new section has a row at every PC where the old one has": (
        lambda data: without_record(converted(data, 2)),
        lambda _: of_gas(WRONG),
        lambda data: without_segment(with_more_rows(data)),
    ),
    "another producer's, with a row where the new one has none": (with_more_rows,),
    "damaged, or of a version that is not known": (damaged, lambda _: with_sections(b"\xe2\xde\x04\0")),
    "several (objects)": (lambda _: with_sections(HEADER_ALONE, HEADER_ALONE),),
    "in a separate debug file, without its bytes": (debug_file,),
}
CASES = [(kind, number) for kind, makers in KINDS.items() for number in range(len(makers))]


def with_sections(*sections: bytes) -> bytes:
    """Return an object with CFI and SFrame sections of these bytes."""
    file = File(without_record(converted(OBJECT)))
    # The relocations go, or become another section of this kind.
    for name, content in zip((".sframe", ".rela.sframe"), (*sections, None), strict=False):
        file += bytes(-len(file) % 8)
        kind, size = (0, 0) if content is None else (SHT_GNU_SFRAME, len(content))
        values = {"type": kind, "flags": SHF_ALLOC, "addr": 0, "offset": len(file), "size": size}
        file.section(name).set(**values, link=0, info=0, addralign=8, entsize=0)
        file += content or b""
    return bytes(file)


@pytest.fixture(autouse=True)
def _in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_table_has_all_kinds() -> None:
    assert list(rows_of_the_table()) == list(KINDS)


def converting(data: bytes, *, in_folder: bool = False, replaces: bool = False) -> str:
    """Convert a file, and see that --check tells what happens."""
    os.makedirs("tree", exist_ok=True)
    path = Path("tree/file")
    path.write_bytes(data)
    reader = "ld" if load(data).is_relocatable else None
    request = Request(reader=reader, replaces=replaces)
    told = convert_one(path, request._replace(only_checks=True), is_found=in_folder)
    assert path.read_bytes() == data
    done = convert_one(path, request, is_found=in_folder)
    assert (done.status, done.reason) == (told.status.replace("would convert", "converted"), told.reason)
    assert (path.read_bytes() == data) == (done.status != "converted")
    if done.status == "converted":
        assert convert_one(path, request, is_found=in_folder).status == "unchanged"
        assert remove_one(path).status == "removed"
        # A section of this program is not brought back.
        known = record_span(data) is not None
        assert path.read_bytes() == data or (known and not load(path).has_sframe)
    return {"converted": "written", "failed": "error"}.get(done.status, done.status)


def removing(data: bytes) -> str:
    path = Path("file")
    path.write_bytes(data)
    status = run("remove", "--in-place", "file").status
    assert run("remove", "--in-place", "file").status == status
    assert status in (0, 3)
    if status:
        return "error"
    return "unchanged" if path.read_bytes() == data else "removed"


def printing(verb: str, data: bytes, names: dict[int, str]) -> str:
    Path("file").write_bytes(data)
    return names[run(verb, "file").status]


def tracing(data: bytes) -> str:
    if existing_section(load(data)).presence in (Presence.SEVERAL, Presence.WITHOUT_BYTES):
        return "none"
    if load(data).is_relocatable:
        return ""
    module = FileStore().read(data, "file")
    return "error" if isinstance(module.rows, str) else {"file": "used", "converted": "converted"}[module.source]


@pytest.mark.parametrize(("kind", "number"), CASES)
def test_row(kind: str, number: int) -> None:
    data = KINDS[kind][number](linked_program().read_bytes())
    wanted = dict(zip(COLUMNS, rows_of_the_table()[kind], strict=True))
    assert converting(data) == wanted["convert"]
    assert converting(data, in_folder=True) == wanted["in a directory"]
    assert removing(data) == wanted["remove"]
    assert printing("verify", data, {0: "clean", 1: "different", 3: "error"}) in wanted["verify"]
    assert printing("dump", data, {0: "printed", 3: "error"}) == wanted["dump"]
    assert tracing(data) in (wanted["trace"], "")


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        ("another producer's, with a row where the new one has none", "written"),
        ("damaged, or of a version that is not known", "error"),
    ],
)
def test_replacing_on_request(kind: str, answer: str) -> None:
    """What cannot be read as SFrame may be anything, and stays."""
    data = KINDS[kind][0](linked_program().read_bytes())
    assert converting(data, replaces=True) == answer


@pytest.mark.parametrize("is_in_tree", [False, True])
def test_what_a_plain_run_takes_from_an_earlier_one_is_said(tmp_path: Path, *, is_in_tree: bool) -> None:
    """As a trigger with other options may; nothing is said of another version, or where the user wants it."""
    need("gcc")
    program = Path(shutil.copy2(linked_program(), tmp_path / "program"))
    named = tmp_path if is_in_tree else program
    assert run("--in-place", named, "--from", "code").status == 0
    section = existing_section(load(program)).or_raise()
    for words in (("--replace",), ("--sframe-version", "2"), ()):
        copy = tmp_path.parent / "copy"
        shutil.copy2(program, copy)
        done = run("--in-place", named, *words)
        lost = [line for line in done.err if "lacks a row at" in line]
        assert (done.status, len(lost)) == (0, 0 if words else 1)
        if lost:
            vaddr = int(lost[0].partition("lacks a row at ")[2].split()[0], 16)
            assert section.find(vaddr)
            assert existing_section(load(program)).or_raise().find(vaddr) is None
        shutil.move(copy, program)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (lambda _: OBJECT, UnfitError),
        (debug_file, UnfitError),
        (lambda _: with_sections(HEADER_ALONE, HEADER_ALONE), InputError),
        (damaged, SFrameError),
        (lambda _: with_sections(bytes(28)), SFrameError),
        (lambda _: with_sections(b""), UnfitError),
    ],
    ids=["none", "a debug file", "several", "damaged", "zeros", "no bytes"],
)
def test_kinds_of_errors(make: Callable[[bytes], bytes], kind: type[InputError]) -> None:
    with pytest.raises(kind) as caught:
        existing_section(load(make(linked_program().read_bytes()))).or_raise()
    assert type(caught.value) is kind


def test_a_damaged_section_is_printed_up_to_the_damage() -> None:
    image = load(converted(linked_program().read_bytes()))
    (section,) = (section for section in image.sections if section.is_sframe)
    data = bytearray(bytes(image.data))
    # The offset of the third function's rows.
    struct.pack_into("<I", data, section.file_offset + 28 + 16 * 2 + 12, 1 << 20)
    Path("file").write_bytes(data)
    status, out, err = run("dump", "file")
    assert (status, b"func idx [1]" in out, b"func idx [2]" in out) == (3, True, False)
    assert "the function's attribute extends past the end of the rows" in err[-1]


@pytest.mark.parametrize("tail", [b"payload", b"\0" * 9 + b"signature"])
def test_what_follows_an_up_to_date_file_is_in_nobodys_way(tail: bytes) -> None:
    """Nothing is rewritten, so nothing can move; another section would move it."""
    path = Path("file")
    path.write_bytes(converted(linked_program().read_bytes()) + tail)
    done = convert_one(path)
    assert (done.status, [warning.split()[:2] for warning in done.warnings]) == (
        "unchanged",
        [[f"{len(tail)}", "bytes"]],
    )
    refused = convert_one(path, Request(Options(2)))
    assert refused.status == "failed"
    assert "appended after the ELF data" in refused.reason


@pytest.mark.parametrize(("tool", "kind"), [("objcopy", "pie"), ("objcopy", "static"), ("llvm-objcopy", "pie")])
def test_what_objcopy_leaves_of_a_section_is_empty(tool: str, kind: str) -> None:
    """With -R, PT_GNU_SFRAME stays, and leads to zeros or to nothing."""
    need(tool)
    Path("file").write_bytes(converted(linked_program(kind=kind).read_bytes()))
    assert attempt(tool, "-R", ".sframe", "file").status == 0
    assert convert_one(Path("file")).status == "converted"
    assert verify("file").is_clean
