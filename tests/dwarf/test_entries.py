# SPDX-License-Identifier: Apache-2.0
"""CIEs and FDEs from section bytes (DWARF 5, 6.4.1; LSB, "The .eh_frame section"): every form, and every damage."""

import struct

import pytest

from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.entries import DwarfFde
from cfi2sframe.dwarf.numbers import PointerBases
from cfi2sframe.elf.cfi import CfiSection
from cfi2sframe.errors import CfiError
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.entries import CfiTable, parse_entries

VADDR, PC, SIZE = 0x20000, 0x11000, 0x123
TABLE_VADDR = 0x30000
PERSONALITY, LSDA = 0x15000, 0x16000
WORDS = {PC: 0x77000}
CODE = (asm.def_cfa(7, 8), asm.offset(16, 1))
BODY = (asm.advance0(4), asm.def_cfa_offset(300))
BODY_BYTES = b"\x44\x0e\xac\x02"

#: Every encoding of an address in a file: the forms with each base.
FORMS = (0x00, 0x01, 0x03, 0x04, 0x09, 0x0B, 0x0C)
ENCODINGS = [form | base for form in FORMS for base in (0x00, 0x10, 0x30) if not (form in {0x01, 0x03} and base)]


def parse(
    frame: asm.EhFrame | bytes,
    *,
    debug_frame: bool = False,
    big_endian: bool = False,
    unresolved: frozenset[int] = frozenset(),
    table_vaddr: int | None = TABLE_VADDR,
    must_find_offset: int | None = None,
) -> CfiTable:
    data = frame if isinstance(frame, bytes) else frame.assemble()
    section = CfiSection(
        ".debug_frame" if debug_frame else ".eh_frame",
        "debug_frame" if debug_frame else "eh_frame",
        data,
        0 if debug_frame else VADDR,
        {},
        unresolved,
        table_vaddr,
        must_find_offset,
    )
    return parse_entries(section, PointerBases(">" if big_endian else "<", table_vaddr, WORDS.get))


def frame_of(*entries: asm.Entry, debug_frame: bool = False, dwarf64: bool = False) -> asm.EhFrame:
    address = 0 if debug_frame else VADDR
    return asm.EhFrame(entries, address, dwarf64=dwarf64, debug_frame=debug_frame, data_base=TABLE_VADDR)


def only_fde(table: CfiTable) -> DwarfFde:
    assert table.failures == ()
    (fde,) = table.fdes
    return fde


def failure_of(table: CfiTable) -> str:
    assert table.fdes == ()
    (failure,) = table.failures
    assert failure.where.endswith("_frame")
    return failure.reason


def check_usual(fde: DwarfFde, *, pc: int = PC) -> None:
    """The FDE of CODE and BODY, whatever form it was written in."""
    assert (fde.pc_begin_vaddr, fde.pc_range) == (pc, SIZE)
    assert fde.instructions.rstrip(b"\0") == BODY_BYTES
    assert fde.cie.instructions.rstrip(b"\0") == b"\x0c\x07\x08\x90\x01"
    assert (fde.cie.code_alignment, fde.cie.data_alignment, fde.cie.ra_register) == (1, -8, 16)


# --- Augmentations ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [1, 3, 4])
@pytest.mark.parametrize(
    ("augmentation", "is_signal_frame", "uses_b_key"),
    [
        ("", False, False),
        ("eh", False, False),
        ("z", False, False),
        ("zR", False, False),
        ("zPLR", False, False),
        ("zRPL", False, False),
        ("zLR", False, False),
        ("zRS", True, False),
        ("zSR", True, False),
        ("zRB", False, True),
        ("zRG", False, False),
        ("zPLRSBG", True, True),
    ],
)
def test_augmentations(version: int, augmentation: str, is_signal_frame: bool, uses_b_key: bool) -> None:  # noqa: FBT001
    cie = asm.Cie(
        version,
        augmentation,
        instructions=CODE,
        personality_encoding=d.DW_EH_PE_indirect | d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4,
        personality_vaddr=PERSONALITY,
        lsda_encoding=d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4,
        eh_data=0x1122334455667788,
    )
    fde = only_fde(parse(frame_of(asm.Fde(cie, PC, SIZE, BODY, LSDA), asm.Terminator())))
    check_usual(fde)
    assert (fde.cie.version, fde.cie.augmentation) == (version, augmentation)
    assert (fde.cie.is_signal_frame, fde.cie.uses_b_key) == (is_signal_frame, uses_b_key)
    assert fde.cie.fde_encoding == (0x1B if "R" in augmentation else d.DW_EH_PE_absptr)
    assert fde.cie.lsda_encoding == (0x1B if "L" in augmentation else d.DW_EH_PE_omit)


