# SPDX-License-Identifier: Apache-2.0
"""Traces of AArch64 and s390x cores, which qemu wrote, have the frames that gdb saw in the living process."""

import os
import re
import struct
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe import account, convert, load
from cfi2sframe.constants import elf as c
from cfi2sframe.trace import Ending, FileMapping, FileStore, Frame, Traced, caller_of, trace_core
from tests.support.elf.elf_asm import note
from tests.support.needs import need
from tests.support.oracle import known_wrong
from tests.support.oracle.targets import AARCH64, TARGETS, Target
from tests.support.trace.build import Program, allow_cores, compile_program, named
from tests.support.trace.core_files import NT_FILE, PAGE, mapped_files, with_headers
from tests.support.trace.judges import GDB_FRAMES, TIMEOUT, Chain, chains_in, check, functions_of, gdb

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

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


NAMES = (
    *("recursion", "recursion-static", "dynamic", "drap", "callback", "handler", "handler-above"),
    *("exception-destructor", "exception-search", "exception-handler", "exception-rethrown", "exception-terminate"),
    *("lazy-resolver", "lazy-search", "threads", "noreturn"),
)


#: Bits of an address; those above may be an authentication code.
_ADDRESS_BITS = 48


def glibc_version(target: Target) -> str:
    """Return the version of the C library in the sysroot of a target."""
    match = re.search(rb"GNU C Library .* release version (\d+\.\d+)", (target.sysroot / "lib/libc.so.6").read_bytes())
    assert match is not None
    return match[1].decode()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_frames_are_those_of_gdb(target: Target, name: str, tmp_path: Path) -> None:
    """Stopped where the program is of interest; unlike on AMD64, the search for a symbol has all of its callers."""
    program = named(name)
    binary = compile_program(program, tmp_path, target.triplet)
    died = die_under_gdb(target, binary, need("gdb-multiarch"), program.commands)
    wrong = known_wrong.find(f"{target.name}-{program.source}", "glibc", glibc_version(target))
    check(trace_core(str(died.listed)), died.gdb, program, "" if wrong else "outermost")


@pytest.mark.parametrize(
    ("target", "name", "flag"),
    [
        *((target, name, "-static") for target in TARGETS for name in ("recursion", "handler", "threads")),
        (AARCH64, "handler", "-static-pie"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_cores_as_qemu_writes_them(target: Target, name: str, flag: str, tmp_path: Path) -> None:
    """Without a list of files, all that can be found is the program that the user names."""
    program = named(name)._replace(flags=(flag,))
    binary = compile_program(program, tmp_path, target.triplet)
    died = die_under_gdb(target, binary, need("gdb-multiarch"), program.commands)
    check(trace_core(str(died.core), executable=str(binary)), died.gdb, program)


@pytest.mark.parametrize("name", ["recursion", "dynamic", "callback", "handler", "exception-destructor", "noreturn"])
def test_signed_return_addresses(name: str, tmp_path: Path) -> None:
    """AArch64 code that signs its return addresses.

    qemu 7.2 does not tell gdb which bits of an address are its authentication code. Then gdb is asked on a CPU that
    signs nothing; the process is the same otherwise, since the addresses of this emulator do not change.
    """
    program = named(name)
    program = program._replace(flags=(*program.flags, "-mbranch-protection=pac-ret"))
    binary = compile_program(program, tmp_path, AARCH64.triplet)
    signed = die_under_gdb(AARCH64, binary, need("gdb-multiarch"), program.commands)
    judged = signed.gdb
    if any(pc >> _ADDRESS_BITS for chain in judged for pc in chain.pcs):
        judged = die_under_gdb(AARCH64, binary, need("gdb-multiarch"), program.commands, CPU_WITHOUT_PAC).gdb
    check(trace_core(str(signed.listed)), judged, program)


def by_rows_alone(traced: Traced) -> tuple[list[Frame], Ending]:
    """Walk from the topmost frame as a reader does that knows nothing of the kernel's records."""
    frames: list[Frame] = []
    caller: Frame | Ending = traced.threads[0].entries[0].frame
    while isinstance(caller, Frame):
        frames.append(caller)
        found = traced.space.find(caller.lookup_pc)
        caller = found if isinstance(found, Ending) else caller_of(caller, found, traced.space.snapshot.read)
    return frames, caller


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_rows_alone_lead_through_a_signal(target: Target, tmp_path: Path) -> None:
    """Where the format can say what the kernel pushes; on s390x it cannot, and the trace stops there."""
    functions = ("stop_here", "handler", *("work",) * 5, "main")
    program = Program("restorer", "restorer.c", ("-static",), functions=functions)
    binary = compile_program(program, tmp_path, target.triplet)
    died = die_under_gdb(target, binary, need("gdb-multiarch"), ())
    traced = trace_core(str(died.core), executable=str(binary), store=FileStore(source="code"))
    check(traced, died.gdb, program)
    frames, ending = by_rows_alone(traced)
    all_frames = [entry.frame for entry in traced.threads[0].entries]
    place = functions_of(traced, traced.threads[0]).index("handler") + 1
    if target is AARCH64:
        assert [frame[:2] for frame in frames] == [frame[:2] for frame in all_frames]
        assert ending.kind == "outermost"
        assert [frame.is_return_address for frame in frames].index(False, 1) == place + 1
    else:
        assert [frame[:2] for frame in frames] == [frame[:2] for frame in all_frames[: place + 1]]
        assert ending.kind == "no-row"
        missing = account(convert(load(binary), source="code")).missing
        assert "CFA_EXPRESSION" in [each.reason for each in missing if 0 <= frames[-1].pc - each.address < each.size]
