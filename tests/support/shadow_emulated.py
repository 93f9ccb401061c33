# SPDX-License-Identifier: Apache-2.0
"""What `shadow/` does for AMD64, for programs of AArch64 and s390x under qemu: frames from execution, held to rows.

Functions are entered at breakpoints, since an emulator has no cheap way to watch pages, and stepped to their return;
after enough calls of a function its breakpoint goes. Calls note SP, FP and RA; a return is a PC equal to that RA with
SP where it was. Signals, threads and longjmp are not followed.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import Lookup, decode
from tests.support.remote_gdb import ExitedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import Rule
    from tests.support.remote_gdb import Registers, RemoteGdb
    from tests.support.shadow_run import Subject

#: Bits of an AArch64 address that carry no signature.
_ADDRESS_MASK: Final = (1 << 48) - 1
_MASK: Final = (1 << 64) - 1
#: STT_NOTYPE, STT_FUNC
_OF_CODE: Final = (0, 2)
#: Steps of one call, after which it runs to its return.
MOST_IN_CALL: Final = 1000


class Frame(NamedTuple):
    """A function that runs: `is_stepped` is False where it was called often enough, and runs to its return."""

    cfa: int
    ra: int
    fp: int
    is_stepped: bool
    steps: int = 0


class Difference(NamedTuple):
    """The first step at an address whose row does not say what execution showed; values are CFA, RA, FP."""

    vaddr: int
    row: str
    want: tuple[int, int, int]
    got: tuple[int | None, int | None, int | None]


def entries_of(image: ElfImage) -> list[int]:
    """Return the addresses of a file's symbols that can be functions."""
    found = {
        symbol.vaddr
        for section in image.sections
        if section.name in (".dynsym", ".symtab")
        for symbol in image.symbols(section)
        if symbol.vaddr is not None and symbol.type in _OF_CODE and not symbol.name.startswith("$")
    }
    return sorted(vaddr for vaddr in found if vaddr % 2 == 0)


