# SPDX-License-Identifier: Apache-2.0
"""Code that no CFI covers: its functions by name, stretches without one, and the padding between."""

from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AMD64
from cfi2sframe.conversion.options import Options
from cfi2sframe.report.coverage import NAMED_COUNT, Coverage
from cfi2sframe.report.coverage_report import coverage_report
from tests.support.conversion.sums import DEFAULTS, check_sums, convert_checked
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, linked_file, object_file, push_fp

STT_NOTYPE: Final = 0x10
STT_GNU_IFUNC: Final = 0x1A
STT_OBJECT: Final = 0x11
#: `ret`, and what fills the space before the next function.
RET: Final = b"\xc3"
NOP: Final = b"\x90"
INT3: Final = b"\xcc"


def covered(code: bytes, *symbols: asm.Symbol, options: Options = DEFAULTS) -> Coverage:
    """Return the account of a library: 32 bytes with CFI, and then this code without."""
    text = Code(size=32 + len(code), data=31 * b"\x55" + RET + code)
    data = linked_file(AMD64, (push_fp(AMD64),), codes=(text,), symbols=symbols)
    return check_sums(convert_checked(load(data, "in"), options))


def at(offset: int, size: int, name: str, info: int = 0x12) -> asm.Symbol:
    """Return a symbol of the code without CFI."""
    return asm.Symbol(name, TEXT_VADDR + 32 + offset, size, info)


def found(coverage: Coverage) -> list[tuple[str, int, int]]:
    """Return names, offsets in the code without CFI, and sizes."""
    return [(item.symbol, item.address - TEXT_VADDR - 32, item.size) for item in coverage.of_kind("without CFI")]


A: Final = 10 * b"\x55"


@pytest.mark.parametrize(
    ("code", "symbols", "expected", "padding"),
    [
        (A, (), [("", 0, 10)], 0),
        (A, (at(0, 10, "f"),), [("f", 0, 10)], 0),
        # The end of a function of unknown size is unknown, too.
        (A + 6 * NOP, (at(0, 0, "f"),), [("f", 0, 16)], 0),
        (A + 6 * NOP, (at(0, 10, "f"),), [("f", 0, 10)], 6),
        (A + 6 * INT3 + A, (at(0, 10, "f"), at(16, 10, "g")), [("f", 0, 10), ("g", 16, 10)], 6),
        (A + 6 * NOP + A, (at(0, 10, "f"),), [("f", 0, 10), ("", 16, 10)], 6),
        (A + 6 * NOP + A, (at(16, 0, "g"),), [("", 0, 16), ("g", 16, 10)], 0),
        # Room that a function keeps for patches is no padding.
        (6 * NOP + A, (at(0, 16, "f"),), [("f", 0, 16)], 0),
        (70 * NOP + A, (), [("", 70, 10)], 70),
        (2 * A + 12 * NOP, (at(0, 10, "f"), at(10, 10, "g")), [("f", 0, 10), ("g", 10, 10)], 12),
        # Labels inside a function, and other names of it.
        (A, (at(0, 10, "f"), at(4, 0, "inner"), at(6, 2, "other")), [("f", 0, 10)], 0),
        (A, (at(0, 10, "label", STT_NOTYPE), at(0, 10, "f")), [("f", 0, 10)], 0),
        (A, (at(0, 0, "short"), at(0, 10, "f")), [("f", 0, 10)], 0),
        (A, (at(0, 10, "label", STT_NOTYPE),), [("label", 0, 10)], 0),
        (A, (at(0, 0, "label", STT_NOTYPE), at(0, 10, "data", STT_OBJECT)), [("", 0, 10)], 0),
        (A, (at(0, 10, "f", STT_GNU_IFUNC),), [("f", 0, 10)], 0),
        # A size that is too large reaches to the end of the code.
        (A, (at(0, 1 << 60, "f"),), [("f", 0, 10)], 0),
        # The largest first; of equal ones, the first.
        (3 * A, (at(0, 10, "f"), at(10, 20, "g")), [("g", 10, 20), ("f", 0, 10)], 0),
        (2 * A, (at(0, 10, "f"), at(10, 10, "g")), [("f", 0, 10), ("g", 10, 10)], 0),
    ],
)
def test_stretches(
    code: bytes, symbols: tuple[asm.Symbol, ...], expected: list[tuple[str, int, int]], padding: int
) -> None:
    coverage = covered(code, *symbols)
    assert found(coverage) == expected
    assert (coverage.other_padding_size, coverage.without_cfi_size) == (padding, len(code) - padding)


def test_functions_of_unknown_size_end_where_instructions_say() -> None:
    """Two that end in a trap, and one that returns: padding is between them."""
    code, symbols = b"\x0f\x0b" + 14 * NOP, (at(0, 0, "f"), at(16, 0, "g"), at(32, 0, "h"))
    coverage = covered(2 * code + RET, *symbols, options=Options(source="code"))
    assert found(coverage) == [("f", 0, 2), ("g", 16, 2)]
    assert (coverage.other_padding_size, coverage.from_code_size) == (28, 1)


def test_of_an_object() -> None:
    """Addresses are offsets in the section, as those of functions that are left out."""
    symbols = (asm.Symbol("f", 0x40, 0x20), asm.Symbol("g", 0x20, 8, section=".text.b"))
    image = load(object_file(AMD64, {".text": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 0),)}, symbols=symbols))
    coverage = check_sums(convert_checked(image))
    assert [(item.symbol, item.section, item.address, item.size) for item in coverage.missing] == [
        ("", ".text.b", 0x28, 0xD8),
        ("", ".text", 0x60, 0xA0),
        ("", ".text", 0x20, 0x20),
        ("f", ".text", 0x40, 0x20),
        ("g", ".text.b", 0x20, 8),
    ]


def test_many_stretches() -> None:
    """The account names the largest; the text, as many as it is asked for, and says how much there is elsewhere."""
    count = NAMED_COUNT + 10
    symbols = tuple(at(16 * number, 10 + number % 3, f"f{number}") for number in range(count))
    coverage = covered(count * (A + 6 * NOP), *symbols)
    assert len(coverage.missing) == NAMED_COUNT
    assert coverage.missing[0].symbol == "f2"
    *_, places = coverage_report([coverage], top=2).tables
    assert [(row[0], row[1], row[-1]) for row in places.rows] == [(12, "0x20040", "f2"), (12, "0x20070", "f5")]
    notes = coverage_report([coverage], top=2).notes
    assert notes[0] == f"{count - 2:,} more not shown; use --top all."
    assert len(coverage_report([coverage]).tables[-1].rows) == NAMED_COUNT


def test_share_of_the_code() -> None:
    """Padding that no CFI covers is no code."""
    assert covered(16 * NOP + 32 * b"\x55").code_size == 64
