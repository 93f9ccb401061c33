# SPDX-License-Identifier: Apache-2.0
"""A section's life: who wrote it, which kind of file has it, which tool came in between, and what is done then.

Each cell does all of these, in the order of a user who comes back to a file: `--check` and a second conversion, another
version, `verify`, `dump`, a run of the program, and removal, twice.
"""

import shutil
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.api import decode_existing, verify
from cfi2sframe.conversion.options import Options
from cfi2sframe.jobs.records import Request
from cfi2sframe.placing.undo import original_of
from cfi2sframe.verification import READERS
from tests.support.cli import run
from tests.support.jobs import convert_one, remove_one
from tests.support.needs import attempt, need
from tests.support.oracle.gas import assembled
from tests.support.placing.embedded import KINDS, emitted, linked_program, without_section_headers, write
from tests.support.placing.rewriting import rewrite, tool

pytestmark = pytest.mark.oracle

SOURCE = """\
        .section .text.one,"axG",@progbits,one,comdat
        .weak   one
        .type   one, @function
one:    .cfi_startproc
        push    %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset 6, -16
        mov     %rsp, %rbp
        .cfi_def_cfa_register 6
        pop     %rbp
        .cfi_def_cfa 7, 8
        ret
        .cfi_endproc
        .size   one, .-one
        .text
        .globl  two
        .type   two, @function
two:    .cfi_startproc
        sub     $24, %rsp
        .cfi_def_cfa_offset 32
        call    one@PLT
        add     $24, %rsp
        .cfi_def_cfa_offset 8
        xor     %eax, %eax
        ret
        .cfi_endproc
        .size   two, .-two
        .section .note.GNU-stack,"",@progbits
"""
#: Which linker reads objects of a version.
READER_OF = {1: "ld-2.40", 2: "ld-2.45", 3: "ld"}
CALLER = "int two(void);\nint main(void) { return two(); }\n"

#: Who writes the section of an object: an assembler, or this program for a version.
Producer = Literal["as 2.40", "as 2.44", "as newest", "llvm-mc", "ld -r", "ours 1", "ours 2", "ours 3"]
OBJECT_PRODUCERS: tuple[Producer, ...] = (
    "as 2.40", "as 2.44", "as newest", "llvm-mc", "ld -r", "ours 1", "ours 2", "ours 3",
)  # fmt: skip
#: In linked files: GNU ld's merge of such objects, lld's concatenation, mold's merge, or this program.
LINKED_PRODUCERS = ("ld 2.44", "ld newest", "lld", "mold", "ours 1", "ours 2", "ours 3")
LINKED_KINDS = ("pie", "nopie", "static", "library", "no section headers")
PATCHELF = "machine patchelf --set-rpath /opt/lib --output OUT IN"
#: What is done to the file: a command, nothing, or LIEF, which is a library.
TOOLS = (
    "none",
    "2.40 strip -o OUT IN",
    "2.44 strip -o OUT IN",
    "newest strip -o OUT IN",
    "2.40 strip -g -o OUT IN",
    "newest strip -g -o OUT IN",
    "2.40 objcopy IN OUT",
    "newest objcopy IN OUT",
    "machine llvm-objcopy IN OUT",
    "machine llvm-strip -o OUT IN",
    "machine eu-strip -o OUT IN",
    PATCHELF,
    "lief",
)


class Life(NamedTuple):
    """A file with a section, before and after a tool; `original`: what it was before this program inserted it."""

    path: Path
    version: int
    original: bytes | None = None


def of_gas(version: str, folder: Path) -> Path:
    return assembled(SOURCE, folder, tool(version, "as"), "--gsframe")


def object_of(producer: Producer, folder: Path) -> Life:
    who, _, version = producer.partition(" ")
    if who == "as":
        path = of_gas(version, folder)
    elif producer == "ld -r":
        path = folder / "r.o"
        assert attempt(tool("newest", "ld"), "-r", "-o", path, of_gas("newest", folder)).status == 0
    elif who == "llvm-mc":
        words = ("-filetype=obj", "-triple=x86_64-linux-gnu", "--gsframe")
        path = assembled(SOURCE, folder, tool("newest", "llvm-mc"), *words)
    else:
        path = assembled(SOURCE, folder, tool("2.40", "as"))
        original = path.read_bytes()
        section_type = READERS[READER_OF[int(version)]].section_type
        path.write_bytes(emitted(convert(load(path), version=int(version)), section_type))
        return Life(path, int(version), original)
    return Life(path, decode_existing(path).version)


