# SPDX-License-Identifier: Apache-2.0
"""What pipelines do to a file afterwards: it runs, and `.sframe` is mapped with the same bytes."""

import shutil
from itertools import product
from pathlib import Path

import pytest

from cfi2sframe import load, verify
from cfi2sframe.constants.elf import PF_W, PT_GNU_SFRAME
from tests.support.elf.edit import File
from tests.support.needs import attempt, need, run
from tests.support.placing.embedded import (
    KINDS,
    LARGE,
    LINKERS,
    SMALL,
    SOURCES,
    checksum,
    compiled,
    converted,
    embed,
    linked_of,
    linked_program,
    mapped,
    round_trip,
    sframe,
    take_out,
    without_record,
    without_section_headers,
    write,
)
from tests.support.placing.rewriting import rewrite

pytestmark = pytest.mark.oracle


_GNU = ("strip -o OUT IN", "strip -g -o OUT IN", "objcopy IN OUT")
SET_RPATH = "machine patchelf --set-rpath /opt/some/rather/long/directory/of/libraries --output OUT IN"
COMMANDS = (
    *(f"{version} {command}" for version in ("2.40", "2.44", "newest") for command in _GNU),
    "machine eu-strip -o OUT IN",
    "machine eu-strip -g -o OUT IN",
    "machine eu-strip -f OUT.debug -o OUT IN",
    "machine llvm-strip -o OUT IN",
    "machine llvm-objcopy IN OUT",
    "machine llvm-objcopy --strip-all IN OUT",
    SET_RPATH,
    "machine patchelf --set-interpreter /lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --output OUT IN",
)
#: patchelf puts a growing .dynamic of a program at fixed addresses into room after the program headers, and that is
#: read-only: the program crashes. Where .dynsym moved away there is such room.
PATCHELF_WRONG = "patchelf writes .dynamic into a read-only segment when there is room after the program headers"


