# SPDX-License-Identifier: Apache-2.0
"""The limits of a job: what ends it, what they leave alone, and every verb on files whose headers share their bytes."""

import errno
import math
import mmap
import os
import resource
import signal
import struct
import subprocess
import sys
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Final

import capstone
import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.constants.elf import SHT_GNU_SFRAME
from cfi2sframe.errors import CostError, ErrorKind, InputError, kind_of, reason_of
from cfi2sframe.process import guard
from cfi2sframe.process.guard import charge, grant_for_code, limited, part, seconds_left
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import CODE, FRAME_VADDR, SHF_ALLOC, TEXT_VADDR, push_fp
from tests.support.process import ROOT, run_within_bound


def state() -> tuple[object, tuple[int, int], tuple[float, float]]:
    """Return what belongs to the process, and is to be as before."""
    memory = resource.getrlimit(resource.RLIMIT_AS)
    return signal.getsignal(signal.SIGPROF), memory, signal.getitimer(signal.ITIMER_PROF)


def work(seconds: float) -> None:
    """Use CPU time, the system's included, as the timer counts it."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        sum(range(1000))


def charge_and_work(seconds: float) -> None:
    charge(seconds)
    work(1)


@pytest.fixture(autouse=True)
def _little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard, "_SECONDS", 0.1)
    monkeypatch.setattr(guard, "_MEMORY", 64 << 20)
    monkeypatch.setattr(guard, "_AGAIN", 0.05)


@pytest.mark.parametrize(
    ("size", "seconds", "memory"), [(0, 2, 300 << 20), (1, 2, 300 << 20), (1 << 20, 12, 500 << 20)]
)
def test_limits_are_those_that_are_promised(
    size: int, seconds: int, memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By SECURITY.md, and for a MiB of code whose instructions are followed."""
    monkeypatch.undo()
    monkeypatch.setattr(guard, "mapped_size", lambda: 1 << 40)
    with limited(size):
        assert state()[1][0] == (1 << 40) + memory + (200 if size == 1 else 0)
        assert signal.getitimer(signal.ITIMER_PROF) == pytest.approx((seconds, 1), abs=0.1)
        grant_for_code(1 << 20)
        assert signal.getitimer(signal.ITIMER_PROF)[0] == pytest.approx(seconds + 50 * size / (1 << 20), abs=0.1)


def test_time() -> None:
    before = state()
    message = r"^takes more CPU time than a file of this size accounts for \(0\.1 s\)$"
    with pytest.raises(CostError, match=message) as got, limited(1000):
        work(1)
    assert kind_of(got.value) is ErrorKind.COSTLY
    assert not isinstance(got.value, InputError)
    assert state() == before
    with limited(1 << 20):
        work(0.3)
    assert state() == before


def test_memory() -> None:
    before = state()
    message = r"^takes more memory than a file of this size accounts for \(64 MiB\)$"
    with pytest.raises(CostError, match=message), limited(1000):
        bytearray(1 << 30)
    assert state() == before
    # As mmap(2) fails.
    with pytest.raises(CostError, match=message), limited(1000):
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
    no_memory = capstone.CsError(capstone.CS_ERR_MEM)
    with pytest.raises(CostError, match=message), limited(1000):
        raise no_memory
    assert (kind_of(no_memory), reason_of(no_memory)) == (ErrorKind.SYSTEM, "out of memory")
    assert kind_of(capstone.CsError(capstone.CS_ERR_MODE)) is ErrorKind.INTERNAL
    with limited(1 << 20):
        bytearray(80 << 20)
    assert state() == before


