# SPDX-License-Identifier: Apache-2.0
"""All that each verb prints of a small file; other tests ask for kinds, places and exit statuses only."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from tempfile import TemporaryDirectory

from cfi2sframe.abi import AMD64
from cfi2sframe.trace import Frame
from tests.golden.expected import FOLDER
from tests.support import cfi_asm as asm
from tests.support.cli import run
from tests.support.raw_sframe import RawFunction, RawSection
from tests.support.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.trace.core_files import BIAS, CoreFile, Load, program, program_mappings
from tests.support.trace.core_files import TEXT_VADDR as PROGRAM_TEXT
from tests.support.trace.stacks import STACK, raw_section, words_row

PATH = FOLDER / "verbs.txt"
COMMANDS = (
    "convert -v in -o out.sframe",
    "convert --strict in -o strict.sframe",
    "verify -v in out.sframe",
    "verify -v in wrong.sframe",
    "coverage in",
    "coverage --top all in",
    "coverage in object.o",
    "dump out.sframe --section-address 0x30000",
    "size in object.o",
    "audit object.o",
    "audit wrong.o",
    "convert -v --in-place object.o",
    "verify -v object.o",
    "dump object.o",
    "remove -v --in-place object.o",
    "trace core",
)


def text() -> str:
    """Return the commands, run in the current folder: what they print on either stream, and their exit statuses."""
    _write_inputs()
    lines: list[str] = []
    for command in COMMANDS:
        status, out, err = run(*command.split())
        # The program of a core is named with its folder.
        printed = out.decode().replace(f"{os.getcwd()}/", "").splitlines()
        lines += [f"$ cfi2sframe {command}", *printed, *err, *([f"exit status {status}"] if status else []), ""]
    return "\n".join(line.rstrip() for line in lines).rstrip("\n") + "\n"


def _write_inputs() -> None:
    expression = asm.def_cfa_expression(b"\x30")
    fdes = (
        *(push_fp(AMD64), push_fp(AMD64)),
        asm.Fde(cie_of(AMD64, expression), TEXT_VADDR + 0x40, 16),
        asm.Fde(cie_of(AMD64, asm.def_cfa_register(3)), TEXT_VADDR + 0x60, 16),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x80, 16, (b"\x3f",)),
        asm.Fde(cie_of(AMD64), TEXT_VADDR + 0xA0, 16, (asm.advance(4), expression)),
    )
    symbols = (asm.Symbol("f", TEXT_VADDR + 0x40, 16), asm.Symbol("g", TEXT_VADDR + 0xA0, 16))
    Path("in").write_bytes(linked_file(AMD64, fdes, symbols=symbols))
    # The CFA and the FP of the first function, and a function that CFI has not.
    wrong = RawFunction(TEXT_VADDR, 32, bytes.fromhex("00 03 08  04 05 18 f0  08 02 10"), 3)
    Path("wrong.sframe").write_bytes(RawSection((wrong, RawFunction(TEXT_VADDR + 0xC0))).assemble())
    shutil.copy(FOLDER / "amd64-push-rbp.o", "object.o")
    data = Path("object.o").read_bytes()
    # The offset of the CFA after the push: 16 becomes 24.
    assert data.count(b"\x41\x0e\x10") == 1
    Path("wrong.o").write_bytes(data.replace(b"\x41\x0e\x10", b"\x41\x0e\x18"))
    function = RawFunction(PROGRAM_TEXT, 0x10000, words_row("<", 0, (8,)), 1)
    Path("program").write_bytes(program(AMD64, raw_section(AMD64, 3, (function,))))
    stack = struct.pack("<QQ", BIAS + PROGRAM_TEXT + 0x110, 0)
    frames = ((1, Frame(BIAS + PROGRAM_TEXT + 4, STACK, 0)),)
    core = CoreFile(AMD64, frames, (Load(STACK, stack),), program_mappings(str(Path("program").resolve())))
    Path("core").write_bytes(core.assemble())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        PATH.write_text(text())
