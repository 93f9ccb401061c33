# SPDX-License-Identifier: Apache-2.0
"""The drawn CFI programs are well-formed, and their bytes encode their steps."""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import Phase, assume, find, given, settings

from tests.support import cfi_asm as asm
from tests.support import cfi_strategies as cfi

READELF = shutil.which("readelf")
MNEMONICS = {"advance": "advance_loc", "no_effect": "GNU_args_size", "negate_ra_state": "GNU_window_save"}
FIRST_FOUND = settings(max_examples=2000, database=None, phases=[Phase.generate])


@given(cfi.programs())
def test_programs_are_well_formed(program: cfi.Program) -> None:
    depth, cfa_is_expression, saved = 0, False, list[bool]()
    for step in program.steps:
        if step.operation == "remember_state":
            saved.append(cfa_is_expression)
        elif step.operation == "restore_state":
            cfa_is_expression = saved.pop()
        elif step.operation in {"def_cfa", "def_cfa_expression"}:
            cfa_is_expression = step.operation == "def_cfa_expression"
        elif step.operation in {"def_cfa_register", "def_cfa_offset"}:
            assert not cfa_is_expression
        elif step.operation == "advance":
            assert step.offset % program.machine.code_align == 0
            depth += step.offset
    assert saved == []
    assert depth <= program.fde.size
    assert program.fde.size > 0
    assert len(program.section().assemble()) % 4 == 0


@given(cfi.programs(operations=frozenset({"advance", "def_cfa_offset"})))
def test_operations_can_be_restricted(program: cfi.Program) -> None:
    assert {step.operation for step in program.steps} <= {"advance", "def_cfa_offset"}


@pytest.mark.parametrize("machine", cfi.MACHINES, ids=lambda machine: machine.name)
def test_interesting_programs_are_found(machine: cfi.Machine) -> None:
    def is_nested(program: cfi.Program) -> bool:
        operations = [step.operation for step in program.steps if "state" in step.operation]
        return operations.count("remember_state") > 1 and operations[:2] == ["remember_state"] * 2

    find(cfi.programs(machine), is_nested, settings=FIRST_FOUND)
    find(
        cfi.programs(machine),
        lambda program: any(step == cfi.Step("advance") for step in program.steps),
        settings=FIRST_FOUND,
    )


def wrapped(value: int) -> int:
    """The low 32 bits: readelf 2.40 keeps CFA offsets in an int."""
    return value & 0xFFFFFFFF


def expected_lines(program: cfi.Program, steps: tuple[cfi.Step, ...]) -> list[tuple[str, int | None]]:
    """What readelf ought to print: mnemonic without its width, and the number of bytes of the rule."""
    lines: list[tuple[str, int | None]] = []
    for step in steps:
        name = MNEMONICS.get(step.operation, step.operation)
        is_offset = step.operation in {"advance", "def_cfa", "def_cfa_offset"}
        is_save = step.operation in {"offset", "val_offset"}
        if step.operation != "no_effect":
            lines.append((name, wrapped(step.offset) if is_offset or is_save else None))
    assert program.machine.data_align == -8
    return lines


def read_lines(text: str) -> list[tuple[str, int | None]]:
    """What readelf prints, in the same shape."""
    lines: list[tuple[str, int | None]] = []
    for match in re.finditer(r"^  DW_CFA_(\w+)(?:: (.*)| \(.*| *)$", text, re.MULTILINE):
        name, rest = match[1], match[2] or ""
        name = re.sub(r"^GNU_negative_offset_extended$|^offset_extended(_sf)?$", "offset", name)
        name = re.sub(r"_sf$|_extended$|(?<=advance_loc)[124]$", "", name)
        if name == "AARCH64_negate_ra_state":
            name = "GNU_window_save"
        if name in {"nop", "GNU_args_size"}:
            continue
        number = re.search(r"ofs (-?\d+)|^(-?\d+)(?: to \w+)?$|(?:at|is) cfa([+-]\d+)", rest)
        value = None if number is None else wrapped(int(next(filter(None, number.groups()))))
        lines.append((name, value))
    return lines


def is_misread(step: asm.Instruction | bytes) -> bool:
    """Whether readelf 2.40 takes the ULEB128 of DW_CFA_GNU_negative_offset_extended for a negative SLEB128."""
    if isinstance(step, bytes) or step.opcode != 0x2F:
        return False
    value = step.operands[1].value
    return bool(value >> (max(value.bit_length() - 1, 0) // 7 * 7) & 0x40)


@pytest.mark.oracle
@pytest.mark.skipif(READELF is None, reason="readelf is not installed")
@settings(max_examples=60, deadline=None)
@given(cfi.programs())
def test_readelf_reads_the_steps(program: cfi.Program) -> None:
    assert READELF is not None
    assume(not any(map(is_misread, (*program.cie.instructions, *program.fde.instructions))))
    machine = {"amd64": 62, "aarch64": 183, "s390x": 22}[program.machine.name]
    sections = (asm.Section(".eh_frame", program.section(0x2000).assemble(), flags=2, addr=0x2000, align=8),)
    data = asm.elf_file(machine, sections, file_type=2, little_endian=program.machine.little_endian)
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "a")
        path.write_bytes(data)
        done = subprocess.run([READELF, "-wf", path], capture_output=True, text=True, check=True)
    _, cie_text, fde_text = re.split(r"^\w{8} .* (?:CIE|FDE .*)$", done.stdout, flags=re.MULTILINE)
    assert read_lines(cie_text) == expected_lines(program, program.initial)
    assert read_lines(fde_text) == expected_lines(program, program.steps)
