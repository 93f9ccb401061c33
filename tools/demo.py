#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Show a conversion from start to end: convert a program of this machine, verify it, and look into its section.

demo.py [FILE]      (default: python3, bash or sh of this machine)  -> build/demo/NAME.sframe
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from cfi2sframe import Lookup, decode, load
from cfi2sframe.conversion import default_section_vaddr
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import describe_rule
from cfi2sframe.sframe.dump import row_texts
from cfi2sframe.sframe.lookup import row_at
from cfi2sframe.sources import find_cfi

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection

ROOT = Path(__file__).resolve().parents[1]
CANDIDATES = ("/usr/bin/python3", "/bin/bash", "/bin/sh", sys.executable)
#: Well-known functions of python, bash and dash.
WELL_KNOWN = ("Py_RunMain", "Py_BytesMain", "Py_NewInterpreter", "main", "execute_command", "parse_command")
MAX_COVERAGE_LINES = 40


def heading(text: str) -> None:
    """Print a heading, in bold where a terminal shows it."""
    print()
    print(f"\033[1m{text}\033[0m" if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else text)


def find_program() -> Path:
    """Return a program of this machine; ends the script when there is none."""
    for candidate in CANDIDATES:
        path = Path(candidate).resolve()
        if path.is_file():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    return path
    sys.exit("demo: no ELF program among " + ", ".join(CANDIDATES))


def run(*arguments: str | Path) -> tuple[str, float]:
    """Run the command line, show the command, and return what it printed and how many seconds it took."""
    words = [str(argument) for argument in arguments]
    print(f"  $ cfi2sframe {shlex.join(words)}")
    begin = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "cfi2sframe", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])},
    )
    if done.returncode:
        print(done.stdout)
        sys.exit(f"demo: exit status {done.returncode}")
    return done.stdout, time.monotonic() - begin


def show(text: str, limit: int = 12) -> None:
    """Print a command's output, shortened, without the program's name before each line."""
    lines = text.splitlines()
    for line in lines[:limit]:
        print(f"  {line.removeprefix('cfi2sframe: ')}")
    if len(lines) > limit:
        print(f"  ... {len(lines) - limit} more lines")


def pick_function(
    image: ElfImage, entries: Iterable[CfiEntry], section: DecodedSection
) -> tuple[str, CfiEntry, DecodedFunction]:
    """Return a function to look at, by name: a well-known one, or one with some rows."""
    lookup = Lookup(section)
    names = image.names_of(entry.fde.pc_begin_vaddr for entry in entries)
    by_name: dict[str, tuple[CfiEntry, DecodedFunction]] = {}
    for entry in entries:
        found = lookup.find(entry.fde.pc_begin_vaddr)
        if found is not None and 4 <= len(found.function.rows) <= 16:
            name = names.get(entry.fde.pc_begin_vaddr, f"function at 0x{entry.fde.pc_begin_vaddr:x}")
            by_name[name] = (entry, found.function)
    if not by_name:
        sys.exit("demo: no function of a size to show")
    name = next((name for name in WELL_KNOWN if name in by_name), min(by_name))
    return name, *by_name[name]


def show_side_by_side(image: ElfImage, path: Path) -> None:
    """Print the rows of one function, DWARF's beside those of the section just written."""
    section = decode(path.read_bytes(), default_section_vaddr(image))
    arch = image.arch
    entries = read_programs(image, find_cfi(image)).entries
    name, entry, function = pick_function(image, entries, section)
    start = entry.fde.pc_begin_vaddr
    heading(f"4. One function, {name}: DWARF's rows and SFrame's")
    count = len(entry.fde.instructions)
    print(f"  {entry.fde.pc_range:,} bytes from 0x{start:x}. {count} bytes of instructions to interpret")
    print(f"  became {function.rows_size} bytes of rows to search: each has a start, and offsets for CFA and FP.")
    print()
    print(f"  {'PC':<10}{'DWARF CFI (.eh_frame)':<38}SFrame version {section.header.version}")
    print(f"  {'':<10}{'CFA':<12}{'FP':<14}{'RA':<12}{'CFA':<10}{'FP':<10}RA")
    said_before = None
    for delta, state in entry.program.table.rows:
        row = row_at(function, start + delta, section.header.version)
        dwarf = [describe_rule(rule, arch) for rule in (state.cfa, state.fp, state.ra)]
        said = "" if row is None else "{:<10}{:<10}{}".format(*row_texts(row, section))
        shown = "(the same row)" if row == said_before else said
        print(f"  {f'+0x{delta:x}':<10}{dwarf[0]:<12}{dwarf[1]:<14}{dwarf[2]:<12}{shown}")
        said_before = row
    print()
    print("  c: the CFA; u or unspecified: still in its register; f: at the ABI's fixed offset, c-8 on x86-64")


def main() -> int:
    """Run the demonstration."""
    program = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else find_program()
    output = ROOT / "build/demo" / f"{program.name}.sframe"
    output.parent.mkdir(parents=True, exist_ok=True)
    shown = os.path.relpath(output)

    heading(f"1. Convert {program}: its .eh_frame becomes an SFrame section")
    text, seconds = run("-v", program, "-o", shown)
    show(text)
    print(f"  {output.stat().st_size:,} bytes in {shown}, {seconds:.2f} s")

    heading("2. Verify: the written bytes against the CFI, at every PC where either changes")
    text, seconds = run("verify", "-v", program, shown)
    show(text)
    print(f"  {seconds:.2f} s")

    heading("3. Coverage: what the section describes, and what it cannot")
    text, _ = run("coverage", program)
    show(text, MAX_COVERAGE_LINES)

    image = load(str(program))
    show_side_by_side(image, output)

    heading("Next")
    print(f"  cfi2sframe dump {shown} --section-address 0x{default_section_vaddr(image):x}   all of its rows")
    print(f"  cfi2sframe --sframe-version 2 {program} -o v2.sframe   the version for GNU ld 2.41 to 2.45")
    return 0


if __name__ == "__main__":
    sys.exit(main())
