# SPDX-License-Identifier: Apache-2.0
"""Traces of AArch64 and s390x cores, which qemu wrote, have the frames that gdb saw in the living process."""

import re
from pathlib import Path

import pytest

from cfi2sframe import account, convert, load
from cfi2sframe.trace import Ending, FileStore, Frame, Traced, caller_of, trace_core
from tests.support.needs import need
from tests.support.oracle import known_wrong
from tests.support.oracle.targets import AARCH64, TARGETS, Target
from tests.support.trace.build import Program, compile_program, named
from tests.support.trace.emulated import CPU_WITHOUT_PAC, die_under_gdb
from tests.support.trace.judges import check, functions_of

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

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
