# SPDX-License-Identifier: Apache-2.0
"""Programs of several compilers and linkers read their own note, each in another form: the search finds them all."""

from itertools import product
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe import load
from tests.support.elf.references import referrers
from tests.support.needs import Result, attempt, need
from tests.support.oracle.targets import AARCH64, S390

pytestmark = pytest.mark.oracle

SOURCE: Final = Path(__file__).parents[1] / "support/elf/reader.c"
TEXT: Final = "version 1.2.3\n"
#: What reader.c's READ means.
NOTHING, ADDRESS, EVEN_ADDRESS, PARTS, POINTER, UNALIGNED, WORD, LOOP, INDEX, SWITCH, COMPARED, CODE = range(12)
PIE: Final = ("-fPIE", "-pie")
FIXED: Final = ("-fno-pie", "-no-pie")
#: lld does not know what -no-pie of a driver means for another machine.
STATIC: Final = ("-fno-pic", "-static")
LARGE: Final = "-mcmodel=large"
RELR: Final = "-Wl,--pack-dyn-relocs=relr"
#: Code in a section without SHF_EXECINSTR, which the linker puts into the executable segment.
MIXED: Final = (*FIXED, "-Wl,-z,noseparate-code", '-DSECTION=".rodata.code,\\"a\\""')


def words(table: str, kind: str = "int", base: str = "at") -> tuple[str, ...]:
    """Return how the linker fills a table, of which the second word leads to the note, and from where."""
    return (f'-DWORDS="{table}"', f"-DWORD={kind}", f"-DBASE={base}")


def code(*lines: str) -> tuple[str, ...]:
    """Return a function that returns the note's address."""
    return ('-DSECTION=".text"', *assembled(*lines))


def assembled(*lines: str) -> tuple[str, ...]:
    return ('-DCODE="' + "\\n".join(lines) + '"',)


class Reader(NamedTuple):
    """How the note is read, options, and compilers that write it so."""

    read: int
    options: tuple[str, ...]
    compilers: str = "gcc clang aarch64 s390x"


