# SPDX-License-Identifier: Apache-2.0
"""Bytes against the specification's tables, written out by hand; every field of every version in both byte orders."""

from __future__ import annotations

import pytest

from cfi2sframe.arch import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.sframe.encode import encode_section
from cfi2sframe.sframe.layout import plan_section
from cfi2sframe.sframe.model import OUTERMOST, FrameRow, FrameState, Function, Rule, Section
from tests.support.bodies import body_of_rows, with_functions

RA8 = Rule(None, -8, deref=True)
FP16 = Rule(None, -16, deref=True)


def bytes_of(text: str) -> bytes:
    """Return the bytes of a listing: hexadecimal digits, with comments after `#`."""
    return bytes.fromhex("".join(line.split("#")[0] for line in text.splitlines()))


def encode(arch: Arch, version: int, *functions: Function, vaddr: int = 0, is_sorted: bool = True) -> bytes:
    section = with_functions(Section(version, arch.abi_id, is_sorted=is_sorted, start_is_pcrel=version > 1), functions)
    return encode_section(plan_section(section, arch, vaddr))


def amd64_function(start: int) -> Function:
    rows = (
        FrameRow(0, FrameState(Rule(7, 8, deref=False), RA8)),
        FrameRow(1, FrameState(Rule(7, 16, deref=False), RA8, FP16)),
        FrameRow(4, FrameState(Rule(6, 16, deref=False), RA8, FP16)),
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
    rows = (
        FrameRow(0, FrameState(Rule(31, 0, deref=False))),
        FrameRow(4, FrameState(Rule(31, 0x1000, deref=False), RA8, FP16, mangled_ra=True)),
    )
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
        FrameRow(0, FrameState(Rule(15, 160, deref=False))),
        FrameRow(6, FrameState(Rule(15, 1184, deref=False), Rule(17, 0, deref=False), Rule(16, 0, deref=False))),
        FrameRow(0x10000, FrameState(Rule(11, 320, deref=False), None, Rule(None, -72, deref=True))),
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


def test_pcmask() -> None:
    rows = (
        FrameRow(0, FrameState(Rule(7, 8, deref=False), RA8)),
        FrameRow(11, FrameState(Rule(7, 16, deref=False), RA8)),
    )
    function = Function(0x1010, 0x40, body_of_rows(rows, repeat_size=16))
    for version in (1, 2, 3):
        data = encode(AMD64, version, function)
        record = data[28 : 28 + (17, 20, 16)[version - 1]]
        rows_at = 28 + len(record)
        if version == 1:
            assert record[-1:] == bytes.fromhex("10")
        elif version == 2:
            assert record[-4:] == bytes.fromhex("10 10 0000")
        else:
            assert data[rows_at : rows_at + 5] == bytes.fromhex("0200 10 00 10")
        assert data.endswith(bytes.fromhex("00 03 08 0b 03 10"))


@pytest.mark.parametrize("version", [1, 2, 3])
def test_several_functions(version: int) -> None:
    """Records in the order given, then the rows in the same order."""
    first, second = amd64_function(0x2000), amd64_function(0x1000)
    data = encode(AMD64, version, first, second, is_sorted=False)
    record = (17, 20, 16)[version - 1]
    size = 17 + (5 if version == 3 else 0)
    assert len(data) == 28 + 2 * record + 2 * size
    starts = [int.from_bytes(data[28 + n * record :][:4], "little", signed=True) for n in (0, 1)]
    base = [28, 28 + record] if version > 1 else [0, 0]
    assert starts == [0x2000 - base[0], 0x1000 - base[1]]
    offset_at = 12 if version == 3 else 8
    assert [int.from_bytes(data[28 + n * record + offset_at :][:4], "little") for n in (0, 1)] == [0, size]
    assert data[28 + 2 * record :] == 2 * data[-size:]
    assert data[3] == (4 if version > 1 else 0)