@pytest.mark.parametrize("encoding", [*ENCODINGS, d.DW_EH_PE_aligned, d.DW_EH_PE_omit, 0x20 | d.DW_EH_PE_sdata4])
def test_a_personality_of_any_encoding_is_stepped_over(encoding: int) -> None:
    """Its base need not be known, because the address is not used."""
    cie = asm.Cie(augmentation="zPR", instructions=CODE, personality_encoding=encoding, personality_vaddr=0x40000)
    check_usual(only_fde(parse(frame_of(asm.Fde(cie, PC, SIZE, BODY)))))


def test_augmentation_data_of_more_than_127_bytes() -> None:
    """Its size then needs two bytes, which the quick parser of usual FDEs must leave to the general one."""
    cie = asm.Cie(augmentation="zR", instructions=CODE)
    plain = frame_of(asm.Fde(cie, PC, SIZE)).assemble()
    cie_size = 4 + int.from_bytes(plain[:4], "little")
    extra = asm.uleb128(200) + b"\xee" * 200 + BODY_BYTES + bytes(2)
    fields = struct.pack("<IiI", cie_size + 4, PC - (VADDR + cie_size + 8), SIZE)
    entry = struct.pack("<I", len(fields) + len(extra)) + fields + extra
    fde = only_fde(parse(plain[:cie_size] + entry))
    check_usual(fde)
    assert fde.instructions_offset == cie_size + 4 + 12 + 202


@pytest.mark.parametrize("augmentation", ["R", "armcc+", "x", "PLR"])
def test_unknown_augmentation_without_a_size(augmentation: str) -> None:
    cie = asm.Cie(augmentation=augmentation, instructions=CODE)
    assert f"unknown augmentation '{augmentation}'" in failure_of(parse(frame_of(asm.Fde(cie, PC, SIZE, BODY))))


def with_augmentation(augmentation: str, fields: bytes, encoding: int = 0) -> bytes:
    """A CIE with these data of its augmentation, and the usual FDE with a pointer of this encoding."""
    body = b"\x01" + augmentation.encode() + b"\0\x01\x78\x10" + bytes((len(fields),)) + fields
    body += b"\x0c\x07\x08\x90\x01" + bytes(4)
    cie = struct.pack("<II", 4 + len(body), 0) + body
    pointers = struct.pack("<iI", PC - VADDR - len(cie) - 8, SIZE) if encoding else struct.pack("<QQ", PC, SIZE)
    rest = pointers + b"\0" + BODY_BYTES
    return cie + struct.pack("<II", 4 + len(rest), len(cie) + 4) + rest


@pytest.mark.parametrize("augmentation", ["zX", "zRX", "zRSX", "zRz", "zRXL"])
def test_unknown_letters_after_the_others(augmentation: str) -> None:
    """As libgcc and LLVM's unwinder read them: the augmentation's data say how long they are."""
    encoding = 0x1B if "R" in augmentation else 0
    fde = only_fde(parse(with_augmentation(augmentation, b"\x1b\x01\x02", encoding)))
    check_usual(fde)
    assert (fde.cie.fde_encoding, fde.cie.lsda_encoding) == (encoding, d.DW_EH_PE_omit)
    assert fde.cie.is_signal_frame == ("S" in augmentation)


