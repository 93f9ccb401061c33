# SPDX-License-Identifier: Apache-2.0
"""Stubs spelled out byte by byte: what is described, what is left out, and why."""

import struct
import subprocess
import sys
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.stubs import StubScan, StubSkip
from cfi2sframe.stubs.scan import scan_stubs
from cfi2sframe.why import Reason
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import CODE, TEXT_VADDR, cie_of, linked_file
from tests.support.stubs.handmade import (
    GOT_VADDR,
    PLT_VADDR,
    depth_at,
    file_with,
    got_stub,
    lazy_stub,
    lazy_stubs,
    push_and_leave,
    rel32,
    summary,
)

LAZY_ROWS: Final = [(0, 8), (11, 16)]
FIRST_ROWS: Final = [(0, 16), (6, 24)]


def _scan(*stubs: tuple[str, int, bytes], version: int = 3) -> StubScan:
    return scan_stubs(file_with(*stubs), version)


def _plt(data: bytes, name: str = ".plt") -> StubScan:
    return _scan((name, PLT_VADDR, data))


def _reasons(scan: StubScan) -> list[tuple[int, int, Reason]]:
    return [(skip.start_vaddr, skip.size, skip.reason) for skip in scan.left_out]


# Kinds of stubs


def test_lazy_stubs_and_their_first_block() -> None:
    scan = _plt(lazy_stubs(3))
    assert summary(scan.functions) == [(PLT_VADDR, 16, 0, FIRST_ROWS), (PLT_VADDR + 16, 48, 16, LAZY_ROWS)]
    assert not scan.left_out


def test_rows_of_blocks_off_their_size_start_with_an_aligned_address() -> None:
    start = PLT_VADDR + 8
    scan = _scan((".plt", start, b"".join(lazy_stub(n, 16 * (n + 1)) for n in range(3))))
    # The stubs jump out of the section, which is nothing to them.
    assert summary(scan.functions) == [(start, 8, 0, [(0, 8)]), (start + 8, 40, 16, [(0, 8), (3, 16), (8, 8)])]
    assert [depth_at(scan.functions, start + d) for d in range(48)] == ([8] * 11 + [16] * 5) * 3
    # One stub repeats nothing.
    assert summary(_scan((".plt", start, lazy_stub(0, 16))).functions) == [(start, 16, 0, LAZY_ROWS)]


def test_what_fills_space_within_a_stub() -> None:
    """Nothing enters the instruction that follows it, unless control ended before."""
    block = b"\x68" + rel32(1) + b"\x66\x90\xe9" + rel32(-16 - 12) + b"\xcc" * 4
    assert summary(_plt(push_and_leave() + block).functions)[1][3] == [(0, 8), (5, 16)]


def test_after_what_fills_space_a_stub_starts_at_an_aligned_address() -> None:
    """push; jmp; nop; xor eax, eax; ret: what follows the nop has the frame of the push."""
    block = b"\x68" + rel32(1) + b"\xe9" + rel32(-26) + b"\x90\x31\xc0\xc3" + b"\xcc" * 2
    assert summary(_plt(push_and_leave() + block).functions)[1][3] == [(0, 8), (5, 16)]


