# SPDX-License-Identifier: Apache-2.0
"""The library as a person meets it at a prompt: names, answers that fit a line, errors that name their file."""

import inspect
import io
import os
import pickle
import runpy
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any, Final, get_args

import pytest

import cfi2sframe
from cfi2sframe import errors, trace
from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode_raw
from cfi2sframe.elf.contents import Joined
from cfi2sframe.emit import check_removal, emit, remove
from cfi2sframe.sframe.model import Found
from cfi2sframe.sframe.read import read_section
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, object_file, push_fp
from tests.support.placing.embedded import as_linked
from tests.support.sframe.raw_sframe import RawFunction, RawSection

PACKAGES: Final = [cfi2sframe, trace]
#: push %rbp; mov %rsp, %rbp; ...; leave; ret.
PUSH_RBP: Final = (asm.advance(1), asm.def_cfa_offset(16), asm.offset(6, 2), asm.advance(3), asm.def_cfa_register(6))


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "program"
    path.write_bytes(linked_file(AMD64, (asm.Fde(cie_of(AMD64), TEXT_VADDR, 16, PUSH_RBP),)))
    return path


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    path = tmp_path / "installed"
    path.write_bytes(as_linked("/bin/true"))
    return path


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


# What is public

#: The tool that writes the reference: what it lists is public.
REFERENCE: Final = runpy.run_path(str(Path(cfi2sframe.__file__).parents[1] / "tools" / "reference.py"))
PUBLIC: Final = {name: made for names in REFERENCE["public_names"]().values() for name, made in names.items()}


def types_of(made: Any) -> Iterator[Any]:  # noqa: ANN401 - a class, a function or a property
    """Yield the types of what a public name takes and gives: of a class, also of its public members."""
    if isinstance(made, property):
        made = made.fget
    if not isinstance(made, type):
        yield from REFERENCE["hints_of"](made).values()
        return
    hints = REFERENCE["hints_of"](made)
    for name in REFERENCE["members"](made):
        member = inspect.getattr_static(made, name, None)
        # The values of an enum have no annotation.
        yield from types_of(member) if callable(member) or isinstance(member, property) else [hints.get(name)]
    if "__init__" in vars(made) and not hasattr(made, "_names"):
        yield from types_of(vars(made)["__init__"])


def own_types(hint: Any) -> Iterator[type]:  # noqa: ANN401 - what annotations are
    """Yield the classes of the package in an annotation."""
    for part in hint if isinstance(hint, list) else get_args(hint):
        yield from own_types(part)
    if isinstance(hint, type) and hint.__module__.partition(".")[0] == "cfi2sframe":
        yield hint


@pytest.mark.parametrize("name", PUBLIC)
def test_what_a_public_name_takes_and_gives_is_public(name: str) -> None:
    assert {each.__name__ for hint in types_of(PUBLIC[name]) for each in own_types(hint)} <= set(PUBLIC)


# Where CFA, RA and FP are


def test_answers_of_a_line(program: Path) -> None:
    conversion = cfi2sframe.convert(program)
    section = cfi2sframe.decode(conversion.data, conversion.section_vaddr)
    texts = ["cfa=rsp+8 ra=c-8 fp=u", "cfa=rsp+16 ra=c-8 fp=c-16", "cfa=rbp+16 ra=c-8 fp=c-16"]
    for delta, text in zip((0, 1, 4, 15), [*texts, texts[-1]], strict=True):
        where = section.find(TEXT_VADDR + delta)
        assert repr(where) == str(where) == text
    (function,) = section
    assert (len(section), len(function)) == (1, 3)
    assert [row.start_delta for row in function] == [0, 1, 4]


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


# Sections


def test_sections_are_immutable_and_can_be_sent_to_processes(program: Path) -> None:
    section = cfi2sframe.convert(program).section
    (function,) = section
    assert section != section._replace(sizes=(17,))
    for changed, name in ((section, "starts"), (function, "size")):
        with pytest.raises(AttributeError, match="is immutable"):
            setattr(changed, name, ())
    for each in (section, function):
        again = pickle.loads(pickle.dumps(each))  # noqa: S301 - what this process has written
        assert (again, hash(again)) == (each, hash(each))


def test_states_are_found_as_a_plain_tuple_and_sent_without_their_hash(program: Path) -> None:
    (states,) = {body.states for body in cfi2sframe.convert(program).section.bodies}
    assert vars(states)
    assert tuple(states) in {states: None}
    assert not vars(pickle.loads(pickle.dumps(states)))  # noqa: S301 - what this process has written


# Answers that fit a line


