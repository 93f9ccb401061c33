# SPDX-License-Identifier: Apache-2.0
"""The assembler of CFI against bytes worked out by hand."""

import pytest

from tests.support import cfi_asm as asm


def instruction_bytes(instruction: asm.Instruction) -> bytes:
    """The bytes of an FDE's instruction under an empty CIE, with the padding that follows it."""
    cie = asm.Cie(augmentation="")
    plain = asm.EhFrame((cie, asm.Fde(cie, 0, 0)))
    data = asm.EhFrame((cie, asm.Fde(cie, 0, 0, (instruction,)))).assemble()
    return data[len(plain.assemble()) :]


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
