# SPDX-License-Identifier: Apache-2.0
"""Who refers to an address: instructions of each machine, words of files at fixed addresses, relocations."""

import struct
from collections.abc import Iterable
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.referrers import Referrer, referrers
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import cie_of

READ: Final = asm.Section(".read", bytes(0x20), c.SHT_NOTE, c.SHF_ALLOC, 0x300, align=4)
START, END = READ.addr, READ.addr + len(READ.data)
FRAME_VADDR, HDR_VADDR, TEXT_VADDR, DATA_VADDR = 0x400, 0x500, 0x2000, 0x100000
#: Bytes of the one function that has an FDE; others follow it.
FUNCTION_SIZE: Final = 64
DATA_SIZE: Final = 64
MACHINES: Final = (AMD64, AARCH64_LE, AARCH64_BE, S390X)
SPANS: Final = ((START, END),)
#: Around the borders of the span, and whether an address is in it.
BORDERS: Final = ((START - 2, False), (START, True), (END - 2, True), (END, False))


def _file(
    code: bytes,
    arch: Arch = AMD64,
    *,
    kind: int = c.ET_DYN,
    data: bytes = b"",
    more: Iterable[asm.Section] = (),
    text_vaddr: int = TEXT_VADDR,
) -> bytes:
    little = arch.byte_order == "<"
    fde = asm.Fde(cie_of(arch), text_vaddr, FUNCTION_SIZE)
    frame = asm.EhFrame((fde, asm.Terminator()), FRAME_VADDR, little_endian=little)
    table = ((text_vaddr, FRAME_VADDR + frame.fde_offsets()[0]),)
    hdr = asm.eh_frame_hdr(HDR_VADDR, FRAME_VADDR, table, little_endian=little)
    extra = tuple(more)
    return asm.elf_file(
        arch.elf_machine,
        (
            READ,
            asm.Section(".eh_frame", frame.assemble(), flags=c.SHF_ALLOC, addr=FRAME_VADDR, align=8),
            asm.Section(".eh_frame_hdr", hdr, flags=c.SHF_ALLOC, addr=HDR_VADDR, align=4),
            asm.Section(".text", code, flags=c.SHF_ALLOC | c.SHF_EXECINSTR, addr=text_vaddr),
            asm.Section(".data", data.ljust(DATA_SIZE, b"\0"), flags=c.SHF_ALLOC | c.SHF_WRITE, addr=DATA_VADDR),
            *extra,
        ),
        file_type=kind,
        little_endian=little,
        segments=(
            asm.Segment(c.PT_LOAD, c.PF_R, (".read", ".eh_frame_hdr"), headers=True),
            asm.Segment(c.PT_LOAD, c.PF_R | c.PF_X, (".text",)),
            asm.Segment(c.PT_LOAD, c.PF_R | c.PF_W, (".data",)),
            asm.Segment(c.PT_GNU_EH_FRAME, c.PF_R, (".eh_frame_hdr",), align=4),
        ),
    )


def _found(code: bytes, arch: Arch = AMD64, *, kind: int = c.ET_DYN, data: bytes = b"") -> list[Referrer]:
    return referrers(load(_file(code, arch, kind=kind, data=data)), SPANS)


NOP, PUSH = b"\x90", b"\x55"


def _amd64(opcode: bytes, target: int, immediate: bytes = b"", at: int = TEXT_VADDR + 1) -> bytes:
    end = at + len(opcode) + 4 + len(immediate)
    return opcode + struct.pack("<i", target - end) + immediate


@pytest.mark.parametrize(("target", "is_in"), BORDERS)
@pytest.mark.parametrize(
    ("opcode", "immediate"),
    [
        (b"\x48\x8d\x3d", b""),
        (b"\x8b\x05", b""),
        (b"\x67\x8b\x05", b""),
        (b"\x80\x3d", b"\x07"),
        (b"\x66\x81\x3d", b"\x01\x02"),
        (b"\x81\x3d", b"\x01\x02\x03\x04"),
        (b"\xc5\xfa\x6f\x05", b""),
    ],
)
def test_operands_relative_to_rip(opcode: bytes, immediate: bytes, target: int, *, is_in: bool) -> None:
    code = PUSH + _amd64(opcode, target, immediate)
    assert _found(code + NOP * 80) == ([Referrer(TEXT_VADDR + 1, target)] if is_in else [])