def test_no_capstone_is_imported_for_a_file_without_stubs() -> None:
    program = (
        "import sys\n"
        "from tests.support.stubs.handmade import file_with\n"
        "from cfi2sframe.stubs.scan import scan_stubs\n"
        "assert not scan_stubs(file_with(('.text', 0x1000, bytes(16))), 3).functions\n"
        "assert 'capstone' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


# Who enters a first block


@pytest.mark.parametrize("block", [push_and_leave(), b"\x48\x83\xec\x08\xff\x25" + rel32(0x2000) + b"\x90" * 6])
def test_a_first_block_that_nothing_enters_is_left_out(block: bytes) -> None:
    """It pushes, or subtracts from SP."""
    scan = _scan((".plt", PLT_VADDR, block), (".plt.got", PLT_VADDR + 16, got_stub()))
    assert _reasons(scan) == [(PLT_VADDR, 16, Reason.ENTRY_UNKNOWN)]
    assert summary(scan.functions) == [(PLT_VADDR + 16, 8, 8, [(0, 8)])]


def test_stubs_of_which_the_cfi_is_wrong() -> None:
    # As older versions of GNU ld write them for CET; their CFI puts the end of the push at 10.
    stub = b"\xf3\x0f\x1e\xfa\x68" + rel32(1) + b"\xf2\xe9" + rel32(-48) + b"\x90"
    scan = _plt(push_and_leave() + (stub * 3).replace(rel32(-48), rel32(-31), 1))
    assert [rows for _, _, _, rows in summary(scan.functions)][-1][:2] == [(0, 8), (9, 16)]


# What is left out


def _only(scan: StubScan) -> StubSkip:
    assert not scan.functions
    (skip,) = scan.left_out
    return skip


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (b"\x48\x83\xec\x04", "sub rsp, 4"),
        (b"\x66\x68\x01\x00", "push 1"),
        (b"\xff\xd0", "call rax"),
        (b"\x74\x00", "je 0x1002"),
        (b"\x66\xe8\x00\x00\x00\x00", "call 0x1006"),
    ],
)
def test_an_unknown_instruction_is_named(code: bytes, text: str) -> None:
    block = code + b"\xff\x25" + rel32(0x3000)
    skip = _only(_plt((block + b"\xcc" * (16 - len(block))) * 2))
    assert skip.reason is Reason.UNKNOWN_INSTRUCTION
    # Processors disagree about this one's length; capstone 4 says what AMD's do.
    assert skip.detail.replace("call 4", "call 0x1006") == f"{text} at 0x{PLT_VADDR:x}"


def test_code_that_is_reached_with_two_depths_is_left_out() -> None:
    # The second stub's jump leads past the first block's push.
    plt = lazy_stubs(1) + lazy_stub(1, 32)[:-4] + rel32(-32 - 16 + 6)
    scan = _plt(plt)
    assert Reason.DEPTH_CONFLICT in {skip.reason for skip in scan.left_out}
    assert depth_at(scan.functions, PLT_VADDR) == 16
    assert depth_at(scan.functions, PLT_VADDR + 6) is None


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (b"\x58\xff\x25" + rel32(0x3000) + b"\xcc", Reason.UNKNOWN_INSTRUCTION),
        (b"\x48\x89\x04\x24\xc3\xcc\xcc\xcc", Reason.UNKNOWN_INSTRUCTION),
        # mov rax, [rsp]; mov [rsp], r11: the RA is in rax.
        (b"\x48\x8b\x04\x24\x4c\x89\x1c\x24\xff\x25" + rel32(0x3000) + b"\xcc\xcc", Reason.UNKNOWN_INSTRUCTION),
        (b"\xe8" + rel32(0x10000) + b"\xeb\xfe\xcc", Reason.UNKNOWN_INSTRUCTION),
        (b"\x50\xeb\xfd" + b"\xcc" * 5, Reason.ENTRY_UNKNOWN),
    ],
)
def test_blocks_that_make_no_sense_are_left_out(block: bytes, reason: Reason) -> None:
    scan = _plt(block * 2)
    assert {skip.reason for skip in scan.left_out} == {reason}
    assert scan.left_out[0].start_vaddr == PLT_VADDR


# Version 1


def test_version_1_has_only_what_its_mask_test_finds() -> None:
    stubs = ((".plt", PLT_VADDR, lazy_stubs(3)), (".plt.got", PLT_VADDR + 0x100, got_stub() * 2))
    scan = _scan(*stubs, version=1)
    assert _reasons(scan) == [(PLT_VADDR + 16, 48, Reason.VERSION_1_MASK)]
    assert summary(scan.functions) == [(PLT_VADDR, 16, 0, FIRST_ROWS), (PLT_VADDR + 0x100, 16, 8, [(0, 8)])]


