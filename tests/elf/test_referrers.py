# SPDX-License-Identifier: Apache-2.0
"""What may refer to an address is found in each form, at each border, near and far; what has its own reader is not."""

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.constants import elf as c
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.referrers import Referrer
from tests.support.elf.edit import File
from tests.support.elf.elf_asm import Section, Segment
from tests.support.elf.references import referrers
from tests.support.elf.referring import (
    DATA,
    DATA_VADDR,
    GOT_VADDR,
    MOVE,
    READ_VADDR,
    SIZE,
    SPANS,
    TEXT_VADDR,
    adrp,
    file_of,
    words,
)

MACHINES: Final = (AMD64, AARCH64_LE, AARCH64_BE, S390X)
#: Of each machine, an instruction that does nothing.
FILL: Final = {AMD64: b"\x90", AARCH64_LE: b"\x1f\x20\x03\xd5", AARCH64_BE: b"\x1f\x20\x03\xd5", S390X: b"\x07\x07"}
#: Bytes that are searched at one time.
PIECE: Final = 1 << 16


# Forms. `make` returns the bytes at an address that refer to a target; None where they cannot.


class Form(NamedTuple):
    """A way to refer to a target from a place; the number or instruction is `at` bytes after it."""

    arch: Arch
    make: Callable[[int, int], bytes | None]
    at: int = 0
    kind: int = c.ET_DYN
    is_code: bool = True
    alignment: int = 1
    #: It may lead to one of several targets, up to 4 bytes from each other.
    is_vague: bool = False


def relative(opcode: str, immediate: bytes = b"") -> Form:
    head = bytes.fromhex(opcode)
    size = len(head) + 4 + len(immediate)
    return Form(
        AMD64, lambda at, target: head + struct.pack("<i", target - at - size) + immediate, len(head), is_vague=True
    )  # fmt: skip


def absolute(opcode: str, number: str = "<I") -> Form:
    head = bytes.fromhex(opcode)
    return Form(AMD64, lambda _at, target: head + struct.pack(number, target), len(head), c.ET_EXEC)


def adr(at: int, target: int) -> bytes | None:
    distance = target - at
    if not -(1 << 20) <= distance < 1 << 20:
        return None
    return words(0x10000003 | (distance & 3) << 29 | (distance >> 2 & 0x7FFFF) << 5)


def literal(opcode: int) -> Form:
    def make(at: int, target: int) -> bytes | None:
        distance = target - at
        is_near = -(1 << 20) <= distance < 1 << 20 and distance % 4 == 0
        return words(opcode | (distance >> 2 & 0x7FFFF) << 5) if is_near else None

    return Form(AARCH64_LE, make, alignment=4)