#: Code of one size after another: from each byte on, it is decoded alike soon.
ANY_CODE: Final = b"".join([PUSH, b"\x48\x89\xe5", b"\x31\xc0", b"\x48\x83\xec\x10", b"\x74\x05", b"\xff\xd0"]) * 40


@pytest.mark.parametrize("before", [PUSH, NOP * FUNCTION_SIZE, ANY_CODE])
def test_a_number_in_the_midst_of_an_instruction(before: bytes) -> None:
    """It looks like an operand, and is none: in a known function, in what fills behind it, and in unknown code."""
    at = TEXT_VADDR + len(before)
    inside = b"\x48\xb8" + _amd64(b"\x8b\x05", START, at=at + 2) + b"\0\0"
    assert not _found(before + inside + NOP * 80)
    # The distance, read as a number, is an address.
    for relative in (b"\x48\x8d\x05", b"\x8b\x05", b"\x48\xc7\x05"):
        code = before + relative + struct.pack("<I", START) + b"\x8b\x80" + struct.pack("<i", -START) + NOP * 80
        assert not _found(code, kind=c.ET_EXEC)
    # nop dword ptr [rax]
    fill = 0x401F0F
    for shift in range(8):
        code = before + NOP * shift + b"\x0f\x1f\x40" + bytes(80)
        assert not referrers(load(_file(code, kind=c.ET_EXEC)), [(fill, fill + 1)])
    # In data, the same bytes are an address.
    pointer = load(_file(before + NOP * 80, kind=c.ET_EXEC, data=struct.pack("<Q", fill)))
    assert referrers(pointer, [(fill, fill + 1)]) == [Referrer(DATA_VADDR, fill)]
    (found,) = _found(before + _amd64(b"\x48\x8d\x05", START, at=at) + NOP * 80)
    assert found == (at, START)


def _without_functions(code: bytes) -> list[Referrer]:
    """Return what is found where no function is known."""
    data = bytearray(_file(code))
    struct.pack_into("<I", data, 64 + 56 * 3, c.PT_NOTE)
    return referrers(load(bytes(data)), SPANS)


@pytest.mark.parametrize("before", [ANY_CODE, bytes(0x400), ANY_CODE + bytes(0x23)])
def test_code_without_known_functions(before: bytes) -> None:
    """The first instruction counts, also behind zeros, and no number in its midst."""
    at = TEXT_VADDR + len(before)
    for opcode in (b"\x48\x8d\x05", b"\x8b\x05"):
        code = _amd64(opcode, START, at=at)
        assert Referrer(at, START) in _without_functions(before + code + NOP * 80)
    assert not _without_functions(ANY_CODE + b"\x48\xb8" + _amd64(b"\x8b\x05", START, at=at + 2) + bytes(2))


def test_the_first_bytes_of_unknown_code() -> None:
    """Any of them may be that of an instruction."""
    (found,) = _without_functions(b"\x48\xb8" + _amd64(b"\x8b\x05", START, at=TEXT_VADDR + 2) + bytes(2) + NOP * 80)
    assert found.target == START


def test_a_known_function_behind_data() -> None:
    """Data in code leads astray, the start of a function leads back."""
    size = 0x140
    data = b"\x48\xb8" + _amd64(b"\x8b\x05", START, at=TEXT_VADDR + size - 10) + bytes(2) + b"\x48\xb8"
    code = ANY_CODE[: size - len(data)] + data + _amd64(b"\x8b\x05", START, at=TEXT_VADDR + size) + NOP * 80
    assert not _without_functions(code)
    file = bytearray(_file(code))
    hdr = load(bytes(file)).sections[3]
    struct.pack_into("<i", file, hdr.file_offset + 12, TEXT_VADDR + size - HDR_VADDR)
    assert referrers(load(bytes(file)), SPANS) == [Referrer(TEXT_VADDR + size, START)]


