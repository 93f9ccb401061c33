# SPDX-License-Identifier: Apache-2.0
"""Programs of other architectures under qemu's user emulation, which a gdb watches until they leave a core."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.support.trace.judges import GDB_FRAMES, TIMEOUT, Chain, gdb

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tests.support.targets import Target

#: Without SVE, whose signal frames gdb 13 takes for damaged; with pointer authentication, where programs use it.
CPUS: Final = {"aarch64": "max,sve=off,sme=off", "s390x": "max"}
#: An AArch64 CPU that signs no addresses: the instructions that do are no operations there.
CPU_WITHOUT_PAC: Final = "cortex-a72"
_POLL_SECONDS: Final = 0.05


class Emulator(NamedTuple):
    """A running emulator, and the socket where it talks to gdb."""

    process: subprocess.Popen[bytes]
    socket: Path


class EmulatedCore(NamedTuple):
    """A core that qemu wrote, and what gdb saw of the process at that moment."""

    core: Path
    gdb: tuple[Chain, ...]


@contextmanager
def emulated(
    target: Target, program: Path, folder: Path, *words: str, cpu: str = "", variable: str = ""
) -> Iterator[Emulator]:
    """Run a program in a folder, under an emulator that waits for a gdb at a socket.

    `variable` is NAME=VALUE for the program's environment, which is empty else.
    """
    # A socket's path may have 107 bytes; those of tests' folders grow with the tests' names.
    short = Path(tempfile.mkdtemp(prefix="gdb"))
    socket = short / "s"
    options = ["-L", str(target.sysroot), "-cpu", cpu or CPUS[target.name], "-g", str(socket)]
    options += ["-E", variable] if variable else []
    with subprocess.Popen(
        [target.emulator, *options, str(program), *words],
        cwd=folder,
        # The addresses on the stack, and so the traces, do not depend on who runs the tests.
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=_allow_cores,  # noqa: PLW1509 - no other thread runs in a test
    ) as process:
        try:
            end = time.monotonic() + TIMEOUT
            while not socket.exists():
                assert process.poll() is None
                assert time.monotonic() < end
                time.sleep(_POLL_SECONDS)
            yield Emulator(process, socket)
        finally:
            process.kill()
            shutil.rmtree(short)


def die_under_gdb(
    target: Target, program: Path, debugger: str, commands: Sequence[str] | None = None, cpu: str = ""
) -> EmulatedCore:
    """Run a program to stop_here() and on by gdb's commands; let gdb look at it there, and let it die of a signal.

    Without commands, not even none, the program runs until it aborts on its own.
    """
    folder = program.parent / f"{program.name}.died{cpu}"
    folder.mkdir()
    words: tuple[str, ...]
    go: tuple[str, ...]
    if commands is None:
        words, go = ("die",), ("continue", f"source {GDB_FRAMES}", "continue")
    else:
        words, go = (), ("break *stop_here", "continue", *commands, f"source {GDB_FRAMES}", "signal SIGABRT")
    with emulated(target, program, folder, *words, cpu=cpu) as emulator:
        text = gdb(
            program,
            settings=(f"set sysroot {target.sysroot}", "handle SIGABRT stop"),
            commands=(f"target remote {emulator.socket}", *go),
            program=debugger,
        )
        emulator.process.wait(TIMEOUT)
    cores = list(folder.glob("qemu_*.core"))
    lines = [line.removeprefix("FRAMES ") for line in text.splitlines() if line.startswith("FRAMES ")]
    assert (len(lines), len(cores)) == (1, 1), (text, os.listdir(folder))
    found = json.loads(lines[0])
    return EmulatedCore(
        cores[0], tuple(sorted(Chain(t["id"], tuple(t["pcs"]), tuple(t["sps"]), t["reason"]) for t in found))
    )


def _allow_cores() -> None:
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