@pytest.mark.parametrize(
    ("augmentation", "fields"),
    [
        # Unknown letters before those of rows: where their data are cannot be told, and libgcc does not see letters
        # that LLVM's unwinder does.
        *((augmentation, b"\x1b\x1b") for augmentation in ("zXR", "zRXS", "zXB")),
        *(("zR", b""), ("zL", b""), ("zP", b""), ("zRL", b"\x1b")),
    ],
)
def test_augmentation_data_that_do_not_fit_the_letters(augmentation: str, fields: bytes) -> None:
    reason = failure_of(parse(with_augmentation(augmentation, fields)))
    assert reason == f"its CIE at 0x0 is damaged: unknown or truncated augmentation {augmentation!r}"


# --- Pointers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("big_endian", [False, True])
@pytest.mark.parametrize("encoding", ENCODINGS, ids=hex)
def test_pc_begin_in_every_encoding(encoding: int, big_endian: bool) -> None:  # noqa: FBT001
    cie = asm.Cie(augmentation="zR", fde_encoding=encoding, instructions=CODE)
    frame = frame_of(asm.Fde(cie, PC, SIZE, BODY), asm.Terminator())._replace(little_endian=not big_endian)
    check_usual(only_fde(parse(frame, big_endian=big_endian)))


@pytest.mark.parametrize(
    ("encoding", "pc_range"),
    [
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata2, 0xFFFE),
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4, 0xFFFF_FFFE),
        (d.DW_EH_PE_datarel | d.DW_EH_PE_sdata4, 0xFFFF_FFFE),
        (d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata8, (1 << 64) - 2),
        (d.DW_EH_PE_udata2, 0xFFFE),
        (d.DW_EH_PE_udata4, 0xFFFF_FFFE),
    ],
)
def test_a_range_has_no_sign(encoding: int, pc_range: int) -> None:
    cie = asm.Cie(augmentation="zR", fde_encoding=encoding)
    pc = VADDR if encoding & 0x70 else 0x100
    frame = asm.EhFrame((asm.Fde(cie, pc, pc_range),), VADDR, data_base=TABLE_VADDR)
    fde = only_fde(parse(frame))
    assert (fde.pc_begin_vaddr, fde.pc_range) == (pc, pc_range)


# --- Lengths, order, terminators ----------------------------------------------------------------------------


def test_64_bit_lengths_of_eh_frame() -> None:
    """It keeps its CIE pointer at 4 bytes (LSB), where .debug_frame has 8 (DWARF 5, 7.4)."""
    frame = frame_of(asm.Fde(asm.Cie(instructions=CODE), PC, SIZE, BODY), dwarf64=True)
    fde = only_fde(parse(frame))
    check_usual(fde)
    assert fde.offset == frame.offsets()[1]


@pytest.mark.parametrize("version", [1, 3, 4])
@pytest.mark.parametrize("dwarf64", [False, True])
def test_debug_frame_with_a_cie_after_its_fdes(version: int, dwarf64: bool) -> None:  # noqa: FBT001
    cie = asm.Cie(version, "", instructions=CODE)
    fdes = (asm.Fde(cie, PC, SIZE, BODY), asm.Fde(cie, PC, SIZE, BODY))
    frame = frame_of(*fdes, cie, asm.Fde(cie, PC, SIZE, BODY), debug_frame=True, dwarf64=dwarf64)
    table = parse(frame, debug_frame=True)
    assert table.failures == ()
    assert len(table.fdes) == 3
    assert table.cie_count == 1
    for fde in table.fdes:
        check_usual(fde)
        assert fde.cie is table.fdes[0].cie


def test_debug_frame_version_4_has_the_sizes_of_addresses_and_segments() -> None:
    for address_size, selector_size in ((8, 0), (4, 0), (8, 4)):
        cie = asm.Cie(4, "", instructions=CODE, address_size=address_size, segment_selector_size=selector_size)
        table = parse(frame_of(asm.Fde(cie, PC, SIZE, BODY), debug_frame=True), debug_frame=True)
        if (address_size, selector_size) == (8, 0):
            check_usual(only_fde(table))
        else:
            assert "addresses are not 8 bytes wide and without segments" in failure_of(table)


def test_ra_column_is_a_byte_in_version_1_and_leb128_later() -> None:
    for version, column in ((1, 0xFE), (3, 0xFE), (3, 300), (4, 300)):
        cie = asm.Cie(version, ra_register=column, instructions=CODE)
        fde = only_fde(parse(frame_of(asm.Fde(cie, PC, SIZE, BODY))))
        assert fde.cie.ra_register == column
        assert fde.instructions.rstrip(b"\0") == BODY_BYTES