def test_bytes_that_are_no_instructions() -> None:
    """They may be one that is not known, of any size."""
    for size in (1, 9):
        code = PUSH + b"\x06" * size + _amd64(b"\x8b\x05", START, at=TEXT_VADDR + 1 + size)
        assert {found.target for found in _found(code + NOP * 80)} == {START}
    operand = PUSH + _amd64(b"\x06\x05", START)
    following = PUSH + b"\x06" + (b"\x48\xb8" + NOP * 8) + b"\x48\xb8" + NOP
    for code in (operand, following + _amd64(b"\x8b\x05", START, at=TEXT_VADDR + len(following))):
        assert {found.target for found in _found(code + NOP * 80)} == {START}


def test_stubs_of_a_plt() -> None:
    """What ways that start wrongly meet in each stub are no instructions."""
    stubs = (struct.pack("<2sIcIci", b"\xff\x25", 0x30CCA, b"\x68", n, b"\xe9", -16 * n) for n in range(0x60))
    image = load(_file(NOP * 0x400 + b"".join(stubs), kind=c.ET_EXEC))
    assert not referrers(image, [(0x406800, 0x406801)])


def test_a_function_of_many_pieces() -> None:
    """Code is searched and decoded in pieces: across their borders, too."""
    for size in ((1 << 12) - 5, (1 << 18) - 6, (1 << 18) - 1):
        code = NOP * size + _amd64(b"\x8b\x05", START, at=TEXT_VADDR + size) + NOP * 80
        data = bytearray(_file(code))
        image = load(bytes(data))
        frame = image.sections[2]
        at = data.index(struct.pack("<I", FUNCTION_SIZE), frame.file_offset)
        struct.pack_into("<I", data, at, len(code))
        assert referrers(load(bytes(data)), SPANS) == [Referrer(TEXT_VADDR + size, START)]


def _adr(at: int, target: int) -> int:
    distance = target - at & 0x1FFFFF
    return 0x10000000 | (distance & 3) << 29 | (distance >> 2) << 5 | 3


def _adrp(at: int, target: int, register: int = 3) -> int:
    pages = (target >> 12) - (at >> 12) & 0x1FFFFF
    return 0x90000000 | (pages & 3) << 29 | (pages >> 2) << 5 | register


def _words(*words: int) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


#: Instructions that add a number to x3: ADD, and loads and stores of each size; what the number counts.
ADDERS: Final = (
    (0x91000063, 1),
    (0x39400063, 1),
    (0x79400063, 2),
    (0xB9400063, 4),
    (0xF9400063, 8),
    (0xF9000063, 8),
    (0x3D800063, 16),
)


