# SPDX-License-Identifier: Apache-2.0
"""Programs in assembly with CFI written by hand: what GNU as makes of the CFI is what the instructions have to give.

The program is assembled twice: with its CFI, which is only read here, and without, for the analysis. Both have the same
code at the same addresses. A function is written as

    func NAME           a symbol of a function, and the start of its CFI
    ...                 instructions, with `.cfi_` directives
    endf                the end of its CFI

Code outside of the CFI must get no row. Rows that no return proves are missing.
Labels with `.L` are in neither file's symbols, but are known here.
"""

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.conversion.sources import find_cfi, read_programs
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.rules import NoRule, RowState, UnwindTable
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.instructions.derive import Derived, derive
from cfi2sframe.range_map import Span
from cfi2sframe.why import Reason
from tests.support.needs import need, run

_PREFIXES: Final = {AMD64.name: "x86_64-linux-gnu", AARCH64_LE.name: "aarch64-linux-gnu", S390X.name: "s390x-linux-gnu"}
_HEADS: Final = {AMD64.name: ".intel_syntax noprefix\n"}
_CFI_LINE: Final = re.compile(r"^\s*\.cfi_.*$", re.MULTILINE)
_FUNCTION: Final = re.compile(r"^\s*func (\w+)$", re.MULTILINE)
_END: Final = re.compile(r"^\s*endf$", re.MULTILINE)


def sources(name: str) -> dict[str, str]:
    """Return the programs of `programs/NAME.s` by their names; what is before the first one is in all of them."""
    whole = (Path(__file__).parent / "programs" / f"{name}.s").read_text(encoding="ascii")
    macros, *parts = re.split(r"^## ", whole, flags=re.MULTILINE)
    # Comments are gone, because assemblers differ in what begins one.
    texts = (part.partition("\n") for part in parts)
    return {title: re.sub(r"^# .*\n", "", macros + text, flags=re.MULTILINE) for title, _, text in texts}


class Program(NamedTuple):
    """A program without CFI, its labels' addresses, and by the address of each byte of code the row of the CFI."""

    image: ElfImage
    labels: dict[str, int]
    rows: dict[int, RowState]
    code: Span
    other_code: tuple[Span, ...]

    def derived(self) -> Derived:
        """Derive rows for `.text`; stubs that the linker has made are covered."""
        return derive(self.image, self.other_code)

    def problems(self) -> list[str]:
        """Return where the rows derived are not those of the CFI."""
        return [
            f"{self._place(vaddr)}: the CFI says {shown(self.rows.get(vaddr))}, the instructions {shown(row)}"
            for vaddr, row in rows_of(self.derived()).items()
            if vaddr in range(*self.code) and self.rows.get(vaddr) != row
        ]

    def missing(self) -> set[str]:
        """Return the last labels before code whose rows are not derived."""
        rows = rows_of(self.derived())
        places = {self._place(vaddr) for vaddr in self.rows if vaddr not in rows}
        return {place.partition("+")[0] for place in places}

    def reasons(self) -> dict[str, Reason]:
        """Return why code at labels has no rows."""
        return {
            name: reason
            for start, end, reason in self.derived().left_out
            for name, vaddr in self.labels.items()
            if start <= vaddr < end
        }

    def _place(self, vaddr: int) -> str:
        before = [(at, name) for name, at in self.labels.items() if at <= vaddr]
        at, name = max(before, default=(0, "start"))
        return f"{name}+{vaddr - at}"


def row_spans(start: int, size: int, table: UnwindTable) -> Iterator[tuple[int, int, RowState]]:
    """Yield the rows of a function at an address: from, to, and the row."""
    for first, last, state in zip(table.starts, (*table.starts[1:], size), table.states, strict=True):
        yield start + first, start + last, state


def rows_of(derived: Derived) -> dict[int, RowState]:
    """Return the row of each byte of code that has one."""
    spans = (span for each in derived.functions for span in row_spans(*each[:3]))
    return {vaddr: state for start, end, state in spans for vaddr in range(start, end)}


