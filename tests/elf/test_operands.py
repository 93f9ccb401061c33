# SPDX-License-Identifier: Apache-2.0
"""Which numbers are operands of AMD64, and what AArch64's pairs of instructions lead to."""

import struct
from collections.abc import Iterator
from typing import Final

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.operands import _READING, _is_of_vectors, distances
from cfi2sframe.elf.referrers import Referrer
from cfi2sframe.range_map import Span
from tests.support.elf.elf_asm import Section, Segment
from tests.support.elf.references import referrers
from tests.support.elf.referring import CODE, MOVE, READ_VADDR, SPANS, TEXT_VADDR, adrp, file_of, words


def is_found(code: bytes) -> bool:
    """Return whether code of AMD64, at fixed addresses, refers to what is asked for."""
    return bool(referrers(load(file_of(AMD64, code + b"\x90" * 20, kind=c.ET_EXEC)), SPANS))


@pytest.mark.parametrize(
    "before", [b"\x55" * 140, bytes.fromhex("b806060606") * 30, bytes.fromhex("554889e531c04883ec107405ffd0") * 12]
)
def test_a_number_that_is_no_operand(before: bytes) -> None:
    """Large programs have such by chance: a distance, the half of an immediate, the bytes of two instructions."""
    number = struct.pack("<I", READ_VADDR)
    for inside in (b"\x8b\x05" + number, b"\x48\xc7\x05" + number + b"\1" * 4, b"\x48\xb8" + number + b"\1" * 4):
        assert not is_found(before + inside)
    # nop dword ptr [rax]: 0f 1f 40 00
    image = load(file_of(AMD64, before + b"\x0f\x1f\x40\0" + b"\x90" * 9, kind=c.ET_EXEC))
    assert not referrers(image, [(0x401F0F, 0x401F10)])
    assert is_found(before + b"\xbf" + number)


@pytest.mark.parametrize(
    "unknown",
    [
        "62f5744858 97",  # vaddph zmm2, zmm1, [rdi + disp32]: AVX512-FP16
        "62f5744858 1425",  # the same, [disp32]
        "d5108b 0425",  # mov r16d, [disp32]: APX, with REX2
        "d51081 c7",  # add r23d, imm32
        "62f47c1803 87",  # add eax, eax, [rdi + disp32]: APX, with EVEX
        "06",  # nothing, in 64-bit mode
    ],
)
@pytest.mark.parametrize("size", [1, 70])
def test_a_number_after_what_is_not_known(unknown: str, size: int) -> None:
    """It may be an operand of that."""
    code = b"\x90" * size + bytes.fromhex(unknown) + struct.pack("<I", READ_VADDR)
    assert is_found(code)


@pytest.mark.parametrize("order", [(0, 16, 32), (0, 32, 16), (32, 16, 0)])
def test_the_table_of_fdes_may_be_in_any_order(order: tuple[int, ...]) -> None:
    """Decoding starts where the function does: from the one before, its last bytes would swallow the operand."""
    code = b"\x90" * 14 + b"\x48\xb8" + b"\xbf" + struct.pack("<I", READ_VADDR) + b"\x90" * 50
    header_vaddr = TEXT_VADDR + 0x100
    table = struct.pack("<4BiI", 1, 0x1B, 0x03, 0x3B, 0, len(order))
    table += b"".join(struct.pack("<ii", TEXT_VADDR + start - header_vaddr, 0) for start in order)
    more = [Section(".eh_frame_hdr", table, flags=c.SHF_ALLOC, addr=header_vaddr)]
    segments = [Segment(c.PT_GNU_EH_FRAME, c.PF_R, (".eh_frame_hdr",))]
    image = load(file_of(AMD64, code, kind=c.ET_EXEC, more=more, segments=segments))
    assert referrers(image, SPANS) == [Referrer(TEXT_VADDR + 17, READ_VADDR)]


@pytest.mark.parametrize("flags", [c.SHF_ALLOC, CODE])
@pytest.mark.parametrize("shift", range(4))
def test_code_in_a_section_of_data(flags: int, shift: int) -> None:
    """Segments say what can run, and flags of sections do not: what they call data may be either."""
    number = struct.pack("<I", READ_VADDR)
    for opcode, is_operand in ((b"\xbf", True), (b"\x8b\x05", False)):
        code = b"\x90" * (140 + shift) + opcode + number + b"\x90" * 20
        more = [Section(".code", code, flags=flags, addr=TEXT_VADDR + 16)]
        found = referrers(load(file_of(AMD64, b"\x90", kind=c.ET_EXEC, more=more)), SPANS)
        assert bool(found) == (is_operand or flags != CODE)


