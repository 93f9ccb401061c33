# SPDX-License-Identifier: Apache-2.0
"""What the golden objects are expected to give, and what each verb prints of a small file, as text for review.

`python -m tests.golden.expected` rewrites all. Other tests ask for kinds, places and exit statuses only.
"""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.conversion import Options
from cfi2sframe.errors import RequestError
from cfi2sframe.report.coverage_report import missing_sentences
from cfi2sframe.sframe.dump import dump_text
from cfi2sframe.sframe.read import read_section
from cfi2sframe.trace import Frame
from tests.golden.messages import text_of_messages
from tests.support import cfi_asm as asm
from tests.support.cli import run
from tests.support.raw_sframe import RawFunction, RawSection
from tests.support.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.sums import check_sums, convert_checked
from tests.support.trace.core_files import BIAS, CoreFile, Load, program, program_mappings
from tests.support.trace.core_files import TEXT_VADDR as PROGRAM_TEXT
from tests.support.trace.stacks import STACK, raw_section, words_row

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER = Path(__file__).resolve().parents[2] / "testdata" / "golden"
VERBS = FOLDER / "verbs.txt"
MESSAGES = FOLDER / "messages.txt"
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


def objects() -> list[Path]:
    """Return the golden objects."""
    return sorted(FOLDER.glob("*.o"))


def expected_path(path: Path) -> Path:
    """Return the file beside an object that holds what is expected of it."""
    return path.with_suffix(".expected")


def lines_of(path: Path) -> Iterator[str]:
    """Yield what each version makes of an object: the bytes, their meaning, and what is left out."""
    image = load(path, path.name)
    for version in (1, 2, 3):
        yield f"# {path.name}, version {version}"
        try:
            conversion = convert_checked(image, Options(version))
        except RequestError as error:
            yield f"error: {error.detail}"
            continue
        coverage = check_sums(conversion)
        for kind in ("left out", "in part"):
            of_kind = coverage._replace(missing=tuple(coverage.of_kind(kind)))
            yield from (f"{kind}: {sentence}" for sentence in missing_sentences(of_kind))
        for position in range(0, len(conversion.data), 16):
            yield f"{position:04x}  {conversion.data[position : position + 16].hex(' ')}"
        if conversion.data:
            yield from (line.rstrip() for line in dump_text(read_section(conversion.data)))


def text_of(path: Path) -> str:
    """Return the whole text for an object."""
    return "\n".join(lines_of(path)).rstrip("\n") + "\n"


def text_of_verbs() -> str:
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
    for golden in objects():
        expected_path(golden).write_text(text_of(golden))
    with TemporaryDirectory() as folder:
        os.chdir(folder)
        VERBS.write_text(text_of_verbs())
        MESSAGES.write_text(text_of_messages())
