# SPDX-License-Identifier: Apache-2.0
"""Programs of other architectures under qemu's user emulation, which a gdb watches until they leave a core."""

import os
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.load import load
from cfi2sframe.trace import FileMapping
from tests.support.elf.elf_asm import note
from tests.support.oracle.targets import Target
from tests.support.trace.build import allow_cores
from tests.support.trace.core_files import NT_FILE, PAGE, mapped_files, with_headers
from tests.support.trace.judges import GDB_FRAMES, TIMEOUT, Chain, chains_in, gdb

#: Without SVE, whose signal frames gdb 13 takes for damaged; with pointer authentication, where programs use it.
CPUS: Final = {"aarch64": "max,sve=off,sme=off", "s390x": "max"}
#: An AArch64 CPU that signs no addresses: the instructions that do are no operations there.
CPU_WITHOUT_PAC: Final = "cortex-a72"
_POLL_SECONDS: Final = 0.05
#: A line of gdb's `info files`: where the code of the program, or of a library, is in the process.
_TEXT: Final = re.compile(r"(0x[0-9a-f]+) - 0x[0-9a-f]+ is \.text(?: in (\S+))?")


class EmulatedCore(NamedTuple):
    """A core that qemu wrote, the same with a list of files as the kernel has it, and what gdb saw at that moment."""

    core: Path
    listed: Path
    gdb: tuple[Chain, ...]


def die_under_gdb(target: Target, program: Path, debugger: str, commands: Sequence[str], cpu: str = "") -> EmulatedCore:
    """Run a program to stop_here() and on by gdb's commands; let gdb look at it there, and let it die of a signal."""
    folder = program.parent / f"{program.name}.died{cpu}"
    folder.mkdir()
    go = ("break *stop_here", "continue", *commands, "info files", f"source {GDB_FRAMES}", "signal SIGABRT")
    # A socket's path may have 107 bytes; those of tests' folders grow with the tests' names.
    with tempfile.TemporaryDirectory(prefix="gdb") as short:
        socket = Path(short, "s")
        options = ["-L", str(target.sysroot), "-cpu", cpu or CPUS[target.name], "-g", str(socket)]
        with subprocess.Popen(
            [target.emulator, *options, str(program)],
            cwd=folder,
            # The addresses on the stack, and so the traces, do not depend on who runs the tests.
            env={},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            preexec_fn=allow_cores,  # noqa: PLW1509 - no other thread runs in a test
        ) as process:
            try:
                end = time.monotonic() + TIMEOUT
                while not socket.exists():
                    assert process.poll() is None
                    assert time.monotonic() < end
                    time.sleep(_POLL_SECONDS)
                text = gdb(
                    program,
                    settings=(f"set sysroot {target.sysroot}", "handle SIGABRT stop"),
                    commands=(f"target remote {socket}", *go),
                    program=debugger,
                )
                process.wait(TIMEOUT)
            finally:
                process.kill()
    cores = list(folder.glob("qemu_*.core"))
    assert len(cores) == 1, (text, os.listdir(folder))
    mapped = [
        mapping
        for address, path in _TEXT.findall(text)
        # gdb's name for the vDSO, which is no file.
        if path != "system-supplied"
        for mapping in _mapped(path or str(program), int(address, 16))
    ]
    listed = folder / "listed.core"
    listed.write_bytes(_with_list_of_files(cores[0].read_bytes(), mapped, target.arch.byte_order))
    return EmulatedCore(cores[0], listed, chains_in(text))


def _mapped(path: str, text_address: int) -> list[FileMapping]:
    """Return how a file is mapped whose code is at an address."""
    image = load(path)
    (text,) = image.sections_named(".text")
    bias = text_address - text.vaddr
    return [
        FileMapping(p.vaddr - before + bias, p.end_vaddr + bias, p.file_offset - before, path)
        for p in image.segments
        if p.type == c.PT_LOAD
        for before in [p.vaddr % PAGE]
    ]


def _with_list_of_files(core: bytes, mapped: Sequence[FileMapping], order: str) -> bytes:
    (offset,), (count,) = struct.unpack_from(order + "Q", core, 32), struct.unpack_from(order + "H", core, 56)
    data = note(b"CORE", NT_FILE, mapped_files(order, mapped), order)
    entry = struct.pack(order + "IIQQQQQQ", c.PT_NOTE, 0, len(core), 0, 0, len(data), 0, 4)
    return with_headers(core + data, order, core[offset : offset + 56 * count] + entry)
