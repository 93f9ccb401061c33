# SPDX-License-Identifier: Apache-2.0
"""The dump: every line in the form of `readelf --sframe`, and the same as data."""

import json

import pytest

from cfi2sframe.sframe.dump import Shown, dump_json, dump_text
from cfi2sframe.sframe.read import read_section
from tests.support.sframe.raw_sframe import RawFunction, RawSection


def dump(raw: RawSection) -> list[str]:
    return list(dump_text(read_section(raw.assemble(), raw.vaddr)))


def rows_of(raw: RawSection) -> list[str]:
    """Return the lines of the rows alone."""
    lines = dump(raw)
    return [line for line in lines if line[:20].strip().isalnum() and len(line[:20].strip()) == 16]


def rows(*texts: str, info2: int = 0, **changes: int) -> list[str]:
    """Return what is printed of rows given as bytes, on AMD64 in version 3 unless the changes differ."""
    function = RawFunction(rows=bytes.fromhex("".join(texts)), row_count=len(texts), info2=info2)
    return rows_of(RawSection((function,))._replace(**changes))  # type: ignore[arg-type]


def test_rows_of_blocks_count_from_the_start_of_a_block() -> None:
    raw = RawSection((RawFunction(0x20030, 0x30, bytes.fromhex("00 03 08 0b 03 10"), 2, info=0x10, repeat_size=16),))
    assert "    STARTPC[m]      CFA       FP        RA           " in dump(raw)
    assert [row.split()[0] for row in rows_of(raw)] == ["0000000000000000", "000000000000000b"]


def test_names_and_addresses_can_be_given() -> None:
    raw = RawSection()
    decoded = read_section(raw.assemble(), raw.vaddr)
    shown = Shown(lambda vaddr: vaddr - 0x20000, lambda vaddr: f".text+{vaddr - 0x20000:#x}", lambda *_: "main")
    lines = list(dump_text(decoded, "other", shown))
    assert lines[0] == "Contents of the SFrame section other:"
    assert "    func idx [0]: pc = .text+0x0, size = 16 bytes <main>" in lines
    assert "    0000000000000000  sp+8      u         f            " in lines


@pytest.mark.parametrize(
    ("version", "flags", "expected"),
    [
        (2, 0, ["    Flags: NONE"]),
        (2, 3, ["    Flags: SFRAME_F_FDE_SORTED,", "           SFRAME_F_FRAME_POINTER"]),
        (3, 0x44, ["    Flags: SFRAME_F_FDE_FUNC_START_PCREL,", "           0x40"]),
    ],
)
def test_flags(version: int, flags: int, expected: list[str]) -> None:
    lines = dump(RawSection(version=version, flags=flags))
    assert lines[4 : 4 + len(expected)] == expected
    assert lines[4 + len(expected)] == "    CFA fixed RA offset: -8"


def test_fixed_offsets() -> None:
    lines = dump(RawSection(fixed_fp=-16))
    assert lines[6:8] == ["    CFA fixed FP offset: -16", "    CFA fixed RA offset: -8"]
    lines = dump(RawSection(abi=2, fixed_ra=0))
    assert not [line for line in lines if "fixed" in line]


def test_the_key_of_pointer_authentication() -> None:
    raw = RawSection((RawFunction(info=0x20, rows=bytes.fromhex("00 85 10 f8")),), abi=2, fixed_ra=0)
    assert "    func idx [0]: pc = 0x20000, size = 16 bytes, pauth = B key" in dump(raw)
    assert rows_of(raw) == ["    0000000000020000  sp+16     u         c-8[s]       "]


@pytest.mark.parametrize(
    ("row", "changes", "line"),
    [
        ("00 03 08", {}, "sp+8      u         f            "),
        ("00 05 10 08", {}, "sp+16     c+8       f            "),
        ("00 07 14 00 b8", {"abi": 4, "fixed_ra": 0}, "sp+320    c-72      u            "),
        ("00 07 00 23 21", {"abi": 4, "fixed_ra": 0}, "sp+160    r16+0     r17+0        "),
        ("00 07 00 23 21", {"abi": 4, "fixed_ra": 0, "version": 2}, "sp+160    r16       r17          "),
        ("00 08 39 08 11 00", {"info2": 1}, "sp+8      u         r2+0         "),
        ("00 43 00 00 00 40", {}, "sp+1073741824 u         f            "),
        ("00 0c 39 08 02 f0 33 00", {"info2": 1}, "sp+8      (fp+0)    c-16         "),
    ],
)
def test_rules(row: str, changes: dict[str, int], line: str) -> None:
    """Not all: what readelf prints of our sections is compared with this dump."""
    assert rows(row, **changes) == [f"    0000000000020000  {line}"]


