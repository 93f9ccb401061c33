# SPDX-License-Identifier: Apache-2.0
"""Command lines, right and wrong ones: what they print, and which files they change.

Each line of `SESSIONS` runs in a folder of its own.
`python -m tests.golden.expected` rewrites `messages.txt`; whoever reviews its difference sees what a user will see.
"""

import os
import re
import shutil
import struct
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from unittest.mock import patch

from cfi2sframe.abi import AMD64, S390X, Arch
from cfi2sframe.trace import Frame
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import (
    CODE,
    FRAME_VADDR,
    SHF_ALLOC,
    TEXT_VADDR,
    cie_of,
    linked_file,
    object_file,
    push_fp,
)
from tests.support.jobs import OBJECT, OF_32_BITS, TRUNCATED, WITHOUT_CFI, object_of, object_with_gap
from tests.support.sframe.raw_sframe import RawFunction, RawSection
from tests.support.trace.core_files import BIAS, CoreFile, Load, program_mappings
from tests.support.trace.core_files import TEXT_VADDR as PROGRAM_TEXT
from tests.support.trace.core_files import program as traced_program
from tests.support.trace.stacks import STACK, raw_section, words_row

#: Lines of commands; those joined by "&&" run in one folder, one after the other whatever their exit statuses.
SESSIONS: Final = """\
# What the verbs print
convert -v in -o out.sframe && verify -v in out.sframe && dump out.sframe --section-address 0x30000
convert --strict in -o strict.sframe
verify -v in wrong.sframe
coverage in && coverage --top all in && coverage in object.o
size in object.o
audit object.o && audit wrong.o
convert -v --in-place object.o && verify -v object.o && dump object.o && remove -v --in-place object.o
trace core --sysroot .

# Words that are no files
removee --in-place prog
Verify prog
help
--in-place dmup prog
--in-place verify prog
pgro --in-place prog
./pgro -o out
-q --color never verify with
--in-place prog --dry-run
verify prog --would
verify --json prog
coverage -r tree
prog -o out --stric
verify
dump
coverage
size
audit
trace

# What contradicts itself
prog
remove prog
--in-place
remove --in-place
prog obj.o -o out
remove prog -o out obj.o
prog -o out --in-place
remove prog -o out --check
prog -o prog
prog -o ./prog
prog -o tree/../prog
prog -o link
prog -o out -r
remove prog -o out -r
prog -o out --files-from list
prog -o out -j 2
prog -o - --report -
remove with -o out --report report
--in-place prog --exclude x
remove --in-place prog --exclude x
prog - --in-place
prog obj.o --in-place --errata 1
prog -o out --sframe-version 4
prog -o out -O s
prog -o out --fail-under 101
prog -o out.sframe --section-address high
prog -o out.sframe --section-address 0x10000000000000000
prog --check --section-address 4096
prog -o out --section-address 4096
prog -o out.sframe --replace
prog -o out.sframe --no-verify
prog -o out.sframe --sframe-version 2 --section-address 0x100000000
prog --in-place -j 0
s390x.so -o out --sframe-version 1
prog -o out --from debug_frame
prog -o out --for glibc --sframe-version 3
prog -o out --for glibc --errata 0
verify with raw.sframe --would-be
verify raw.sframe with
verify with --section-address 0
dump with --section-address 0
trace core --pid 1
trace --pid 1 --executable prog
size --compare tree tree prog
size --compare tree
size prog --top -1
size prog --format xml
dump with -o out.csv
size prog -o out.PDF

# Outputs that must not be, or cannot be written
--in-place prog --report prog
remove --in-place with --report with
prog -o out --report out
verify with --report ./with
coverage prog -o link
--in-place prog --report no/file
prog -o no/file
prog -o tree
prog -o tree/
prog -o to-tree
prog -o new/
prog -o obj.o/
prog -o obj.o/out
prog -o loop
coverage prog -o no/file
prog -o /dev/full
prog -o /dev/null
remove with -o no/file

# Files that cannot be used
missing -o out
tree -o out
tree --in-place
--in-place tree /dev/null /dev/full missing obj.o
remove --in-place tree /dev/null /dev/full missing objs.o
script -o out
foreign -o out
nocfi.o -o out
cut -o out
empty -o out
riscv.o -o out
noheaders -o out
cutcfi -o out
lib.a --in-place
packed.deb --in-place
damaged --in-place
dump damaged
verify damaged
verify prog
remove prog --in-place
dump prog
dump raw.sframe prog
dump rawcut
verify prog rawcut
verify tree
dump tree
--in-place --files-from lines
--in-place --files-from prog
--in-place --files-from missing
obj.o -o out --for kernel
prog -o out --for ld
prog -o out --for kernel-arm64
s390x.so -o out --for glibc
coverage missing script prog
size missing script
size prog script -o out.json
verify prog --for kernel
verify prog script
trace script

# One file
convert dump -o out && ./dump -o out
prog -o out && prog -o out -v
prog -o out.sframe -v && verify -v prog out.sframe
prog --in-place -v && prog --in-place -v && remove prog --in-place -v && remove prog --in-place
prog --check && prog --check -v && --in-place prog && --check -v prog
with2 --in-place && with2 --in-place --replace && with2 --in-place
remove with -o out -v && remove with --check -v
gap.o -o out && gap.o -o out -v && two.o -o out -v
gap.o -o out --strict && gap.o -o out --fail-under 99
gaps.o -o out.sframe && gaps.o -o out.sframe -v
none.o -o out.sframe && none.o -o out && none.o --in-place && none.o --check
badfde.so -o out.sframe && badfde.so -o out.sframe --strict

# Verification
verify -v with && verify -v --would-be prog gap.o none.o
verify with --for kernel --for glibc && verify with --for kernel --report -
verify --would-be prog --for glibc --for glibc --for ld && verify --would-be prog --for kernel
verify stripped --report - && verify stripped --for libsframe
verify -v tree && --in-place -r tree && verify -v tree
verify -v --would-be tree missing --exclude c* --files-from list

# Several files
obj.o --in-place gap.o -j 2 two.o
--in-place prog obj.o gap.o && --in-place -v prog obj.o gap.o
--in-place missing cut gap.o prog && --in-place --strict gap.o cut && --in-place --strict gap.o prog
--in-place -v hard1 prog hard2
--in-place --files-from list && --check --files-from list script && --in-place --files-from empty
--check -v --files-from list
-r --in-place tree && -r --in-place -v tree && remove -r --in-place tree && remove -r --in-place -v tree
-r --in-place -v --for ld tree && remove -r --check -v tree
-r --check -v --exclude lib tree && -r --check --exclude pro* --exclude l*/crt1.o --for ld tree
-r --in-place -v tree tree/lib/crt1.o
-r --in-place many && -r --in-place --for ld many
remove --in-place with prog objs.o
-r --check tree/lib --report -
remove -r --check tree --report -
"""
FOLDER: Final = Path(__file__).resolve().parents[2] / "testdata" / "golden"
LIST: Final = ("prog", "obj.o", "script", "nocfi.o", "gap.o")


