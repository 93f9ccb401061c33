# SPDX-License-Identifier: Apache-2.0
"""The work that a run does, counted: it is the same from run to run, which no time is.

`counts.json` has the counts. More by 3 % (of memory, with Python 3.11: 10 %) fails; whoever adds work changes the file,
and says why.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.constants.elf import ET_DYN, ET_EXEC
from tests.support.cli import ROOT
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import Code, cie_of, linked_file
from tests.support.stubs.handmade import lazy_stubs

COUNTS: Final = json.loads((ROOT / "tests/counts.json").read_text())
#: Converts FILE into OUT, and prints what that took: calls of the package's own functions (comprehensions are none in
#: Python 3.12), reads and their bytes, bytes of the instructions that capstone has decoded, modules of the package and
#: of others, KiB of memory.
RUNNER: Final = """
import gc, json, os, sys
import capstone
from cfi2sframe.elf.capstone5 import Capstone5
def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
found = dict.fromkeys(("calls", "reads", "read", "decoded"), 0)
real_pread = os.pread
def pread(*arguments):
    data = real_pread(*arguments)
    found["reads"] += 1
    found["read"] += len(data)
    return data
def counted(decode):
    def disasm_lite(*arguments):
        for each in decode(*arguments):
            found["decoded"] += each[1]
            yield each
    return disasm_lite
os.pread = pread
for opened in (capstone.Cs, Capstone5):
    opened.disasm_lite = counted(opened.disasm_lite)
def on_event(frame, event, argument):
    code = frame.f_code
    if event == "call" and "/cfi2sframe/" in code.co_filename and not code.co_name.endswith("comp>"):
        found["calls"] += 1
sys.argv[0], before = "cfi2sframe", peak()
gc.disable()
sys.setprofile(on_event)
from cfi2sframe.cli import main
status = main()
sys.setprofile(None)
found["modules"] = sum(name.partition(".")[0] in ("cfi2sframe", "elftools") for name in sys.modules)
found["memory"] = peak() - before
print(json.dumps(found))
sys.exit(status)
"""


def many_functions(count: int, file_type: int = ET_DYN) -> bytes:
    """Return a library of functions that push and pop registers, with padding between them, and stubs."""
    fdes, code = [], bytearray()
    start = 0x300000
    for number in range(count):
        pushes = number * 7 % 6 + 1
        steps = [asm.advance(2 + number % 5), asm.def_cfa_offset(16)]
        for push in range(1, pushes):
            steps += [asm.advance(1 + number * push % 3), asm.def_cfa_offset(16 + 8 * push)]
        steps += [asm.advance(20 + number * 13 % 97), asm.def_cfa_offset(8)]
        size = 60 + number * 13 % 97 + number % 11
        fdes.append(asm.Fde(cie_of(AMD64), start + len(code), size, tuple(steps)))
        code += b"\x55" * (size - 1) + b"\xc3"
        code += b"\x90" * (-len(code) % 16)
    plt = lazy_stubs(60)
    codes = (Code(0x200000, len(plt), ".plt", plt), Code(start, len(code), ".text", bytes(code)))
    return linked_file(AMD64, fdes, codes=codes, file_type=file_type)


INPUTS: Final[dict[str, Callable[[], bytes]]] = {
    "object": (ROOT / "testdata/golden/amd64-drap.o").read_bytes,
    "linked by GNU ld": (ROOT / "testdata/fuzz/file/ld-amd64").read_bytes,
    "300 functions": lambda: many_functions(300),
    "300 functions, fixed addresses": lambda: many_functions(300, ET_EXEC),
    "10,000 functions": lambda: many_functions(10_000),
}


@cache
def compile_package() -> None:
    """Write the package's bytecode: to compile a module takes memory, and a test may be the first that loads it."""
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(ROOT / "cfi2sframe")], check=False)


def counts_of(name: str, folder: Path, runner: str = RUNNER) -> dict[str, int]:
    """Convert an input, and return what that took."""
    compile_package()
    path = folder / "input"
    path.write_bytes(INPUTS[name]())
    command = [sys.executable, "-P", "-c", runner, str(path), "--replace", "-q", "-o", str(folder / "out")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "0"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def grown(name: str, counts: dict[str, int]) -> set[str]:
    """Return what is more than the file of counts allows."""
    room = {what: 1.1 if what == "memory" else 1.03 for what in counts}
    if sys.version_info[:2] != (3, 11):
        # Objects have other sizes.
        del room["memory"]
    return {what for what in room if counts[what] > room[what] * COUNTS[name][what]}


@pytest.mark.parametrize("name", INPUTS)
def test_a_run_does_no_more_than_it_did(name: str, tmp_path: Path) -> None:
    counts = counts_of(name, tmp_path)
    assert not grown(name, counts), f"if that has to be: {json.dumps({name: counts})}"


def test_work_that_was_saved_is_seen_when_it_comes_back(tmp_path: Path) -> None:
    """The judge of stubs looks at the end of each function, as it looked at each piece of padding."""
    looks_at_all = """
import cfi2sframe.verification.verify as judge
rows = judge.stub_rows
judge.stub_rows = lambda image, section, held: rows(image, section, [(start, end - 4) for start, end in held])
status = main()"""
    counts = counts_of("10,000 functions", tmp_path, RUNNER.replace("\nstatus = main()", looks_at_all))
    assert grown("10,000 functions", counts) >= {"calls", "reads"}
