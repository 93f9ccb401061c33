# SPDX-License-Identifier: Apache-2.0
"""Where Go's table of functions is, which versions are read, and where the code is that it describes."""

import struct

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import CfiError, RequestError, UnfitError
from cfi2sframe.gotable.header import HEADER_SIZE, find_table
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.edit import File
from tests.support.elf.samples import SHF_ALLOC, SHT_NOBITS, TEXT_VADDR, linked, push_fp
from tests.support.gotable.go_table import GO_1_18, GO_1_20, MODULE_VADDR, TABLE_VADDR, GoFunction, GoTable, go_file

MAIN = GoFunction(0, ((4, 0), (24, 16), (4, 0)))
ARCHES = (AMD64, AARCH64_LE, S390X)
#: R_X86_64_RELATIVE and the others'.
RELATIVE = {AMD64.name: 8, AARCH64_LE.name: 1027, S390X.name: 12}


def table_of(data: bytes) -> tuple[int, int] | None:
    table = find_table(load(data))
    return None if table is None else (table.text_vaddr, table.function_count)


def rela(arch: Arch, *entries: tuple[int, int], kind: int | None = None) -> asm.Section:
    code = RELATIVE[arch.name] if kind is None else kind
    data = b"".join(struct.pack(arch.byte_order + "QQQ", vaddr, code, addend) for vaddr, addend in entries)
    return asm.Section(".rela.dyn", data, 4, SHF_ALLOC, 0x50000, align=8)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
@pytest.mark.parametrize("magic", [GO_1_18, GO_1_20])
@pytest.mark.parametrize("name", [".gopclntab", ".data.rel.ro.gopclntab"])
def test_known_versions(arch: Arch, magic: int, name: str) -> None:
    assert table_of(go_file(arch, GoTable((MAIN,), 32, magic), name=name)) == (TEXT_VADDR, 1)


@pytest.mark.parametrize("fields", [{"type": SHT_NOBITS}, {"flags": 0}, {"size": 0}])
def test_sections_without_the_bytes_of_a_table(fields: dict[str, int]) -> None:
    """As those of debug files."""
    file = File(go_file(AMD64, GoTable((MAIN,), 32)))
    file.section(".gopclntab").set(**fields)
    assert table_of(bytes(file)) is None


@pytest.mark.parametrize("offset", [4, 6, 7])
def test_a_header_of_another_machine(offset: int) -> None:
    """The zeros, the quantum, and the size of pointers."""
    data = bytearray(GoTable((MAIN,), 32).assemble(AMD64))
    data[offset] += 3
    with pytest.raises(CfiError, match=r"^\.gopclntab\+0x0: the header is not one of this machine$"):
        table_of(go_file(AMD64, bytes(data)))


def test_files_without_a_table() -> None:
    assert find_table(linked(AMD64, push_fp(AMD64))) is None
    with pytest.raises(RequestError, match=r"^no \.gopclntab section$"):
        convert_image(linked(AMD64, push_fp(AMD64)), Options(source="gopclntab"))


@pytest.mark.parametrize(
    ("magic", "reason"),
    [
        (0xFFFFFFFB, "a table of Go 1.2 to 1.15, which is not read"),
        (0xFFFFFFFA, "a table of Go 1.16 and 1.17, which is not read"),
        (0xFFFFFFF2, r"a table of an unknown version of Go \(magic number 0xfffffff2\)"),
    ],
)
def test_other_versions_are_no_guess(magic: int, reason: str) -> None:
    data = go_file(AMD64, GoTable((MAIN,), 32, magic))
    with pytest.raises(UnfitError, match=rf"^\.gopclntab: {reason}$"):
        convert_image(load(data))


def in_data(table: GoTable, *, lead: int = 64) -> bytes:
    """Return a file as the C linker makes of a position-independent program: the table is inside of other data."""
    return bytes(lead) + table.assemble(AMD64)


BUILD_INFO = asm.Section(".go.buildinfo", bytes(16), 1, SHF_ALLOC, 0x5F000)


def test_a_table_inside_of_other_data() -> None:
    table = GoTable((MAIN,), 32)
    assert table_of(go_file(AMD64, in_data(table), BUILD_INFO, name=".data.rel.ro")) == (TEXT_VADDR, 1)
    # Nothing says that this is a Go program; no table is at an odd place.
    assert table_of(go_file(AMD64, in_data(table), name=".data.rel.ro")) is None
    assert table_of(go_file(AMD64, in_data(table, lead=65), BUILD_INFO, name=".data.rel.ro")) is None
    decoy = table.assemble(AMD64)[:8]
    data = decoy.rjust(65, b"\0") + bytes(31) + table.assemble(AMD64)
    assert table_of(go_file(AMD64, data, BUILD_INFO, name=".data.rel.ro")) == (TEXT_VADDR, 1)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_the_address_of_the_code_is_relocated(arch: Arch) -> None:
    table = GoTable((MAIN,), 32, text_vaddr=0)
    field = TABLE_VADDR + 24
    assert table_of(go_file(arch, table, rela(arch, (field - 8, 1), (field, TEXT_VADDR)))) == (TEXT_VADDR, 1)
    with pytest.raises(UnfitError, match=r"nothing executable is at 0x0$"):
        table_of(go_file(arch, table, rela(arch, (field, TEXT_VADDR), kind=1)))