def program_of(*fdes: asm.Entry, arch: Arch = AMD64, more: tuple[asm.Section, ...] = ()) -> bytes:
    """Return a library that has room for another program header."""
    is_little = arch.byte_order == "<"
    frame = asm.EhFrame((*fdes, asm.Terminator()), FRAME_VADDR, little_endian=is_little).assemble()
    sections = (
        asm.Section(".eh_frame", frame, 1, SHF_ALLOC, FRAME_VADDR, align=8),
        asm.Section(".text", bytes(0x1000), 1, CODE, TEXT_VADDR, align=16),
        *more,
    )
    segments = (asm.Segment(1, 4, (".eh_frame",), headers=True), asm.Segment(1, 5, (".text",)))
    spare = (asm.Segment(0, 0, (".text",)),) * 2
    return asm.elf_file(arch.elf_machine, sections, file_type=3, little_endian=is_little, segments=(*segments, *spare))


def verbs_files() -> dict[str, bytes]:
    """Return files of which each verb has something to tell."""
    expression = asm.def_cfa_expression(b"\x30")
    fdes = (
        *(push_fp(AMD64), push_fp(AMD64)),
        asm.Fde(cie_of(AMD64, expression), TEXT_VADDR + 0x40, 16),
        asm.Fde(cie_of(AMD64, asm.def_cfa_register(3)), TEXT_VADDR + 0x60, 16),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x80, 16, (b"\x3f",)),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0xA0, 16, (asm.advance(4), expression)),
    )
    symbols = (asm.Symbol("f", TEXT_VADDR + 0x40, 16), asm.Symbol("g", TEXT_VADDR + 0xA0, 16))
    # The CFA and the FP of the first function, and a function that CFI has not.
    wrong = RawFunction(TEXT_VADDR, 32, bytes.fromhex("00 03 08  04 05 18 f0  08 02 10"), 3)
    data = (FOLDER / "amd64-push-rbp.o").read_bytes()
    # The offset of the CFA after the push: 16 becomes 24.
    assert data.count(b"\x41\x0e\x10") == 1
    function = RawFunction(PROGRAM_TEXT, 0x10000, words_row("<", 0, (8,)), 1)
    stack = struct.pack("<QQ", BIAS + PROGRAM_TEXT + 0x110, 0)
    frames = ((1, Frame(BIAS + PROGRAM_TEXT + 4, STACK, 0)),)
    return {
        "in": linked_file(AMD64, fdes, symbols=symbols),
        "wrong.sframe": RawSection((wrong, RawFunction(TEXT_VADDR + 0xC0))).assemble(),
        "object.o": data,
        "wrong.o": data.replace(b"\x41\x0e\x10", b"\x41\x0e\x18"),
        "traced": traced_program(AMD64, raw_section(AMD64, 3, (function,))),
        "core": CoreFile(AMD64, frames, (Load(STACK, stack),), program_mappings("traced")).assemble(),
    }


