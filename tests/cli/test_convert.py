# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`: bytes, messages and exit statuses, each as a user sees them."""

import json
import re
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import PUSH, SECTION, run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.sframe.raw_sframe import RawFunction, RawSection


def unsayable(start: int) -> asm.Fde:
    return asm.Fde(cie_of(AMD64, asm.def_cfa_expression(b"\x77\x28\x06\x23\x08")), TEXT_VADDR + start, 16)


def damaged(start: int) -> asm.Fde:
    return asm.Fde(cie_of(AMD64), TEXT_VADDR + start, 16, (b"\x3f",))


class Files:
    """A folder of inputs, and its contents afterwards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.out = folder / "out.sframe"

    def add(self, name: str, *fdes: asm.Fde, symbols: tuple[asm.Symbol, ...] = ()) -> Path:
        path = self.folder / name
        path.write_bytes(linked_file(AMD64, fdes, symbols=symbols))
        return path

    def names(self) -> set[str]:
        return {path.name for path in self.folder.iterdir()}


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


@pytest.mark.parametrize("verb", [(), ("convert",)])
@pytest.mark.parametrize("version", [1, 2, 3])
def test_success_is_silent(files: Files, good: Path, verb: tuple[str, ...], version: int) -> None:
    assert run(*verb, good, "-o", files.out, "--sframe-version", str(version)) == (0, b"", ())
    assert files.out.read_bytes() == SECTION._replace(version=version).assemble()
    assert files.names() == {"in", "out.sframe"}


def test_standard_input_and_output(good: Path) -> None:
    assert run("-", "-o", "-", stdin=good.read_bytes()) == (0, SECTION.assemble(), ())


@pytest.mark.parametrize("address", ["0x50000", "327680", "0b1010000000000000000"])
def test_the_section_address(files: Files, good: Path, address: str) -> None:
    assert run(good, "-o", files.out, "--section-address", address) == (0, b"", ())
    assert files.out.read_bytes() == SECTION._replace(vaddr=0x50000).assemble()


def test_errata(files: Files, good: Path) -> None:
    assert run(good, "-o", files.out, "--sframe-version=2", "--errata=0") == (0, b"", ())
    assert files.out.read_bytes() == SECTION._replace(version=2, flags=1).assemble()


def test_version_2_is_without_outermost_frames_unless_asked_for(files: Files) -> None:
    """A trace by backtrace() of glibc would be given up at a row without data words."""
    outermost = asm.Fde(cie_of(AMD64), TEXT_VADDR + 32, 16, (asm.undefined(16),))
    path = files.add("in", push_fp(AMD64), outermost)
    for errata in ((), ("--errata", "1")):
        # Nothing is lost: a trace ends there either way.
        assert run(path, "-o", files.out, "--sframe-version=2", *errata) == (0, b"", ())
        assert files.out.read_bytes() == SECTION._replace(version=2).assemble()
    # At -O2, ranges would be where they cost readers less.
    assert run(path, "-o", files.out, "--sframe-version=2", "--errata", "2", "-O1") == (0, b"", ())
    described = RawFunction(TEXT_VADDR + 32, 16, b"\0\0", 1)
    assert files.out.read_bytes() == SECTION._replace(functions=(PUSH, described), version=2).assemble()


def test_the_source(files: Files) -> None:
    frame = asm.EhFrame((asm.Fde(cie_of(AMD64, augmentation="")._replace(version=4), TEXT_VADDR, 8),), debug_frame=True)
    debug = asm.Section(".debug_frame", frame.assemble())
    path = files.folder / "both"
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64),), more=(debug,)))
    assert run(path, "-o", files.out, "--from", "debug_frame") == (0, b"", ())
    assert files.out.read_bytes() == RawSection((RawFunction(TEXT_VADDR, 8),)).assemble()
    assert run(path, "-o", files.out, "--from", "eh_frame") == (0, b"", ())
    assert files.out.read_bytes() == SECTION.assemble()


def test_a_damaged_cie(files: Files) -> None:
    bad = asm.Fde(cie_of(AMD64)._replace(version=7), TEXT_VADDR + 0x40, 16)
    path = files.add("in", push_fp(AMD64), bad)
    status, _, err = run(path, "-o", files.out)
    assert (status, len(err)) == (0, 1)
    assert err[0].endswith("is damaged: CIE version 7 is unknown; the FDE is left out")
    path = files.add("in", bad)
    status, _, err = run(path, "-o", files.out)
    assert (status, len(err)) == (3, 1)
    assert ": error: .eh_frame+0x18: no usable FDE; the first is damaged: its CIE at 0x0 is damaged: CIE" in err[0]


def test_damage_is_told_in_the_order_of_the_section(files: Files) -> None:
    """Whether the entry is damaged or its instructions are: what comes first in the file comes first."""
    no_cie = asm.Fde(cie_of(AMD64)._replace(version=7), TEXT_VADDR + 0x40, 16)
    fdes = (damaged(0x20), no_cie, damaged(0x60), no_cie._replace(pc_begin=TEXT_VADDR + 0x80), damaged(0xA0))
    reasons = ["unknown", "its CIE", "unknown", "its CIE", "unknown"]
    path = files.add("in", push_fp(AMD64), *fdes)
    status, _, err = run(path, "-o", files.out, "--strict", "-v")
    places = [line.split(".eh_frame+0x")[1].split(": ") for line in err[:-1]]
    assert (status, [reason[:7] for _, reason, *_ in places]) == (3, reasons)
    offsets = [int(offset, 16) for offset, *_ in places]
    assert offsets == sorted(offsets)
    (account,) = json.loads(run("coverage", "--format", "json", path).out)["files"]
    assert [item["address"] for item in account["missing"] if item["kind"] == "damaged"] == offsets
    text = run("coverage", path).out.decode()
    assert [int(offset, 16) for offset in re.findall(r"0x([0-9a-f]+) +\.eh_frame +damaged", text)] == offsets
    for order in (fdes[:2], fdes[1:3]):
        (message,) = run(files.add("bad", *order), "-o", files.out).err
        expected = "unknown call" if order[0] is fdes[0] else "its CIE at 0x0"
        assert f"no usable FDE; the first is damaged: {expected}" in message