def linked_of(producer: str, kind: str, folder: Path) -> Life:
    who, _, version = producer.partition(" ")
    path = folder / "program"
    flags = {"library": ("-shared", "-fPIC"), **KINDS}.get(kind, ())
    if who == "ours":
        data = linked_program(kind=kind).read_bytes() if kind in KINDS else b""
        if kind == "library":
            source = source_in(folder, "int two(void) { return 0; }\n")
            assert attempt("gcc", "-O1", *flags, "-o", path, source).status == 0
            data = path.read_bytes()
        elif kind == "no section headers":
            data = without_section_headers(linked_program().read_bytes())
        write(path, emitted(convert(load(data), version=int(version))))
        return Life(path, int(version), data)
    if kind == "no section headers":
        pytest.skip("no linker writes a section into such a file")
    use = [f"-fuse-ld={'bfd' if who == 'ld' else who}"]
    if who == "lld":
        need("ld.lld")
    else:
        use.append(f"-B{Path(tool(version or 'newest', who)).parent}")
    made = of_gas(version if who == "ld" else "newest", folder)
    inputs = [made] if kind == "library" else [made, source_in(folder, CALLER)]
    done = attempt("gcc", "-O1", *use, *flags, "-o", path, *inputs)
    assert done.status == 0, done
    assert load(path).has_sframe
    return Life(path, decode_existing(path).version)


def source_in(folder: Path, text: str) -> Path:
    path = folder / "main.c"
    path.write_text(text)
    return path


def through(command: str, path: Path) -> bool:
    """Apply a tool to a file; whether it can."""
    if command == "none":
        return True
    target = path.with_suffix(".out")
    succeeds = rewritten_by_lief(path, target) if command == "lief" else rewrite(command, path, target)
    if not succeeds or target.read_bytes()[:4] != b"\x7fELF":
        return False
    shutil.move(target, path)
    return True


def rewritten_by_lief(path: Path, target: Path) -> bool:
    lief = pytest.importorskip("lief", reason="no lief: make modules")
    binary = lief.parse(str(path))
    if not load(path).is_relocatable:
        binary.add(lief.ELF.DynamicEntryRunPath("/opt/lib"))
    binary.write(str(target))
    target.chmod(path.stat().st_mode)
    return True


def live(life: Life, command: str) -> None:
    """Do all that is done to a file, and see that each step holds."""
    path = life.path
    runs = attempt(path).status == 0 if load(path).header.type == 3 and path.name == "program" else None
    if not through(command, path):
        if life.original is not None:
            write(path, life.original)
            assert not through(command, path)
        pytest.skip("the tool refuses this file, and the original")
    assert load(path).has_sframe
    data = path.read_bytes()
    is_known = original_of(data) is not None
    if load(data).is_relocatable and "strip" in command and "-g" not in command:
        pytest.skip("strip without -g takes the relocations out of an object, so nothing is at an address")
    reader = READER_OF[life.version] if load(data).is_relocatable else None
    same = Request(Options(life.version), reader)
    # A second conversion: nothing to do for what this program wrote; --check and the run agree.
    for wanted in (same, Request(Options(3 if life.version < 3 else 2))):
        request = wanted
        path.write_bytes(data)
        told, done = (convert_one(path, request._replace(only_checks=checks)) for checks in (True, False))
        assert told.status.replace("would convert", "converted") == done.status, (told, done)
        if "use --replace" in done.reason:
            # After the tool, nothing tells that it is this program's; version 2 cannot say all that version 3 can.
            assert not (is_known and life.original is not None)
            request = request._replace(replaces=True)
            done = convert_one(path, request)
        if "strip the file first" in done.reason:
            assert path.read_bytes() == data
            continue
        assert done.status in ("converted", "unchanged"), done
        if wanted is same and life.original is not None and command != PATCHELF:
            assert done.status == "unchanged", done
        assert convert_one(path, request).status == "unchanged"
        assert verify(path).is_clean
        if runs is not None:
            assert attempt(path).status == 0 or not runs
    # What was there can be read, and removed: a second removal does nothing.
    path.write_bytes(data)
    assert run("dump", path, "-o", path.with_suffix(".txt")).status == 0
    assert remove_one(path).status == "removed"
    assert not load(path).has_sframe
    bare = path.read_bytes()
    assert remove_one(path).status == "unchanged"
    assert path.read_bytes() == bare
    if runs:
        assert attempt(path).status == 0


@pytest.mark.parametrize("command", TOOLS)
@pytest.mark.parametrize("producer", OBJECT_PRODUCERS)
def test_life_of_an_object(producer: Producer, command: str, tmp_path: Path) -> None:
    need("gcc")
    life = object_of(producer, tmp_path)
    live(life, command)
    # GNU ld takes what is left.
    assert attempt("gcc", "-o", tmp_path / "linked", life.path, source_in(tmp_path, CALLER)).status == 0
    assert attempt(tmp_path / "linked").status == 0


@pytest.mark.parametrize("command", TOOLS)
@pytest.mark.parametrize("kind", LINKED_KINDS)
@pytest.mark.parametrize("producer", LINKED_PRODUCERS)
def test_life_of_a_linked_file(producer: str, kind: str, command: str, tmp_path: Path) -> None:
    need("gcc", "g++")
    live(linked_of(producer, kind, tmp_path), command)
