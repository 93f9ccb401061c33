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

from cfi2sframe import load
from cfi2sframe.conversion import default_section_vaddr

ROOT = Path(__file__).resolve().parents[1]
#: As a user in this checkout calls it.
PROGRAM = ".venv/bin/cfi2sframe"
CANDIDATES = ("/usr/bin/python3", "/bin/bash", "/bin/sh", sys.executable)
MAX_COVERAGE_LINES = 40
MAX_DUMP_LINES = 30


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
    print(f"  $ {PROGRAM} {shlex.join(words)}")
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
        print(f"  {line.removeprefix('cfi2sframe: ').replace('info: ', '', 1)}")
    if len(lines) > limit:
        print(f"  ... {len(lines) - limit} more lines")


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

    heading(
        "4. Its first functions: CFA, FP and RA of each row, c being the CFA, u unchanged, f the ABI's fixed offset"
    )
    address = f"0x{default_section_vaddr(load(str(program))):x}"
    text, _ = run("dump", shown, "--section-address", address)
    show(text, MAX_DUMP_LINES)

    heading("Next")
    print(f"  {PROGRAM} dump {shown} --section-address {address}   # all of its rows")
    print(f"  cp {program} build/demo && {PROGRAM} --in-place build/demo/{program.name}   # a program that carries it")
    print(f"  {PROGRAM} trace --pid $$                       # the stack of this shell")
    return 0


if __name__ == "__main__":
    sys.exit(main())
