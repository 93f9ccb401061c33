# SPDX-License-Identifier: Apache-2.0
"""Bytes against the specification's tables, written out by hand; every field of every version in both byte orders.

Widths and offsets are the smallest that hold their numbers; where none does, the message says so.
"""

import struct

import pytest

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.errors import RequestError
from cfi2sframe.sframe.model import OUTERMOST, FrameRow, FrameState, Function, FunctionBody, Rule, Section, States
from cfi2sframe.sframe.read import read_section
from cfi2sframe.sframe.write import RowStore, row_tail, store_rows
from tests.support.dwarf.rules import at_cfa as saved
from tests.support.dwarf.rules import loaded as load
from tests.support.dwarf.rules import register_offset as at
from tests.support.sframe.bodies import body_of_rows, section_bytes, with_functions
from tests.support.sframe.raw_sframe import RawFunction, RawSection

RA8, FP16 = saved(-8), saved(-16)


def bytes_of(text: str) -> bytes:
    """Return the bytes of a listing: hexadecimal digits, with comments after `#`."""
    return bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines()))


def encode(arch: Arch, version: int, *functions: Function, vaddr: int = 0, is_sorted: bool = True) -> bytes:
    section = with_functions(Section(version, arch.abi_id, is_sorted=is_sorted, start_is_pcrel=version > 1), functions)
    return section_bytes(section, arch, vaddr)


def amd64_function(start: int) -> Function:
    rows = (
        FrameRow(0, FrameState(at(7, 8), RA8)),
        FrameRow(1, FrameState(at(7, 16), RA8, FP16)),
        FrameRow(4, FrameState(at(6, 16), RA8, FP16)),
        FrameRow(0x120, OUTERMOST),
    )
    return Function(start, 0x130, body_of_rows(rows))


AMD64_ROWS = """
    0000 03 08         # 0: sp+8
    0100 05 10 f0      # 1: sp+16, FP at c-16
    0400 04 10 f0      # 4: fp+16, FP at c-16
    2001 00            # 0x120: outermost
"""
#: The start field of version 2 and 3 counts from itself: 28 bytes into a section at 0x10000.
AMD64_SECTIONS = {
    1: """
        e2de 01 01         # magic, version, SORTED
        03 00 f8 00        # AMD64, no fixed FP, RA at c-8, no auxiliary header
        01000000 04000000  # functions, rows
        11000000           # bytes of rows
        00000000 11000000  # where functions and rows start
        0010ffff           # 0x1000 - 0x10000 + 0x10000
        30010000 00000000  # size, rows at
        04000000 01        # rows, ADDR2
    """,
    2: """
        e2de 02 05
        03 00 f8 00
        01000000 04000000
        11000000
        00000000 14000000
        e40fffff           # 0x1000 - (0x10000 + 28)
        30010000 00000000
        04000000 01
        00 0000            # no block size, padding
    """,
    3: """
        e2de 03 05
        03 00 f8 00
        01000000 04000000
        16000000
        00000000 10000000
        e40fffffffffffff
        30010000 00000000
        0400 01 00 00      # rows, ADDR2, default, no block size
    """,
}


@pytest.mark.parametrize("version", AMD64_SECTIONS)
def test_amd64(version: int) -> None:
    data = encode(AMD64, version, amd64_function(0x1000), vaddr=0x10000)
    assert data == bytes_of(AMD64_SECTIONS[version] + AMD64_ROWS)


def aarch64_function() -> Function:
    rows = (FrameRow(0, FrameState(at(31, 0))), FrameRow(4, FrameState(at(31, 0x1000), RA8, FP16, mangled_ra=True)))
    return Function(0x100, 8, body_of_rows(rows, uses_b_key=True))


AARCH64_SECTIONS = {
    "<": """
        e2de 03 05
        02 00 00 00
        01000000 02000000 10000000 00000000 10000000
        e400000000000000 08000000 00000000
        0200 20 00 00              # key B
        00 03 00
        04 a7 0010 f8ff f0ff       # three signed words of 16 bits, RA signed, by SP
    """,
    ">": """
        dee2 03 05
        01 00 00 00
        00000001 00000002 00000010 00000000 00000010
        00000000000000e4 00000008 00000000
        0002 20 00 00
        00 03 00
        04 a7 1000 fff8 fff0
    """,
}