@pytest.mark.parametrize("arch", [AARCH64_LE, AARCH64_BE])
@pytest.mark.parametrize(("target", "is_in"), BORDERS)
def test_aarch64(arch: Arch, target: int, *, is_in: bool) -> None:
    """Instructions are little-endian in both byte orders."""
    wanted = [Referrer(TEXT_VADDR + 4, target)] if is_in else []
    at = TEXT_VADDR + 4
    nop = 0xD503201F
    assert _found(_words(nop, _adr(at, target), nop), arch) == wanted
    for instruction, unit in ADDERS:
        number = target & 0xFFF
        if number % unit == 0:
            pair = _words(nop, _adrp(at, target), nop, instruction | number // unit << 10)
            assert _found(pair, arch) == wanted
    if target % 4 == 0:
        for load_literal in (0x18000000, 0x58000000, 0x98000000, 0x1C000000, 0x5C000000, 0x9C000000):
            literal = load_literal | ((target - at) // 4 & 0x7FFFF) << 5
            assert _found(_words(nop, literal, nop), arch) == wanted


def test_aarch64_page_alone() -> None:
    """Where no instruction adds to the address of a page, all of the page counts; where one does, what it adds."""
    nop, other_register = 0xD503201F, 0x91000084
    assert _found(_words(_adrp(TEXT_VADDR, START), other_register, nop), AARCH64_LE)[0].target == START
    assert not _found(_words(_adrp(TEXT_VADDR, START), 0x91000063 | 0x900 << 10, nop), AARCH64_LE)
    assert not _found(_words(_adrp(TEXT_VADDR, START + 0x1000), nop, nop), AARCH64_LE)


def test_aarch64_reach() -> None:
    """ADR reaches 1 MiB, ADRP 4 GiB: what is farther is not what the bits say."""
    for vaddr, has_adr in (((1 << 20) + START, True), ((1 << 20) + END, False)):
        data = bytearray(_file(_words(_adr(vaddr, START), 0xD503201F), AARCH64_LE))
        for segment in (1,):
            at = 64 + 56 * segment
            struct.pack_into("<QQ", data, at + 16, vaddr, vaddr)
        header = load(bytes(data)).header.section_headers_offset + 64 * 4
        struct.pack_into("<Q", data, header + 16, vaddr)
        assert [found.target for found in referrers(load(bytes(data)), SPANS)] == [START] * has_adr


@pytest.mark.parametrize(("target", "is_in"), BORDERS)
@pytest.mark.parametrize("opcode", ["c030", "c432", "c438", "c43d", "c43e", "c44f", "c632", "c634", "c63f"])
def test_s390x(opcode: str, target: int, *, is_in: bool) -> None:
    at = TEXT_VADDR + 2
    code = b"\x07\x07" + bytes.fromhex(opcode) + struct.pack(">i", (target - at) // 2) + b"\x07\x07" * 40
    assert _found(code, S390X) == ([Referrer(at, target)] if is_in else [])


def test_s390x_in_the_midst_of_an_instruction() -> None:
    at = TEXT_VADDR + 2
    number = bytes.fromhex("c030") + struct.pack(">i", (START - at) // 2)
    # iihf %r0, and the halfword of a number, lgfi.
    assert not _found(b"\xc0\x08" + number[:4] + b"\xc0\x01" + number[4:] + bytes(2) + b"\x07\x07" * 40, S390X)


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize(("target", "is_in"), BORDERS)
def test_words_of_data(arch: Arch, target: int, *, is_in: bool) -> None:
    """In files at fixed addresses; those of other files have relocations."""
    for shift, is_aligned in ((8, True), (12, False)):
        data = bytes(shift) + struct.pack(arch.byte_order + "Q", target)
        found = [Referrer(DATA_VADDR + shift, target)] if is_in and is_aligned else []
        code = bytes(80)
        assert _found(code, arch, kind=c.ET_EXEC, data=data) == found
        assert not _found(code, arch, data=data)


@pytest.mark.parametrize(("target", "is_in"), BORDERS)
def test_numbers_in_code(target: int, *, is_in: bool) -> None:
    for instruction in (b"\xbf", b"\x48\xc7\xc7", b"\x8b\x04\x25", b"\x8b\x80"):
        code = PUSH + instruction + struct.pack("<i", target) + NOP * 80
        assert _found(code, kind=c.ET_EXEC) == ([Referrer(TEXT_VADDR + 1, target)] if is_in else [])
        assert not _found(code)


def test_addresses_of_more_than_32_bits() -> None:
    """No number of 32 bits is one of them."""
    image = load(_file(PUSH + b"\xbf" + bytes(4) + NOP * 80, kind=c.ET_EXEC))
    assert not referrers(image, [(1 << 32, (1 << 32) + 64)])
    image = load(_file(PUSH + b"\x48\xbf" + struct.pack("<Q", 1 << 32) + NOP * 80, kind=c.ET_EXEC))
    assert referrers(image, [(1 << 32, (1 << 32) + 64)]) == [Referrer(TEXT_VADDR + 1, 1 << 32)]


def test_tables_that_name_it_on_purpose() -> None:
    """The program headers and the dynamic section are not counted."""
    dynamic = struct.pack("<4Q", c.DT_GNU_HASH, START, 0, 0)
    data = bytearray(_file(NOP * 80, kind=c.ET_EXEC, data=dynamic))
    assert [found.vaddr for found in referrers(load(bytes(data)), SPANS)] == [DATA_VADDR + 8]
    struct.pack_into("<I", data, 64 + 56 * 2, c.PT_DYNAMIC)
    assert not referrers(load(bytes(data)), SPANS)
    # One that names the span, such as PT_NOTE.
    struct.pack_into("<QQ", data, 64 + 56 * 3 + 16, START, START)
    assert not referrers(load(bytes(data)), SPANS)


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize(("target", "is_in"), BORDERS)
def test_relocations(arch: Arch, target: int, *, is_in: bool) -> None:
    relative, place = arch.relative_relocation, DATA_VADDR + 8
    entry = struct.pack(arch.byte_order + "QQQ", place, relative, target)
    rela = asm.Section(".rela.dyn", entry, c.SHT_RELA, c.SHF_ALLOC, DATA_VADDR + DATA_SIZE, align=8)
    wanted = [Referrer(place, target)] if is_in else []
    assert referrers(load(_file(bytes(80), arch, more=[rela])), SPANS) == wanted
    other = struct.pack(arch.byte_order + "QQQ", place, relative + 1, target)
    assert not referrers(load(_file(bytes(80), arch, more=[rela._replace(data=other)])), SPANS)
    stored = struct.pack(arch.byte_order + "QQQ", target, relative + 1, 0)
    found = referrers(load(_file(bytes(80), arch, more=[rela._replace(data=stored)])), SPANS)
    assert found == ([Referrer(target, target)] if is_in else [])
    packed = struct.pack(arch.byte_order + "QQ", DATA_VADDR, 0b11)
    relr = rela._replace(name=".relr.dyn", type=c.SHT_RELR, data=packed)
    data = bytes(8) + struct.pack(arch.byte_order + "Q", target)
    assert referrers(load(_file(bytes(80), arch, data=data, more=[relr])), SPANS) == wanted


#: Spans far from the code, before and after it: at the borders of what is searched for at one time, and elsewhere.
FAR: Final = (0x12345300, 0x7FFF00, 0x3FFFF0, 0x7F000000)


@pytest.mark.parametrize("target", FAR)
@pytest.mark.parametrize("text_vaddr", [0x2000, 0x3FFF000, 0x41234000])
def test_far_away(target: int, text_vaddr: int) -> None:
    """Instructions of each machine that reach so far refer to the first and to the last bytes, and to none beside."""
    spans = [(target, target + 0x20)]
    nop, at = 0xD503201F, text_vaddr + 4
    for offset, is_in in ((-2, False), (0, True), (0x1E, True), (0x20, False)):
        wanted = target + offset
        code = PUSH + _amd64(b"\x48\x8d\x3d", wanted, at=text_vaddr + 1) + NOP * 80
        found = referrers(load(_file(code, text_vaddr=text_vaddr)), spans)
        assert found == ([Referrer(text_vaddr + 1, wanted)] if is_in else [])
        code = PUSH + b"\xbf" + struct.pack("<I", wanted) + NOP * 80
        found = referrers(load(_file(code, kind=c.ET_EXEC, text_vaddr=text_vaddr)), spans)
        assert found == ([Referrer(text_vaddr + 1, wanted)] if is_in else [])
        code = _words(nop, _adrp(at, wanted), 0x91000063 | (wanted & 0xFFF) << 10, nop)
        found = referrers(load(_file(code, AARCH64_LE, text_vaddr=text_vaddr)), spans)
        assert found == ([Referrer(at, wanted)] if is_in else [])
        code = b"\x07\x07\x07\x07" + b"\xc0\x30" + struct.pack(">i", (wanted - at) // 2) + b"\x07\x07" * 40
        found = referrers(load(_file(code, S390X, text_vaddr=text_vaddr)), spans)
        assert found == ([Referrer(at, wanted)] if is_in else [])


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize("target", FAR)
def test_the_last_word_of_data(arch: Arch, target: int) -> None:
    for place in (0, DATA_SIZE - 8):
        data = bytes(place) + struct.pack(arch.byte_order + "Q", target)
        found = referrers(load(_file(bytes(80), arch, kind=c.ET_EXEC, data=data)), [(target, target + 8)])
        assert found == [Referrer(DATA_VADDR + place, target)]


def test_the_last_number_of_code() -> None:
    code = PUSH * FUNCTION_SIZE + b"\xbf" + struct.pack("<I", START)
    (found,) = _found(code, kind=c.ET_EXEC)
    assert found.target == START


def test_no_spans() -> None:
    assert not referrers(load(_file(PUSH + _amd64(b"\x8b\x05", START))), ())
