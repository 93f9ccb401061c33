# SPDX-License-Identifier: Apache-2.0
"""The library as a person meets it at a prompt: names, answers that fit a line, errors that name their file."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import cfi2sframe
from cfi2sframe import errors, trace
from cfi2sframe.abi import AMD64
from cfi2sframe.emit import emit, remove
from cfi2sframe.sframe.model import Rule
from cfi2sframe.sframe.read import read_section
from tests.support import cfi_asm as asm
from tests.support.raw_sframe import RawFunction, RawSection
from tests.support.samples import TEXT_VADDR, cie_of, linked_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.sframe.model import Found

PACKAGES: Final = [cfi2sframe, trace]
#: push %rbp; mov %rsp, %rbp; ...; leave; ret.
PUSH_RBP: Final = (
    asm.advance(1),
    asm.def_cfa_offset(16),
    asm.offset(6, 2),
    asm.advance(3),
    asm.def_cfa_register(6),
)


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(linked_file(AMD64, (asm.Fde(cie_of(AMD64), TEXT_VADDR, 16, PUSH_RBP),)))
    return path


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    path = tmp_path / "installed"
    path.write_bytes(Path("/bin/true").read_bytes())
    return path


def lookup_of(program: Path) -> cfi2sframe.Section:
    conversion = cfi2sframe.convert(program)
    return cfi2sframe.Section.from_bytes(conversion.data, conversion.section_vaddr)


# Names


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.__name__)
def test_a_package_lists_what_is_public(package: Any) -> None:  # noqa: ANN401 - a module
    assert dir(package) == sorted(package.__all__)
    assert all(getattr(package, name) is not None for name in dir(package))


@pytest.mark.parametrize("name", ["errors.InputError", "trace.walk", "convert", "Section"])
def test_a_name_needs_no_import_of_its_module(name: str) -> None:
    """In a new interpreter, where nothing else has imported it."""
    script, home = f"import cfi2sframe; cfi2sframe.{name}", Path(cfi2sframe.__file__).parents[1]
    subprocess.run([sys.executable, "-c", script], check=True, env={**os.environ, "PYTHONPATH": str(home)})


# Where CFA, RA and FP are


@pytest.mark.parametrize(
    ("delta", "text"),
    [
        (0, "cfa=rsp+8 ra=c-8 fp=u"),
        (1, "cfa=rsp+16 ra=c-8 fp=c-16"),
        (4, "cfa=rbp+16 ra=c-8 fp=c-16"),
        (15, "cfa=rbp+16 ra=c-8 fp=c-16"),
    ],
)
def test_a_pc_has_an_answer_of_a_line(program: Path, delta: int, text: str) -> None:
    where = lookup_of(program).find(TEXT_VADDR + delta)
    assert repr(where) == str(where) == text


def found(function: RawFunction, version: int = 3) -> Found:
    raw = RawSection((function,), version)
    where = read_section(raw.assemble(), raw.vaddr).find(0x20000)
    assert where is not None
    return where


@pytest.mark.parametrize(
    ("function", "version", "text", "is_outermost"),
    [
        pytest.param(RawFunction(rows=b"\x04\x03\x08"), 3, "no row", False, id="rows that start later"),
        pytest.param(RawFunction(rows=b"\x00\x01"), 3, "outermost", True, id="a row without words"),
        pytest.param(RawFunction(rows=b"", row_count=0), 3, "outermost", True, id="no rows in version 3"),
        pytest.param(RawFunction(rows=b"", row_count=0), 2, "no row", False, id="no rows in version 2"),
    ],
)
def test_no_rules(function: RawFunction, version: int, text: str, is_outermost: bool) -> None:  # noqa: FBT001
    where = found(function, version)
    assert (where.cfa, where.ra, where.fp) == (None, None, None)
    assert (repr(where), where.is_outermost) == (text, is_outermost)
    assert (where.state is None) is (text == "no row")


def test_the_caller_follows_from_the_answer(program: Path) -> None:
    frame = trace.Frame(TEXT_VADDR + 1, sp=0x7FF0, fp=1)
    where = lookup_of(program).find(frame.lookup_pc)
    assert where is not None
    stack = trace.Memory([(0x7FF0, b"\x10\x80".ljust(8, b"\0") + b"\x34\x12".ljust(8, b"\0"))])
    caller = trace.caller_of(frame, where, stack.read)
    assert caller == trace.Frame(0x1234, sp=0x8000, fp=0x8010, is_return_address=True)
    assert repr(caller) == "pc=0x1234 sp=0x8000 fp=0x8010"


# Sections


def test_a_section_holds_functions_and_a_function_rows(program: Path) -> None:
    conversion = cfi2sframe.convert(program)
    section = cfi2sframe.Section.from_bytes(conversion.data, conversion.section_vaddr)
    assert len(section) == 1
    (function,) = section
    assert len(function) == 3
    sp, fp, saved = Rule(7, 8, deref=False), Rule(6, 16, deref=False), Rule(None, -16, deref=True)
    assert [(row.start_delta, row.cfa, row.fp) for row in function] == [
        (0, sp, None),
        (1, sp._replace(offset=16), saved),
        (4, fp, saved),
    ]
    assert {row.ra for row in function} == {Rule(None, -8, deref=True)}


def test_the_section_of_a_file(installed: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    cfi2sframe.convert_file(installed, target)
    section = cfi2sframe.Section.from_file(target)
    assert section == cfi2sframe.convert(installed).section
    with pytest.raises(errors.UnfitError, match=r"no \.sframe section"):
        cfi2sframe.Section.from_file(installed)


@pytest.mark.parametrize("version", [1, 2, 3])
def test_what_is_read_is_what_was_written(program: Path, version: int) -> None:
    conversion = cfi2sframe.convert(program, version)
    section = cfi2sframe.Section.from_bytes(conversion.data, conversion.section_vaddr)
    assert section == conversion.section
    assert hash(section) == hash(conversion.section)
    assert list(section) == list(conversion.section)
    assert section != section._replace(sizes=(17,))


def test_sections_are_immutable_and_can_be_sent_to_processes(program: Path) -> None:
    section = cfi2sframe.convert(program).section
    (function,) = section
    for changed, name in ((section, "starts"), (function, "size")):
        with pytest.raises(AttributeError, match="is immutable"):
            setattr(changed, name, ())
    assert pickle.loads(pickle.dumps(section)) == section  # noqa: S301 - what this process has written
    assert pickle.loads(pickle.dumps(function)) == function  # noqa: S301


# Answers that fit a line


def test_everything_prints_in_a_line() -> None:
    image = cfi2sframe.load("/bin/ls")
    conversion = cfi2sframe.convert(image)
    section = cfi2sframe.Section.from_bytes(conversion.data, conversion.section_vaddr)
    emitted = emit(conversion)
    printed: list[object] = [
        *(image, image.arch, conversion, conversion.section, conversion.section.functions[0].body),
        *(section, section.functions[0], section.functions[0].rows[0], section.arch),
        *(section.find(section.starts[0]), cfi2sframe.verify(conversion), emitted),
    ]
    texts = [repr(each) for each in printed]
    assert [text for text in texts if len(text) > 200 or "\n" in text] == []
    assert texts[0].startswith("<ElfImage /bin/ls: ")
    assert texts[2].startswith("<Conversion of /bin/ls: version 3, ")


def test_a_conversion_says_what_it_leaves_out(program: Path) -> None:
    assert repr(cfi2sframe.convert(program)) == f"<Conversion of {program}: version 3, 1 function, 60 bytes>"
    undefined = asm.Fde(cie_of(AMD64), TEXT_VADDR, 16, (asm.undefined(16),))
    text = repr(cfi2sframe.convert(cfi2sframe.load(linked_file(AMD64, (undefined,)), "p"), version=1))
    assert text == "<Conversion of p: version 1, 0 functions, 0 bytes, 1 FDE left out>"


def test_differences_print_as_verify_prints_them(program: Path) -> None:
    raw = RawSection((RawFunction(TEXT_VADDR),), vaddr=0x600000)
    verification = cfi2sframe.verify(program, read_section(raw.assemble(), raw.vaddr))
    assert not verification.is_clean
    assert repr(verification.differences[0]).startswith(f"0x{verification.differences[0].vaddr:x}: ")
    assert repr(verification).startswith("<Verification: ")


# A file is converted


def test_a_copy_with_the_section(installed: Path, tmp_path: Path) -> None:
    before = installed.read_bytes()
    outcome = cfi2sframe.convert_file(installed, tmp_path / "new")
    assert outcome.status == "converted"
    assert repr(outcome).startswith(f"<Outcome of {installed}: converted, ")
    assert installed.read_bytes() == before
    assert cfi2sframe.verify(tmp_path / "new").is_clean
    assert b"".join(remove(cfi2sframe.load(tmp_path / "new"))) == before


def test_what_is_left_out_has_a_name_and_a_reason() -> None:
    """Version 1 has no row for a CFA that is loaded from memory."""
    loaded = asm.def_cfa_expression(b"\x77\x08\x06")
    fdes = (
        asm.Fde(cie_of(AMD64), TEXT_VADDR, 16),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 16, 8, (loaded,)),
    )
    data = linked_file(AMD64, fdes, symbols=(asm.Symbol("handler", TEXT_VADDR + 16, 8, 0x12),))
    (left_out,) = cfi2sframe.account(cfi2sframe.convert(data, version=1)).of_kind("left out")
    assert (left_out.name, *left_out[1:4]) == ("handler", ".text", TEXT_VADDR + 16, 8)
    assert (left_out.message, left_out.detail) == ("CFA is an expression", "*(rsp+8)")
    assert not cfi2sframe.account(cfi2sframe.convert(data)).of_kind("left out")


@pytest.mark.parametrize("call", [cfi2sframe.convert, partial(cfi2sframe.convert_file, in_place=True, replace=True)])
@pytest.mark.parametrize("version", [1, 3])
def test_errata_belong_to_version_2(call: Callable[..., object], version: int, installed: Path) -> None:
    for errata in (0, 1, 2):
        with pytest.raises(errors.RequestError, match=rf"version {version} has no errata; they belong to version 2$"):
            call(installed, version=version, errata=errata)
        call(installed, version=2, errata=errata)


def test_a_file_in_place(installed: Path) -> None:
    assert cfi2sframe.convert_file(installed, in_place=True).status == "converted"
    assert cfi2sframe.verify(installed).is_clean
    written = installed.stat()
    assert cfi2sframe.convert_file(installed, in_place=True).status == "unchanged"
    assert installed.stat().st_mtime_ns == written.st_mtime_ns
    with pytest.raises(errors.EmbedError, match=r"already has a different \.sframe section"):
        cfi2sframe.convert_file(installed, in_place=True, version=2)
    assert installed.stat().st_mtime_ns == written.st_mtime_ns
    assert cfi2sframe.convert_file(installed, in_place=True, version=2, replace=True).status == "converted"
    assert cfi2sframe.Section.from_file(installed).version == 2


@pytest.mark.parametrize("in_place", [False, True])
def test_it_is_said_what_to_write(installed: Path, in_place: bool) -> None:  # noqa: FBT001
    output = installed.with_name("new") if in_place else None
    before = installed.read_bytes()
    with pytest.raises(errors.RequestError, match=r"^convert_file wants an output or in_place=True, one of the two$"):
        cfi2sframe.convert_file(installed, output, in_place=in_place)
    assert installed.read_bytes() == before
    assert not installed.with_name("new").exists()


# Verification is of what the file has


def test_a_file_without_a_section_is_not_verified(installed: Path) -> None:
    with pytest.raises(errors.InputError, match=r"no \.sframe section$"):
        cfi2sframe.verify(installed)
    assert cfi2sframe.verify(cfi2sframe.convert(installed)).is_clean


# Errors

each_call = pytest.mark.parametrize(
    "call",
    [
        *(cfi2sframe.load, cfi2sframe.convert, cfi2sframe.verify, cfi2sframe.Section.from_file, trace.trace_core),
        lambda path: cfi2sframe.convert_file(path, f"{path}.new"),
        lambda path: cfi2sframe.convert_file(path, in_place=True),
    ],
)


@pytest.mark.parametrize(
    ("make", "kind", "text"),
    [
        (lambda _: None, FileNotFoundError, "No such file or directory"),
        (lambda path: path.mkdir(), IsADirectoryError, "Is a directory"),
        (lambda path: path.symlink_to(path), OSError, "Too many levels of symbolic links"),
    ],
)
@each_call
def test_files_that_cannot_be_read(
    call: Callable[[str], object], make: Callable[[Path], None], kind: type[OSError], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    make(path)
    with pytest.raises(kind) as caught:
        call(str(path))
    error = caught.value
    assert (error.filename, error.strerror) == (str(path), text)


@each_call
def test_files_that_are_no_elf_files(call: Callable[[str], object], tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("text")
    with pytest.raises(errors.NotElfError) as caught:
        call(str(path))
    assert (str(caught.value), caught.value.file) == (f"{path}: not an ELF file", str(path))
    assert [each.name for each in tmp_path.iterdir()] == ["text"]


def test_damage_is_found_in_a_part_of_a_file(installed: Path) -> None:
    cfi2sframe.convert_file(installed, in_place=True)
    section = cfi2sframe.load(installed).sframe_section
    assert section is not None
    data = bytearray(installed.read_bytes())
    data[section.file_offset + 2] = 9
    installed.write_bytes(data)
    with pytest.raises(errors.SFrameError) as caught:
        cfi2sframe.verify(installed)
    error = caught.value
    assert str(error) == f"{installed}: .sframe+0x2: SFrame version 9 is unknown"
    assert (error.file, error.where, error.offset, error.reason) == (
        *(str(installed), ".sframe", 2),
        "SFrame version 9 is unknown",
    )


def test_a_process_is_named() -> None:
    no_pid = 1 << 25
    with pytest.raises(errors.InputError, match=rf"^process {no_pid}: no such process, or a thread of the kernel$"):
        trace.trace_process(no_pid)


def test_bytes_have_a_name_in_errors() -> None:
    with pytest.raises(errors.NotElfError, match=r"^<bytes>: not an ELF file$"):
        cfi2sframe.load(b"text")
    with pytest.raises(errors.NotElfError, match=r"^core: not an ELF file$"):
        cfi2sframe.load(b"text", "core")