def page_and(opcode: int, unit: int, arch: Arch = AARCH64_LE) -> Form:
    def make(at: int, target: int) -> bytes | None:
        number = target & 0xFFF
        return words(adrp(at, target), MOVE, opcode | number // unit << 10) if number % unit == 0 else None

    return Form(arch, make, alignment=4)


def moves(low: int, high: int, *, is_low_first: bool) -> Form:
    def make(_at: int, target: int) -> bytes:
        parts = [low | (target & 0xFFFF) << 5, high | (target >> 16 & 0xFFFF) << 5]
        return words(*(parts if is_low_first else reversed(parts)))

    return Form(AARCH64_LE, make, 0 if is_low_first else 4, c.ET_EXEC, alignment=4)


def long_relative(opcode: str) -> Form:
    head = bytes.fromhex(opcode)
    pack = struct.Struct(">i").pack
    return Form(S390X, lambda at, target: None if target % 2 else head + pack((target - at) // 2), alignment=2)


def data(arch: Arch, size: str, base: int | None = 0, alignment: int = 1, *, is_code: bool = False) -> Form:
    """Return a number in data: an address, or the distance from a base, or, without one, from itself."""
    order, kind = arch.byte_order, c.ET_DYN if base != 0 else c.ET_EXEC
    half = 4 if size.lower() == "q" and order == ">" else 0
    return Form(
        arch,
        lambda at, target: struct.pack(order + size, target - (at if base is None else base)),
        half, kind, is_code, alignment, is_vague=base is None and order == ">",
    )  # fmt: skip


FORMS: Final[dict[str, Form]] = {
    **{f"AMD64 {code}": relative(code) for code in ("488d3d", "8b05", "678b05", "c5fa6f05", "62f17c480f05", "ff35")},
    **{f"AMD64 {o}": relative(o, bytes(size)) for o, size in (("803d", 1), ("66c705", 2), ("c705", 4))},
    **{f"AMD64 absolute {code}": absolute(code) for code in ("bf", "48c7c7", "8b0425", "8b80", "0fb687", "3d", "68")},
    "AMD64 movabs": absolute("48b8", "<Q"),
    "AMD64 movabs GOT": Form(AMD64, lambda _, to: b"\x48\xb8" + struct.pack("<q", to - GOT_VADDR), 2),
    "ADR": Form(AARCH64_LE, adr, alignment=4),
    "ADR big-endian": Form(AARCH64_BE, adr, alignment=4),
    **{f"LDR literal {o:x}": literal(o << 24) for o in (0x18, 0x58, 0x98, 0x1C, 0x5C, 0x9C)},
    "ADRP, ADD": page_and(0x91000063, 1),
    "ADRP, ADD big-endian": page_and(0x91000063, 1, AARCH64_BE),
    **{f"ADRP, LDR {size}": page_and(0x39400063 | size << 30, 1 << size) for size in range(4)},
    "ADRP, LDRSW": page_and(0xB9800063, 4),
    "MOVZ, MOVK": moves(0xD2800003, 0xF2A00003, is_low_first=True),
    "MOVZ, MOVK of W": moves(0x72800003, 0x52A00003, is_low_first=False),
    **{f"s390x {o}": long_relative(o) for o in ("c030", "c432", "c438", "c43d", "c43f", "c632", "c634", "c63f")},
    **{f"address of 8, {arch.name}": data(arch, "Q") for arch in MACHINES},
    **{f"address of 4, {arch.name}": data(arch, "I", alignment=4) for arch in MACHINES},
    **{f"address in code, {arch.name}": data(arch, "Q", alignment=8, is_code=True) for arch in MACHINES},
    "address of 4 in code": data(AARCH64_LE, "I", alignment=4, is_code=True),
    "address of 4 in code of s390x": data(S390X, "I", alignment=2, is_code=True),
    **{f"distance of 4, {arch.name}": data(arch, "i", None, 4) for arch in MACHINES},
    **{f"distance of 8, {arch.name}": data(arch, "q", None, 4) for arch in MACHINES},
    **{f"distance from the GOT, {arch.name}": data(arch, "q", GOT_VADDR, 4) for arch in MACHINES},
}
#: Where what is asked for starts: in the file, just before a border of bits of numbers, far away on either side.
STARTS: Final = (READ_VADDR, 0x7FFFF0, 0x12345300, 0x7F000FE8, 0x123456300)
#: Distances from the start, and whether they count: 16 bytes before it do, and so does the end.
BORDERS: Final = dict.fromkeys((-48, -20, -18, -17, 33, 34, 36, 64), False) | dict.fromkeys((31, 32, -16, 0), True)


def _made(form: Form, at: int, target: int) -> bytes | None:
    try:
        return form.make(at, target)
    except struct.error:
        return None


#: A distance of 8 bytes is found if 4 bytes have it.
CASES: Final = [
    (name, start)
    for name, form in FORMS.items()
    for start in STARTS
    if _made(form, TEXT_VADDR if form.is_code else DATA_VADDR, start)
    and not (name.startswith("distance of 8") and start >> 32)
]


@pytest.mark.parametrize(("name", "start"), CASES)
def test_each_form(name: str, start: int) -> None:
    """In the midst of a piece and over its end, at the end of a segment."""
    form = FORMS[name]
    fill, vaddr = (FILL[form.arch], TEXT_VADDR) if form.is_code else (b"\1", DATA_VADDR)
    for shift in (-6, -4, -1, 0) if start == READ_VADDR else (0,):
        content, wanted = b"", list[Referrer]()
        for number, (delta, is_in) in enumerate(sorted(BORDERS.items(), key=lambda each: each[0] != -16)):
            place = (PIECE if start == READ_VADDR else 0x80) * number + shift // form.alignment * form.alignment
            place = max(place, 0)
            made = _made(form, vaddr + place, start + delta)
            if made is not None and (is_in or not form.is_vague or delta in (-48, 64)):
                content += fill * ((place - len(content)) // len(fill)) + bytes((place - len(content)) % len(fill))
                content += made
                wanted += [Referrer(vaddr + place + form.at, start + delta)] * is_in
        code, numbers = (content, bytes(8)) if form.is_code else (fill, content)
        found = referrers(load(file_of(form.arch, code, numbers, kind=form.kind)), [(start, start + SIZE)])
        assert set(wanted) <= set(found)
        # What may be the number of one size may be the half of another's.
        assert {each.vaddr for each in found} == {each.vaddr for each in wanted}


@pytest.mark.parametrize("name", [n for n, form in FORMS.items() if form.alignment in (2, 4) and "P, LDR" not in n])
def test_what_is_not_aligned(name: str) -> None:
    form = FORMS[name]
    place, target = 0x80 + form.alignment // 2, READ_VADDR + 2
    made = form.make((TEXT_VADDR if form.is_code else DATA_VADDR) + place, target) or b""
    code, numbers = FILL[form.arch] * place, b"\1" * place + made
    if form.is_code:
        code, numbers = code[:place] + made + b"\1" * 4, bytes(8)
    assert made
    assert not referrers(load(file_of(form.arch, code, numbers, kind=form.kind)), SPANS)


# Places with readers of their own

LED_TO: Final = (c.PT_DYNAMIC, c.PT_INTERP, c.PT_NOTE, c.PT_GNU_PROPERTY, c.PT_GNU_EH_FRAME)


@pytest.mark.parametrize(
    ("kind", "name", "tag", "is_found"),
    [
        (c.PT_GNU_RELRO, ".data", 0, True),
        *((kind, ".data", 0, False) for kind in LED_TO),
        *((c.PT_GNU_RELRO, name, 0, False) for name in (".eh_frame", ".gopclntab")),
        *((c.PT_GNU_RELRO, ".data", tag, False) for tag in (4, c.DT_GNU_HASH, 5, 6, 7)),
        *((c.PT_GNU_RELRO, ".data", tag, False) for tag in (c.DT_VERSYM, c.DT_VERDEF, c.DT_VERNEED)),
        (c.PT_GNU_RELRO, ".data", c.DT_JMPREL, True),
    ],
)
def test_places_with_readers_of_their_own(kind: int, name: str, tag: int, *, is_found: bool) -> None:
    """Headers, what they and dynamic entries lead to, and the loader's tables are not searched."""
    table = Section(
        ".table", struct.pack("<QQ", c.DT_GNU_HASH, READ_VADDR), flags=DATA, addr=TEXT_VADDR + 16, title=name
    )
    dynamic = Section(".dynamic", struct.pack("<QQ", tag, table.addr), flags=DATA, addr=TEXT_VADDR + 0x20)
    segments = [Segment(kind, c.PF_R, (".table",)), Segment(c.PT_DYNAMIC, c.PF_R, (".dynamic",))]
    file = File(file_of(AMD64, b"\x90", kind=c.ET_EXEC, more=[table, dynamic], segments=segments))
    file.header.entry = READ_VADDR
    assert referrers(load(bytes(file)), SPANS) == [Referrer(table.addr + 8, READ_VADDR)] * is_found


def test_what_is_asked_for_may_refer_to_itself() -> None:
    itself = load(file_of(AMD64, b"\x90", struct.pack("<QQ", DATA_VADDR, 0), kind=c.ET_EXEC))
    assert not referrers(itself, [(DATA_VADDR, DATA_VADDR + 8)])
    assert referrers(itself, [(DATA_VADDR + 8, DATA_VADDR + 16)]) == [Referrer(DATA_VADDR, DATA_VADDR)]
    assert referrers(itself, ()) == []


# Relocations

PLACE: Final = DATA_VADDR + 8
RELA_VADDR: Final = TEXT_VADDR + 0x100


class Table(NamedTuple):
    """A table of relocations: what leads to it, other fields of its section header, its bytes, and those of data."""

    entries: dict[int, int]
    fields: dict[str, int]
    content: bytes
    data: bytes = bytes(16)

    def image(self, arch: Arch) -> ElfImage:
        order = arch.byte_order
        section = Section(".rela.dyn", self.content, flags=c.SHF_ALLOC, addr=RELA_VADDR)
        values = b"".join(struct.pack(order + "QQ", *each) for each in self.entries.items())
        dynamic = Section(".dynamic", values + bytes(16), flags=c.SHF_ALLOC, addr=RELA_VADDR + 0x80)
        segments = [Segment(c.PT_DYNAMIC, c.PF_R, (".dynamic",))]
        file = File(file_of(arch, FILL[arch] * 4, self.data, more=[section, dynamic], segments=segments))
        file.section(".rela.dyn").set(**self.fields)
        return load(bytes(file))


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize("delta", BORDERS)
def test_relocations(arch: Arch, delta: int) -> None:
    """Tables of dynamic entries, whatever their sections are called; those of sections; packed ones."""
    target, order = READ_VADDR + delta, arch.byte_order
    table = struct.pack(order + "QQQ", PLACE, arch.relative_relocation, target)
    packed, word = struct.pack(order + "QQ", DATA_VADDR, 0b11), bytes(8) + struct.pack(order + "Q", target)
    rela = {c.DT_RELA: RELA_VADDR, 8: 24}
    for each in (
        Table(rela, {}, table),
        Table({c.DT_JMPREL: RELA_VADDR, c.DT_PLTRELSZ: 24}, {}, table),
        Table({}, {"type": c.SHT_RELA}, table),
        Table(rela, {"type": c.SHT_RELA, "size": 0}, table),
        Table(rela, {"type": c.SHT_RELA, "flags": 0}, table),
        Table({c.DT_RELR: RELA_VADDR, c.DT_RELRSZ: 16}, {}, packed, word),
        Table({c.DT_ANDROID_RELR: RELA_VADDR, c.DT_ANDROID_RELRSZ: 16}, {}, packed, word),
        Table({}, {"type": c.SHT_RELR}, packed, word),
        Table({}, {"type": c.SHT_ANDROID_RELR}, packed, word),
    ):
        assert referrers(each.image(arch), SPANS) == [Referrer(PLACE, target)] * BORDERS[delta], each
    # Other relocations write something there, or lead to a symbol.
    stores = struct.pack(order + "QQQ", target, arch.relative_relocation + 1, 0)
    assert referrers(Table(rela, {}, stores).image(arch), SPANS) == [Referrer(target, target)] * BORDERS[delta]
    other = struct.pack(order + "QQQ", PLACE, arch.relative_relocation + 1, target)
    assert not referrers(Table(rela, {}, other).image(arch), SPANS)


@pytest.mark.parametrize("fields", [{}, {"type": c.SHT_ANDROID_RELA}])
@pytest.mark.parametrize("entries", [{}, {c.DT_ANDROID_RELA: RELA_VADDR}])
def test_relocations_that_are_packed_as_android_does(entries: dict[int, int], fields: dict[str, int]) -> None:
    """They are not read, and may store anything."""
    assert bool(referrers(Table(entries, fields, b"APS2").image(AMD64), SPANS)) == bool(entries or fields)


@pytest.mark.parametrize("number", [0, 1, 62, 63])
def test_compact_relocations(number: int) -> None:
    """An address, and a bitmap of 63 words after it; each bit counts, in the segment of the word only."""
    entries, data = {c.DT_RELR: RELA_VADDR, c.DT_RELRSZ: 16}, bytes(8 * number) + struct.pack("<QQ", READ_VADDR, 0)
    for start, found in ((DATA_VADDR, [Referrer(DATA_VADDR + 8 * number, READ_VADDR)]), (GOT_VADDR, [])):
        table = struct.pack("<QQ", start, 1 << number | 1)
        assert referrers(Table(entries, {}, table, data).image(AMD64), SPANS) == found
