# SPDX-License-Identifier: Apache-2.0
"""Numbers of ELF and perf are those of the C library's and the kernel's headers, those of DWARF pyelftools'."""

import re
import struct
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest
from elftools.dwarf import constants
from elftools.dwarf.dwarf_expr import DW_OP_name2opcode
from elftools.dwarf.enums import DW_EH_encoding_flags

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch, aarch64, amd64, s390x
from cfi2sframe.abi.record import SAVED_PC
from cfi2sframe.constants import dwarf, elf, perf
from tests.support.needs import attempt, need, run

pytestmark = pytest.mark.oracle

HEADERS: Final = "".join(f"#include <{name}.h>\n" for name in ("elf", "linux/perf_event", "sys/mman", "asm/perf_regs"))
#: The names in asm/perf_regs.h: their beginning, and those of registers that are not called as the assembler does.
PERF_REGISTERS: Final[dict[Arch, tuple[str, dict[str, str]]]] = {
    AMD64: ("X86_", {f"r{name}": name for name in ("ax", "bx", "cx", "dx", "si", "di", "bp", "sp", "ip")}),
    AARCH64_LE: ("ARM64_", {"x30": "lr"}),
    S390X: ("S390_", {f"f{number}": f"fp{number}" for number in range(16)}),
}


def values_of(names: list[str], folder: Path, triplet: str = "x86_64-linux-gnu") -> dict[str, int]:
    """Return the values of those names that the headers have."""
    compiler, source, made = need(f"{triplet}-gcc"), folder / "a.c", folder / "a.o"

    def written(left: list[str]) -> list[str]:
        attribute = '__attribute__((section(".numbers")))'
        source.write_text(f"{HEADERS}{attribute} const unsigned long long numbers[] = {{{', '.join(left)}}};\n")
        return left

    written(names)
    unknown = re.findall(r"error: .(\w+). undeclared", attempt(compiler, "-c", source, "-o", made).err)
    known = written([name for name in names if name not in unknown])
    run(compiler, "-c", source, "-o", made)
    image = load(made)
    (section,) = image.sections_named(".numbers")
    data = image.section_bytes(section)
    return dict(zip(known, struct.unpack(f"{image.byte_order}{len(known)}Q", data), strict=True))


@pytest.mark.parametrize("module", [elf, perf, amd64, aarch64, s390x], ids=lambda module: module.__name__)
def test_constants(module: ModuleType, tmp_path: Path) -> None:
    """Headers of some age lack some, and perf's own numbers are in none."""
    others = ("SAVED_", "UNUSED", "SFRAME_", "HEADER_", "_")
    named = {name: value for name, value in vars(module).items() if name.isupper() and isinstance(value, int)}
    numbers = {name: value for name, value in named.items() if not name.startswith(others)}
    found = values_of([*numbers], tmp_path)
    assert found == {name: numbers[name] for name in found}
    assert len(found) > 0.7 * len(numbers)


def test_numbers_of_dwarf() -> None:
    """Pyelftools has nearly all."""
    theirs: dict[str, object] = {**vars(constants), **DW_OP_name2opcode, **DW_EH_encoding_flags}
    numbers = {name: value for name, value in vars(dwarf).items() if name.startswith("DW_") and name in theirs}
    assert numbers == {name: theirs[name] for name in numbers}
    assert len(numbers) > 90


@pytest.mark.parametrize("arch", PERF_REGISTERS, ids=lambda arch: arch.name)
def test_registers_of_samples(arch: Arch, tmp_path: Path) -> None:
    prefix, others = PERF_REGISTERS[arch]
    names = {n: f"PERF_REG_{prefix}{others.get(name, name).upper()}" for n, name in enumerate(arch.registers)}
    names[SAVED_PC] = names.pop(arch.registers.index("rip")) if arch is AMD64 else f"PERF_REG_{prefix}PC"
    triplet = {AMD64: "x86_64", AARCH64_LE: "aarch64", S390X: "s390x"}[arch] + "-linux-gnu"
    last = f"PERF_REG_{prefix}{'64_' * (arch is AMD64)}MAX"
    found = values_of([*names.values(), last], tmp_path, triplet)
    assert len(arch.perf_words) == found[last]
    places = {number: arch.perf_words.index(number) for number in names if number in arch.perf_words}
    assert places == {number: found[name] for number, name in names.items() if name in found and number in places}
    assert len(places) >= min(len(names), 17)