def test_an_exception_that_is_lost_comes_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the interpreter cannot raise it, in the callback of a weak reference, and where somebody swallows it."""

    class Thing:
        pass

    lost: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda unraisable: lost.append(unraisable.exc_type))

    def lose() -> None:
        thing = Thing()
        reference = weakref.ref(thing, lambda _: work(1.5))
        del thing
        assert reference() is None
        with suppress(Exception):
            work(1)
        work(1)

    with pytest.raises(CostError), limited(0):
        lose()
    assert set(lost) == {CostError}


def test_a_part_has_limits_of_its_own() -> None:
    before = state()
    with part(0):
        assert state() == before
    with limited(0):
        for _ in range(3):
            with suppress(CostError), part(1 << 14):
                work(1)
        kept = []
        with part(1 << 20):
            kept.append(bytearray(80 << 20))
        bytearray(32 << 20)
        with pytest.raises(CostError):
            work(1)
    assert state() == before

    def keep_and_want_more() -> None:
        # Not of what other tests have left free.
        with part(1 << 20):
            mapped = mmap.mmap(-1, 80 << 20)
        mmap.mmap(-1, 72 << 20)
        mapped.close()

    with pytest.raises(CostError), limited(0):
        keep_and_want_more()


def test_a_job_without_parts_does_all_within_its_limits() -> None:
    """Such as an archive: each of its members may name a debug file."""
    with limited(0, has_parts=False):
        for size in (1, 1 << 40):
            with part(size):
                assert seconds_left() <= 0.2
    with limited(0), part(1 << 20, has_parts=False):
        assert seconds_left() > 5
        with part(1 << 30):
            assert seconds_left() < 11


def test_code_that_is_followed_has_time_of_its_own() -> None:
    before = state()

    def follow(seconds: float) -> None:
        with limited((1 << 20) // 250):
            # Of what is not in the file, or was granted before, no more is.
            for _ in range(3):
                grant_for_code((1 << 20) // 250)
            grant_for_code(1 << 30)
            work(seconds)

    follow(0.2)
    with pytest.raises(CostError, match=r"\(0\.3 s\)$"):
        follow(1)
    grant_for_code(1 << 20)
    assert state() == before


def test_the_time_of_another_process_is_charged() -> None:
    before = state()
    charge(10)
    assert (state(), seconds_left()) == (before, math.inf)
    with limited(1 << 20):
        for _ in range(1_000):
            charge(0.01)
        assert 0 < seconds_left() < 1
        with pytest.raises(CostError):
            charge_and_work(9)
    assert state() == before


def printed_by(script: str) -> str:
    """Run a script in a process of its own, whose limits it may lower; return what it prints."""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    return done.stdout


def test_a_limit_of_the_user_stays() -> None:
    """As its own error: that the file is too costly would be wrong."""
    script = (
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28))\n"
        "from cfi2sframe.process.guard import limited\n"
        "try:\n"
        "    with limited(0): bytearray(1 << 28)\n"
        "except MemoryError: print('memory', resource.getrlimit(resource.RLIMIT_AS)[0] == 1 << 28)\n"
    )
    assert printed_by(script) == "memory True\n"


def test_what_a_part_keeps_does_not_count_beyond_what_the_user_allows() -> None:
    """The job's limit would rise over the hard one, which the kernel refuses."""
    script = (
        "import resource\n"
        "from cfi2sframe.process.guard import limited, mapped_size, part\n"
        "most = mapped_size() + (330 << 20)\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most))\n"
        "with limited(0):\n"
        "    with part(0): kept = bytearray(60 << 20)\n"
        "    print(resource.getrlimit(resource.RLIMIT_AS)[0] == most)\n"
        "print(resource.getrlimit(resource.RLIMIT_AS)[0] == most)\n"
    )
    assert printed_by(script) == "True\nTrue\n"


#: `sh_type` of each kind of section that something reads, in files whose headers all lead to the same bytes.
SECTION_TYPES: Final = (*range(1, 10), 11, 14, 17, 18, 19, 0x70000001, SHT_GNU_SFRAME)
VERBS: Final = (
    ("convert", "-o", "OUT"),
    ("convert", "-o", "OUT.sframe"),
    ("convert", "--from", "code", "-o", "OUT.sframe"),
    ("coverage", "--top", "all"),
    ("size",),
    ("verify", "--would-be"),
    ("audit",),
    ("dump",),
    ("remove", "-o", "OUT"),
)


def headers_over_the_same_bytes(kind: int, count: int = 3000, size: int = 200_000) -> bytes:
    """Return a library with `count` headers of one type over the same bytes, which are words of many meanings."""
    frame = asm.EhFrame((push_fp(AMD64, TEXT_VADDR), asm.Terminator()), FRAME_VADDR)
    words = b"".join(struct.pack("<QQQ", TEXT_VADDR + 8 * n, 8, TEXT_VADDR) for n in range(size // 24))
    sections = (
        asm.Section(".eh_frame", frame.assemble(), 1, SHF_ALLOC, FRAME_VADDR, align=8),
        asm.Section(".text", bytes(0x100), 1, CODE, TEXT_VADDR, align=16),
        asm.Section(".data", words, 1, SHF_ALLOC, TEXT_VADDR + 0x10000, align=8),
        *[asm.Section(".many", b"", 1)] * count,
    )
    segments = tuple(asm.Segment(1, flags, (name,)) for flags, name in ((4, ".eh_frame"), (5, ".text"), (6, ".data")))
    data = bytearray(asm.elf_file(AMD64.elf_machine, sections, file_type=3, segments=segments))
    table = struct.unpack_from("<Q", data, 40)[0]
    shared = struct.unpack_from("<IIQQQQIIQQ", data, table + 64 * 3)
    for index in range(4, 4 + count):
        name = struct.unpack_from("<I", data, table + 64 * index)[0]
        struct.pack_into("<IIQQQQIIQQ", data, table + 64 * index, name, kind, *shared[2:6], 3, 2, 8, 24)
    return bytes(data)


@pytest.mark.fuzz
@pytest.mark.sampled
@pytest.mark.parametrize("verb", VERBS, ids=" ".join)
@pytest.mark.parametrize("kind", SECTION_TYPES)
def test_headers_over_the_same_bytes(kind: int, verb: tuple[str, ...], tmp_path: Path) -> None:
    data = headers_over_the_same_bytes(kind)
    path = tmp_path / "input.so"
    path.write_bytes(data)
    words = [word.replace("OUT", str(tmp_path / "out")) for word in verb]
    run_within_bound(*words, path, input_size=len(data))
