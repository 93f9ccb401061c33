# SPDX-License-Identifier: Apache-2.0
"""The test assembler against bytes worked out by hand and against what readelf makes of them."""

import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support import cfi_asm as asm

X86_64, AARCH64, S390 = 62, 183, 22
TEXT_VADDR, FRAME_VADDR, HDR_VADDR = 0x401000, 0x402000, 0x403000
CODE = b"\xc3" * 0x1000
READELF = shutil.which("readelf")
needs_readelf = pytest.mark.skipif(READELF is None, reason="readelf is not installed")


def instruction_bytes(*instructions: asm.Instruction, little_endian: bool = True) -> bytes:
    """The instruction bytes of an FDE under an empty CIE, without the padding that follows them."""
    cie = asm.Cie(augmentation="")
    plain = asm.EhFrame((cie, asm.Fde(cie, 0, 0)), little_endian=little_endian)
    data = asm.EhFrame((cie, asm.Fde(cie, 0, 0, instructions)), little_endian=little_endian).assemble()
    return data[len(plain.assemble()) :]


def linked(frame: bytes, *, section_headers: bool = True, hdr: bytes = b"") -> bytes:
    """An executable of .text, .eh_frame and .eh_frame_hdr at fixed addresses."""
    sections = (
        asm.Section(".text", CODE, flags=6, addr=TEXT_VADDR, align=16),
        asm.Section(".eh_frame", frame, flags=2, addr=FRAME_VADDR, align=8),
        asm.Section(".eh_frame_hdr", hdr or bytes(12), flags=2, addr=HDR_VADDR, align=4),
    )
    segments = (
        asm.Segment(1, 5, (".text", ".eh_frame_hdr"), headers=True),
        asm.Segment(0x6474E550, 4, (".eh_frame_hdr",), align=4),
    )
    return asm.elf_file(
        X86_64,
        sections,
        file_type=2,
        segments=segments,
        entry_vaddr=TEXT_VADDR,
        section_headers=section_headers,
        symbols=(asm.Symbol("f", TEXT_VADDR, 16),) if section_headers else (),
    )


def readelf(path: Path, data: bytes, *options: str) -> str:
    """The standard output of readelf, which must not complain."""
    assert READELF is not None
    path.write_bytes(data)
    done = subprocess.run([READELF, *options, str(path)], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(0, "00"), (127, "7f"), (128, "8001"), (624485, "e58e26"), (1 << 64, "80" * 9 + "02")],
)
def test_uleb128(value: int, encoded: str) -> None:
    assert asm.uleb128(value).hex() == encoded


@pytest.mark.parametrize(
    ("value", "encoded"),
    [(2, "02"), (-2, "7e"), (63, "3f"), (64, "c000"), (-64, "40"), (-65, "bf7f"), (-128, "807f")],
)
def test_sleb128(value: int, encoded: str) -> None:
    assert asm.sleb128(value).hex() == encoded


@given(st.integers())
def test_leb128_decodes_to_what_was_encoded(value: int) -> None:
    data = asm.sleb128(value)
    groups = sum((byte & 0x7F) << 7 * index for index, byte in enumerate(data))
    assert groups - ((data[-1] & 0x40) << 7 * len(data) >> 6) == value
    assert all(byte & 0x80 for byte in data[:-1])


def test_uleb128_has_no_negative_numbers() -> None:
    with pytest.raises(ValueError, match="negative"):
        asm.uleb128(-1)