def test_data() -> None:
    raw = RawSection(
        (
            RawFunction(0x20000, 0x10, bytes.fromhex("00 05 10 f0 04 00"), 2),
            RawFunction(0x20010, 0x20, bytes.fromhex("0000 a8 1900 1000 3b00 f8ff"), 1, 0xB1, 1, 16),
        )
    )
    decoded = read_section(raw.assemble(), raw.vaddr)
    data = json.loads("".join(dump_json(decoded)))
    functions = data.pop("functions")
    # fmt: off
    assert data == {
        "version": 3, "flags": ["SFRAME_F_FDE_SORTED", "SFRAME_F_FDE_FUNC_START_PCREL"], "abi": "AMD64",
        "byte_order": "little", "section_address": 0x30000, "section_size": len(raw.assemble()), "fixed_fp_offset": 0,
        "fixed_ra_offset": -8, "auxiliary_header_size": 0, "fde_count": 2, "fre_count": 3, "fre_size": 5 + 6 + 5 + 11,
    }
    end: dict[str, object] = {"start": 4, "outermost": True, "cfa": None, "ra": None, "fp": None, "mangled_ra": False,
                              "word_size": 1, "words": []}
    first = {"start": 0, "outermost": False, "cfa": {"base": "rsp", "offset": 16, "load": False},
             "ra": {"base": "cfa", "offset": -8, "load": True}, "fp": {"base": "cfa", "offset": -16, "load": True},
             "mangled_ra": False, "word_size": 1, "words": [16, -16]}
    of_mask = {"start": 0, "outermost": False, "cfa": {"base": "rbx", "offset": 16, "load": False},
               "ra": {"base": "rsp", "offset": -8, "load": True}, "fp": None, "mangled_ra": True, "word_size": 2,
               "words": [25, 16, 59, -8]}
    assert functions == [
        {"address": 0x20000, "place": "0x20000", "function": "", "size": 16, "pc_type": "inc", "repeat_size": 0,
         "fde_type": "default", "fre_type": "addr1", "signal_frame": False, "pauth_key": "a", "rows": [first, end]},
        {"address": 0x20010, "place": "0x20010", "function": "", "size": 32, "pc_type": "mask", "repeat_size": 16,
         "fde_type": "flexible", "fre_type": "addr2", "signal_frame": True, "pauth_key": "b", "rows": [of_mask]},
    ]
    # fmt: on


@pytest.mark.parametrize("row_count", [0, 1, 3])
@pytest.mark.parametrize("function_count", [0, 1, 3])
def test_json_in_pieces_has_the_form_of_the_whole(function_count: int, row_count: int) -> None:
    """Rows with two, one and no words."""
    rows = b"\x00\x05\x08\xf0" + b"\x01\x03\x08" + b"\x02\x00"
    functions = tuple(RawFunction(0x20000 + 64 * n, 64, rows, row_count) for n in range(function_count))
    raw = RawSection(functions)
    text = "".join(dump_json(read_section(raw.assemble(), raw.vaddr)))
    data = json.loads(text)
    assert len(text.splitlines()) == function_count + 2
    assert [len(each["rows"]) for each in data["functions"]] == [row_count] * function_count


@pytest.mark.parametrize(
    ("function", "lines"),
    [
        # Rows from 0, 4 and 8 on, the last of them also past the end.
        (RawFunction(0x20000, 16, b"\0\3\x08\4\3\x10\x08\3\x08", 3), ["row", "0-4", "row", "4-8", "row", "8-10"]),
        (RawFunction(0x20000, 16, b"\4\3\x10", 1), ["0-4", "row", "4-10"]),
        (RawFunction(0x20000, 32, b"\0\3\x08\4\3\x10", 2, 1 << 4, 0, 16), ["row", "row", "0-20"]),
        (RawFunction(0x20000, 16, b"", 0), ["0-10"]),
    ],
)
def test_code_follows_the_row_that_is_in_force(function: RawFunction, lines: list[str]) -> None:
    """Of a block that repeats, all rows come first."""
    raw = RawSection((function,))

    def code(start: int, end: int) -> list[str]:
        return [f"{start - 0x20000:x}-{end - 0x20000:x}"] if start < end else []

    found = list(dump_text(read_section(raw.assemble(), raw.vaddr), shown=Shown(code=code)))
    after = found[next(number for number, line in enumerate(found) if "STARTPC" in line) + 1 :]
    assert ["row" if line.startswith("    0") else line for line in after if line] == lines