def fill() -> None:
    """Write the files of a session into the current folder."""
    expression = cie_of(AMD64, asm.def_cfa_expression(b"\x30"))
    program = program_of(push_fp(AMD64))
    bad = asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x40, 16, (b"\x3f",))
    section = RawSection((RawFunction(TEXT_VADDR, 32, bytes.fromhex("00 03 08  04 05 10 f0  08 04 10 f0"), 3),))
    small = asm.Fde(expression, 0, 4)
    names = (asm.Symbol("f", 0, 4, section=".text"), asm.Symbol("g", 0, 4, section=".text.unlikely"))
    gaps = [asm.Fde(expression, 64 + 16 * number, 8) for number in range(20)]
    sframe = asm.Section(".sframe", section.assemble(), 0x6FFFFFF4, 2, section.vaddr, align=8)
    wrong = sframe._replace(data=section._replace(functions=(RawFunction(TEXT_VADDR, 16),)).assemble())
    files = {
        **verbs_files(),
        "prog": program,
        "s390x.so": program_of(push_fp(S390X), arch=S390X),
        "badfde.so": program_of(push_fp(AMD64), bad),
        "stripped": program_of(more=(sframe,)),
        "damaged": program_of(push_fp(AMD64), more=(wrong,)),
        "obj.o": OBJECT,
        "gap.o": object_with_gap(),
        "two.o": object_file(AMD64, {".text": (small, push_fp(AMD64, 8)), ".text.unlikely": (small,)}, symbols=names),
        "dump": program,
        "gaps.o": object_file(AMD64, {".text": (push_fp(AMD64, 0), *gaps)}, code_size=0x1000),
        "none.o": object_file(AMD64, {".text": (asm.Fde(expression, 0, 8),)}),
        "nocfi.o": WITHOUT_CFI,
        "foreign": OF_32_BITS,
        "cut": TRUNCATED,
        "riscv.o": asm.elf_file(243, (asm.Section(".text", b"\x13\0\0\0", 1, 6),)),
        "noheaders": program[:-8],
        "cutcfi": program_of(push_fp(AMD64), asm.Raw(b"\xff\xff\0\0")),
        "script": b"#!/bin/sh\n",
        "empty": b"",
        "packed.deb": b"!<arch>\ndebian-binary   ",
        "lib.a": b"!<arch>\n" + b"member.o/".ljust(16) + b"0 0 0 644 4".ljust(42) + b"`\nbody",
        "raw.sframe": section.assemble(),
        "rawcut": section.assemble()[:20],
        "list": b"".join(name.encode() + b"\0" for name in LIST),
        "lines": b"prog\nobj.o\n",
        "tree/bin/prog": program,
        "tree/bin/script": b"#!/bin/sh\n",
        "tree/lib/crt1.o": OBJECT,
        "tree/lib/debug": linked_file(AMD64, (push_fp(AMD64),)),
        "tree/lib/foreign.so": OF_32_BITS,
        "tree/lib/no.so": program_of(),
        "tree/lib/cut.so": TRUNCATED,
        **{f"many/{number:02}.so": TRUNCATED + bytes(number) for number in range(12)},
        **{f"many/{number:02}.o": object_with_gap() for number in range(12)},
        "many/other.o": object_of(2),
    }
    for name, data in files.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
    for words in ("prog -o with", "prog -o with2 --sframe-version 2", "obj.o -o objs.o"):
        done = run(*words.split())
        assert done.status == 0, done
    for name, target in (("link", "prog"), ("to-tree", "tree"), ("loop", "loop")):
        os.symlink(target, name)
    Path("hard1").write_bytes(program)
    os.link("hard1", "hard2")