class EmulatedShadow:
    """Steps the functions of one file in a program, which waits at `gdb`."""

    def __init__(
        self, gdb: RemoteGdb, image: ElfImage, subject: Subject, bias: int = 0, most_in_call: int = MOST_IN_CALL
    ) -> None:
        self._gdb = gdb
        self._image = image
        self._arch = image.arch
        self._lookup = Lookup(decode(subject.section, subject.section_vaddr))
        self._ranges = subject.ranges
        self._bias = bias
        self._entries: dict[int, int] = {}
        self._breakpoints: set[int] = set()
        self._frames: list[Frame] = []
        self._most_in_call = most_in_call
        self.sums: Counter[str] = Counter()
        self.places: Counter[int] = Counter()
        self.without_row: Counter[int] = Counter()
        self.differences: dict[int, Difference] = {}
        self.ending: object = None

    def run(self, entries: Iterable[int], calls: int, most_steps: int) -> None:
        """Step `calls` calls of each of the functions that start at some virtual addresses, until the program ends."""
        for vaddr in entries:
            if self._ranges.hold(vaddr):
                self._entries[vaddr + self._bias] = calls
                self._break_at(vaddr + self._bias)
        try:
            while self.sums["steps"] < most_steps:
                self._next()
        except ExitedError as error:
            self.ending = error.args[0]

    @property
    def ending_text(self) -> str:
        """How the program ended, if it did."""
        return "stopped" if self.ending is None else f"exit status {self.ending}"

    def _next(self) -> None:
        top = self._frames[-1] if self._frames else None
        if top is not None and top.is_stepped:
            if top.steps < self._most_in_call:
                self._frames[-1] = top._replace(steps=top.steps + 1)
                self._step()
                return
            self._frames[-1] = top._replace(is_stepped=False)
            self._break_at(top.ra)
        self._gdb.go_on()
        now = self._gdb.registers()
        if self._frames and now.pc == self._frames[-1].ra and self._cfa_of(now) >= self._frames[-1].cfa:
            self._leave(now)
        elif now.pc in self._entries:
            self._enter(now)
        else:
            self._step_over()
            return
        self._look(now)

    def _break_at(self, address: int) -> None:
        if address not in self._breakpoints:
            self._breakpoints.add(address)
            self._gdb.set_breakpoint(address)

    def _no_break_at(self, address: int) -> None:
        waits = any(frame.ra == address and not frame.is_stepped for frame in self._frames)
        if address in self._breakpoints and not waits and self._entries.get(address, 0) <= 0:
            self._breakpoints.remove(address)
            self._gdb.clear_breakpoint(address)

    def _step_over(self) -> None:
        """Step one instruction, also from a breakpoint."""
        pc = self._gdb.registers().pc
        if pc in self._breakpoints:
            self._gdb.clear_breakpoint(pc)
            self._gdb.step()
            self._gdb.set_breakpoint(pc)
        else:
            self._gdb.step()

    def _cfa_of(self, now: Registers) -> int:
        """Return the CFA at a function's entry, or after its return."""
        return now.values[self._arch.sp_register] - self._arch.sp_offset_from_cfa & _MASK

    def _enter(self, now: Registers) -> None:
        left = self._entries.get(now.pc, 0)
        ra, fp = now.values[self._arch.ra_register], now.values[self._arch.fp_register]
        self.sums["calls"] += 1
        self._entries[now.pc] = left - 1
        is_stepped = self._ranges.hold(now.pc - self._bias) and left > 0
        self._frames.append(Frame(self._cfa_of(now), ra, fp, is_stepped))
        if left <= 1:
            self._no_break_at(now.pc)
        if not is_stepped:
            self._break_at(ra)

    def _leave(self, now: Registers) -> None:
        self.sums["returns"] += 1
        while self._returns(now):
            self._no_break_at(self._frames.pop().ra)

    def _returns(self, now: Registers) -> bool:
        """Whether a frame is over: a helper may return to its caller's caller, past frames that end where it does."""
        cfa = self._cfa_of(now)
        for frame in reversed(self._frames):
            if frame.cfa > cfa:
                return False
            if frame.ra == now.pc:
                return True
        return False

    def _step(self) -> None:
        before = self._gdb.registers()
        self._step_over()
        now = self._gdb.registers()
        if self._returns(now):
            self._leave(now)
        elif self._is_call(before, now):
            left = self._entries.setdefault(now.pc, 3)
            if left > 0 and now.pc not in self._breakpoints and self._ranges.hold(now.pc - self._bias):
                self.sums["found by calls"] += 1
            self._enter(now)
        self._look(now)

    def _is_call(self, before: Registers, now: Registers) -> bool:
        kind, size = self._instruction(before.pc)
        if kind == "system call" and now.pc != before.pc + size:
            # A step of qemu takes the instruction after a system call, too.
            kind, next_size = self._instruction(before.pc + size)
            size += next_size
        return kind == "call" and now.pc != before.pc and now.values[self._arch.ra_register] == before.pc + size

    def _instruction(self, pc: int) -> tuple[str, int]:
        """Return what matters of the instruction at an address, and its size in bytes."""
        vaddr = pc - self._bias
        data = self._image.bytes_at(vaddr, 4) or self._image.bytes_at(vaddr, 2)
        if not data:
            return "", 0
        if self._arch.byte_order == "<":
            word = int.from_bytes(data, "little")
            is_call = word >> 26 == 0x25 or word & 0xFFFFFC1F == 0xD63F0000 or word & 0xFEFFF800 == 0xD63F0800
            return "call" if is_call else "system call" if word & 0xFFE0001F == 0xD4000001 else "", 4
        code, size = (data[0], data[1] & 0xF), {0: 2, 3: 6}.get(data[0] >> 6, 4)
        is_call = code in ((0xC0, 5), (0xA7, 5)) or (code[0] == 0x0D and code[1] != 0)
        return "call" if is_call else "system call" if code[0] == 0x0A else "", size

    def _look(self, now: Registers) -> None:
        """Compare the row for a stop with the frame that runs."""
        vaddr = now.pc - self._bias
        if not self._frames or not self._frames[-1].is_stepped or not self._ranges.hold(vaddr):
            return
        frame = self._frames[-1]
        self.sums["steps"] += 1
        self.places[vaddr] += 1
        found = self._lookup.find(vaddr)
        if found is None or found.state is None:
            self.sums["without_row"] += 1
            self.without_row[vaddr] += 1
            return
        want = (frame.cfa, frame.ra, frame.fp)
        got: tuple[int | None, int | None, int | None] = (None, None, None)
        state = found.state
        if state.cfa is not None:
            cfa = self._value(state.cfa, now, 0)
            ra = now.values[self._arch.ra_register] if state.ra is None else self._value(state.ra, now, cfa)
            fp = now.values[self._arch.fp_register] if state.fp is None else self._value(state.fp, now, cfa)
            got = (cfa, ra & _ADDRESS_MASK if state.mangled_ra and ra is not None else ra, fp)
        # The program's start has no caller, and gets no return address.
        if got == want or (state.cfa is None and frame.ra == 0):
            self.sums["equal"] += 1
        else:
            self.sums["differing"] += 1
            self.differences.setdefault(vaddr, Difference(vaddr, repr(found), want, got))

    def _value(self, rule: Rule, now: Registers, cfa: int | None) -> int | None:
        if rule.register is None:
            base = cfa
        elif rule.register < len(now.values):
            base = now.values[rule.register]
        else:
            base = self._gdb.s390x_float(int(self._arch.register_name(rule.register)[1:]))
        if base is None:
            return None
        address = base + rule.offset & _MASK
        return self._gdb.word(address) if rule.deref else address
