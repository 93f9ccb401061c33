# SPDX-License-Identifier: Apache-2.0
"""Traces of AArch64 and s390x cores, which qemu wrote, have the frames that gdb saw in the living process."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.support import known_wrong
from tests.support.needs import need
from tests.support.targets import AARCH64, TARGETS
from tests.support.trace.build import compile_program, named
from tests.support.trace.emulated import CPU_WITHOUT_PAC, die_under_gdb, with_list_of_files
from tests.support.trace.tracing import is_in_order, threads_of, trace

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.targets import Target
    from tests.support.trace.build import Program
    from tests.support.trace.judges import Chain

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

NAMES = (
    *("recursion", "recursion-static", "dynamic", "drap", "callback", "handler", "handler-above"),
    *("exception-destructor", "exception-search", "exception-handler", "exception-rethrown", "exception-terminate"),
    *("lazy-resolver", "lazy-search", "threads", "noreturn"),
)


def check(program: Program, judges: tuple[Chain, ...], *words: str | Path, is_whole: bool = True) -> None:
    """Compare the traces of a program's core with gdb's, which come to the true end where they are whole."""
    threads = threads_of(trace(*words))
    assert len(judges) == program.thread_count == len(threads)
    for thread, judged in zip(threads, judges, strict=True):
        assert list(map(hex, thread.chain.pcs)) == list(map(hex, judged.pcs))
        assert list(map(hex, thread.chain.sps)) == list(map(hex, judged.sps))
        assert (thread.ending == "outermost", judged.reason == "outermost") == (is_whole, is_whole)
    if not is_whole:
        return
    stopped = [thread for thread in threads if is_in_order(program.functions, thread.functions)]
    assert len(stopped) == 1
    assert len(stopped[0].functions) >= program.least_frames


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
    check(program, died.gdb, with_list_of_files(target, died), is_whole=wrong is None)


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
    check(program, died.gdb, died.core, "--executable", binary)


@pytest.mark.parametrize("name", ["recursion", "dynamic", "callback", "handler", "exception-destructor", "noreturn"])
def test_signed_return_addresses(name: str, tmp_path: Path) -> None:
    """AArch64 code that signs its return addresses.

    qemu 7.2 does not tell gdb which bits of an address are its authentication code, so gdb is asked on a CPU that signs
    nothing; the process is the same otherwise, since the emulator's addresses do not change.
    """
    program = named(name)
    program = program._replace(flags=(*program.flags, "-mbranch-protection=pac-ret"))
    binary = compile_program(program, tmp_path, AARCH64.triplet)
    signed = die_under_gdb(AARCH64, binary, need("gdb-multiarch"), program.commands)
    unsigned = die_under_gdb(AARCH64, binary, need("gdb-multiarch"), program.commands, CPU_WITHOUT_PAC)
    assert [c.pcs for c in signed.gdb] != [c.pcs for c in unsigned.gdb]
    check(program, unsigned.gdb, with_list_of_files(AARCH64, signed))