@pytest.mark.parametrize("link", [*product(LINKERS, ("pie", "nopie"))], ids="-".join)
def test_a_section_is_right_after_section_headers_are_gone(link: tuple[str, str]) -> None:
    """The dynamic symbols have moved; their hash table tells what of them refers to padding."""
    assert verify(load(without_section_headers(converted(linked_program(*link).read_bytes())))).is_clean


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("link", [*product(LINKERS, KINDS)])
@pytest.mark.parametrize("variant", ["plain", "noseparate"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_survives(
    tmp_path: Path, request: pytest.FixtureRequest, link: tuple[str, str], variant: str, size: int, command: str
) -> None:
    linker, kind = link
    original = linked_program(linker, kind, variant)
    plain, converted, changed = (tmp_path / name for name in ("plain", "converted", "changed"))
    if not rewrite(command, original, plain) or attempt(plain) != attempt(original):
        pytest.skip("the unmodified file does not survive this either")
    plan = embed(original, converted, size)
    dynsym_moved = ".dynsym" in plan.moved and linker != "mold"
    if command == SET_RPATH and kind == "nopie" and dynsym_moved:
        request.applymarker(pytest.mark.xfail(reason=PATCHELF_WRONG, strict=True))
    assert rewrite(command, converted, changed)
    assert attempt(changed) == attempt(original)
    assert mapped(changed) == [("main", size, checksum(sframe(size)))]
    # It works without its section, too.
    assert attempt(write(tmp_path / "removed", take_out(changed.read_bytes()))) == attempt(original)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pie", "nopie"])
def test_separate_debug_files(tmp_path: Path, kind: str) -> None:
    """With debug files from before and after the conversion, gdb works; eu-unstrip joins those from after it."""
    need("gdb", "eu-unstrip", "objcopy")
    original = linked_program("bfd", kind, "debug")
    converted, stripped, linked, debug = (tmp_path / n for n in ("converted", "stripped", "linked", "linked.debug"))
    embed(original, converted, LARGE)
    for source in (original, converted):
        debug.unlink(missing_ok=True)
        assert attempt("objcopy", "--only-keep-debug", source, debug).status == 0
        assert attempt("objcopy", "--strip-debug", f"--add-gnu-debuglink={debug}", converted, stripped).status == 0
        shutil.move(stripped, linked)
        assert attempt(linked) == attempt(original)
        commands = ["-ex", "break thrower", "-ex", "run", "-ex", "bt 3"]
        session = attempt("gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *commands, linked)
        assert "#0  thrower (depth=" in session.out
        assert "program.cpp" in session.out
    joined = attempt("eu-unstrip", "-o", tmp_path / "joined", linked, debug)
    assert joined.status == 0, joined
    assert mapped(tmp_path / "joined") == [("main", LARGE, checksum(sframe(LARGE)))]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_a_section_that_nothing_loads(size: int, tmp_path: Path) -> None:
    """As objcopy adds it with the flag `alloc`, before the conversion and after it: no segment has it."""
    need("objcopy")
    content = tmp_path / "content"
    content.write_bytes(b"content")
    adding = ("--add-section", f".added={content}", "--set-section-flags", ".added=alloc,readonly,data")
    original, full, both, bare = (tmp_path / name for name in ("original", "full", "both", "bare"))
    run("objcopy", *adding, linked_program(), original)
    embed(original, full, size)
    assert attempt(full) == attempt(original)
    assert take_out(full.read_bytes()) == original.read_bytes()
    embed(linked_program(), full, size)
    run("objcopy", *adding, full, both)
    write(bare, take_out(both.read_bytes()))
    for path in (both, bare):
        assert attempt(path) == attempt(original)
        (added,) = load(str(path)).sections_named(".added")
        assert load(str(path)).section_bytes(added) == b"content"


def test_data_whose_large_page_has_another_segment(tmp_path: Path) -> None:
    """Which patchelf has put there: allocators take the rest of a page of the kernel, not of the linker."""
    need("patchelf")
    original = compiled("program.cpp", "-fuse-ld=bfd", "-Wl,-z,max-page-size=0x200000")
    changed, converted = tmp_path / "changed", tmp_path / "converted"
    assert rewrite(SET_RPATH, original, changed)
    embed(changed, converted, LARGE)
    assert take_out(converted.read_bytes()) == changed.read_bytes()


def test_a_section_comes_back_after_patchelf_and_removal(tmp_path: Path) -> None:
    """Its old place is in the middle then, and patchelf has left PT_GNU_PROPERTY over its own program headers."""
    need("patchelf")
    original = linked_program(variant="debug")
    converted, changed, again = (tmp_path / name for name in ("converted", "changed", "again"))
    embed(original, converted, LARGE)
    assert rewrite("machine patchelf --add-needed libdl.so.2 --output OUT IN", converted, changed)
    plan = embed(write(tmp_path / "bare", take_out(changed.read_bytes())), again, LARGE)
    assert [plan.section_vaddr] == [s.vaddr for s in load(converted).segments if s.type == PT_GNU_SFRAME]
    assert attempt(again) == attempt(original)
    assert mapped(again) == [("main", LARGE, checksum(sframe(LARGE)))]


def test_a_section_that_crosses_into_the_next_segment(tmp_path: Path) -> None:
    """So patchelf 0.14 leaves .dynsym where a program at fixed addresses has many symbols."""
    need("patchelf")
    functions = "".join(
        f"int a_function_with_the_number_{number}(void) {{ return {number}; }}\n" for number in range(60)
    )
    source = f"{functions}int main(void) {{ return a_function_with_the_number_3(); }}"
    original = linked_of(tmp_path, source, "-no-pie", "-rdynamic", "-s")
    changed, converted = tmp_path / "changed", tmp_path / "converted"
    assert rewrite(SET_RPATH, original, changed)
    image = load(changed)
    (symbols,) = image.sections_named(".dynsym")
    if image.segment_map.load_of(symbols.vaddr, symbols.size) is not None:
        pytest.skip("this patchelf gives .dynsym a segment")
    embed(changed, converted, LARGE)
    assert attempt(converted) == attempt(original)
    assert take_out(converted.read_bytes()) == changed.read_bytes()


def test_section_headers_that_are_mapped(tmp_path: Path) -> None:
    """So patchelf 0.19 leaves them in position-independent programs: what removal changes there, no loader reads."""
    program = linked_of(tmp_path, "volatile char room[8192] = {1}; int main(void) { return room[0]; }")
    file = File(without_record(converted(program.read_bytes())))
    start, size = file.header.shoff, 64 * file.header.shnum
    place = file.index(b"\1" + bytes(8191)) // 8 * 8 + 64
    # As patchelf leaves them, they are in no section.
    data = file.section(".data")
    data.size = place - data.offset
    file[place : place + size] = file[start : start + size]
    file.header.shoff = place
    del file[start:]
    bare = write(tmp_path / "bare", take_out(bytes(file)))
    assert not load(bare).has_sframe
    assert attempt(bare).status == attempt(program).status == 1


def test_a_writable_segment_grows_within_its_page(tmp_path: Path) -> None:
    """It has the program headers, as patchelf 0.19 leaves them; an allocator takes what is left of the page then."""
    script = SOURCES / "writable_first.ld"
    original = linked_of(tmp_path, "int main(void) { return 3; }", "-no-pie", f"-Wl,-T,{script}")
    round_trip(original, tmp_path, SMALL)
    before, after = (load(path).loads[0] for path in (original, tmp_path / "converted"))
    assert before.flags & PF_W
    assert before.end_vaddr < after.end_vaddr <= before.vaddr + 4096