def text_of_messages() -> str:
    """Return the sessions with what they print, and the files that are then others than before."""
    lines: list[str] = []
    with TemporaryDirectory() as name, patch.dict(os.environ, COLUMNS="80"):
        full, folder = Path(name, "full"), Path(name, "folder")
        full.mkdir()
        os.chdir(full)
        fill()
        given = _contents()
        for session in SESSIONS.splitlines():
            if not session or session.startswith("#"):
                lines.append(session)
                continue
            if not folder.exists():
                shutil.copytree(full, folder, symlinks=True)
                folder.joinpath("hard2").unlink()
                os.link(folder / "hard1", folder / "hard2")
            os.chdir(folder)
            before = _state()
            lines += _lines_of(session, given)
            if _state() != before:
                os.chdir(name)
                shutil.rmtree(folder)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _lines_of(session: str, before: dict[str, bytes]) -> Iterator[str]:
    """Yield what the commands of a session print in the current folder, whose files have these contents."""
    for command in session.split(" && "):
        state = _state()
        status, out, err = run(*command.split())
        yield f"$ cfi2sframe {command}"
        yield from out.decode().replace(f"{os.getcwd()}/", "").splitlines()
        for line in err:
            timeless = re.sub(r"\d+\.\d s$", "0.0 s", line.replace(f"{os.getcwd()}/", ""))
            # Releases of argparse differ in what they quote.
            yield timeless.replace("'", "") if "invalid choice" in line else timeless
        if status:
            yield f"exit status {status}"
        after = before if _state() == state else _contents()
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        if changed:
            yield f"written: {', '.join(changed)}"
        before = after
    yield ""


def _state() -> dict[Path, tuple[int, ...]]:
    """Return what shows whether anything has been written in the current folder."""
    found = {path: path.lstat() for path in Path().rglob("*")}
    return {path: (each.st_ino, each.st_mode, each.st_mtime_ns, each.st_ctime_ns) for path, each in found.items()}


def _contents() -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in Path().rglob("*") if path.is_file()}
