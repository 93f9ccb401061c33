# SPDX-License-Identifier: Apache-2.0
"""A script for gdb's own Python: run a program, and tell `stacks` of each stop what gdb finds there.

Run as `gdb -batch -x stacks_gdb.py --args PROGRAM ...`; the environment has the words that start `stacks`
(STACKS_WORDS, a JSON list; the process's number is put in place of "PID") and the most stops to make (STACKS_COUNT).
`stacks` interrupts the program.
"""

import json
import os
import struct
import subprocess

import gdb

#: In the order of DWARF's numbers.
REGISTERS = (
    *("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp"),
    *("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rip"),
)
MASK = 0xFFFF_FFFF_FFFF_FFFF
LIMIT = 256
AT_ENTRY = 9


def entry_point(pid: int) -> int:
    """Return the address at which the program starts."""
    with open(f"/proc/{pid}/auxv", "rb") as file:
        values: dict[int, int] = dict(struct.iter_unpack("<QQ", file.read()))
    return values[AT_ENTRY]


def stop() -> list[int]:
    """Return the registers, then PC and SP of every frame on the stack, innermost first."""
    frame = gdb.newest_frame()
    found = [int(frame.read_register(name)) & MASK for name in REGISTERS]
    while frame is not None and len(found) < 2 * LIMIT:
        # Debug information tells gdb of inlined functions and of callers that are gone by a tail call.
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            found += [frame.pc(), int(frame.read_register("rsp")) & MASK]
        try:
            frame = frame.older()
        except gdb.error:
            break
    return found


def main() -> None:
    """Run the program from its entry point on."""
    for setting in (
        *("pagination off", "confirm off", "startup-with-shell off"),
        # Frames beyond main() are compared, too.
        *("backtrace past-main on", "backtrace past-entry on"),
    ):
        gdb.execute(f"set {setting}")
    gdb.execute("handle SIGSTOP stop print nopass", to_string=True)
    gdb.execute("starti", to_string=True)
    pid = gdb.selected_inferior().pid
    gdb.execute(f"tbreak *{entry_point(pid)}", to_string=True)
    gdb.execute("continue", to_string=True)
    words = [str(pid) if word == "PID" else word for word in json.loads(os.environ["STACKS_WORDS"])]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as stacks:
        assert stacks.stdin is not None
        assert stacks.stdout is not None
        for _ in range(int(os.environ["STACKS_COUNT"])):
            stacks.stdin.write(" ".join(f"{number:x}" for number in stop()) + "\n")
            stacks.stdin.flush()
            # The stack has to stay as it is until `stacks` has walked it.
            stacks.stdout.readline()
            gdb.execute("continue", to_string=True)
            if gdb.selected_inferior().pid == 0:
                break
        stacks.stdin.close()
    if gdb.selected_inferior().pid != 0:
        gdb.execute("kill", to_string=True)


main()
