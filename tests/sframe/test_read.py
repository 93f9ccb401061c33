# SPDX-License-Identifier: Apache-2.0
"""The reader of sections: every field of every version and byte order, and one clear error for every kind of damage."""

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe.model import FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.read import Header, read_header, read_section
from tests.fuzz.harness import timed
from tests.support.dwarf.rules import at_cfa as saved
from tests.support.dwarf.rules import register_offset as at
from tests.support.sframe.bodies import section_bytes, with_functions
from tests.support.sframe.raw_sframe import RawFunction, RawSection

RA8 = Rule(None, -8, deref=True)
SP8 = FrameState(Rule(7, 8, deref=False), RA8)


def function_of(raw: RawSection) -> Function:
    (function,) = read_section(raw.assemble(), raw.vaddr).functions
    return function


def state_of(row: str, **changes: int) -> FrameState:
    """Return what one row's bytes mean, on AMD64 in version 3 unless the changes differ."""
    info2 = changes.pop("info2", 0)
    raw = RawSection((RawFunction(rows=bytes.fromhex(row), info2=info2),))._replace(**changes)  # type: ignore[arg-type]
    (decoded,) = function_of(raw).rows
    assert decoded.start_delta == 0
    return decoded.state


AARCH64 = {"abi": 2, "fixed_ra": 0}
FLEX = {"info2": 1}


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_header(version: int, order: str) -> None:
    raw = RawSection(
        version=version,
        order="<" if order == "<" else ">",
        fixed_fp=-16,
        auxiliary=b"\xaa" * 3,
        fre_count=0x01020304,
        fde_offset=8,
        flags=2,
    )
    record = (17, 20, 16)[version - 1]
    expected = Header(
        raw.order, version, 2, 3, -16, -8, 3, 1, 0x01020304, 3 + (5 if version == 3 else 0), 8, 8 + record
    )
    assert read_header(raw.assemble()) == expected
    decoded = read_section(raw.assemble(), raw.vaddr)
    assert decoded.header == expected
    assert decoded.data == raw.assemble()
    assert decoded.vaddr == 0x30000
    body = FunctionBody((0,), (SP8._replace(fp=saved(-16)),))
    assert list(decoded) == [Function(0x20000, 0x10, body)]


def test_starts_wrap_at_64_bits() -> None:
    raw = RawSection((RawFunction(-0x1000),), vaddr=0)
    assert read_section(raw.assemble(), 0).functions[0].start_vaddr == 0xFFFFFFFFFFFFF000


@pytest.mark.parametrize(
    ("version", "info", "info2", "expected"),
    [
        (3, 0x80, 0, (False, True, False)),
        (2, 0x80, 0, (False, False, False)),
        (3, 0x40, 0xE0, (False, False, False)),  # undefined bits
    ],
)
def test_function_flags(version: int, info: int, info2: int, expected: tuple[bool, ...]) -> None:
    body = function_of(RawSection((RawFunction(info=info, info2=info2),), version)).body
    assert (body.uses_b_key, body.is_signal_frame, body.is_flexible) == expected


# What rows mean


@pytest.mark.parametrize(
    ("row", "changes", "state"),
    [
        ("00 23 0080", {}, FrameState(at(7, -0x8000), RA8)),
        ("00 43 00000080", {}, FrameState(at(7, -(1 << 31)), RA8)),
        ("00 05 10 00", {}, FrameState(at(7, 16), RA8, saved(0))),
        ("00 03 10", {"fixed_fp": -16}, FrameState(at(7, 16), RA8, saved(-16))),
        ("00 05 10 e8", {"fixed_ra": 0, "fixed_fp": -16}, FrameState(at(7, 16), saved(-24), saved(-16))),
        ("00 05 10 01", AARCH64, FrameState(at(31, 16), saved(1))),
        ("00 07 10 00 f0", AARCH64, FrameState(at(31, 16), saved(0), saved(-16))),
        # Flexible: control (register << 3 | deref << 1 | has a register), offset; 0 is the padding.
        ("00 05 19 10", FLEX, FrameState(at(3, 16), RA8)),  # bit 0 means nothing here
        ("00 06 39 08 00", FLEX, SP8),
        ("00 08 39 08 00 00", FLEX, SP8),
    ],
)
def test_row_meanings(row: str, changes: dict[str, int], state: FrameState) -> None:
    """Of rows that are not written so; those that are, `test_write` reads back."""
    assert state_of(row, **changes) == state


# The row in force at a PC, where the property of `test_round_trip_property` cannot get


def found_at(delta: int, version: int, repeat_size: int = 0) -> int | None:
    """Return the start of the row that is found in blocks of two rows, at 0 and 11, whose CFAs repeat their starts."""
    raw = RawSection((RawFunction(0x20000, 0x20, b"\x00\x03\x00\x0b\x03\x0b", 2, 0x10, 0, repeat_size),), version)
    found = read_section(raw.assemble(), raw.vaddr).find(0x20000 + delta)
    assert found is not None
    return None if found.row is None or found.row.cfa is None else found.row.cfa.offset


def test_pcmask_with_a_block_of_no_size() -> None:
    """A damaged section must not make the reader divide by 0."""
    assert found_at(4, version=3) is None