@pytest.mark.parametrize("arch", [AARCH64_LE, AARCH64_BE], ids=lambda arch: arch.name)
def test_aarch64(arch: Arch) -> None:
    assert encode(arch, 3, aarch64_function()) == bytes_of(AARCH64_SECTIONS[arch.byte_order])


def test_s390x_version_2() -> None:
    rows = (
        FrameRow(0, FrameState(at(15, 160))),
        FrameRow(6, FrameState(at(15, 1184), at(17, 0), at(16, 0))),
        FrameRow(0x10000, FrameState(at(11, 320), None, Rule(None, -72, deref=True))),
    )
    data = encode(S390X, 2, Function(0x40, 0x10010, body_of_rows(rows)))
    assert data == bytes_of("""
        dee2 02 05
        04 00 00 00
        00000001 00000003 00000019 00000000 00000014
        00000024 00010010 00000000 00000003 02 00 0000
        00000000 03 00
        00000006 27 0080 0023 0021       # (1184 - 160) / 8, RA in register 17, FP in 16
        00010000 06 14 00 b8             # FP, the padding for RA
    """)


def test_flexible_rows_and_signal_frames() -> None:
    restore_rt = FrameState(Rule(7, 160, deref=True), Rule(7, 168, deref=True), Rule(7, 120, deref=True))
    body = body_of_rows((FrameRow(0, restore_rt),), is_flexible=True, is_signal_frame=True)
    data = encode(AMD64, 3, Function(28, 9, body))
    assert data == bytes_of("""
        e2de 03 05
        03 00 f8 00
        01000000 01000000 13000000 00000000 10000000
        0000000000000000 09000000 00000000
        0100 80 01 00                    # signal frame, flexible
        00 2c 3b00 a000 3b00 a800 3b00 7800
    """)


# Limits

BIG = 1 << 31


def start_fields(version: int, *starts: int, vaddr: int, start_is_pcrel: bool) -> list[int]:
    """Return the start fields of functions in a section at an address."""
    body = body_of_rows((FrameRow(0, FrameState(at(7, 8), RA8)),))
    functions = [Function(start, 1, body) for start in starts]
    section = with_functions(Section(version, 3, start_is_pcrel=start_is_pcrel), functions)
    data = section_bytes(section, AMD64, vaddr)
    code, size = {1: ("<i", 17), 2: ("<i", 20), 3: ("<q", 16)}[version]
    return [struct.unpack_from(code, data, 28 + size * index)[0] for index in range(len(starts))]


# Words


@pytest.mark.parametrize(
    ("register", "offset", "word"), [(7, BIG, BIG), (7, -BIG - 1, -BIG - 1), (1 << 29, 0, (1 << 32) + 1)]
)
def test_a_number_of_33_bits_is_refused(register: int, offset: int, word: int) -> None:
    with pytest.raises(RequestError, match=f"^{word} does not fit a data word of 32 bits$"):
        row_tail(FrameState(at(register, offset), RA8), AMD64, is_flexible=register != 7)


@pytest.mark.parametrize(
    ("arch", "state", "info", "words"),
    [
        # Control: register << 3 | deref << 1 | has a register.
        (AMD64, FrameState(at(3, 16), RA8), 0x04, (0x19, 16)),
        (AMD64, FrameState(load(7, 16), RA8), 0x04, (0x3B, 16)),
        (AMD64, FrameState(at(7, 8), RA8, saved(-16)), 0x0A, (0x39, 8, 0, 2, -16)),
        (AMD64, FrameState(at(7, 8), at(2, 0)), 0x08, (0x39, 8, 0x11, 0)),
        (AMD64, FrameState(at(7, 8), saved(-16), load(6, 0)), 0x0C, (0x39, 8, 2, -16, 0x33, 0)),
        (AMD64, OUTERMOST, 0x00, ()),
        # Registers of 16 and more need the eighth bit of an unsigned byte, of 32 and more a second byte.
        (AMD64, FrameState(at(16, 0), RA8), 0x04, (0x81 - 0x100, 0)),
        (AMD64, FrameState(at(32, 0), RA8), 0x24, (0x101, 0)),
        (AMD64, FrameState(at((1 << 29) - 1, 0), RA8), 0x44, (0xFFFFFFF9 - (1 << 32), 0)),
        (AARCH64_LE, FrameState(at(31, 0), None, saved(-16)), 0x0A, (0xF9 - 0x100, 0, 0, 2, -16)),
        (AARCH64_LE, FrameState(at(31, 0), at(9, 0), mangled_ra=True), 0x88, (0xF9 - 0x100, 0, 0x49, 0)),
        (S390X, FrameState(at(10, 320), at(17, 0), at(16, 0)), 0x0C, (0x51, 20, 0x89 - 0x100, 0, 0x81 - 0x100, 0)),
    ],
)
def test_flexible_words(arch: Arch, state: FrameState, info: int, words: tuple[int, ...]) -> None:
    """What follows a row's start, which is read as the same state; the words are signed."""
    code = "bhi"[info >> 5 & 3]
    tail = struct.pack(f"{arch.byte_order}B{len(words)}{code}", info, *words)
    assert row_tail(state, arch, is_flexible=True) == tail
    function = RawFunction(rows=b"\0" + tail, info2=1)
    section = RawSection((function,), order=arch.byte_order, abi=arch.abi_id, fixed_ra=arch.fixed_ra_offset)
    (body,) = read_section(section.assemble(), section.vaddr).bodies
    assert body.states == (state,)