@pytest.mark.parametrize("pushed_at", [4, 8, 12, 14, 15])
@pytest.mark.parametrize("start", [PLT_VADDR, PLT_VADDR + 4])
def test_version_1_is_right_wherever_it_is_used(pushed_at: int, start: int) -> None:
    # `nop`s, then a push of one byte that ends at `pushed_at`, then what still fits.
    block = b"\xf3\x0f\x1e\xfa" * ((pushed_at - 1) // 4)
    block += {0: b"", 1: b"\xf3\x90\x90"[2:], 2: b"\xf3\x90", 3: b"\x0f\xae\xe8"}[(pushed_at - 1) % 4] + b"\x50"
    assert len(block) == pushed_at
    block += b"\xc3" if len(block) > 13 else b"\xff\xe0"
    scan = _scan((".plt", start, (block + b"\xcc" * (16 - len(block))) * 4), version=1)
    for function in scan.functions:
        for pc in range(function.start_vaddr, function.start_vaddr + function.size):
            matching = [r for r in function.body.rows if pc & r.start_delta >= r.start_delta]
            assert matching[-1].state.cfa is not None
            assert matching[-1].state.cfa.offset == (8 if (pc - start) % 16 < pushed_at else 16)
    is_mask = pushed_at in (8, 12, 14, 15) and start % 16 == 0
    assert bool(scan.functions) is is_mask


# Other architectures


@pytest.mark.parametrize("arch", [AARCH64_LE, AARCH64_BE], ids=["little", "big"])
def test_aarch64_stubs_and_their_first_block(arch: Arch) -> None:
    got_page = (GOT_VADDR - PLT_VADDR) >> 12
    load_slot = [0x90000010 | (got_page & 3) << 29 | got_page >> 2 << 5, 0xF9400211, 0x91000210, 0xD61F0220]
    first = struct.pack("<8I", 0xA9BF7BF0, *load_slot, *[0xD503201F] * 3)
    image = file_with(
        (".plt", PLT_VADDR, first + struct.pack("<4I", *load_slot) * 3),
        arch=arch,
        got=struct.pack(arch.byte_order + "Q", PLT_VADDR),
    )
    scan = scan_stubs(image, 3)
    assert summary(scan.functions) == [(PLT_VADDR, 32, 0, [(0, 0), (4, 16)]), (PLT_VADDR + 32, 48, 16, [(0, 0)])]
    saved = scan.functions[0].body.rows[1].state.ra
    assert saved is not None
    assert (saved.register, saved.offset, saved.deref) == (None, -8, True)


S390X_LARL: Final = b"\xc0\x10\0\0\x10\0"
S390X_LG: Final = b"\xe3\x10\x10\0\0\x04"
S390X_BR: Final = b"\x07\xf1"


@pytest.mark.parametrize(
    "code",
    [
        b"\xe3\xf0\x10\0\0\x04",  # lg %r15, 0(%r1)
        b"\xc0\xe0\0\0\x10\0",  # larl %r14
    ],
)
def test_s390x_instructions_that_lose_the_frame_are_left_out(code: bytes) -> None:
    block = code + S390X_LARL + S390X_LG + S390X_BR + b"\x07\0" * 6
    scan = scan_stubs(file_with((".plt", PLT_VADDR, block * 3), arch=S390X), 3)
    assert not scan.functions
    assert {skip.reason for skip in scan.left_out} == {Reason.UNKNOWN_INSTRUCTION}


# Stubs and CFI


def test_a_first_block_without_stubs() -> None:
    """Linkers write it, too: where its CFI describes it, nothing is left out."""
    vaddr = TEXT_VADDR + 0x10000
    plt = asm.Section(".plt", push_and_leave(), 1, CODE, vaddr)
    text = asm.Fde(cie_of(AMD64), TEXT_VADDR, 0x20)
    rows = (asm.def_cfa_offset(16), asm.advance(6), asm.def_cfa_offset(24))
    own = asm.Fde(cie_of(AMD64), vaddr, 0x10, rows)
    for fdes, reasons in (([text, own], []), ([text], [Reason.ENTRY_UNKNOWN])):
        conversion = convert_image(load(linked_file(AMD64, fdes, more=(plt,))))
        assert [skip.reason for skip in conversion.stubs_left_out] == reasons
        assert list(conversion.section.starts) == [fde.pc_begin for fde in fdes]
