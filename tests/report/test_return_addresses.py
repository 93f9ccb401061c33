# SPDX-License-Identifier: Apache-2.0
"""Return addresses looked up themselves: each is counted once, for what a reader meets there."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import Options, convert, load
from cfi2sframe.arch import AARCH64_LE, AMD64, S390X
from cfi2sframe.errors import BudgetError
from cfi2sframe.render.coverage_json import coverage_data
from cfi2sframe.render.coverage_text import coverage_lines
from cfi2sframe.report.coverage import account
from cfi2sframe.report.return_addresses import ReturnAddresses, count_return_addresses
from tests.support import cfi_asm as asm
from tests.support.bounds import run_within_bound
from tests.support.cli import run
from tests.support.samples import CODE, ET_DYN, FRAME_VADDR, PT_LOAD, SHT_NOBITS, TEXT_VADDR, cie_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cfi2sframe.arch import Arch

CALL: Final = {AMD64: b"\xe8\x00\x01\x00\x00", AARCH64_LE: b"\x40\0\0\x94", S390X: b"\xc0\xe5\0\0\1\0"}
#: An instruction that changes SP, in these tests by 8 bytes, and one that is padding.
PUSH: Final = {AMD64: b"\x50", AARCH64_LE: b"\xff\x43\0\xd1", S390X: b"\xa7\xfb\xff\xf8"}
NOP: Final = {AMD64: b"\x90", AARCH64_LE: b"\x1f\x20\x03\xd5", S390X: b"\x07\x07"}
OTHER: Final = {AMD64: b"\xc3", AARCH64_LE: b"\xc0\x03\x5f\xd6", S390X: b"\x07\xfe"}
SECTION_HEADER_SIZE: Final = 64
DEFAULT: Final = Options()
ARCHES: Final = tuple(CALL)


def file_of(arch: Arch, functions: Iterable[tuple[bytes, tuple[asm.Instruction, ...] | None]]) -> bytes:
    """Return a library of functions in a row: their code, and their FDEs' instructions (None: no FDE)."""
    code, fdes = b"", []
    for part, instructions in functions:
        if instructions is not None:
            fdes.append(asm.Fde(cie_of(arch), TEXT_VADDR + len(code), len(part), instructions))
        code += part
    frame = asm.EhFrame((*fdes, asm.Terminator()), FRAME_VADDR, little_endian=arch.byte_order == "<").assemble()
    return asm.elf_file(
        arch.elf_machine,
        (
            asm.Section(".eh_frame", frame, 1, 2, FRAME_VADDR, align=8),
            asm.Section(".text", code, 1, CODE, TEXT_VADDR, align=16),
        ),
        file_type=ET_DYN,
        little_endian=arch.byte_order == "<",
        segments=(asm.Segment(PT_LOAD, 4, (".eh_frame",)), asm.Segment(PT_LOAD, 5, (".text",))),
    )


def counts(data: bytes, options: Options = DEFAULT) -> ReturnAddresses:
    """Return the calls of a file by what readers meet, without what their look-ups cost."""
    found = count_return_addresses(convert(load(data, "in"), options))
    assert found.calls == sum(found[1:7])
    with_row = found.same_row + found.next_function + found.other_row
    assert with_row <= found.found <= with_row + found.without
    assert found.found <= found.walked_count <= found.max_rows * found.found
    return found._replace(found=0, walked_count=0, max_rows=0)


def pushes(arch: Arch, *more: asm.Instruction) -> tuple[asm.Instruction, ...]:
    """Return the rows of a function that begins with PUSH: 8 bytes more from SP to the CFA."""
    initial = {AMD64: 8, AARCH64_LE: 0, S390X: 160}[arch]
    return (asm.advance(len(PUSH[arch])), asm.def_cfa_offset(initial + 8), *more)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
