# SPDX-License-Identifier: Apache-2.0
"""Returns from signal handlers, with the kernel's records laid out as in the C library's headers."""

import struct
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.elf.load import load
from cfi2sframe.sframe.model import Found, FrameRow, FrameState, Function, FunctionBody, Rule
from cfi2sframe.trace import Ending, Frame, Memory, walk
from cfi2sframe.trace.frames import NT_PRFPREG, NT_PRSTATUS, interrupted_frame, topmost_frame
from tests.support.needs import need, run

SP: Final = 0x7000_0000
PC: Final = 0x40_0000


class Kernel(NamedTuple):
    """What an ABI's kernel leaves at SP: C text for the distances of PC and of the registers by DWARF number."""

    arch: Arch
    compiler: str
    code: bytes
    pc: str
    registers: dict[int, str]


def context(text: str, before: str = "0") -> str:
    """Return C for the distance from SP of a ucontext_t's member."""
    return f"{before} + __builtin_offsetof(ucontext_t, uc_mcontext.{text})"


_AMD64_NAMES: Final = ("RAX", "RDX", "RCX", "RBX", "RSI", "RDI", "RBP", "RSP", *(f"R{n}" for n in range(8, 16)))
#: siginfo comes first; s390x has its register save area, the instruction and padding before that.
_AARCH64_BEFORE: Final = "sizeof(siginfo_t)"
_S390X_BEFORE: Final = "160 + 8 + sizeof(siginfo_t)"
_S390X_FLOATS: Final = (0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15)

KERNELS: Final = (
    Kernel(
        AMD64,
        "x86_64-linux-gnu-gcc",
        bytes.fromhex("48c7c00f000000 0f05"),
        context("gregs[REG_RIP]"),
        {number: context(f"gregs[REG_{name}]") for number, name in enumerate(_AMD64_NAMES)},
    ),
    Kernel(
        AARCH64_LE,
        "aarch64-linux-gnu-gcc",
        bytes.fromhex("681180d2 010000d4"),
        context("pc", _AARCH64_BEFORE),
        {
            **{number: context(f"regs[{number}]", _AARCH64_BEFORE) for number in range(31)},
            31: context("sp", _AARCH64_BEFORE),
        },
    ),
    Kernel(
        S390X,
        "s390x-linux-gnu-gcc",
        bytes.fromhex("0aad"),
        context("psw.addr", _S390X_BEFORE),
        {
            **{number: context(f"gregs[{number}]", _S390X_BEFORE) for number in range(16)},
            **{16 + n: context(f"fpregs.fprs[{number}]", _S390X_BEFORE) for n, number in enumerate(_S390X_FLOATS)},
        },
    ),
)


def distances(kernel: Kernel, folder: Path) -> list[int]:
    """Return the distances of PC and of the registers, from an object that the ABI's compiler makes."""
    values = ", ".join((kernel.pc, *kernel.registers.values()))
    (folder / "a.c").write_text(
        "#define _GNU_SOURCE\n#include <signal.h>\n#include <ucontext.h>\n"
        f'__attribute__((section(".distances"))) const unsigned long long distances[] = {{{values}}};\n'
    )
    run(need(kernel.compiler), "-c", "-o", folder / "a.o", folder / "a.c")
    image = load(str(folder / "a.o"))
    (section,) = image.sections_named(".distances")
    data = image.section_bytes(section)
    return list(struct.unpack(f"{image.byte_order}{len(data) // 8}Q", data))


def record(kernel: Kernel, folder: Path) -> tuple[int, bytes]:
    """Return the address and the bytes of a record in which register N holds 0x1000 + N, and PC 0x9000."""
    arch, found = kernel.arch, distances(kernel, folder)
    # s390x has the PSW's mask before PC, and access registers in between.
    first = min(found) - 8 * (arch is S390X)
    data = bytearray(max(found) + 8 - first)
    for value, distance in zip((0x9000, *(0x1000 + n for n in kernel.registers)), found, strict=True):
        struct.pack_into(arch.byte_order + "Q", data, distance - first, value)
    return SP + first, bytes(data)


