# SPDX-License-Identifier: Apache-2.0
"""What holds whatever the file: two ways that lead to the same code lead to the same rows, by functions' names."""

import json
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.api import decode_existing
from cfi2sframe.constants.elf import STT_FUNC
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import FrameState
from tests.support import cli
from tests.support.conversion.variants import decode_made
from tests.support.needs import need, run
from tests.support.placing.project import Unit, units
from tests.support.placing.rewriting import tool

pytestmark = pytest.mark.oracle

UNITS: Final = units(with_cpp=False)
#: The rows of a function, at each byte from its start on.
Meaning = dict[str, list[FrameState | None]]


def meaning(path: Path, named_by: Path | None = None) -> Meaning:
    """Return the rows of the section that a file has or would get, by the symbols that it or another file has."""
    image = load(path)
    section = decode_existing(image) if image.has_sframe else decode_made(image)
    names = image if named_by is None else load(named_by)
    found: Meaning = {}
    for name, vaddr, size in functions_of(names):
        at = [section.find(pc) for pc in range(vaddr, vaddr + size)]
        found[name] = [each.row.state if each is not None and each.row is not None else None for each in at]
    assert len(found) > 3
    assert any(len(set(states)) > 2 for states in found.values())
    return found


def functions_of(image: ElfImage) -> list[tuple[str, int, int]]:
    symbols = [symbol for table in image.symbol_tables for symbol in image.symbols(table)]
    return sorted({(s.name, s.vaddr, s.size) for s in symbols if s.type == STT_FUNC and s.vaddr and s.size})


def compiled(unit: Unit, folder: Path, *flags: str) -> Path:
    made = folder / f"{unit.name}.o"
    run(need("gcc"), "-O2", *unit.flags, *flags, "-c", unit.source, "-o", made)
    return made


@pytest.fixture(scope="module")
def objects(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("objects")
    return [compiled(unit, folder, "-fno-pie", "-ffunction-sections") for unit in UNITS]


def linked(objects: list[Path], target: Path, *flags: str) -> Path:
    run("gcc", "-no-pie", *flags, "-o", target, *objects, "-lm", "-lpthread")
    return target


def test_convert_then_strip_is_strip_then_convert(objects: list[Path], tmp_path: Path) -> None:
    program = linked(objects, tmp_path / "program")
    first, second, stripped = (tmp_path / name for name in ("first", "second", "stripped"))
    assert cli.run(program, "-o", first).status == 0
    run("strip", first)
    run("strip", "-o", stripped, program)
    assert cli.run(stripped, "-o", second).status == 0
    assert meaning(first, program) == meaning(second, program) == meaning(program)


@pytest.mark.parametrize(
    "flags", [["-Wl,-Ttext-segment=0x70000000"], ["-Wl,--sort-section=name"], ["-Wl,-z,noseparate-code"]], ids=str
)
def test_where_code_is_makes_no_difference(objects: list[Path], flags: list[str], tmp_path: Path) -> None:
    """At another address; with sections, and so functions, in another order; with code and data in one segment."""
    program, other = linked(objects, tmp_path / "program"), linked(objects, tmp_path / "other", *flags)
    assert functions_of(load(program)) != functions_of(load(other))
    assert own(meaning(program), objects) == own(meaning(other), objects)


def own(found: Meaning, objects: list[Path]) -> Meaning:
    """Return what is of some objects; the machine's start files are in one place only."""
    names = {name for each in objects for name, _, _ in functions_of(load(each))}
    return {name: states for name, states in found.items() if name in names}


def test_objects_of_other_order_and_in_one(objects: list[Path], tmp_path: Path) -> None:
    joined = tmp_path / "joined.o"
    run("ld", "-r", "-o", joined, *objects)
    alone: Meaning = {}
    for each in objects[:-1]:
        alone |= meaning(each)
    assert {name: states for name, states in meaning(joined).items() if name in alone} == alone
    program, reverse = linked(objects, tmp_path / "program"), linked(objects[::-1], tmp_path / "reverse")
    assert {name: states for name, states in own(meaning(program), objects).items() if name in alone} == alone
    assert own(meaning(program), objects) == own(meaning(reverse), objects)


def test_members_of_an_archive_alone_and_together(objects: list[Path], tmp_path: Path) -> None:
    archive = tmp_path / "all.a"
    run("ar", "rc", archive, *objects)
    sums = [json.loads("".join(cli.run("size", "--format", "json", path).out.decode())) for path in (archive, *objects)]
    together, *alone = [[file | {"file": ""} for file in each["files"]] for each in sums]
    assert together == [file for each in alone for file in each]


@pytest.mark.parametrize("unit", UNITS[:-1], ids=lambda unit: str(unit.name))
def test_the_same_source_by_two_assemblers(unit: Unit, tmp_path: Path) -> None:
    source, by_gas, by_llvm = (tmp_path / name for name in ("unit.s", "gas.o", "llvm.o"))
    run(need("gcc"), "-O2", *unit.flags, "-S", unit.source, "-o", source)
    run("as", "-o", by_gas, source)
    run(tool("newest", "llvm-mc"), "-filetype=obj", "-triple=x86_64-linux-gnu", "-o", by_llvm, source)
    assert meaning(by_gas) == meaning(by_llvm)