def module(arch: Arch, table: GoTable, **changes: int) -> asm.Section:
    """Return the module's record, with words changed by their numbers."""
    header = struct.unpack_from(arch.byte_order + "8Q", table.assemble(arch), 8)
    words = [0] * 24
    words[0] = TABLE_VADDR
    words[1], words[10] = TABLE_VADDR + header[3], TABLE_VADDR + header[6]
    words[13] = words[16] = TABLE_VADDR + header[7]
    words[17], words[22] = len(table.functions) + 1, TEXT_VADDR
    for name, value in changes.items():
        words[int(name.removeprefix("word"))] = value
    data = struct.pack(f"{arch.byte_order}24Q", *words)
    return asm.Section(".go.module", data, 1, SHF_ALLOC, MODULE_VADDR, align=32)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_the_module_says_where_the_code_is(arch: Arch) -> None:
    """As from Go 1.26 on."""
    table = GoTable((MAIN,), 32, GO_1_20, text_vaddr=0)
    assert table_of(go_file(arch, table, module(arch, table))) == (TEXT_VADDR, 1)
    in_pie = module(arch, table, word0=0, word22=0)
    relocations = rela(arch, (MODULE_VADDR, TABLE_VADDR), (MODULE_VADDR + 8 * 22, TEXT_VADDR))
    assert table_of(go_file(arch, table, in_pie, relocations)) == (TEXT_VADDR, 1)


@pytest.mark.parametrize("word", [0, 1, 10, 13, 16, 17, 22])
def test_a_record_that_is_not_the_tables(word: int) -> None:
    table = GoTable((MAIN,), 32, GO_1_20, text_vaddr=0)
    with pytest.raises(UnfitError, match="the table does not say where the code is"):
        table_of(go_file(AMD64, table, module(AMD64, table, **{f"word{word}": 8})))


def test_every_truncation_is_refused() -> None:
    whole = GoTable((MAIN,), 32).assemble(AMD64)
    for size in range(1, HEADER_SIZE):
        with pytest.raises(CfiError, match=r"^\.gopclntab\+0x0: truncated header$"):
            table_of(go_file(AMD64, whole[:size]))
    functab_end = whole.index(struct.pack("<I", 32), HEADER_SIZE) + 4
    for size in range(HEADER_SIZE, functab_end):
        with pytest.raises(CfiError, match=r"outside the table|exceeds the section"):
            table_of(go_file(AMD64, whole[:size]))
    # The records after it are their functions' own.
    assert table_of(go_file(AMD64, whole[:functab_end])) == (TEXT_VADDR, 1)


#: Offsets in the header: the number of functions; where names, values by PC and functions start.
FUNCTION_COUNT, NAMES, VALUES, FUNCTIONS = 8, 32, 56, 64


def reason_for(offset: int, value: int) -> str:
    """Return why a table is refused of whose header a word is changed; nothing if it is read."""
    data = bytearray(GoTable((MAIN,), 32).assemble(AMD64))
    struct.pack_into("<Q", data, offset, value)
    try:
        table_of(go_file(AMD64, bytes(data)))
    except CfiError as error:
        return error.reason
    return ""


def test_each_count_and_offset_at_its_limit_and_one_past_it() -> None:
    data = GoTable((MAIN,), 32).assemble(AMD64)
    names, values, functions = (struct.unpack_from("<Q", data, at)[0] for at in (NAMES, VALUES, FUNCTIONS))
    outside, size = "an offset in the header is outside the table", len(data)
    # What follows the functions' starts is not counted by the header.
    room = (size - functions - 4) // 8
    for offset, value, reason in (
        (NAMES, HEADER_SIZE, ""),
        (NAMES, HEADER_SIZE - 1, outside),
        (NAMES, values, ""),
        (NAMES, values + 1, outside),
        (VALUES, names, ""),
        (VALUES, names - 1, outside),
        (VALUES, functions, ""),
        (VALUES, functions + 1, outside),
        (FUNCTIONS, values, ""),
        (FUNCTIONS, values - 1, outside),
        (FUNCTIONS, size - 12, ""),
        (FUNCTIONS, size - 11, "a table of 1 functions exceeds the section"),
        (FUNCTIONS, size, "a table of 1 functions exceeds the section"),
        (FUNCTIONS, size + 1, outside),
        (FUNCTION_COUNT, room, ""),
        (FUNCTION_COUNT, room + 1, f"a table of {room + 1} functions exceeds the section"),
        (FUNCTION_COUNT, 1 << 61, f"a table of {1 << 61:,} functions exceeds the section"),
    ):
        assert reason_for(offset, value) == reason, (offset, value)


def test_records_of_which_a_byte_is_missing() -> None:
    """Of a relocation, or of the module's record: they are none."""
    table, field = GoTable((MAIN,), 32, GO_1_20, text_vaddr=0), TABLE_VADDR + 24
    for section in (rela(AMD64, (field - 8, 1), (field, TEXT_VADDR)), module(AMD64, table)):
        assert table_of(go_file(AMD64, table, section)) == (TEXT_VADDR, 1)
        assert table_of(go_file(AMD64, table, section._replace(data=section.data + b"\0"))) == (TEXT_VADDR, 1)
        with pytest.raises(UnfitError, match="the table does not say where the code is"):
            table_of(go_file(AMD64, table, section._replace(data=section.data[:-1])))
