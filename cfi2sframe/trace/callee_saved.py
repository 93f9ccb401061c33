# SPDX-License-Identifier: Apache-2.0
"""Registers that SFrame does not follow, from the CFI of the frames that saved them.

A row may need a register other than SP and FP in a frame that is not the topmost: in glibc's resolver on AMD64, the CFA
depends on rbx, which any callee may have saved. CFI has the place. Callers have to ask for it, since such a trace no
longer depends on SFrame alone.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Final

from cfi2sframe.dwarf.entries import parse_entries
from cfi2sframe.dwarf.machine import RowMachine
from cfi2sframe.dwarf.pointer import Location, PointerBases
from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.dwarf.rules import NoRule
from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64
from cfi2sframe.errors import InputError
from cfi2sframe.rules import Rule
from cfi2sframe.sources import find_cfi
from cfi2sframe.trace.frame import ADDRESS_MASK

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.dwarf.entries import DwarfFde
    from cfi2sframe.dwarf.rules import RegisterRule, RowState, UnwindTable
    from cfi2sframe.elf.cfi import CfiKind, CfiSection
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.trace.frame import Frame, ReadMemory, TraceEntry

#: The CFI rule of a register at an address of the process: (address, DWARF number) -> rule, None without CFI.
SavedRule = Callable[[int, int], "RegisterRule | None"]

#: Callee-saved registers: their rule is "same value" where CFI has none.
_CALLEE_SAVED: Final = {
    EM_X86_64: frozenset((3, 6, 12, 13, 14, 15)),
    EM_AARCH64: frozenset(range(19, 30)),
    # r6 to r13, f8 to f15.
    EM_S390: frozenset((*range(6, 14), *range(24, 32))),
}


class CfiRules:
    """An image's CFI, for the rules of any register."""

    def __init__(self, image: ElfImage) -> None:
        self._arch = image.arch
        self._budget = image.budget
        #: The FDEs of each source, sorted by start; the best source comes first.
        self._sources: dict[CfiKind, list[tuple[DwarfFde, CfiSection, PointerBases]]] = {}
        self._rows: dict[tuple[CfiKind, int, int], UnwindTable | None] = {}

        def load_word(vaddr: int) -> int | None:
            data = image.bytes_at(vaddr, 8)
            return None if data is None else int.from_bytes(data, "little" if image.byte_order == "<" else "big")

        try:
            for section in find_cfi(image).sections:
                if isinstance(section, RowSection):
                    # Which says nothing of other registers.
                    continue
                bases = PointerBases(image.byte_order, section.table_vaddr, load_word)
                fdes = self._sources.setdefault(section.kind, [])
                fdes += [(fde, section, bases) for fde in parse_entries(section, bases).fdes]
        except InputError:
            # The FDEs read so far are used; without any, no register can be followed through this file.
            pass
        for fdes in self._sources.values():
            fdes.sort(key=_begin_of)

    def rule(self, vaddr: int, register: int) -> RegisterRule | None:
        """Return the rule of a register at an address of the file, counting from SFrame's CFA.

        None where no usable CFI covers the address, or where SFrame's CFA is at no known distance from DWARF's.
        """
        for kind, fdes in self._sources.items():
            index = bisect_right(fdes, vaddr, key=_begin_of) - 1
            delta = vaddr - fdes[index][0].pc_begin_vaddr if index >= 0 else 0
            if index < 0 or delta >= fdes[index][0].pc_range:
                continue
            key = kind, index, register
            if key not in self._rows:
                self._rows[key] = self._run(*fdes[index], register)
            rows = self._rows[key]
            return rows and _seen_from_sp(rows.states[bisect_right(rows.starts, delta) - 1], self._arch)
        return None

    def _run(self, fde: DwarfFde, section: CfiSection, bases: PointerBases, register: int) -> UnwindTable | None:
        """Return the rows of an FDE, with the rules of `register` in place of FP's; None when it is damaged."""
        self._budget.spend(len(fde.instructions), "the registers of its functions")
        location = Location(fde.pc_begin_vaddr, section.vaddr + fde.instructions_offset, bases)
        # The row machine tracks CFA, RA, SP and the register that the ABI's record names as FP.
        follower = self._arch._replace(fp_register=register)
        try:
            return RowMachine(fde.cie, follower).run(fde.instructions, location)
        except InputError:
            return None