# Places


@pytest.mark.parametrize(("version", "pcrel"), [(1, False), (2, False), (2, True)])
def test_starts_of_32_bits(version: int, pcrel: bool) -> None:  # noqa: FBT001
    base = 28 if pcrel else 0
    assert start_fields(version, base + BIG - 1, vaddr=0, start_is_pcrel=pcrel) == [BIG - 1]
    assert start_fields(version, base, vaddr=BIG, start_is_pcrel=pcrel) == [-BIG]
    for start, vaddr in ((base + BIG, 0), (base, BIG + 1)):
        message = (
            f"^the function at 0x{start:x} is too far from .sframe at 0x{vaddr:x} "
            f"for the 32-bit starts of version {version}; version 3 has 64 bits$"
        )
        with pytest.raises(RequestError, match=message):
            start_fields(version, start, vaddr=vaddr, start_is_pcrel=pcrel)


@pytest.mark.parametrize(
    ("start", "vaddr", "field"),
    [
        (28 + BIG, 0, BIG),
        (28, 1 << 62, -(1 << 62)),
        # A kernel's addresses against a section at a low one: 64-bit arithmetic wraps.
        (0xFFFFFFFF81000000, 0x1000 - 28, -0x7F001000),
        (0x1000, 0xFFFFFFFF81000000 - 28, 0x7F001000),
    ],
)
def test_starts_of_64_bits_reach_everything(start: int, vaddr: int, field: int) -> None:
    assert start_fields(3, start, vaddr=vaddr, start_is_pcrel=True) == [field]


@pytest.mark.parametrize(
    ("version", "is_sorted", "is_pcrel", "flags"),
    [(1, True, False, 1), (2, True, True, 5), (2, False, True, 4), (2, False, False, 0), (3, True, True, 5)],
)
def test_flags(version: int, is_sorted: bool, is_pcrel: bool, flags: int) -> None:  # noqa: FBT001
    section = Section(version, 3, (), (), (), is_sorted, is_pcrel)
    assert section_bytes(section, AMD64, 0)[3] == flags


class Starts(tuple[int, ...]):
    """The starts of a body that many functions share: the look-up of each function hashes no start."""

    __slots__ = ()

    def __hash__(self) -> int:
        return len(self)


def test_the_rows_of_all_functions_have_32_bits_of_offset() -> None:
    """One body with many starts counts many times, and is stored once."""
    count = 1 << 14
    state = FrameState(Rule(7, 8, deref=False), Rule(None, -8, deref=True), None)
    body = FunctionBody(Starts(range(count)), States((state,) * count))

    def rows(times: int) -> RowStore:
        functions = tuple(Function(count * number, count, body) for number in range(times))
        return store_rows(with_functions(Section(2, AMD64.abi_id), functions), AMD64, share=False)

    # Two bytes of start, one of information, one word.
    assert len(rows(1).stored[0]) == 1 << 16
    assert rows((1 << 16) - 1).offsets[-1] == ((1 << 16) - 2) << 16
    with pytest.raises(RequestError, match="more than 4 GiB"):
        rows(1 << 16)