@pytest.mark.oracle
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.arch.name)
def test_every_register_comes_back(kernel: Kernel, tmp_path: Path) -> None:
    arch, code = kernel.arch, (PC, kernel.code)
    address, data = record(kernel, tmp_path)
    frame = interrupted_frame(Frame(PC, SP, 0, is_return_address=True), Memory([code, (address, data)]).read, arch)
    assert frame is not None
    assert dict(frame.registers) == {number: 0x1000 + number for number in kernel.registers}
    ra = None if arch is AMD64 else 0x1000 + arch.ra_register
    assert frame[:4] == (0x9000, 0x1000 + arch.sp_register, 0x1000 + arch.fp_register, ra)
    assert not frame.is_return_address
    # One byte less, one instruction further: no trampoline.
    short = ([code, (address + 1, data[1:])], [code, (address, data[:-1])], [(PC, kernel.code[:-1]), (address, data)])
    for pc, pieces in (*((PC, each) for each in short), (PC + 2, [code, (address, data)])):
        assert interrupted_frame(Frame(pc, SP, 0), Memory(pieces).read, arch) is None


@pytest.mark.oracle
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.arch.name)
def test_rows_of_a_trampoline(kernel: Kernel, tmp_path: Path) -> None:
    """On AMD64 the row counts, and the record adds registers where both agree; on other ABIs only the record does."""
    arch, nowhere = kernel.arch, Ending("no-row", "")
    pc, *registers = distances(kernel, tmp_path)
    memory = Memory([(PC, kernel.code), record(kernel, tmp_path)])
    for fp in (arch.fp_register, 1):
        places = (registers[arch.sp_register], pc, registers[fp])
        cfa, ra, saved_fp = (Rule(arch.sp_register, place, deref=True) for place in places)
        state = FrameState(cfa, ra, saved_fp)
        body = FunctionBody((0,), (state,), is_signal_frame=True)
        found: dict[int, Found | Ending] = {PC: Found(Function(PC, 16, body), FrameRow(0, state), 3, arch)}
        first, second, *_ = walk(
            Frame(PC, SP, 0), defaultdict(lambda: nowhere, found).__getitem__, memory.read, arch
        ).entries
        is_of_the_record = fp == arch.fp_register or arch is not AMD64
        assert first.is_trampoline == (arch is not AMD64)
        assert second.frame.fp == 0x1000 + (arch.fp_register if is_of_the_record else fp)
        assert bool(second.frame.registers) == is_of_the_record


@pytest.mark.oracle
def test_the_older_record_of_s390x(tmp_path: Path) -> None:
    """A handler without SA_SIGINFO: a pointer leads to the registers."""
    address, data = record(KERNELS[2], tmp_path)
    code, pointer = (PC, bytes.fromhex("0a77")), (SP - 0x1000 + 168, struct.pack(">Q", address))
    frame = interrupted_frame(Frame(PC, SP - 0x1000, 0), Memory([code, pointer, (address, data)]).read, S390X)
    assert frame is not None
    assert (frame.pc, frame.sp, frame.ra) == (0x9000, 0x1000 + 15, 0x1000 + 14)
    assert interrupted_frame(Frame(PC, SP - 0x1000, 0), Memory([code, (address, data)]).read, S390X) is None


def test_records_of_a_core() -> None:
    """In struct user_regs_struct and its like, each register is at its place in the kernel's order."""
    amd64 = topmost_frame({NT_PRSTATUS: struct.pack("<27Q", *range(100, 127))}, AMD64)
    assert amd64 is not None
    # r15 r14 r13 r12 rbp rbx r11 r10 r9 r8 rax rcx rdx rsi rdi orig_rax rip cs eflags rsp
    assert amd64[:4] == (116, 119, 104, None)
    wanted = {**dict(zip((15, 14, 13, 12, 6, 3, 11, 10, 9, 8, 0, 2, 1, 4, 5), range(15), strict=True)), 7: 19}
    assert dict(amd64.registers) == {number: 100 + place for number, place in wanted.items()}
    aarch64 = topmost_frame({NT_PRSTATUS: struct.pack("<34Q", *range(100, 134))}, AARCH64_LE)
    assert aarch64 is not None
    assert aarch64[:4] == (132, 131, 129, 130)
    assert dict(aarch64.registers) == {number: 100 + number for number in range(32)}
    floats = struct.pack(">17Q", 0, *range(200, 216))
    s390x = topmost_frame({NT_PRSTATUS: struct.pack(">27Q", *range(100, 127)), NT_PRFPREG: floats}, S390X)
    assert s390x is not None
    assert s390x[:4] == (101, 117, 113, 116)
    assert [s390x.registers[16 + n] for n in range(16)] == [200 + number for number in _S390X_FLOATS]
    for arch in (AMD64, AARCH64_LE, S390X):
        assert topmost_frame({NT_PRSTATUS: bytes(100)}, arch) is None