def _seen_from_sp(state: RowState, arch: Arch) -> RegisterRule | None:
    """Return the rule in FP's place, counting from SFrame's CFA: the caller's SP, which may have a rule of its own."""
    rule = state.fp
    sp = state.sp
    if not isinstance(rule, Rule) or not rule.is_saved_at_cfa or sp is NoRule.UNSPECIFIED:
        return rule
    if isinstance(sp, Rule) and sp.register is None and not sp.deref:
        return rule._replace(offset=rule.offset + arch.sp_offset_from_cfa - sp.offset)
    if arch.sp_offset_from_cfa and isinstance(sp, Rule):
        # s390x saves SP like other registers. A CFA from another register than SP and FP is that of another stack.
        is_frame = isinstance(state.cfa, Rule) and state.cfa.register in (arch.sp_register, arch.fp_register)
        if sp.is_saved_at_cfa or is_frame:
            return rule
    return None


def _begin_of(item: tuple[DwarfFde, CfiSection, PointerBases]) -> int:
    return item[0].pc_begin_vaddr


class CalleeSaved(Mapping[int, int]):
    """The registers of a frame's caller, found on demand. `used` are the numbers of those that were read."""

    def __init__(self, callee: TraceEntry, saved_rule: SavedRule, read_memory: ReadMemory, arch: Arch) -> None:
        self._callee = callee
        self._saved_rule = saved_rule
        self._read_memory = read_memory
        self._arch = arch
        self.used: list[int] = []

    def __getitem__(self, number: int) -> int:
        value = self._find(number)
        if value is None:
            raise KeyError(number)
        self.used.append(number)
        return value

    def __iter__(self) -> Iterator[int]:
        """Yield nothing: which registers can be found is not known in advance."""
        return iter(())

    def __len__(self) -> int:
        return 0

    def _find(self, number: int) -> int | None:
        """Look for a register's value from callee to callee, until one saved it or the topmost frame has it."""
        where: CalleeSaved = self
        while True:
            callee = where._callee
            rule = where._rule(number)
            if isinstance(rule, Rule) and rule.is_saved_at_cfa and callee.cfa is not None:
                data = self._read_memory((callee.cfa + rule.offset) & ADDRESS_MASK, 8)
                return (
                    None if data is None else int.from_bytes(data, "little" if self._arch.byte_order == "<" else "big")
                )
            if isinstance(rule, Rule) and rule.register is not None:
                number = rule.register
            elif rule is not NoRule.SAME_VALUE:
                return None
            if number == self._arch.fp_register:
                return callee.frame.fp
            registers = callee.frame.registers
            if not isinstance(registers, CalleeSaved):
                return registers.get(number)
            where = registers

    def _rule(self, number: int) -> RegisterRule | None:
        """Return the rule in the callee, or the ABI's default where CFI has none."""
        row = self._callee.located.row
        if row is not None and row.is_pcmask:
            # Stubs change caller-saved registers only, and their CFI may be missing.
            return NoRule.SAME_VALUE
        rule = self._saved_rule(self._callee.frame.lookup_pc, number)
        if rule is NoRule.UNSPECIFIED and number in _CALLEE_SAVED[self._arch.elf_machine]:
            return NoRule.SAME_VALUE
        return rule


def recovered(frame: Frame) -> tuple[int, ...]:
    """Return the registers of a frame that were found by CFI and used."""
    return tuple(sorted(set(frame.registers.used))) if isinstance(frame.registers, CalleeSaved) else ()