def test_without_section_headers_the_first_terminator_after_all_indexed_fdes_ends_the_section() -> None:
    cie = asm.Cie(instructions=CODE)
    fde = asm.Fde(cie, PC, SIZE, BODY)
    entries = (fde, asm.Terminator(), fde, asm.Terminator(), asm.Raw(b"\xff" * 50))
    frame = frame_of(*entries)
    offsets = dict(zip(("cie", "first", "end", "second", "end2", "junk"), frame.offsets(), strict=True))
    assert len(parse(frame, must_find_offset=0).fdes) == 1
    assert len(parse(frame, must_find_offset=offsets["first"]).fdes) == 1
    assert len(parse(frame, must_find_offset=offsets["second"]).fdes) == 2
    with pytest.raises(CfiError, match=r"exceeds the section|64-bit length"):
        parse(frame)


def test_zeros_in_the_middle_and_at_the_end_are_passed_over() -> None:
    fde = asm.Fde(asm.Cie(), PC, SIZE, BODY)
    data = frame_of(asm.Terminator(), fde, asm.Terminator(), asm.Terminator(), fde).assemble()
    for size in range(9):
        assert len(parse(data + bytes(size)).fdes) == 2


# --- CIEs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 2, 5, 255])
def test_unknown_cie_version(version: int) -> None:
    data = bytearray(frame_of(asm.Fde(asm.Cie(), PC, SIZE, BODY)).assemble())
    data[8] = version
    assert f"CIE version {version} is unknown" in failure_of(parse(bytes(data)))


def test_a_cie_cut_at_every_byte() -> None:
    """The length field shrinks byte by byte; each FDE of the CIE fails, with the CIE's place in the reason."""
    cie = asm.Cie(
        3, "zPLR", ra_register=200, personality_encoding=0x1B, personality_vaddr=PERSONALITY, lsda_encoding=0x1B
    )
    whole = frame_of(cie).assemble()
    body = whole[8:].rstrip(b"\0")
    fde = frame_of(asm.Fde(cie, PC, SIZE, BODY)).assemble()[len(whole) :]
    for size in range(len(body)):
        entry = struct.pack("<II", 4 + size, 0) + body[:size]
        # The FDE's CIE pointer counts from its own field.
        data = entry + fde[:4] + struct.pack("<I", len(entry) + 4) + fde[8:]
        assert failure_of(parse(data)).startswith("its CIE at 0x0 is damaged: "), size


def test_a_damaged_cie_fails_its_own_fdes_only() -> None:
    bad, good = asm.Cie(augmentation="zXR"), asm.Cie(instructions=CODE)
    entries = (bad, good, asm.Fde(bad, PC, SIZE), asm.Fde(good, PC, SIZE, BODY), asm.Fde(bad, PC, SIZE))
    frame = frame_of(*entries)
    table = parse(frame)
    check_usual(table.fdes[0])
    assert [failure.offset for failure in table.failures] == [frame.offsets()[2], frame.offsets()[4]]


# --- Damaged FDEs -------------------------------------------------------------------------------------------


def two_functions() -> tuple[asm.EhFrame, bytearray, int, int]:
    """A section of a CIE and two FDEs, its bytes, and where the FDEs start."""
    cie = asm.Cie(instructions=CODE)
    frame = frame_of(asm.Fde(cie, PC, SIZE, BODY), asm.Fde(cie, PC + 0x1000, SIZE, BODY))
    _, first, second = frame.offsets()
    return frame, bytearray(frame.assemble()), first, second