def test_everything_prints_in_a_line() -> None:
    image = cfi2sframe.load("/bin/ls")
    conversion = cfi2sframe.convert(image)
    section = cfi2sframe.decode(conversion.data, conversion.section_vaddr)
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
    assert texts[-1].startswith(f"<Emitted: /bin/ls with .sframe at 0x{emitted.conversion.section_vaddr:x}, ")


def test_a_conversion_says_what_it_leaves_out(program: Path) -> None:
    assert repr(cfi2sframe.convert(program)) == f"<Conversion of {program}: version 3, 1 function, 60 bytes>"
    undefined = asm.Fde(cie_of(AMD64), TEXT_VADDR, 16, (asm.undefined(16),))
    conversion = cfi2sframe.convert(cfi2sframe.load(linked_file(AMD64, (undefined,)), "p"), version=1)
    assert repr(conversion) == "<Conversion of p: version 1, 0 functions, 0 bytes, 1 FDE left out>"
    with pytest.raises(
        errors.InputError, match=r"^p: SFrame version 1 can describe none of the functions; there is no"
    ):
        cfi2sframe.verify(conversion)


def test_differences_print_as_verify_prints_them(program: Path) -> None:
    raw = RawSection((RawFunction(TEXT_VADDR),), vaddr=0x600000)
    verification = cfi2sframe.verify(program, read_section(raw.assemble(), raw.vaddr))
    assert not verification.is_clean
    assert repr(verification.differences[0]).startswith(f"0x{verification.differences[0].vaddr:x}: ")
    assert repr(verification).startswith("<Verification: ")


def test_functions_of_a_raw_section_that_an_object_does_not_have() -> None:
    """They keep the start that is in the bytes; those of the object get their addresses, each but once."""
    image = cfi2sframe.load(
        object_file(AMD64, {".text": (push_fp(AMD64, 0, 32),), ".text.b": (push_fp(AMD64, 0, 32),)})
    )
    starts = cfi2sframe.convert(image).section.starts
    raw = RawSection(tuple(RawFunction(start, 32) for start in (0, 0, 0, 64)), vaddr=0)
    assert decode_raw(image, raw.assemble(), 0).starts == (*starts, 0, 64)


# A file is converted


@pytest.mark.parametrize("call", [cfi2sframe.convert, partial(cfi2sframe.convert_file, in_place=True, replace=True)])
@pytest.mark.parametrize("version", [1, 3])
def test_errata_belong_to_version_2(call: Callable[..., object], version: int, installed: Path) -> None:
    for errata in (0, 1, 2):
        with pytest.raises(errors.RequestError, match=rf"version {version} has no errata; they belong to version 2$"):
            call(installed, version=version, errata=errata)
        call(installed, version=2, errata=errata)


def test_a_file_in_place(installed: Path) -> None:
    outcome = cfi2sframe.convert_file(installed, in_place=True)
    assert repr(outcome).startswith(f"<Outcome of {installed}: converted, ")
    assert cfi2sframe.verify(installed).is_clean
    written = installed.stat()
    assert cfi2sframe.convert_file(installed, in_place=True).status == "unchanged"
    assert installed.stat().st_mtime_ns == written.st_mtime_ns
    # The section is this program's.
    assert cfi2sframe.convert_file(installed, in_place=True, version=2).status == "converted"
    assert cfi2sframe.decode_existing(installed).version == 2


def test_a_fifo_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with pytest.raises(OSError, match="a FIFO: redirect standard input from it") as caught:
        cfi2sframe.convert_file(path, in_place=True)
    assert caught.value.filename == str(path)


@pytest.mark.parametrize("in_place", [False, True])
def test_it_is_said_what_to_write(installed: Path, in_place: bool) -> None:  # noqa: FBT001
    output = installed.with_name("new") if in_place else None
    before = installed.read_bytes()
    with pytest.raises(errors.RequestError, match=r"^convert_file takes either an output or in_place=True$"):
        cfi2sframe.convert_file(installed, output, in_place=in_place)
    assert installed.read_bytes() == before
    assert not installed.with_name("new").exists()


# Errors

