# SPDX-License-Identifier: Apache-2.0
"""A script for gdb's own Python: step instruction by instruction and write, for every step, what gdb finds.

Run as `gdb -batch ... -x gdb_steps.py` in a stopped process; the environment names the file to write (STEPS_FILE) and
how many steps to go (STEPS_COUNT). tests.trace.steps reads the file; its records are described there.
"""

import os
import struct

import gdb

#: By DWARF number.
REGISTERS = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip"),
)
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
            found += [frame.pc(), int(frame.read_register("rsp")) & MASK]
        try:
            frame = frame.older()
        except gdb.error:
            break
    return found


def main() -> None:
    """Step until the count is reached, or the function `finished`."""
    count = int(os.environ["STEPS_COUNT"])
    inferior = gdb.selected_inferior()
    end = int(gdb.parse_and_eval("(long)&finished"))
    first = chain()
    # What lies above the outermost frame is no frame of anyone's.
    top = first[-1] + 16
    with open(f"/proc/{inferior.pid}/maps", "rb") as file:
        maps = file.read()
    with open(os.environ["STEPS_FILE"], "wb") as file:
        file.write(b"%d\n" % len(maps) + maps)
        for _ in range(count):
            frame = gdb.newest_frame()
            values = [int(frame.read_register(name)) & MASK for name in REGISTERS]
            if values[16] == end:
                break
            places = chain()
            bottom = values[7] - BELOW
            stack = bytes(inferior.read_memory(bottom, max(0, top - bottom)))
            file.write(struct.pack("<17Q", *values))
            file.write(struct.pack(f"<II{len(places)}Q", len(places) // 2, len(stack), *places))
            file.write(stack)
            gdb.execute("stepi", to_string=True)


main()
