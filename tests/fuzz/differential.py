# SPDX-License-Identifier: Apache-2.0
"""Rows of random programs: the package's row machine against `readelf -wF` and `llvm-dwarfdump --eh-frame`."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import load
from cfi2sframe.dwarf.expression import Expression, parse_expression
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.dwarf.rules import NoRule, RaSigning
from cfi2sframe.rules import Rule
from cfi2sframe.sources import find_cfi
from tests.fuzz.cfi_programs import MACHINES, Writer
from tests.support.oracle import frames
from tests.support.oracle.compare import RA_SIGN_STATE, row_at
from tests.support.oracle.llvm_frames import parse_llvm_frames
from tests.support.oracle.readelf_frames import parse_readelf_frames
from tests.support.rules import in_register, state_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.programs import CfiEntry
    from cfi2sframe.dwarf.rules import CfaRule, RegisterRule, RowState
    from tests.support.oracle.frames import Arch as ArchName

#: Every so many files use an opcode that stops llvm-dwarfdump (see `known_wrong`), and are readelf's alone to judge.
_GNU_FILE: Final = 8
_BREGX: Final = re.compile(r"DW_OP_bregx (\w+)[+-]\d+")
_ARCH_NAMES: Final[dict[str, ArchName]] = {"AMD64": "amd64", "AArch64": "aarch64", "s390x": "s390x"}
_NOTHING: Final = (None, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED)
_UNSAID: Final = frames.Rule("undefined")


class Tools(NamedTuple):
    """The programs that assemble and judge; no `llvm_dwarfdump` where it is known to be wrong as a whole."""

    assembler: str
    readelf: str
    llvm_dwarfdump: str | None


class Outcome(NamedTuple):
    """How many functions and rows were compared with each judge, and every difference as text."""

    function_count: int
    row_count: int
    differences: list[str]


def run(arch_name: ArchName, tools: Tools, seed: int, function_count: int, folder: Path) -> Outcome:
    """Assemble a file of random functions and compare the rules of each."""
    is_gnu = seed % _GNU_FILE == 0
    writer = Writer(MACHINES[arch_name], seed, is_gnu=is_gnu)
    if is_gnu:
        tools = tools._replace(llvm_dwarfdump=None)
    source, made = folder / f"{arch_name}-{seed}.s", folder / f"{arch_name}-{seed}.o"
    source.write_text("\n".join(writer.lines(function_count)) + "\n", encoding="ascii")
    subprocess.run([tools.assembler, str(source), "-o", str(made)], check=True, capture_output=True)
    image = load(str(made))
    cfi = read_programs(image, find_cfi(image))
    entries = {entry.fde.offset: entry for entry in cfi.entries}
    differences = [f"fails: {failure.failure.error}" for failure in cfi.damaged]
    if len(entries) != function_count:
        differences.append(f"{len(entries)} FDEs of {function_count} functions")
    row_count = 0
    for judge in _judges(tools, made, arch_name):
        if {fde.section_offset for fde in judge.fdes} != set(entries):
            differences.append(f"{judge.name}: other FDEs: {len(judge.fdes)} of {len(entries)}")
        for fde in judge.fdes:
            entry = entries.get(fde.section_offset)
            if entry is not None:
                row_count += len(entry.program.table.starts)
                for problem in _compare(entry, fde, image.arch, judge):
                    place = f"seed {seed}, function at 0x{entry.fde.pc_begin_vaddr - image.sections[1].vaddr:x}"
                    code = entry.fde.instructions.hex(" ")
                    differences.append(f"{judge.name}: {place}: {problem}; {code[:400]}")
    source.unlink()
    made.unlink()
    return Outcome(len(entries), row_count, differences)


class _Judge(NamedTuple):
    name: str
    fdes: tuple[frames.OracleFde, ...]
    #: Whether it tells "undefined" from "no rule", spells expressions, and follows the signing of RA.
    tells_all: bool


def _judges(tools: Tools, made: Path, arch_name: ArchName) -> Iterable[_Judge]:
    output = _output_of(tools.readelf, "-wNF", str(made))
    yield _Judge("readelf", _fdes(parse_readelf_frames, output, arch_name), tells_all=False)
    if tools.llvm_dwarfdump is not None:
        output = _output_of(tools.llvm_dwarfdump, "--eh-frame", str(made))
        yield _Judge("llvm-dwarfdump", _fdes(parse_llvm_frames, output, arch_name), tells_all=True)


def _output_of(*command: str) -> list[str]:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _fdes(
    parse: Callable[[list[str], ArchName], tuple[frames.OracleSection, ...]], output: list[str], arch_name: ArchName
) -> tuple[frames.OracleFde, ...]:
    return tuple(fde for section in parse(output, arch_name) if section.name == ".eh_frame" for fde in section.fdes)


def _compare(entry: CfiEntry, fde: frames.OracleFde, arch: Arch, judge: _Judge) -> Iterable[str]:
    if fde.problem:
        # LLVM prints no row without rules.
        if any(state[:-1] != _NOTHING for state in entry.program.table.states):
            yield fde.problem
        return
    size = fde.pc_end_vaddr - fde.pc_begin_vaddr
    if size != entry.fde.pc_range:
        yield f"{size} bytes, we say {entry.fde.pc_range}"
    table = entry.program.table
    deltas = set(table.starts) | {row.pc_vaddr - fde.pc_begin_vaddr for row in fde.rows}
    for delta in sorted(delta for delta in deltas if delta < max(size, 1)):
        theirs = row_at(fde.rows, fde.pc_begin_vaddr + delta)
        ours = state_at(table, delta)
        if theirs is None:
            # A function whose CIE has no CFA rule.
            if ours.cfa is not None:
                yield f"+{delta}: no row, we say {ours}"
            continue
        for problem in _row_differences(ours, theirs, entry, arch, judge):
            yield f"+{delta}: {problem}"


def _row_differences(
    ours: RowState, theirs: frames.OracleRow, entry: CfiEntry, arch: Arch, judge: _Judge
) -> Iterable[str]:
    if not _same_cfa(ours.cfa, theirs.cfa, arch, judge):
        yield f"CFA is {theirs.cfa}, we say {ours.cfa}"
    columns = {"FP": arch.fp_register, "SP": arch.sp_register, "RA": entry.fde.cie.ra_register}
    for (name, register), rule in zip(columns.items(), (ours.fp, ours.sp, ours.ra), strict=True):
        said = theirs.registers.get(register)
        if name == "RA" and register != arch.ra_register and rule == in_register(register):
            # Where its own column has no rule, or keeps its value.
            unsaid = (NoRule.UNSPECIFIED, NoRule.SAME_VALUE, rule)
            is_same = any(_same_rule(same, said, arch, judge) for same in unsaid)
        else:
            is_same = _same_rule(rule, said, arch, judge)
        if not is_same:
            yield f"{name} is {said}, we say {rule!r}"
    if arch.ra_may_be_signed and judge.tells_all:
        said = theirs.registers.get(RA_SIGN_STATE, frames.Rule("constant", 0))
        if said != frames.Rule("constant", 1 if ours.signing is RaSigning.SIGNED else 0):
            yield f"the state of RA is {said}, we say {ours.signing!r}"


def _same_cfa(ours: CfaRule | None, theirs: frames.Cfa, arch: Arch, judge: _Judge) -> bool:
    if isinstance(ours, Expression):
        return isinstance(theirs, frames.Expression) and _same_expression(ours.code, theirs.text, arch, judge)
    if ours is None:
        # readelf has no notation for it: it prints register 0 and offset 0.
        return theirs == frames.NoCfa() if judge.tells_all else theirs == frames.RegisterOffset(0, 0)
    assert ours.register is not None
    return theirs == frames.RegisterOffset(ours.register, ours.offset)


def _same_expression(expression: bytes, text: str, arch: Arch, judge: _Judge) -> bool:
    """Compare opcodes and numbers; registers are spelled by name besides, and hexadecimal where unsigned."""
    if not judge.tells_all:
        return text == ""
    operations = parse_expression(expression, arch.byte_order)
    spelled = text.split(", ")
    return len(spelled) == len(operations) and all(
        all(_has_number(words, number, arch) for number in operation.operands)
        for operation, words in zip(operations, spelled, strict=True)
    )


def _has_number(words: str, number: int, arch: Arch) -> bool:
    if f"{number:+d}" in words or f"0x{number & (1 << 64) - 1:x}" in words:
        return True
    match = _BREGX.fullmatch(words)
    return match is not None and frames.register_number(_ARCH_NAMES[arch.name], match[1]) == number


def _same_rule(ours: RegisterRule, theirs: frames.Rule | None, arch: Arch, judge: _Judge) -> bool:
    if isinstance(ours, NoRule):
        if ours is NoRule.SAME_VALUE:
            return theirs == frames.Rule("same_value")
        if not judge.tells_all:
            return theirs in (None, _UNSAID)
        return theirs == (_UNSAID if ours is NoRule.UNDEFINED else None)
    if theirs is None:
        return False
    if isinstance(ours, Rule):
        if ours.register is not None:
            return theirs == frames.Rule("register", ours.register)
        return theirs == frames.Rule("at_cfa" if ours.deref else "cfa_plus", ours.offset)
    kind = "at_expression" if ours.deref else "expression"
    return theirs.kind == kind and _same_expression(ours.code, theirs.text, arch, judge)