each_call = pytest.mark.parametrize(
    "call",
    [
        *(cfi2sframe.load, cfi2sframe.convert, cfi2sframe.verify, cfi2sframe.decode_existing, trace.trace_core),
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


#: What takes a file.
TAKERS: Final[dict[str, Callable[[Any], object]]] = {
    "load": lambda file: cfi2sframe.load(file).header,
    "convert": lambda file: cfi2sframe.convert(file).data,
    "verify": cfi2sframe.verify,
    "decode_existing": cfi2sframe.decode_existing,
    "judge": lambda file: cfi2sframe.judge(file, cfi2sframe.decode_existing(file), "kernel", is_in_file=True),
    "find_debug_file": lambda file: cfi2sframe.find_debug_file(file, "auto"),
    "remove": lambda file: bytes(remove(file).content),
    "check_removal": lambda file: check_removal(file, bytes(remove(file).content)),
}
FORMS: Final[dict[str, Callable[[Path], Any]]] = {
    "path": Path,
    "bytes": Path.read_bytes,
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "memoryview": lambda path: memoryview(path.read_bytes()),
    "file": lambda path: path.open("rb"),
    "file in memory": lambda path: io.BytesIO(path.read_bytes()),
    "image": cfi2sframe.load,
    "chunks": lambda path: Joined([path.read_bytes()]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_file_is_taken_in_any_form(form: str, installed: Path) -> None:
    cfi2sframe.convert_file(installed, in_place=True)
    file = FORMS[form](installed)
    with file if form == "file" else nullcontext():
        for name, call in TAKERS.items():
            assert call(file) == call(str(installed)), name
        with pytest.raises(errors.ElfError, match=r"not a core file$"):
            trace.trace_core(file)


def test_what_is_read_once_may_have_been_read_before(installed: Path) -> None:
    with installed.open("rb") as file:
        file.read(100)
        assert cfi2sframe.load(file).name == str(installed)
    with pytest.raises(errors.RequestError, match=r": I/O operation on closed file\.?$"):
        cfi2sframe.load(file)


def test_what_is_no_file_is_refused_with_the_way_out(installed: Path) -> None:
    conversion = cfi2sframe.convert(installed)
    way_out = "; give a path, bytes, or a file that is open for reading bytes$"
    with installed.open(encoding="latin-1") as text:
        for wrong, what in ((3, "not a file: int"), (None, "not a file: NoneType"), (text, "the bytes of a file: str")):
            for call in (*TAKERS.values(), trace.trace_core):
                with pytest.raises(errors.RequestError, match=what + way_out):
                    call(wrong)
    calls: dict[Callable[[], object], str] = {
        lambda: cfi2sframe.decode(installed): "decode_existing takes",  # type: ignore[arg-type]
        lambda: cfi2sframe.verify(installed, conversion.data): "decode and decode_existing return",  # type: ignore[arg-type]
        lambda: cfi2sframe.judge(installed, conversion.section, "ld"): "decode and decode_existing return",  # type: ignore[arg-type]
        lambda: cfi2sframe.verify(installed, reader="kernle"): "'kernle' is none of ld-2.40, ",
        lambda: cfi2sframe.verify(conversion, reader="kernle"): "'kernle' is none of ld-2.40, ",
        lambda: cfi2sframe.account(installed): "convert returns one",  # type: ignore[arg-type]
        lambda: emit(installed): "convert returns one",  # type: ignore[arg-type]
    }
    for wrong_call, text_of_error in calls.items():
        with pytest.raises(errors.RequestError, match=text_of_error):
            wrong_call()


@pytest.mark.parametrize("path", ["a\0b", b"bytes", 3])
def test_what_is_no_path(path: Any) -> None:  # noqa: ANN401 - what a caller may pass by mistake
    for call in (
        lambda: cfi2sframe.convert_file(path, in_place=True),
        lambda: cfi2sframe.convert_file("program", "output", debug_file=path),
        lambda: trace.trace_core(b"", sysroot=path),
    ):
        with pytest.raises(errors.RequestError, match=r"^not a path: .{,9}$"):
            call()


@pytest.mark.parametrize("make", [Path, lambda path: path.with_name("link")])
def test_a_file_is_not_written_over_itself(make: Callable[[Path], Path], installed: Path) -> None:
    output, before = make(installed), installed.read_bytes()
    os.link(installed, installed.with_name("other"))
    if output != installed:
        output.symlink_to(installed)
    with pytest.raises(errors.RequestError, match=r": the output is the input file; --in-place \(in_place=True\)"):
        cfi2sframe.convert_file(installed, output)
    with pytest.raises(errors.RequestError, match=r"the output is the debug file$"):
        cfi2sframe.convert_file("/bin/true", output, debug_file=installed)
    assert (installed.read_bytes(), installed.stat().st_nlink) == (before, 2)
    # A hard link is another file.
    cfi2sframe.convert_file(installed, installed.with_name("other"))
    assert installed.read_bytes() == before


def test_bytes_have_a_name_in_errors() -> None:
    with pytest.raises(errors.NotElfError, match=r"^<bytes>: not an ELF file$"):
        cfi2sframe.load(b"text")
    with pytest.raises(errors.NotElfError, match=r"^core: not an ELF file$"):
        cfi2sframe.load(b"text", "core")