ADD: Final = 0x91000063 | READ_VADDR << 10


@pytest.mark.parametrize(
    ("after", "is_found"),
    [
        ((), True),  # the segment ends
        ((ADD,), True),
        ((0x91000063 | 0x900 << 10,), False),  # to another datum
        ((0x91000084, MOVE, 0x91000063 | 0x900 << 10), False),
        ((0x91000064 | 0x900 << 10, *[MOVE] * 300, ADD), True),  # to another one first; far away
        ((0xF9000063 | 0x120 << 10,), True),  # str x3, [x3, 0x900]: the page is in memory
        ((0xF9000063 | 0x120 << 10, 0x91000063 | 0x900 << 10), True),
        ((0x3D800063 | 0x90 << 10, 0x91000063 | 0x900 << 10), False),  # str q3, [x3, 0x900]
        ((0xF9000043 | 0x120 << 10,), True),  # str x3, [x2, 0x900]
        ((0xF9800063 | 0x120 << 10, ADD), True),  # prfm [x3, 0x900], which loads nothing
        ((0x3DC00063 | 0x90 << 10, ADD), True),  # ldr q3, [x3, 0x900], which is another register
        ((0xAA0303E4,), True),  # mov x4, x3
        ((0x8B030084,), True),  # add x4, x4, x3
        ((0x8B040063,), True),  # add x3, x3, x4
        ((0xD61F0060,), True),  # br x3
        ((0x14000004, 0x91000063 | 0x900 << 10), True),  # b
        ((0x91400063, ADD), True),  # add x3, x3, 0, lsl 12
        ((0xB9400063 | 0x240 << 10,), False),  # ldr w3, [x3, 0x900]
        ((0xB9400063 | (READ_VADDR + 8) // 4 << 10,), True),
        ((0x3DC00063 | READ_VADDR // 16 << 10, 0x91000063 | 0x900 << 10), True),  # ldr q3
        # Another value is in the register; numbers look like registers.
        ((0xD2800064, 0xD2800003), False),  # mov x4, 3; mov x3, 0
        ((0xA90353F3, 0xD503233F, 0xAA0403E3), False),  # stp x19, x20, [sp, 48]; paciasp; mov x3, x4
        ((0x4F000C83, 0x910183E3), False),  # movi v3.4s, 0x4, whose bits look like x3; add x3, sp, 0x60
        ((0x4E083C63, ADD), True),  # mov x3, v3.d[0]
        ((0x4E080C63, 0x910183E3), True),  # dup v3.2d, x3
        ((0x294313E2, 0x910183E3), False),  # ldp w2, w4, [sp, 24]
        ((0x910183E3,), False),  # add x3, sp, 0x60
        ((0x90000003,), False),  # adrp x3
        ((0xF9400443,), False),  # ldr x3, [x2, 8]
        ((0x3DC00443, ADD), True),  # ldr q3, [x2, 16]
        ((0xF9800443, ADD), True),  # prfm 3, [x2, 8]
        ((0xFA440043, ADD), True),  # ccmp x2, x4, 3, eq
        ((0xF2800003, ADD), True),  # movk x3, 0
    ],
)
def test_a_page_and_what_is_added_to_it(after: tuple[int, ...], *, is_found: bool) -> None:
    """All of the page counts unless the register is known until another value is in it."""
    code = words(MOVE, adrp(TEXT_VADDR + 4, READ_VADDR), *after)
    found = referrers(load(file_of(AARCH64_LE, code)), SPANS)
    assert [each.vaddr for each in found] == [TEXT_VADDR + 4] * is_found
    # The page after what is asked for
    assert not referrers(load(file_of(AARCH64_LE, words(adrp(TEXT_VADDR, 0x5000), *after))), [(0x4FF0, 0x4FFF)])


#: adrp x16; ldr x17, [x16, 8]; add x16, x16, 8; br x17
PLT_STUB: Final = (0x90000010, 0xF9400611, 0x91002210, 0xD61F0220)


@pytest.mark.parametrize(
    ("register", "after", "called", "is_found"),
    [
        (3, ADD, (0xD503245F, *PLT_STUB), False),  # the call may overwrite x3
        (3, ADD, (*PLT_STUB[:3], 0xD503219F, PLT_STUB[3]), False),
        (3, ADD, (ADD, 0xD65F03C0), True),  # what it calls knows the page
        (3, ADD, (0x91002063, *PLT_STUB[1:]), True),
        (19, 0x91000273 | 0x900 << 10, PLT_STUB, False),  # the call keeps x19; another datum
        (19, 0x91000273 | (READ_VADDR & 0xFFF) << 10, PLT_STUB, True),
        (19, 0x91000273 | 0x900 << 10, (0xD65F03C0,), True),
    ],
)
def test_a_page_and_a_call(register: int, after: int, called: tuple[int, ...], *, is_found: bool) -> None:
    """Code of another file knows nothing of the page; but after a call, a handler of exceptions may."""
    code = words(adrp(TEXT_VADDR, READ_VADDR, register), 0x94000002, after, *called, *[MOVE] * 4)
    found = referrers(load(file_of(AARCH64_LE, code)), SPANS)
    assert [each.vaddr for each in found] == [TEXT_VADDR] * is_found
    handlers = Section(".gcc_except_table", bytes(8), flags=c.SHF_ALLOC, addr=TEXT_VADDR + 0x100)
    assert bool(referrers(load(file_of(AARCH64_LE, code, more=(handlers,))), SPANS)) == (is_found or register == 19)


def decoded(mask: int, bits: int) -> Iterator[tuple[int, str, set[int], set[int]]]:
    """Yield instructions in which a mask has these bits, and the general registers that capstone says they access."""
    disassembler = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    disassembler.detail = True
    numbers = {f"{size}{number}": number for size in "xw" for number in range(31)} | {"fp": 29, "lr": 30}
    for number in range(0, 1 << 32, 65_537 * 21 | 1):
        word = number & ~mask | bits
        for each in disassembler.disasm(struct.pack("<I", word), 0):
            # It takes the results of comparisons, and of ADDS, for operands.
            if each.mnemonic not in ("adds", "cmp", "cmn", "tst"):
                names = ([each.reg_name(one) for one in some] for some in each.regs_access())
                read, written = ({numbers[name] for name in some if name in numbers} for some in names)
                yield word, each.mnemonic, read, written


@pytest.mark.parametrize(("mask", "bits", "places"), _READING)
def test_which_registers_an_instruction_reads(mask: int, bits: int, places: tuple[int, ...]) -> None:
    count = 0
    for word, name, read, written in decoded(mask, bits):
        named, lowest, count = {word >> place & 31 for place in places}, word & 31, count + 1
        assert read <= named | {30}, (name, hex(word))
        assert written - named in ({lowest} - {31} - named, {30}), (name, hex(word))
    assert count > 100


def test_which_instructions_have_vectors_only() -> None:
    found = [
        (name, read | written) for word, name, read, written in decoded(0x1E000000, 0x0E000000) if _is_of_vectors(word)
    ]
    assert len(found) > 500
    assert not [name for name, registers in found if registers]


@pytest.mark.parametrize("distance", [0, 60, 64, 68])
@pytest.mark.parametrize("is_fixed", [True, False])
def test_moves_that_are_near_each_other(distance: int, *, is_fixed: bool) -> None:
    """The halves of an address, with the register or another one, and what lies between them."""
    target = 0x12345300
    for first, second in (
        ((0xD2800003, target), (0xF2A00004, target >> 16)),
        ((0xD2A00003, target >> 16), (0xF2800003, target)),
    ):
        code = words(
            first[0] | (first[1] & 0xFFFF) << 5, *[MOVE] * (distance // 4), second[0] | second[1] << 5 & 0x1FFFE0
        )
        image = load(file_of(AARCH64_LE, words(MOVE) + code + words(MOVE), kind=c.ET_EXEC if is_fixed else c.ET_DYN))
        assert bool(referrers(image, [(target, target + 1)])) == (is_fixed and distance < 64)
        other = file_of(AARCH64_LE, words(first[0] | (first[1] & 0xFFFF) << 5, 0x8B000003 | second[1] << 5 & 0x1FFFE0))
        assert not referrers(load(other), [(target, target + 1)])
        # Nothing of a long note is left out.
        assert bool(referrers(image, [(target - 0x1800, target + 0x1800)])) == (is_fixed and distance < 64)


@given(st.binary(max_size=40), st.integers(-(1 << 17), 1 << 17), st.integers(1, 9), st.sampled_from("<>"))
def test_distances_at_every_offset(tail: bytes, away: int, size: int, order: str) -> None:
    """The search by upper halves finds what reading a number at each offset does, near and far."""
    data = struct.pack(f"{order}6i", *range(away - 12, away + 12, 4)) + tail
    span = Span(0x40000 + away, 0x40000 + away + size)
    numbers = [struct.unpack_from(f"{order}i", data, at)[0] for at in range(len(data) - 3)]
    leading = [(at, number) for at, number in enumerate(numbers) if span.start <= 0x40000 + at + number < span.end]
    assert sorted(distances(data, 0x40000, span, order)) == leading