@pytest.mark.parametrize(
    ("instruction", "encoded"),
    [
        (asm.advance(1), "41"),
        (asm.advance(0), "40"),
        (asm.advance(63), "7f"),
        (asm.advance(64), "0240"),
        (asm.advance(256), "030001"),
        (asm.advance(65536), "0400000100"),
        (asm.advance(1 << 32), "1d0000000001000000"),
        (asm.advance1(1), "0201"),
        (asm.advance2(1), "030100"),
        (asm.advance4(1), "0401000000"),
        (asm.def_cfa(7, 8), "0c0708"),
        (asm.def_cfa_sf(7, -2), "12077e"),
        (asm.def_cfa_register(6), "0d06"),
        (asm.def_cfa_offset(300), "0eac02"),
        (asm.def_cfa_offset_sf(-2), "137e"),
        (asm.def_cfa_expression(b"\x77\x08"), "0f027708"),
        (asm.expression(6, b"\x77\x08"), "1006027708"),
        (asm.val_expression(6, b"\x77\x08"), "1606027708"),
        (asm.offset(6, 2), "8602"),
        (asm.offset_extended(6, 2), "050602"),
        (asm.offset_extended_sf(6, -2), "11067e"),
        (asm.val_offset(6, 2), "140602"),
        (asm.val_offset_sf(6, -2), "15067e"),
        (asm.register(6, 3), "090603"),
        (asm.restore(6), "c6"),
        (asm.restore_extended(6), "0606"),
        (asm.undefined(16), "0710"),
        (asm.same_value(6), "0806"),
        (asm.remember_state(), "0a"),
        (asm.restore_state(), "0b"),
        (asm.set_loc(0x1234), "013412000000000000"),
        (asm.aarch64_negate_ra_state_with_pc(), "2c"),
        (asm.aarch64_negate_ra_state(), "2d"),
        (asm.gnu_args_size(16), "2e10"),
        (asm.gnu_negative_offset_extended(6, 2), "2f0602"),
    ],
)
def test_instruction_bytes(instruction: asm.Instruction, encoded: str) -> None:
    padded = instruction_bytes(instruction)
    assert padded.hex().startswith(encoded)
    assert set(padded[len(encoded) // 2 :]) <= {0}
    assert len(padded) - len(encoded) // 2 < 4


def test_nops_are_counted_by_the_padding() -> None:
    assert instruction_bytes(*[asm.nop()] * 5) == bytes(8)


def test_big_endian_advances() -> None:
    assert instruction_bytes(asm.advance2(0x102), asm.advance4(0x1020304), little_endian=False) == bytes.fromhex(
        "0301020401020304"
    )


@pytest.mark.parametrize("make", [asm.offset, asm.restore, asm.advance0])
def test_six_bits_hold_no_64(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="six bits"):
        make(*([64] if make is not asm.offset else [64, 1]))


def test_whole_section_byte_for_byte() -> None:
    cie = asm.Cie(instructions=(asm.def_cfa(7, 8), asm.offset(16, 1)))
    frame = asm.EhFrame((cie, asm.Fde(cie, 0x1000, 0x20, (asm.advance(1),)), asm.Terminator()), address=0x2000)
    assert frame.assemble().hex(" ", 4) == (
        "14000000 00000000 017a5200 01781001 1b0c0708 90010000 10000000 1c000000 e0efffff 20000000 00410000 00000000"
    )
    assert frame.offsets() == (0, 24, 44)


def test_debug_frame_byte_for_byte() -> None:
    cie = asm.Cie(version=4, augmentation="")
    frame = asm.EhFrame((asm.Fde(cie, 0x1000, 0x20),), debug_frame=True, little_endian=False)
    assert [entry.tag for entry in frame.all_entries()] == ["cie", "fde"]
    assert frame.assemble().hex(" ", 4) == (
        "0000000c ffffffff 04000800 01781000 00000014 00000000 00000000 00001000 00000000 00000020"
    )


def test_cie_behind_its_fde() -> None:
    cie = asm.Cie()
    frame = asm.EhFrame((asm.Fde(cie, 0x1000, 1), cie))
    (cie_pointer,) = struct.unpack_from("<i", frame.assemble(), 4)
    assert 4 - cie_pointer == frame.offsets()[1]


def test_equal_cies_keep_their_fdes_apart() -> None:
    first, second = asm.Cie(), asm.Cie(eh_data=0)
    assert first == second
    frame = asm.EhFrame((first, second, asm.Fde(second, 0x1000, 1)))
    (cie_pointer,) = struct.unpack_from("<i", frame.assemble(), frame.offsets()[2] + 4)
    assert frame.offsets()[2] + 4 - cie_pointer == frame.offsets()[1]


@pytest.mark.parametrize(
    ("encoding", "encoded"),
    [
        (0x00, "0010400000000000"),
        (0x01, "80a08002"),
        (0x03, "00104000"),
        (0x09, "80a08002"),
        (0x0B, "00104000"),
        (0x0C, "0010400000000000"),
        (0x1B, "fdefffff"),
        (0x12, "fdef"),
        (0x3B, "00001000"),
        (0x2B, "00002000"),
        (0x4B, "f0ffffff"),
        (0x50, "00000000000010400000000000"),
        (0xFF, ""),
    ],
)
def test_pointer_encodings(encoding: int, encoded: str) -> None:
    frame = asm.EhFrame((), text_base=0x201000, data_base=0x301000, function_base=0x401010)
    assert asm.encode_pointer(frame, 0x401000, encoding, 0x402003).hex() == encoded


ENCODINGS = [0x00, 0x02, 0x03, 0x04, 0x0A, 0x0B, 0x0C, 0x10, 0x1A, 0x1B, 0x1C]


def two_rows(address_encoding: int, begin: int) -> tuple[asm.Entry, ...]:
    """A function that pushes rbp in its first byte."""
    cie = asm.Cie(fde_encoding=address_encoding, instructions=(asm.def_cfa(7, 8), asm.offset(16, 1)))
    fde = asm.Fde(cie, begin, 0x20, (asm.advance(1), asm.def_cfa_offset(16), asm.offset(6, 2)))
    return (cie, fde, asm.Terminator())


@needs_readelf
@pytest.mark.oracle
@pytest.mark.parametrize("encoding", ENCODINGS, ids=hex)
def test_readelf_reads_the_function_range(tmp_path: Path, encoding: int) -> None:
    begin = 0x1000 if encoding in {0x02, 0x0A} else TEXT_VADDR
    frame = asm.EhFrame(two_rows(encoding, begin), address=FRAME_VADDR)
    text = readelf(tmp_path / "a", linked(frame.assemble()), "-wF")
    assert f"pc={begin:016x}..{begin + 0x20:016x}" in text
    assert re.findall(r"^(\w{16}) (\S+) +(.*?) *$", text, re.MULTILINE)[-2:] == [
        (f"{begin:016x}", "rsp+8", "u     c-8"),
        (f"{begin + 1:016x}", "rsp+16", "c-16  c-8"),
    ]


@needs_readelf
@pytest.mark.oracle
@pytest.mark.parametrize("dwarf64", [False, True], ids=["32", "64"])
@pytest.mark.parametrize("version", [1, 3, 4])
def test_readelf_reads_debug_frame(tmp_path: Path, version: int, *, dwarf64: bool) -> None:
    cie = asm.Cie(version, "", instructions=(asm.def_cfa(7, 8), asm.offset(16, 1)))
    fdes = tuple(asm.Fde(cie, TEXT_VADDR + 16 * n, 16, (asm.advance(1), asm.def_cfa_offset(16))) for n in (0, 1))
    frame = asm.EhFrame(fdes, debug_frame=True, dwarf64=dwarf64)
    section = asm.Section(".debug_frame", frame.assemble(), align=8)
    text = readelf(tmp_path / "a", asm.elf_file(X86_64, (section,), file_type=2), "-wF")
    assert re.findall(r"cie=(\w+) pc=(\w+)\.\.(\w+)", text) == [
        ("00000000", f"{begin:016x}", f"{begin + 16:016x}") for begin in (TEXT_VADDR, TEXT_VADDR + 16)
    ]


@pytest.mark.oracle
@pytest.mark.parametrize(
    ("command", "cie_pointer_size", "expected"),
    [
        (("llvm-dwarfdump", "--eh-frame"), 4, ("Format:       DWARF64", "pc=00401000...00401020")),
        (("eu-readelf", "--debug-dump=frames"), 8, ("CIE_pointer:              52", "0x0000000000401000")),
    ],
)
def test_others_read_64_bit_eh_frame(
    tmp_path: Path, command: tuple[str, ...], cie_pointer_size: int, expected: tuple[str, ...]
) -> None:
    program = shutil.which(command[0])
    if program is None:
        pytest.skip(f"{command[0]} is not installed")
    frame = asm.EhFrame(
        two_rows(0x1B, TEXT_VADDR), address=FRAME_VADDR, dwarf64=True, cie_pointer_size=cie_pointer_size
    )
    path = tmp_path / "a"
    path.write_bytes(linked(frame.assemble()))
    done = subprocess.run([program, *command[1:], str(path)], capture_output=True, text=True, check=False)
    for line in expected:
        assert line in done.stdout


@needs_readelf
@pytest.mark.oracle
def test_readelf_names_every_instruction(tmp_path: Path) -> None:
    cie = asm.Cie(version=3, augmentation="zPLR", personality_encoding=0x1B, lsda_encoding=0x1B)
    program = (
        (asm.set_loc(TEXT_VADDR + 2), "DW_CFA_set_loc: 0000000000401002"),
        (asm.advance1(2), "DW_CFA_advance_loc1: 2 to 0000000000401004"),
        (asm.advance2(2), "DW_CFA_advance_loc2: 2 to 0000000000401006"),
        (asm.advance4(2), "DW_CFA_advance_loc4: 2 to 0000000000401008"),
        (asm.advance8(2), "DW_CFA_MIPS_advance_loc8: 2 to 000000000040100a"),
        (asm.advance(2), "DW_CFA_advance_loc: 2 to 000000000040100c"),
        (asm.def_cfa(7, 8), "DW_CFA_def_cfa: r7 (rsp) ofs 8"),
        (asm.def_cfa_sf(7, -2), "DW_CFA_def_cfa_sf: r7 (rsp) ofs 16"),
        (asm.def_cfa_register(6), "DW_CFA_def_cfa_register: r6 (rbp)"),
        (asm.def_cfa_offset(24), "DW_CFA_def_cfa_offset: 24"),
        (asm.def_cfa_offset_sf(-4), "DW_CFA_def_cfa_offset_sf: 32"),
        (asm.offset(6, 2), "DW_CFA_offset: r6 (rbp) at cfa-16"),
        (asm.offset_extended(3, 3), "DW_CFA_offset_extended: r3 (rbx) at cfa-24"),
        (asm.offset_extended_sf(3, -3), "DW_CFA_offset_extended_sf: r3 (rbx) at cfa+24"),
        (asm.gnu_negative_offset_extended(3, 3), "DW_CFA_GNU_negative_offset_extended: r3 (rbx) at cfa+24"),
        (asm.val_offset(7, 1), "DW_CFA_val_offset: r7 (rsp) is cfa-8"),
        (asm.val_offset_sf(7, -1), "DW_CFA_val_offset_sf: r7 (rsp) is cfa+8"),
        (asm.register(6, 3), "DW_CFA_register: r6 (rbp) in r3 (rbx)"),
        (asm.restore(3), "DW_CFA_restore: r3 (rbx)"),
        (asm.restore_extended(6), "DW_CFA_restore_extended: r6 (rbp)"),
        (asm.undefined(16), "DW_CFA_undefined: r16 (rip)"),
        (asm.same_value(6), "DW_CFA_same_value: r6 (rbp)"),
        (asm.remember_state(), "DW_CFA_remember_state"),
        (asm.def_cfa_expression(b"\x77\x08"), "DW_CFA_def_cfa_expression (DW_OP_breg7 (rsp): 8)"),
        (asm.expression(6, b"\x77\x08"), "DW_CFA_expression: r6 (rbp) (DW_OP_breg7 (rsp): 8)"),
        (asm.val_expression(6, b"\x77\x08"), "DW_CFA_val_expression: r6 (rbp) (DW_OP_breg7 (rsp): 8)"),
        (asm.restore_state(), "DW_CFA_restore_state"),
        (asm.gnu_args_size(16), "DW_CFA_GNU_args_size: 16"),
    )
    fde = asm.Fde(cie, TEXT_VADDR, 0x20, tuple(instruction for instruction, _ in program), TEXT_VADDR + 8)
    frame = asm.EhFrame((fde, asm.Terminator()), address=FRAME_VADDR)
    text = readelf(tmp_path / "a", linked(frame.assemble()), "-wf")
    assert 'Augmentation:          "zPLR"' in text
    lines = [line.strip() for line in text.splitlines() if "DW_CFA_" in line and "DW_CFA_nop" not in line]
    assert lines == [expected for _, expected in program]


@needs_readelf
@pytest.mark.oracle
def test_readelf_finds_relocations_and_symbols_of_an_object(tmp_path: Path) -> None:
    cie = asm.Cie(ra_register=30, data_align=-8, code_align=4)
    frame = asm.EhFrame((cie, asm.Fde(cie, 0, 0x40), asm.Terminator()))
    field_offset = frame.offsets()[1] + 8
    data = asm.elf_file(
        AARCH64,
        (
            asm.Section(".text", CODE[:0x40], flags=6, align=4),
            asm.Section(".eh_frame", frame.assemble(), flags=2, align=8),
        ),
        symbols=(asm.Symbol("f", size=0x40), asm.Symbol("", info=3)),
        relocations=(asm.Relocation(".eh_frame", field_offset, "f", 0x105, 4),),
    )
    path = tmp_path / "a.o"
    assert re.search(r"R_AARCH64_PREL32 +0000000000000000 f \+ 4", readelf(path, data, "-rW"))
    symbols = readelf(path, data, "-sW")
    assert re.search(r"1: 0{16} +0 SECTION LOCAL +DEFAULT +1 ", symbols)
    assert re.search(r"2: 0{16} +64 FUNC +GLOBAL +DEFAULT +1 f", symbols)


@needs_readelf
@pytest.mark.oracle
def test_readelf_reads_a_big_endian_object(tmp_path: Path) -> None:
    cie = asm.Cie(ra_register=14, instructions=(asm.def_cfa(15, 160),))
    fde = asm.Fde(cie, 0x10, 0x20, (asm.advance2(4), asm.def_cfa_offset(0x148), asm.offset(14, 6)))
    frame = asm.EhFrame((cie, fde), little_endian=False)
    sections = (asm.Section(".text", CODE, flags=6), asm.Section(".eh_frame", frame.assemble(), flags=2))
    text = readelf(tmp_path / "a", asm.elf_file(S390, sections, little_endian=False), "-wF")
    assert "r15+160" in text
    assert "r15+328" in text


@needs_readelf
@pytest.mark.oracle
def test_file_without_section_headers_has_its_segments(tmp_path: Path) -> None:
    cie = asm.Cie()
    frame = asm.EhFrame((cie, asm.Fde(cie, TEXT_VADDR, 16), asm.Terminator()), address=FRAME_VADDR)
    fde_vaddr = FRAME_VADDR + frame.offsets()[1]
    hdr = asm.eh_frame_hdr(HDR_VADDR, FRAME_VADDR, ((TEXT_VADDR, fde_vaddr),))
    assert hdr.hex(" ", 4) == "011b033b fcefffff 01000000 00e0ffff 14f0ffff"
    data = linked(frame.assemble(), section_headers=False, hdr=hdr)
    text = readelf(tmp_path / "a", data, "-lhW")
    assert re.search(r"Number of section headers: +0$", text, re.MULTILINE)
    segment = re.search(r"GNU_EH_FRAME +0x(\w+) 0x(\w+)", text)
    assert segment is not None
    file_offset, vaddr = int(segment[1], 16), int(segment[2], 16)
    assert vaddr == HDR_VADDR
    assert data[file_offset : file_offset + len(hdr)] == hdr
