# SPDX-License-Identifier: Apache-2.0
"""Small files to measure, and the sums that hold in every report."""

from collections.abc import Collection

from cfi2sframe import convert, load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X
from cfi2sframe.report.size import FileSize, measure
from cfi2sframe.report.tables import Table
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, object_file, push_fp

FUNCTION_SIZE = 32


def library(function_count: int, *, more: tuple[asm.Entry, ...] = ()) -> bytes:
    """A library of AMD64 with that many equal functions."""
    functions = [push_fp(AMD64, TEXT_VADDR + n * FUNCTION_SIZE, FUNCTION_SIZE) for n in range(function_count)]
    symbols = tuple(
        asm.Symbol(f"f{n}", TEXT_VADDR + n * FUNCTION_SIZE, FUNCTION_SIZE, 0x12, ".text") for n in range(function_count)
    )
    return linked_file(AMD64, (*functions, *more), symbols=symbols)


def unsayable(start: int) -> asm.Fde:
    """A function whose CFA is an expression that no version can express."""
    return asm.Fde(cie_of(AMD64), start, FUNCTION_SIZE, (asm.def_cfa_expression(bytes((0x77, 40, 0x06, 0x23, 8))),))


def s390x_library() -> bytes:
    """A library that version 1 does not define."""
    return linked_file(S390X, (push_fp(S390X),))


def aarch64_object() -> bytes:
    """A relocatable object."""
    return object_file(AARCH64_LE, {".text": (push_fp(AARCH64_LE, 0),)})


def measured(name: str, data: bytes, version: int = 3) -> FileSize:
    """The sizes of a file with these bytes."""
    return measure(convert(load(data, name), version=version))


def sample_files() -> list[FileSize]:
    """Six files, one of them with an odd name, and one without a section."""
    return [
        measured("lib/small.so", library(2)),
        measured("lib/large.so", library(40)),
        measured("lib/<odd> & \x1b[31mred|.so", library(3, more=(unsayable(TEXT_VADDR + 0x200),))),
        measured("lib/s390x.so", s390x_library()),
        measured("a.o", aarch64_object()),
        measured("nothing.so", linked_file(AMD64, (unsayable(TEXT_VADDR),))),
    ]


def check_table(table: Table, summed: Collection[str]) -> None:
    """The last row has the sums of these columns, and is what readers add up themselves."""
    names = [column.name for column in table.columns]
    assert set(summed) <= set(names)
    if table.total is not None:
        for name in summed:
            number = names.index(name)
            cells = [row[number] for row in table.rows]
            assert table.total[number] == sum(cell for cell in cells if isinstance(cell, int))