SELF_32: Final = words(".long 0, note - .")
SELF_64: Final = words(".quad 0, note - .", "long")
SHORT: Final = words(".long 0, note", "unsigned", "0")
ADD: Final = "add x0, x0, :lo12:note"
#: An instruction that capstone does not know before the number; it never runs.
UNKNOWN: Final = "jmp 1f\\n.byte 0x62, 0xf5, 0x74, 0x48, 0x58, 0x97"
READERS: Final = {
    "relocation": Reader(POINTER, PIE),
    "relocation, not aligned": Reader(UNALIGNED, PIE),
    "RELR of GNU ld": Reader(POINTER, (*PIE, "-Wl,-z,pack-relative-relocs"), "gcc"),
    "RELR of lld": Reader(POINTER, (*PIE, RELR, "-fuse-ld=lld"), "gcc clang"),
    "RELR of mold": Reader(POINTER, (*PIE, RELR, "-fuse-ld=mold"), "gcc"),
    "address of 8 bytes": Reader(POINTER, FIXED, "gcc clang s390x"),
    "address of 8 bytes of lld": Reader(POINTER, (*STATIC, "-fuse-ld=lld"), "gcc clang aarch64-clang"),
    "address of 8 bytes, not aligned": Reader(UNALIGNED, FIXED, "gcc clang aarch64 s390x"),
    "address of 4 bytes in data": Reader(WORD, (*FIXED, *SHORT), "gcc clang aarch64 s390x"),
    "address of 4 bytes in code": Reader(ADDRESS, FIXED, "gcc clang"),
    "address of 4 bytes less 1": Reader(INDEX, (*FIXED, "-DFIRST=1"), "gcc clang"),
    "address of 4 bytes less 16": Reader(INDEX, (*FIXED, "-DFIRST=16"), "gcc clang"),
    "address of the end": Reader(LOOP, (*FIXED, "-Os"), "gcc clang"),
    "address of 8 bytes in code": Reader(ADDRESS, (*FIXED, LARGE), "gcc clang aarch64"),
    "literal of 4 bytes": Reader(CODE, (*FIXED, *code("ldr w0, =note", "ret", ".ltorg")), "aarch64"),
    "address in code that is called data": Reader(CODE, (*MIXED, *assembled("mov $note, %eax", "ret")), "gcc clang"),
    "address in what is not known": Reader(CODE, (*FIXED, *code(UNKNOWN, "1: mov $note, %eax", "ret")), "gcc"),
    "address in APX": Reader(CODE, (*FIXED, *code("jmp 1f", ".byte 0xd5, 0x10", "1: mov $note, %eax", "ret")), "gcc"),
    "distance of 4 bytes": Reader(WORD, (*PIE, *SELF_32)),
    "distance of 8 bytes": Reader(WORD, (*PIE, *SELF_64)),
    "distance of 4 bytes, lld": Reader(WORD, (*PIE, *SELF_32, "-fuse-ld=lld"), "gcc aarch64-clang"),
    "distance of 4 bytes, mold": Reader(WORD, (*PIE, *SELF_32, "-fuse-ld=mold"), "gcc"),
    "distance in an executable segment": Reader(WORD, (*FIXED, *SELF_32, "-Wl,-z,noseparate-code"), "gcc clang"),
    "distance of the table": Reader(WORD, (*PIE, *words(".long 0, note - table", "int", "table"))),
    "distance from the GOT": Reader(ADDRESS, (*PIE, LARGE), "gcc clang"),
    "distance from the GOT of gold": Reader(ADDRESS, (*PIE, LARGE, "-fuse-ld=gold"), "gcc"),
    "distance from the GOT of lld": Reader(ADDRESS, (*PIE, LARGE, "-fuse-ld=lld"), "gcc clang"),
    "distance from the GOT of mold": Reader(ADDRESS, (*PIE, LARGE, "-fuse-ld=mold"), "gcc clang"),
    "distance from the GOT, no PLT": Reader(ADDRESS, ("-fPIE", "-static-pie", LARGE, "-Wl,-z,now"), "gcc"),
    "distance from the GOT in data": Reader(ADDRESS, PIE, "s390x"),
    "distance from the instruction": Reader(ADDRESS, PIE, "gcc clang"),
    "distances of its parts": Reader(PARTS, PIE),
    "distance, immediate": Reader(COMPARED, PIE, "gcc clang aarch64"),
    "distance less 1": Reader(INDEX, (*PIE, "-DFIRST=1")),
    "distance in a loop": Reader(LOOP, (*PIE, "-Os")),
    "distance in a switch": Reader(SWITCH, PIE),
    "distance in code that is called data": Reader(CODE, (*MIXED, *assembled("lea note(%rip), %rax", "ret")), "gcc"),
    "ADR": Reader(ADDRESS, (*PIE, "-mcmodel=tiny"), "aarch64 aarch64-clang"),
    "LDR (literal)": Reader(PARTS, (*PIE, "-mcmodel=tiny"), "aarch64"),
    "ADRP": Reader(ADDRESS, PIE, "aarch64 aarch64-clang"),
    "ADRP far away": Reader(CODE, (*PIE, *code("adrp x0, note", ".rept 500", "nop", ".endr", ADD, "ret")), "aarch64"),
    "ADRP, another datum first": Reader(
        CODE,
        (*PIE, *code("adrp x0, note", "add x1, x0, 4095", ".rept 500", "mov x2, x1", ".endr", ADD, "ret")),
        "aarch64",
    ),
    "ADRP, copied": Reader(CODE, (*PIE, *code("adrp x1, note", "mov x0, x1", "mov x1, 0", ADD, "ret")), "aarch64"),
    "ADRP, stored": Reader(
        CODE,
        (*PIE, *code("adrp x1, note", "str x1, [sp, -16]!", "adrp x1, code", "ldr x0, [sp], 16", ADD, "ret")),
        "aarch64",
    ),
    "ADRP, PRFM": Reader(CODE, (*PIE, *code("adrp x0, note", "prfm 0, [x0, 64]", ADD, "ret")), "aarch64"),
    "MOVZ and MOVK": Reader(ADDRESS, (*STATIC, LARGE, "-fuse-ld=lld"), "aarch64-clang"),
    "MOVK and MOVZ": Reader(
        CODE, (*FIXED, *code("movz w0, #:abs_g1:note", "movk w0, #:abs_g0_nc:note", "ret")), "aarch64"
    ),
    "LARL": Reader(EVEN_ADDRESS, FIXED, "s390x s390x-clang"),
    "LARL of 4 KiB before": Reader(INDEX, (*FIXED, "-DFIRST=1"), "s390x-clang"),
    "LRL and others": Reader(PARTS, PIE, "s390x s390x-clang"),
    "literal of s390x": Reader(ADDRESS, FIXED, "s390x"),
}
#: What the search does not find.
LIMITS: Final = {
    "an offset that is larger than the margin": Reader(INDEX, (*FIXED, "-DFIRST=4096"), "gcc"),
    "a distance from another place": Reader(
        WORD, (*PIE, *words(".long 0, note - table + 99", "int", "((char *) table - 99)")), "gcc"
    ),
}


