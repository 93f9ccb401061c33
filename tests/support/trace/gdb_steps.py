# SPDX-License-Identifier: Apache-2.0
"""A script for gdb's own Python: step instruction by instruction and write, for every step, what gdb finds.

Run as `gdb -batch ... -x gdb_steps.py` in a stopped process; the environment names the file to write (STEPS_FILE) and
how many steps to go (STEPS_COUNT). tests.support.trace.steps reads the file; its records are described there.
"""

import json
import os
import re
import struct

import gdb

#: By DWARF number, SP's place among them; the PC comes last.
AMD64 = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "pc"),
)
AARCH64 = (*(f"x{number}" for number in range(31)), "sp", "pc")
S390X = (
    *(f"r{number}" for number in range(16)),
    *(f"f{number}" for number in (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)),
    "pc",
)
REGISTERS = {"i386:x86-64": (AMD64, 7), "aarch64": (AARCH64, 31), "s390:64-bit": (S390X, 15)}
MASK = 0xFFFF_FFFF_FFFF_FFFF
LIMIT = 256
#: Kept below SP: registers that were just popped are described as still there.
BELOW = 256


def chain() -> list[int]:
    """Return PC and SP of every frame, innermost first."""
    found: list[int] = []
    frame = gdb.newest_frame()
    while frame is not None and len(found) < 2 * LIMIT:
        if frame.type() != gdb.INLINE_FRAME:
            found += [frame.pc(), int(frame.read_register("sp")) & MASK]
        try:
            frame = frame.older()
        except gdb.error:
            break
    return found


def value_of(frame: gdb.Frame, name: str) -> int:
    """Return a register's value; a floating-point register's as the integer of the same bits."""
    value = frame.read_register(name)
    if value.type.strip_typedefs().code == gdb.TYPE_CODE_FLT:
        return int(struct.unpack("<Q", struct.pack("<d", float(value)))[0])
    return int(value) & MASK


def libraries() -> list[tuple[str, int]]:
    """Return where the text of each shared library starts."""
    text = gdb.execute("info sharedlibrary", to_string=True) or ""
    return [(line.split()[-1], int(line.split()[0], 16)) for line in text.splitlines() if re.match("0x", line)]


def main() -> None:
    """Step until the count is reached, or the function `finished`."""
    machine = gdb.newest_frame().architecture().name()
    names, sp = REGISTERS[machine]
    inferior = gdb.selected_inferior()
    end = int(gdb.parse_and_eval("(long)&finished"))
    # What lies above the outermost frame is no frame of anyone's, but for its register save area (s390x).
    top = chain()[-1] + 176
    header = {"machine": machine, "libraries": libraries(), "main": int(gdb.parse_and_eval("(long)&main"))}
    with open(os.environ["STEPS_FILE"], "wb") as file:
        file.write(json.dumps(header).encode() + b"\n")
        for _ in range(int(os.environ["STEPS_COUNT"])):
            frame = gdb.newest_frame()
            values = [value_of(frame, name) for name in names]
            if values[-1] == end:
                break
            places = chain()
            bottom = values[sp] - BELOW
            stack = bytes(inferior.read_memory(bottom, max(0, top - bottom)))
            file.write(struct.pack(f"<{len(values)}Q", *values))
            file.write(struct.pack(f"<II{len(places)}Q", len(places) // 2, len(stack), *places))
            file.write(stack)
            gdb.execute("stepi", to_string=True)


main()