class TestOneCall:
    """A function with one call, and what follows."""

    def test_in_the_middle(self, arch: Arch) -> None:
        code = PUSH[arch] + CALL[arch] + OTHER[arch]
        assert counts(file_of(arch, [(code, pushes(arch))])) == ReturnAddresses(1, same_row=1)

    def test_before_padding(self, arch: Arch) -> None:
        functions = [(PUSH[arch] + CALL[arch], pushes(arch)), (8 * NOP[arch], None), (OTHER[arch], ())]
        data = file_of(arch, functions)
        assert counts(data, Options(with_padding=False)) == ReturnAddresses(1, padding=1)
        assert counts(data) == ReturnAddresses(1, same_row=1)

    def test_before_padding_at_the_end_of_the_section(self, arch: Arch) -> None:
        data = file_of(arch, [(PUSH[arch] + CALL[arch], pushes(arch)), (8 * NOP[arch], None)])
        assert counts(data, Options(with_padding=False)) == ReturnAddresses(1, padding=1)
        assert counts(data) == ReturnAddresses(1, same_row=1)

    def test_before_code_without_cfi(self, arch: Arch) -> None:
        functions = [(PUSH[arch] + CALL[arch], pushes(arch)), (OTHER[arch], None), (OTHER[arch], ())]
        assert counts(file_of(arch, functions)) == ReturnAddresses(1, no_function=1)

    def test_at_the_end_of_the_section(self, arch: Arch) -> None:
        assert counts(file_of(arch, [(PUSH[arch] + CALL[arch], pushes(arch))])) == ReturnAddresses(1, no_function=1)

    def test_before_a_function_of_other_rows(self, arch: Arch) -> None:
        functions = [(PUSH[arch] + CALL[arch], pushes(arch)), (OTHER[arch], ())]
        for options in (DEFAULT, Options(level=2)):
            assert counts(file_of(arch, functions), options) == ReturnAddresses(1, next_function=1)

    def test_before_a_function_of_equal_rows(self, arch: Arch) -> None:
        functions = [(CALL[arch], ()), (OTHER[arch], ())]
        for options in (DEFAULT, Options(level=2)):
            assert counts(file_of(arch, functions), options) == ReturnAddresses(1, same_row=1)

    def test_before_another_row(self, arch: Arch) -> None:
        rows = pushes(arch, asm.advance(len(CALL[arch])), asm.def_cfa_offset(200))
        code = PUSH[arch] + CALL[arch] + OTHER[arch]
        for options in (DEFAULT, Options(level=2)):
            assert counts(file_of(arch, [(code, rows)]), options) == ReturnAddresses(1, other_row=1)

    def test_in_a_function_that_is_left_out(self, arch: Arch) -> None:
        rows = (asm.def_cfa_expression(b"\x30"),)
        functions = [(CALL[arch] + OTHER[arch], rows), (OTHER[arch], ())]
        assert counts(file_of(arch, functions)) == ReturnAddresses(1, without=1)

    def test_without_cfi(self, arch: Arch) -> None:
        functions = [(OTHER[arch], ()), (CALL[arch] + OTHER[arch], None), (OTHER[arch], ())]
        assert counts(file_of(arch, functions)) == ReturnAddresses(1, without=1)

    def test_where_nothing_can_be_described(self, arch: Arch) -> None:
        data = file_of(arch, [(CALL[arch] + OTHER[arch], (asm.def_cfa_expression(b"\x30"),))])
        assert counts(data) == ReturnAddresses(1, without=1)
        assert counts(data).percent == 100


def test_objects() -> None:
    """Each section of an object is on its own; functions have addresses of the image's layout."""
    frame = asm.EhFrame((asm.Fde(cie_of(AMD64), 0, 12, ()), asm.Fde(cie_of(AMD64), 0, 6, ())))
    text = CALL[AMD64] + OTHER[AMD64]
    starts = [start for start, e in zip(frame.offsets(), frame.all_entries(), strict=True) if isinstance(e, asm.Fde)]
    data = asm.elf_file(
        AMD64.elf_machine,
        (
            asm.Section(".text.a", text + text, 1, CODE),
            asm.Section(".text.b", text, 1, CODE),
            asm.Section(".eh_frame", frame.assemble(), 1, 2, align=8),
        ),
        symbols=tuple(asm.Symbol(f"start.{name}", info=3, section=f".text.{name}") for name in "ab"),
        relocations=tuple(
            asm.Relocation(".eh_frame", start + 8, f"start.{name}", 2, 0)
            for start, name in zip(starts, "ab", strict=True)
        ),
    )
    assert counts(data) == ReturnAddresses(3, same_row=3)


