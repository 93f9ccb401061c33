# SPDX-License-Identifier: Apache-2.0
"""Which bytes after functions are padding, and what a section says there."""

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe import convert, load, verify
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, ARCHES, S390X, Arch
from cfi2sframe.api import decode_raw
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.padding import find_padding, is_fill
from cfi2sframe.report.coverage import account
from tests.support.conversion.sums import check_sums
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.samples import TEXT_VADDR, Code, linked_file, object_file, push_fp
from tests.support.sframe.bodies import section_bytes
from tests.support.stubs.linked import Variant, link

#: An instruction that does something, and one that fills space, for each ABI.
RET: Final = {AMD64: b"\xc3", AARCH64_LE: b"\xc0\x03\x5f\xd6", AARCH64_BE: b"\xc0\x03\x5f\xd6", S390X: b"\x07\xfe"}
NOP: Final = {AMD64: b"\x90", AARCH64_LE: b"\x1f\x20\x03\xd5", AARCH64_BE: b"\x1f\x20\x03\xd5", S390X: b"\x07\x07"}
DATA_VADDR: Final = 0x40000
SIZE: Final = 32
R_RELATIVE: Final = 8
ALLOC: Final = 2


def code_of(arch: Arch, size: int) -> bytes:
    """Return code of a function."""
    return RET[arch] * (size // len(RET[arch]))


def fill_of(arch: Arch, size: int) -> bytes:
    """Return padding."""
    return NOP[arch] * (size // len(NOP[arch]))


def two_functions(gap: bytes, arch: Arch = AMD64, **more: object) -> ElfImage:
    """Return an image with two functions, these bytes in between."""
    text = code_of(arch, SIZE) + gap + code_of(arch, SIZE)
    fdes = (push_fp(arch, TEXT_VADDR, SIZE), push_fp(arch, TEXT_VADDR + SIZE + len(gap), SIZE))
    codes = (Code(size=len(text), data=text),)
    return load(linked_file(arch, fdes, codes=codes, **more), "padded")  # type: ignore[arg-type]


def one_function(after: bytes, *, section_headers: bool = True) -> ElfImage:
    """Return an image with one function, and these bytes after it."""
    text = code_of(AMD64, SIZE) + after
    fde, code = push_fp(AMD64, TEXT_VADDR, SIZE), Code(size=len(text), data=text)
    symbols = (asm.Symbol("main", TEXT_VADDR, SIZE),)
    return load(linked_file(AMD64, [fde], codes=(code,), symbols=symbols, section_headers=section_headers), "in")


def padding_of(image: ElfImage) -> list[tuple[int, int]]:
    """Return the offsets in .text of the padding that a conversion finds; check what it makes of them."""
    # At this level, each function ends where its FDE does, or the padding behind it.
    conversion = convert(image, level=1)
    check_sums(conversion)
    for version in (2, 3):
        assert verify(convert(image, version=version)).is_clean
    ranges = conversion.padding
    assert {end for _, end in ranges} <= {f.start_vaddr + f.size for f in conversion.section.functions}
    return [(start - TEXT_VADDR, end - TEXT_VADDR) for start, end in ranges]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_a_function_reaches_over_padding(arch: Arch) -> None:
    """The last row stays in force up to the next function; the function's own rows are where they were."""
    image = two_functions(fill_of(arch, 16), arch)
    assert padding_of(image) == [(SIZE, SIZE + 16)]
    conversion = convert(image, level=1)
    assert [f.size for f in conversion.section.functions] == [SIZE + 16, SIZE]
    assert [f.body for f in conversion.section.functions] == [piece.said for piece in conversion.pieces]


FILLS: Final = {
    AMD64: "90 6690 0f1f00 0f1f4000 0f1f440000 660f1f440000 0f1f8000000000 0f1f840000000000 660f1f840000000000"
    " 2e660f1f840000000000 6666666666662e0f1f840000000000 cccccc 000000 90cc0000"
    # gold's jump over the nops after it
    " e90100000090",
    AARCH64_LE: "1f2003d5 00000000 200020d4",
    AARCH64_BE: "1f2003d5",
    S390X: "0700 07070707 47000000 c004000000000000 a7040000",
}
OTHERS: Final = {
    # ret; pause; endbr64; ud2; jumps that are not gold's; instructions that are cut; another register field;
    # more prefixes than an instruction may have
    AMD64: "c3 90c3 f390 f30f1efa 0f0b e900000000 e90200000090 e901000000cc e9 0f1f 0f1f84000000 0f1f0425aabb 0f1fc8"
    " 66666666666666666666666666666690",
    # bti c; an instruction that is cut; brk 1 << 12, and brk 1000, which __builtin_trap() is
    AARCH64_LE: "5f2403d5 1f2003 000020d5 007d20d4",
    # branches; an instruction for EXECUTE; zeros that are cut
    S390X: "0717 4710f000 a7140000 c01400000000 d20010002000 000001",
}


@pytest.mark.parametrize("arch", FILLS, ids=lambda arch: arch.name)
def test_bytes_that_fill_space(arch: Arch) -> None:
    for gap in map(bytes.fromhex, FILLS[arch].split()):
        assert is_fill(arch, gap), gap.hex()
        assert padding_of(two_functions(gap, arch)) == [(SIZE, SIZE + len(gap))]
    for gap in map(bytes.fromhex, OTHERS.get(arch, "").split()):
        assert not is_fill(arch, gap), gap.hex()


#: Instructions of s390x that branch if the first operand says so; it never does.
CONDITIONAL: Final = ("bcr", "bc", "brc", "brcl")
MODES: Final = {
    AMD64: (1, capstone.CS_ARCH_X86, capstone.CS_MODE_64),
    AARCH64_LE: (4, capstone.CS_ARCH_ARM64, capstone.CS_MODE_LITTLE_ENDIAN),
    S390X: (2, capstone.CS_ARCH_SYSZ, capstone.CS_MODE_BIG_ENDIAN),
}


def does_nothing(instruction: capstone.CsInsn) -> bool:
    name, operands = instruction.mnemonic, instruction.op_str
    return (
        name in ("nop", "int3", "nopr", "jnop", "jgnop")
        or (name in CONDITIONAL and operands.startswith("0,"))
        or (name == "brk" and operands in ("#0", "#1", "#0x1"))
    )


@given(st.sampled_from(list(MODES)), st.data())
def test_capstone_reads_nothing_else_in_what_fills_space(arch: Arch, data: st.DataObject) -> None:
    fills, others = ([piece for piece in table[arch].split() if piece[:2] != "e9"] for table in (FILLS, OTHERS))
    pieces = data.draw(st.lists(st.sampled_from(fills + others), min_size=1, max_size=5))
    gap = bytes.fromhex("".join(pieces))
    assert is_fill(arch, gap) or not set(pieces) <= set(fills)
    if not is_fill(arch, gap):
        return
    unit, *mode = MODES[arch]
    reader, position = capstone.Cs(*mode), 0
    while position < len(gap):
        # Zeros are no instruction, or one that no compiler writes.
        if gap[position : position + unit] == bytes(unit):
            position += unit
            continue
        instruction = next(reader.disasm(gap[position:], 0, 1))
        assert does_nothing(instruction)
        position += instruction.size


#: Two functions in sections of their own, far from a multiple of 64 bytes in size.
ALIGNED: Final = """
__attribute__((aligned(64))) int first(int x) { return x + 1; }
__attribute__((aligned(64))) int second(int x) { return x + 2; }
__attribute__((aligned(64))) int third(int x) { return x + 3; }
"""
OPTIONS: Final = ("-shared", "-fPIC", "-nostdlib", "-DONE_CALL", "-ffunction-sections")
#: Since version 2, mold fills with GCC's trap in code of AArch64, which could be code.
LINKERS: Final = {
    "gcc": ("2.40", "2.44", "newest", "gold", "lld", "mold-1", "mold-2"),
    "aarch64-linux-gnu-gcc": ("bfd", "gold", "lld", "mold-1"),
    "s390x-linux-gnu-gcc": ("bfd", "mold-1", "mold-2"),
}


@pytest.mark.oracle
@pytest.mark.slow
@pytest.mark.parametrize(
    ("compiler", "linker"), [(name, each) for name, linkers in LINKERS.items() for each in linkers]
)
def test_what_linkers_fill_with(compiler: str, linker: str, tmp_path: Path) -> None:
    """Between input sections, each linker has a pattern of its own."""
    source = tmp_path / "aligned.c"
    source.write_text(ALIGNED)
    image = link(Variant("fill", linker, (*OPTIONS, str(source)), {}, compiler), tmp_path)
    conversion = convert(image, level=1)
    padding = dict(conversion.padding)
    names = {name: vaddr for vaddr, name in image.names_of(conversion.section.starts).items()}
    sizes = dict(zip(conversion.section.starts, conversion.section.sizes, strict=True))
    for name, following in (("first", "second"), ("second", "third")):
        start, next_start = names[name], names[following]
        assert next_start % 64 == 0
        assert start + sizes[start] == next_start
        assert next_start in padding.values()


def test_padding_ends_where_code_with_cfi_starts() -> None:
    """Code without CFI after it: what reaches it is not known, and so is where it starts."""
    image = two_functions(bytes(8) + b"\xc3" + bytes(7))
    assert padding_of(image) == []
    counts = account(convert(image))
    assert (counts.padding_size, counts.other_padding_size, counts.without_cfi_size) == (0, 8, 8)


def test_padding_at_the_end_of_a_section() -> None:
    """Where a table of symbols cannot be read, nothing is taken for padding, and all else is converted as ever."""
    image = one_function(bytes(16))
    assert padding_of(image) == [(SIZE, SIZE + 16)]
    file = File(image.data[:])
    file.section(".symtab").size = 1 << 40
    assert padding_of(load(bytes(file), "in")) == []
    image = one_function(bytes(8), section_headers=False)
    found = find_padding(image, [(TEXT_VADDR, TEXT_VADDR + SIZE)])
    assert found == ((TEXT_VADDR + SIZE, TEXT_VADDR + SIZE + 8),)


# What refers to padding


def words(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}Q", *values)


RELATIVE: Final = words(DATA_VADDR, R_RELATIVE, TEXT_VADDR + SIZE + 4)
DT_PLTRELSZ, DT_HASH, DT_SYMTAB, DT_RELA, DT_RELASZ, DT_INIT, DT_JMPREL, DT_RELRSZ, DT_RELR, DT_GNU_HASH = (
    *(2, 4, 6, 7, 8, 12, 23, 35, 36, 0x6FFFFEF5),
)
#: Of a symbol's three words, the second is its value. The second symbol from this address on refers to padding.
SYMBOLS_VADDR: Final = DATA_VADDR + 16
#: Hash tables (gABI, "Hash Table") of one and of two symbols, and GNU's, with one chain: one without an entry, one with
#: an entry that is the last, one with two.
HASH_VADDR: Final = DATA_VADDR + 64
HASHES: Final = (
    struct.pack("<4I", 1, 1, 1, 2)
    + struct.pack("<4IQII", 1, 1, 1, 0, 0, 0, 0)
    + struct.pack("<4IQII", 1, 1, 1, 0, 0, 1, 3)
    + struct.pack("<4IQIII", 1, 0, 1, 0, 0, 0, 2, 5)
)


@pytest.mark.parametrize(
    ("entries", "is_padding"),
    [
        ({}, True),
        ({DT_RELA: DATA_VADDR, DT_RELASZ: 24}, False),
        ({DT_JMPREL: DATA_VADDR, DT_PLTRELSZ: 24}, False),
        ({DT_RELA: DATA_VADDR, DT_RELASZ: 0}, True),
        ({DT_RELR: DATA_VADDR + 24, DT_RELRSZ: 8}, False),
        ({DT_INIT: TEXT_VADDR + SIZE + 15}, False),
        ({DT_INIT: TEXT_VADDR + SIZE + 16}, True),
        ({DT_SYMTAB: SYMBOLS_VADDR, DT_HASH: HASH_VADDR}, True),
        ({DT_SYMTAB: SYMBOLS_VADDR, DT_HASH: HASH_VADDR + 8}, False),
        ({DT_SYMTAB: SYMBOLS_VADDR, DT_GNU_HASH: HASH_VADDR + 16}, True),
        ({DT_SYMTAB: SYMBOLS_VADDR, DT_GNU_HASH: HASH_VADDR + 48}, False),
        ({DT_SYMTAB: SYMBOLS_VADDR, DT_GNU_HASH: HASH_VADDR + 80}, False),
        # Two other symbols.
        ({DT_SYMTAB: SYMBOLS_VADDR + 8, DT_GNU_HASH: HASH_VADDR + 48}, True),
        ({DT_SYMTAB: SYMBOLS_VADDR + 8, DT_GNU_HASH: HASH_VADDR + 80}, True),
        # A table of unknown size, and three that are not there.
        ({DT_SYMTAB: SYMBOLS_VADDR}, False),
        ({DT_SYMTAB: SYMBOLS_VADDR, DT_HASH: DATA_VADDR + 0x100000}, False),
        ({DT_SYMTAB: SYMBOLS_VADDR + 0x100000, DT_HASH: HASH_VADDR}, False),
        ({DT_RELA: DATA_VADDR + 0x100000, DT_RELASZ: 24}, False),
    ],
)
def test_without_section_headers(entries: Mapping[int, int], is_padding: bool) -> None:  # noqa: FBT001
    """The dynamic section leads to what refers to padding."""
    tables = RELATIVE + words(DATA_VADDR + 16, 0) + words(0, TEXT_VADDR + SIZE + 4, 0) + HASHES + bytes(4)
    contents = words(*(number for item in entries.items() for number in item), 0, 0)
    image = two_functions(
        bytes(16),
        more=(
            asm.Section(".data", tables, 1, ALLOC, DATA_VADDR, align=8),
            asm.Section(".dynamic", contents, 6, ALLOC, DATA_VADDR + len(tables), align=8),
        ),
        segments=(asm.Segment(2, 6, (".dynamic",)),),
        section_headers=False,
    )
    starts = (TEXT_VADDR, TEXT_VADDR + SIZE + 16)
    found = find_padding(image, [(start, start + SIZE) for start in starts])
    assert found == (((TEXT_VADDR + SIZE, starts[1]),) if is_padding else ())


@pytest.mark.parametrize(("offset", "is_padding"), [(12, False), (16, True)])
def test_the_entry_point_and_patchable_entries(offset: int, *, is_padding: bool) -> None:
    """-fpatchable-function-entry=N,M places M instructions before the entry; without PIE nothing relocates the list."""
    vaddr = TEXT_VADDR + SIZE + offset
    table = asm.Section("__patchable_function_entries", words(vaddr), 1, ALLOC, DATA_VADDR, align=8)
    for image in (two_functions(bytes(16), more=(table,)), two_functions(bytes(16), entry_vaddr=vaddr)):
        assert padding_of(image) == [(SIZE, SIZE + 16)] * is_padding


#: Gaps, and whether their bytes are padding's.
GAPS: Final = st.sampled_from(
    (
        *((b"", False), (b"\x90", True), (bytes(16), True), (bytes(63), True), (bytes(64), False)),
        *((b"\x0f\x1f\x00", True), (b"\xc3", False), (b"\xcc\xc3", False), (bytes(7) + b"\xe9", False)),
    )
)


@given(st.lists(st.tuples(st.integers(1, 9), GAPS), max_size=8), st.lists(st.integers(0, 300), max_size=4))
def test_functions_and_gaps_at_any_places(parts: list[tuple[int, tuple[bytes, bool]]], referred: list[int]) -> None:
    """Each gap is judged by itself: by its bytes, its size, and what refers to it."""
    text, starts, ends, expected = b"", list[int](), list[int](), list[tuple[int, int]]()
    for size, (gap, is_fill_space) in parts:
        starts.append(TEXT_VADDR + len(text))
        text += b"\xc3" * size
        ends.append(TEXT_VADDR + len(text))
        text += gap
        if is_fill_space and not any(ends[-1] - TEXT_VADDR <= offset < len(text) for offset in referred):
            expected.append((ends[-1], TEXT_VADDR + len(text)))
    symbols = tuple(asm.Symbol(f"s{n}", TEXT_VADDR + offset) for n, offset in enumerate(referred))
    code = Code(size=len(text), data=text) if text else Code(size=1, data=b"\xc3")
    image = load(linked_file(AMD64, (), codes=(code,), symbols=symbols), "in")
    assert find_padding(image, list(zip(starts, ends, strict=True))) == tuple(expected)


# Objects


def object_with(*relocations: asm.Relocation, gap: bytes = bytes(16), arch: Arch = AMD64) -> ElfImage:
    """Return an object of two functions, these bytes in between, and a section of data."""
    text = code_of(arch, SIZE) + gap + code_of(arch, SIZE)
    fdes = (push_fp(arch, 0, SIZE), push_fp(arch, SIZE + len(gap), SIZE))
    more = (asm.Section(".data", bytes(16), 1, ALLOC, align=8), asm.Section(".debug_info", bytes(16)))
    return load(object_file(arch, {".text": fdes}, text=text, more=more, relocations=relocations), "in.o")


START: Final = ".text.start"
PC32, PLT32, ABS64 = 2, 4, 1
S390_PC32DBL, S390_ABS64 = 19, 22
AARCH64_CALL26 = 283


def padding_in_object(image: ElfImage) -> list[tuple[int, int]]:
    conversion = convert(image)
    check_sums(conversion)
    assert verify(convert(image)).is_clean
    return [(image.place(start).offset, image.place(end).offset) for start, end in conversion.padding]


@pytest.mark.parametrize(
    ("arch", "relocation", "is_padding"),
    [
        (AMD64, asm.Relocation(".data", 0, START, ABS64, SIZE), False),
        (AMD64, asm.Relocation(".data", 0, START, ABS64, SIZE + 15), False),
        (AMD64, asm.Relocation(".data", 0, START, ABS64, SIZE - 1), True),
        (AMD64, asm.Relocation(".data", 0, START, ABS64, SIZE + 16), True),
        (AMD64, asm.Relocation(".data", 0, START, PC32, SIZE + 12), False),
        # A call or jump of code: the field is four bytes before the address that the distance counts from.
        (AMD64, asm.Relocation(".text", 4, START, PLT32, SIZE + 16 - 4), True),
        (AMD64, asm.Relocation(".text", 4, START, PLT32, SIZE + 12 - 4), False),
        (AMD64, asm.Relocation(".text", 4, START, PLT32, SIZE - 4), False),
        (AMD64, asm.Relocation(".text", 4, START, ABS64, SIZE + 16), True),
        (AMD64, asm.Relocation(".text", 4, START, ABS64, SIZE + 8), False),
        (AARCH64_LE, asm.Relocation(".text", 4, START, AARCH64_CALL26, SIZE + 16), True),
        (AARCH64_LE, asm.Relocation(".text", 4, START, AARCH64_CALL26, SIZE + 12), False),
        (S390X, asm.Relocation(".text", 2, START, S390_PC32DBL, SIZE + 16 + 2), True),
        (S390X, asm.Relocation(".text", 2, START, S390_PC32DBL, SIZE + 14 + 2), False),
        (S390X, asm.Relocation(".data", 0, START, S390_ABS64, SIZE), False),
        # These bytes are filled in later: they are no padding.
        (AMD64, asm.Relocation(".text", SIZE + 4, START, ABS64, 0), False),
        # End addresses of functions, for a debugger; nothing jumps there.
        (AMD64, asm.Relocation(".debug_info", 0, START, ABS64, SIZE), True),
    ],
)
def test_relocations_of_an_object(arch: Arch, relocation: asm.Relocation, is_padding: bool) -> None:  # noqa: FBT001
    image = object_with(relocation, gap=fill_of(arch, 16), arch=arch)
    assert padding_in_object(image) == [(SIZE, SIZE + 16)] * is_padding


def test_relocations_of_no_section() -> None:
    """As some tools leave them; they refer to nothing."""
    file = File(object_with(asm.Relocation(".data", 0, START, ABS64, SIZE)).data[:])
    file.section(".rela.data").info = 99
    assert padding_in_object(load(bytes(file), "in.o")) == [(SIZE, SIZE + 16)]


# What a section says of padding: tests/verification/test_columns.py has all that is allowed


@pytest.mark.parametrize("image", [two_functions(NOP[AMD64] * 8), one_function(NOP[AMD64] * 8)])
def test_what_is_made_here_reaches_over_padding(image: ElfImage) -> None:
    """Sections of others need not."""
    conversion = convert(image, level=1)
    assert conversion.section.sizes[0] == SIZE + 8
    bare = conversion.section._replace(sizes=(SIZE, SIZE)[: len(conversion.section.sizes)])
    assert verify(conversion, bare).is_clean
    ours = conversion._replace(data=section_bytes(bare, AMD64, conversion.section_vaddr))
    assert [(found.kind, found.vaddr) for found in verify(ours).differences] == [("missing", TEXT_VADDR + SIZE)]


def test_raw_sections_of_objects() -> None:
    """A function of a raw section is known by its offset and its size, with padding or without."""
    image = object_with()
    conversion = convert(image)
    places = tuple(image.place(start).offset for start in conversion.section.starts)
    for sizes in ((SIZE + 16, SIZE), (SIZE, SIZE)):
        raw = conversion.section._replace(starts=places, sizes=sizes)
        section = decode_raw(image, section_bytes(raw, image.arch, 0), None)
        assert (section.starts, section.sizes) == (conversion.section.starts, sizes)
        assert verify(image, section).is_clean