def compiler_of(name: str) -> tuple[list[str | Path], list[str | Path]]:
    """Return the commands that compile, and that run what was compiled."""
    machine, _, is_clang = name.partition("-")
    target = {"aarch64": AARCH64, "s390x": S390}.get(machine)
    if target is None:
        return [need(name)], []
    emulator: list[str | Path] = [target.emulator, "-L", target.sysroot]
    return [need("clang"), f"--target={target.triplet}"] if is_clang else [target.compiler], emulator


def build(compiler: str, program: Path, read: int, *options: str) -> Result:
    """Compile, and run; the result is that of the first that fails."""
    compile_, run = compiler_of(compiler)
    flags = ("-nostdlib", "-ffreestanding", "-fno-stack-protector", "-w", "-O2", f"-DREAD={read}", *options)
    done = attempt(*compile_, *flags, "-o", program, SOURCE)
    return attempt(*run, program) if done.status == 0 else done


def is_read(program: Path) -> bool:
    """Whether something refers to the note of a program."""
    image = load(program.read_bytes())
    (note,) = image.sections_named(".note.package")
    return bool(referrers(image, [(note.vaddr, note.end_vaddr)]))


def check(reader: Reader, compiler: str, folder: Path) -> None:
    for word in reader.options:
        if word.startswith("-fuse-ld="):
            need("ld." + word.partition("=")[2])
    result = build(compiler, folder / "program", reader.read, *reader.options)
    assert result == Result(0, TEXT, ""), result
    assert is_read(folder / "program")


def cases(readers: dict[str, Reader]) -> list[tuple[str, str]]:
    return [(name, compiler) for name, reader in readers.items() for compiler in reader.compilers.split()]


@pytest.mark.parametrize(("form", "compiler"), cases(READERS))
def test_a_program_that_reads_its_note(form: str, compiler: str, tmp_path: Path) -> None:
    check(READERS[form], compiler, tmp_path)


@pytest.mark.xfail(strict=True, reason="a limitation that docs/design.md names", raises=AssertionError)
@pytest.mark.parametrize(("form", "compiler"), cases(LIMITS))
def test_what_is_not_found(form: str, compiler: str, tmp_path: Path) -> None:
    check(LIMITS[form], compiler, tmp_path)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64", "s390x"])
@pytest.mark.parametrize("options", [PIE, FIXED])
def test_a_program_that_does_not_read_it(compiler: str, options: tuple[str, ...], tmp_path: Path) -> None:
    """Nothing else leads to the note, so the others are found by what they read."""
    assert build(compiler, tmp_path / "program", NOTHING, *options) == Result(0, "no version\n", "")
    assert not is_read(tmp_path / "program")


@pytest.mark.parametrize("options", [("-O0",), ("-O2",), ("-O2", *FIXED), ("-O2", "-mbranch-protection=standard")])
def test_an_ordinary_program_reads_data_on_the_page_of_its_notes(options: tuple[str, ...], tmp_path: Path) -> None:
    """Small programs of AArch64 have all of their constants there: what is added to ADRP tells them from notes."""
    compile_, run = compiler_of("aarch64")
    source, program = SOURCE.parents[1] / "placing/programs/plain.c", tmp_path / "program"
    assert attempt(*compile_, *options, "-o", program, source).status == 0
    assert attempt(*run, program).out == "789 7 4999\n"
    image = load(program)
    (note,) = image.sections_named(".note.gnu.build-id")
    assert not referrers(image, [(note.vaddr, note.end_vaddr)])


MODELS: Final = {"aarch64": ("small", "tiny", "large"), "s390x": ()}


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["gcc", "clang", "aarch64", "aarch64-clang", "s390x", "s390x-clang"])
@pytest.mark.parametrize("read", [ADDRESS, PARTS, POINTER, LOOP, INDEX, SWITCH])
def test_all_options(compiler: str, read: int, tmp_path: Path) -> None:
    """Of what builds and runs, nothing is missed."""
    machine, program, count = compiler.partition("-")[0], tmp_path / "program", 0
    linkers = {"s390x": ("",), "aarch64": ("", "lld")}.get(machine, ("", "gold", "lld", "mold"))
    models = [("-DMODEL",), *((f"-mcmodel={model}",) for model in MODELS.get(machine, ("medium", "large")))]
    modes = [PIE, ("-fPIC", "-pie"), FIXED, STATIC, ("-fPIE", "-static-pie")]
    for level, model, mode, linker in product(("-O0", "-O2", "-Os"), models, modes, linkers):
        options = (level, *model, *mode, "-DFIRST=1", *([f"-fuse-ld={linker}"] if linker else []))
        if build(compiler, program, read, *options) == Result(0, TEXT, ""):
            count += 1
            assert is_read(program), options
    assert count > len(modes)