def shown(row: RowState | None) -> str:
    """Return a row in short, for messages."""
    if row is None:
        return "nothing"
    cfa = row.cfa
    if isinstance(cfa, Rule):
        text = f"CFA=r{cfa.register}{cfa.offset:+d}"
    else:
        text = f"CFA={cfa.code.hex()}" if isinstance(cfa, Expression) else "no CFA"
    for name, rule in (("RA", row.ra), ("FP", row.fp)):
        if rule is not NoRule.UNSPECIFIED:
            text += f" {name}={f'c{rule.offset:+d}' if isinstance(rule, Rule) and rule.is_saved_at_cfa else rule}"
    return text + (f" {row.signing.name}" if row.signing else "")


def assembled(
    arch: Arch, source: str, folder: Path, *, is_static: bool = False, options: tuple[str, ...] = ()
) -> Program:
    """Assemble and link a program, as a library or a static program; skip the test without binutils for the ABI."""
    begun = _FUNCTION.sub(r".type \1, %function\n\1:\n.cfi_startproc", source)
    whole = f'{_HEADS.get(arch.name, "")}{_END.sub(".cfi_endproc", begun)}\n.section .note.GNU-stack,"",%progbits\n'
    with_cfi = _linked(arch, whole, folder / "with", is_static=is_static, options=options, keeps_locals=True)
    without = _linked(arch, _CFI_LINE.sub("", whole), folder / "without", is_static=is_static, options=options)
    text = next(with_cfi.sections_named(".text"))
    assert [s.vaddr for s in without.sections_named(".text")] == [text.vaddr], "the code is elsewhere without CFI"
    assert not any(s.name == ".eh_frame" for s in without.sections)
    entries = read_programs(with_cfi, *find_cfi(with_cfi)).entries
    spans = (span for e in entries for span in row_spans(e.start_vaddr, e.size, e.program.table))
    rows = {vaddr: state for start, end, state in spans for vaddr in range(start, end)}
    code = Span(text.vaddr, text.vaddr + text.size)
    others = (Span(each.start_vaddr, each.end_vaddr) for each in without.code_ranges)
    tables = [section for section in with_cfi.sections if section.name == ".symtab"]
    labels = {symbol.name: symbol.vaddr for table in tables for symbol in with_cfi.symbols(table) if symbol.vaddr}
    inside = {vaddr: row for vaddr, row in rows.items() if code.start <= vaddr < code.end}
    inner = {name: vaddr for name, vaddr in labels.items() if code.start <= vaddr < code.end and name}
    return Program(without, inner, inside, code, tuple(sorted(each for each in others if each != code)))


def _linked(
    arch: Arch, source: str, stem: Path, *, is_static: bool, options: tuple[str, ...], keeps_locals: bool = False
) -> ElfImage:
    prefix = _PREFIXES[arch.name]
    tools = [need(f"{prefix}-{tool}") for tool in ("as", "ld")]
    stem.with_suffix(".s").write_text(source)
    target, linked = stem.with_suffix(".o"), stem.with_suffix(".so")
    local = ("--keep-locals",) if keeps_locals else ()
    subprocess.run([tools[0], *local, stem.with_suffix(".s"), "-o", target], check=True)
    kind = ("-static", "-e", "0") if is_static else ("-shared",)
    # It would make CFI for its stubs, which are none of the program's.
    keep = ("--discard-none",) if keeps_locals else ()
    quiet = ("--no-ld-generated-unwind-info",) if arch is AMD64 else ()
    subprocess.run([tools[1], *kind, *keep, *quiet, *options, target, "-o", linked], check=True)
    return load(linked)


def codes_of(texts: Sequence[str], triplet: str, folder: Path, *options: str) -> dict[str, bytes]:
    """Return the bytes that begin with each of some instructions, as GNU as writes them."""
    spacing, tools = 32, [need(f"{triplet}-{tool}") for tool in ("as", "objcopy")]
    source, made, plain = (folder / f"all{suffix}" for suffix in (".s", ".o", ""))
    source.write_text("".join(f".balign {spacing}\n{text}\n" for text in texts) + f".balign {spacing}\n")
    run(tools[0], *options, "-o", made, source)
    run(tools[1], "-O", "binary", "-j", ".text", made, plain)
    code = plain.read_bytes()
    return {text: code[number * spacing :][:16] for number, text in enumerate(texts)}