def test_text_and_data() -> None:
    """Both show what the record says, and nothing where nobody asked."""
    functions = [
        (PUSH[AMD64] + 2 * CALL[AMD64], pushes(AMD64)),
        (OTHER[AMD64], ()),
        (CALL[AMD64] + OTHER[AMD64], (asm.def_cfa_expression(b"\x30"),)),
    ]
    conversion = convert(load(file_of(AMD64, functions), "in"), Options(level=1))
    coverage = account(conversion)
    assert "return_addresses" not in coverage_data(coverage)
    assert "calls" not in "\n".join(coverage_lines(coverage))
    coverage = coverage._replace(return_addresses=count_return_addresses(conversion))
    data = json.loads(json.dumps(coverage_data(coverage)))
    assert data["return_addresses"] == {
        **ReturnAddresses(3, same_row=1, next_function=1, without=1, found=2, walked_count=2 + 1, max_rows=2)._asdict(),
        "described": 2,
        "percent": 50.0,
        "mean_rows": 1.5,
    }
    lines = [" ".join(line.split()) for line in coverage_lines(coverage)]
    assert "calls 3 by the row at their return address" in lines
    assert "next function's 1 50.00 %" in lines
    assert "rows walked 1.5 on average over the return addresses, 2 at most" in lines


def test_command(tmp_path: Path) -> None:
    path = tmp_path / "in.so"
    path.write_bytes(file_of(AMD64, [(PUSH[AMD64] + CALL[AMD64] + OTHER[AMD64], pushes(AMD64))]))
    assert b"\n  calls " not in run("coverage", path).out
    assert b"\n  calls  " in run("coverage", "--return-addresses", path).out
    assert "return_addresses" not in json.loads(run("coverage", "--json", path).out)
    data = json.loads(run("coverage", "--return-addresses", "--json", path).out)
    assert data["return_addresses"]["same_row"] == 1


def many_calls() -> bytes:
    return file_of(AMD64, [((1 << 19) * b"\xff\xd0", ())])


def many_instructions() -> bytes:
    return file_of(AMD64, [((1 << 20) * b"\x90", ())])


def shared_code() -> bytes:
    """Return a file of a thousand sections of code that have the same bytes."""
    count, code, first_vaddr = 1000, (1 << 16) * NOP[AMD64], 0x10_0000
    frame = asm.EhFrame((asm.Fde(cie_of(AMD64), first_vaddr, len(code), ()), asm.Terminator()), FRAME_VADDR).assemble()
    data = bytearray(
        asm.elf_file(
            AMD64.elf_machine,
            (
                asm.Section(".eh_frame", frame, 1, 2, FRAME_VADDR, align=8),
                asm.Section(".text", code, 1, CODE, first_vaddr),
                *(
                    asm.Section(f".{number}", b"", SHT_NOBITS, CODE, number * first_vaddr, nobits_size=len(code))
                    for number in range(2, count + 1)
                ),
            ),
            file_type=ET_DYN,
            segments=(asm.Segment(PT_LOAD, 4, (".eh_frame",)), asm.Segment(PT_LOAD, 5, (".text",))),
        )
    )
    (headers_offset,) = struct.unpack_from("<Q", data, 40)
    text = headers_offset + 2 * SECTION_HEADER_SIZE
    for header in range(text, text + count * SECTION_HEADER_SIZE, SECTION_HEADER_SIZE):
        # sh_type and sh_offset.
        for first, end in ((4, 8), (24, 32)):
            data[header + first : header + end] = data[text + first : text + end]
    return bytes(data)


@pytest.mark.parametrize("make", [many_calls, many_instructions, shared_code])
def test_cost(make: Callable[[], bytes], tmp_path: Path) -> None:
    """Code may be all calls or all short instructions, or many segments may be the same bytes of the file."""
    path = tmp_path / "in.so"
    data = make()
    path.write_bytes(data)
    done = run_within_bound("coverage", "--return-addresses", path, input_size=len(data))
    if make is shared_code:
        assert "take more work than" in done.err
        with pytest.raises(BudgetError):
            count_return_addresses(convert(load(data, "in")))
    else:
        assert done.status == 0