@pytest.mark.parametrize(
    ("place", "field", "reason"),
    [
        (4, b"\x00\xff\xff\xff", "the CIE pointer is outside the section"),
        (4, b"\x00\x00\x10\x00", "the CIE pointer is outside the section"),
        (4, b"\xf0\xff\xff\xff", "its CIE follows it, where .eh_frame has CIEs before their FDEs"),
        (4, b"\x10\x00\x00\x00", "the CIE pointer does not point to a CIE"),
        (4, b"\x04\x00\x00\x00", "the CIE pointer does not point to a CIE"),
        (4, b"\x01\x00\x00\x00", "the CIE pointer does not point to a CIE"),
        (16, b"\x7f", "the augmentation data extend past the end of the entry"),
    ],
)
def test_a_wrong_field_fails_alone(place: int, field: bytes, reason: str) -> None:
    _, data, first, second = two_functions()
    data[first + place : first + place + len(field)] = field
    table = parse(bytes(data))
    assert [fde.offset for fde in table.fdes] == [second]
    assert [str(failure) for failure in table.failures] == [f".eh_frame+0x{first:x}: {reason}"]


@pytest.mark.parametrize("length", [1, 2, 3, 0x40, 0x7FFFFFFF, 0xFFFFFFEF, 0xFFFFFFFE])
def test_a_length_that_leaves_the_section_ends_the_walk(length: int) -> None:
    _, data, _, second = two_functions()
    data[second : second + 4] = struct.pack("<I", length)
    with pytest.raises(CfiError, match=f"the entry's length of {length} bytes") as caught:
        parse(bytes(data))
    assert (caught.value.where, caught.value.offset) == (".eh_frame", second)


def test_a_section_cut_at_every_byte() -> None:
    """Complete entries are read; a truncated one is an error. At a border between entries there is none."""
    frame, data, _, _ = two_functions()
    starts = (*frame.offsets(), len(data))
    for size in range(len(data) + 1):
        complete = sum(start <= size for start in starts[2:])
        if size in starts:
            assert len(parse(bytes(data[:size])).fdes) == complete
            continue
        with pytest.raises(CfiError, match=r"exceeds the section|truncated entry") as caught:
            parse(bytes(data[:size]))
        assert caught.value.offset == max(start for start in starts if start <= size)


# --- Objects ------------------------------------------------------------------------------------------------


def test_an_unresolved_relocation_of_pc_begin_fails_alone() -> None:
    _, data, first, second = two_functions()
    table = parse(bytes(data), unresolved=frozenset({first + 8}))
    assert [fde.offset for fde in table.fdes] == [second]
    (failure,) = table.failures
    assert (failure.offset, failure.reason) == (first, "its function is in no section of this file")


def test_other_unresolved_relocations_do_not_matter() -> None:
    """The personality routine of a CIE and the LSDA of an FDE are often of other files."""
    cie = asm.Cie(augmentation="zPLR", instructions=CODE, personality_encoding=0x9B, lsda_encoding=0x1B)
    frame = frame_of(asm.Fde(cie, PC, SIZE, BODY, LSDA))
    offset = frame.offsets()[1]
    check_usual(only_fde(parse(frame, unresolved=frozenset({18, offset + 17}))))


@pytest.mark.parametrize("unresolved", [frozenset[int](), frozenset({1})], ids=["quick", "general"])
@pytest.mark.parametrize("augmentation", ["zR", "zLR"])
def test_offsets_of_entries_and_fields(unresolved: frozenset[int], augmentation: str) -> None:
    """The quick parser of usual FDEs and the general one, used for unresolved relocations, agree."""
    cie = asm.Cie(augmentation=augmentation, instructions=CODE, lsda_encoding=0x1B)
    frame = frame_of(asm.Fde(cie, PC, SIZE, BODY, LSDA), asm.Fde(cie, PC - 0x8000, 0xFFFFFFFF, BODY, LSDA))
    data, offsets = frame.assemble(), frame.offsets()[1:]
    table = parse(frame, unresolved=unresolved)
    assert [(fde.pc_begin_vaddr, fde.pc_range) for fde in table.fdes] == [(PC, SIZE), (PC - 0x8000, 0xFFFFFFFF)]
    for fde, offset in zip(table.fdes, offsets, strict=True):
        assert (fde.offset, fde.pc_offset) == (offset, offset + 8)
        assert fde.instructions_offset == offset + 17 + (4 if "L" in augmentation else 0)
        assert data[fde.instructions_offset :].startswith(fde.instructions)
        assert fde.instructions.rstrip(b"\0") == BODY_BYTES