def test_pcmask_of_version_1() -> None:
    """The last row for which PC & start >= start."""
    assert [found_at(delta, version=1) for delta in (0, 0xA, 0xB, 0xF, 0x10, 0x1B)] == [0, 0, 11, 11, 0, 11]


# Damage


GOOD = RawSection().assemble()
# fmt: off
DAMAGED: dict[str, tuple[bytes | RawSection, str]] = {
    "empty": (b"", "0x0: truncated: no room for the preamble"),
    "magic": (b"\xe2\xdf" + GOOD[2:], "0x0: not an SFrame section: the magic is e2df"),
    "version 4": (b"\xe2\xde\4" + GOOD[3:], "0x2: SFrame version 4 is unknown"),
    "header": (GOOD[:27], "0x0: truncated: no room for the header"),
    "abi": (RawSection(abi=5), "0x4: ABI 5 is unknown"),
    "table": (GOOD[:43], "0x1c: 1 functions extend past the end of the section"),
    "count of functions": (RawSection(fde_count=1 << 31),
                           "0x1c: 2147483648 functions extend past the end of the section"),
    "place of functions": (RawSection(fde_offset=0).assemble()[:20] + b"\xff\xff\xff\xff" + GOOD[24:],
                           "0x10000001b: 1 functions extend past the end of the section"),
    "auxiliary header": (RawSection(auxiliary_size=200), "0xe4: 1 functions extend past the end of the section"),
    "rows": (GOOD[:-1], "0x2c: the rows' 8 bytes extend past the end of the section"),
    "size of rows": (RawSection(fre_size=9), "0x2c: the rows' 9 bytes extend past the end of the section"),
    "attribute": (RawSection((RawFunction(fre_offset=4), RawFunction())),
                  "0x1c: the function's attribute extends past the end of the rows"),
    "FDE type": (RawSection((RawFunction(info2=2),)), "0x1c: FDE type 2 is unknown"),
    "FRE type": (RawSection((RawFunction(info=3),)), "0x1c: FRE type 3 is unknown"),
    "row": (RawSection((RawFunction(row_count=2),)), "0x34: a row extends past the end of the rows"),
    "rows of version 2 that begin past the end": (RawSection((RawFunction(fre_offset=100),), version=2),
                                                  "0x94: a row extends past the end of the rows"),
    "words": (RawSection((RawFunction(rows=b"\0\x05\x08"),)), "0x31: a row extends past the end of the rows"),
    "word size": (RawSection((RawFunction(rows=b"\0\x63" + bytes(8)),)), "0x31: data word size 3 is unknown"),
    "too many words": (RawSection((RawFunction(rows=b"\0\x07\x08\xf0\xf0"),)),
                       "0x31: a row's 3 data words have no meaning"),
    "flexible without an offset": (RawSection((RawFunction(rows=b"\0\x02\x39", info2=1),)),
                                   "0x31: a row's 1 data words have no meaning"),
    "flexible without a CFA": (RawSection((RawFunction(rows=b"\0\x02\x00", info2=1),)),
                               "0x31: a row's 1 data words have no meaning"),
    "flexible with a CFA from the CFA": (RawSection((RawFunction(rows=b"\0\x04\x02\x08", info2=1),)),
                                         "0x31: a row's 2 data words have no meaning"),
    "flexible with four rules": (RawSection((RawFunction(rows=b"\0\x0a\x39\x08\0\0\0", info2=1),)),
                                 "0x31: a row's 5 data words have no meaning"),
}
# fmt: on


@pytest.mark.parametrize("name", DAMAGED)
def test_damage(name: str) -> None:
    made, message = DAMAGED[name]
    with pytest.raises(SFrameError) as caught:
        read_section(made if isinstance(made, bytes) else made.assemble(), 0x30000)
    assert str(caught.value) == f".sframe+{message}"


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_truncation_is_an_error(version: int, order: str) -> None:
    raw = RawSection((RawFunction(), RawFunction(0x20010)), version, "<" if order == "<" else ">")
    data = raw.assemble()
    for size in range(len(data)):
        with pytest.raises(SFrameError):
            read_section(data[:size], 0)


def test_lists_that_overlap_over_and_over_are_refused() -> None:
    """A section of 70 KB whose 2,000 functions each have 8,000 rows, from another one on."""
    rows = b"\0\3\x08" * 10_000
    functions = (RawFunction(rows=rows, row_count=10_000), *(RawFunction(0x20010 + n, rows=b"") for n in range(2000)))
    data = bytearray(RawSection(functions, version=2).assemble())
    for number in range(2000):
        record = 28 + 20 * (number + 1)
        data[record + 8 : record + 16] = (3 * number).to_bytes(4, "little") + (8000).to_bytes(4, "little")
    with pytest.raises(SFrameError, match="the functions' row lists overlap one another over and over"):
        read_section(bytes(data), 0x30000)


def test_functions_with_rows_of_their_own_are_read_in_linear_time() -> None:
    """The rows of one function are found without going through those of all others."""
    functions = [Function(16 * number, 16, FunctionBody((0,), (SP8,))) for number in range(40_000)]
    data = section_bytes(with_functions(Section(3, AMD64.abi_id), functions), AMD64, 0)
    decoded: list[Section] = []
    # Ten times what it takes; the square of their number would take ten seconds.
    assert timed(lambda data: decoded.append(read_section(data)), data) < 3
    assert decoded[0].row_count == 40_000
