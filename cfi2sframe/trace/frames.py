# SPDX-License-Identifier: Apache-2.0
"""Frames, the step from one to its caller by an SFrame row (version 2, appendix A), and the walk of such steps.

Addresses are those of the traced process. The step is the same for all ABIs and versions: the rules of a row that was
read say what differs. SFrame can describe a return from a signal handler on AMD64 (version 3, flexible FDEs). On
AArch64 no row can restore the register that may have the interrupted function's RA, and on s390x no SP either; as
debuggers do, a trace relies on the kernel's record of registers, whose layout is its ABI (`abi`).
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.record import SAVED_PC
from cfi2sframe.range_map import ADDRESS_MASK
from cfi2sframe.sframe.model import Found, Rule
from cfi2sframe.trace.beyond import LoadedCfa

#: Reads bytes of the traced process: (address, size) -> exactly that many bytes, or None when they cannot be read.
ReadMemory = Callable[[int, int], bytes | None]

#: The bits of a signed AArch64 address that hold its authentication code, where the process does not give the mask:
#: user addresses have 48 bits.
DEFAULT_PAC_MASK: Final = 0xFFFF_0000_0000_0000
_WORD_SIZE: Final = 8
#: The bytes of the longest call (AMD64, by a table that two registers lead to).
_MAX_CALL_SIZE: Final = 8
MAX_FRAMES: Final = 100_000
#: Linux maps nothing below it (vm.mmap_min_addr), so a PC there is a call through a null pointer.
NULL_END: Final = 1 << 16

#: Types of notes in cores, which are also those of ptrace's register sets.
NT_PRSTATUS: Final = 1
NT_PRFPREG: Final = 2

#: Reasons why a trace ends; docs/trace.md explains those whose detail does not.
EndingKind = Literal[
    "outermost",
    "no-module",
    "no-code",
    "no-row",
    "unusable-module",
    "unknown-register",
    "unreadable-memory",
    "stack-does-not-grow",
    "loop",
    "limit",
    "internal-error",
]


class Frame(NamedTuple):
    """A frame: the known registers at its PC.

    `fp` is None when a callee's row does not give its value; then only rows that are based on FP cannot be used.
    `ra` is the value of the RA register (AArch64 x30, s390x r14), where the ABI has one and the value is known: in the
    topmost frame, and in one that a signal interrupted. `registers` are further known values by DWARF number. In any
    other frame both are empty. `is_return_address`: the PC follows the call, and may be the start of another function.
    """

    pc: int
    sp: int
    fp: int | None
    ra: int | None = None
    registers: Mapping[int, int] = MappingProxyType({})
    is_return_address: bool = False

    def __repr__(self) -> str:
        values = zip(self._fields, self[:4], strict=False)
        return " ".join(f"{name}=0x{value:x}" for name, value in values if value is not None)

    @property
    def lookup_pc(self) -> int:
        """The address to look for in tables: inside the call instruction where the PC is a return address."""
        return (self.pc - 1) & ADDRESS_MASK if self.is_return_address else self.pc


class Ending(NamedTuple):
    """The reason why a trace ends, and the details for a message."""

    kind: EndingKind
    detail: str


class TraceEntry(NamedTuple):
    """A frame of a trace, and what finds its caller: a row, or at a signal trampoline the kernel's record of registers.

    `found` is None at trampolines, and where there is no row; `cfa` also in the last. `is_null_call`: a call through a
    null or wild pointer led to the PC, and the caller is where the call has left its return address. `is_beyond_rows`:
    the CFA is a word in memory plus a constant, which no row of a section holds; the rules of `found` count from there.
    """

    frame: Frame
    found: Found | None = None
    cfa: int | None = None
    is_trampoline: bool = False
    is_null_call: bool = False
    is_beyond_rows: bool = False

    @property
    def is_signal(self) -> bool:
        """True if the frame is the return from a signal handler."""
        return self.is_trampoline or (self.found is not None and self.found.function.body.is_signal_frame)

    @property
    def named_pc(self) -> int:
        """The address that names the frame's function: at a trampoline the PC, as handlers return to its start."""
        return self.frame.pc if self.is_signal else self.frame.lookup_pc


class Trace(NamedTuple):
    """Frames from the innermost to the last one found, whose caller is not known for the reason that `ending` names.

    `thread_id` is the kernel's, 0 where only a frame was given.
    """

    entries: tuple[TraceEntry, ...]
    ending: Ending
    thread_id: int = 0


def walk(
    frame: Frame,
    find: Callable[[int], Found | LoadedCfa | Ending],
    read_memory: ReadMemory,
    arch: Arch,
    *,
    pac_mask: int = DEFAULT_PAC_MASK,
) -> Trace:
    """Return the frames from `frame` outwards, at most 100,000, and why there are no more.

    `find` is called once per frame, with `Frame.lookup_pc`. SP has to grow from frame to frame, except for frames
    that a signal interrupted, which may be on another stack; none of these may occur twice. So every walk ends.
    """
    entries: list[TraceEntry] = []
    interrupted: set[tuple[int, int]] = set()
    while len(entries) < MAX_FRAMES:
        entry, caller = _step(frame, find(frame.lookup_pc), read_memory, arch, pac_mask)
        entries.append(entry)
        if isinstance(caller, Frame) and not caller.is_return_address:
            if (caller.pc, caller.sp) in interrupted:
                caller = Ending("loop", f"the frame at SP 0x{caller.sp:x} repeats")
            else:
                interrupted.add((caller.pc, caller.sp))
        if isinstance(caller, Ending):
            return Trace(tuple(entries), caller)
        frame = caller
    return Trace(tuple(entries), Ending("limit", f"more than {MAX_FRAMES:,} frames"))


def _step(
    frame: Frame, row: Found | LoadedCfa | Ending, read_memory: ReadMemory, arch: Arch, pac_mask: int
) -> tuple[TraceEntry, Frame | Ending]:
    """Return the frame's entry, and its caller, by its row or the reason why it has none."""
    if isinstance(row, Ending) or not arch.has_signal_rows:
        interrupted = interrupted_frame(frame, read_memory, arch)
        if interrupted is not None:
            return TraceEntry(frame, is_trampoline=True), interrupted
    if isinstance(row, Ending):
        called_from = _caller_of_nothing(frame, row, read_memory, arch)
        return TraceEntry(frame, is_null_call=called_from is not None), called_from or row
    where, offset = row if isinstance(row, LoadedCfa) else (row, 0)
    entry = TraceEntry(frame, where, is_beyond_rows=isinstance(row, LoadedCfa))
    caller = caller_of(frame, where, read_memory, pac_mask=pac_mask)
    if isinstance(caller, Ending):
        return entry, caller
    caller = caller._replace(sp=(caller.sp + offset) & ADDRESS_MASK)
    # The row gives PC, SP and FP; an interrupted prologue may need the other registers that the kernel saved.
    interrupted = None if caller.is_return_address else interrupted_frame(frame, read_memory, arch)
    if interrupted is not None and interrupted[:3] == caller[:3]:
        caller = interrupted
    return entry._replace(cfa=(caller.sp - arch.sp_offset_from_cfa) & ADDRESS_MASK), caller


def _caller_of_nothing(frame: Frame, ending: Ending, read_memory: ReadMemory, arch: Arch) -> Frame | None:
    """Return the frame that has called through a null or wild pointer; None where the PC is elsewhere.

    A wild one leads to where nothing can be executed ("no-code"), and a call precedes the return address.
    """
    is_null = frame.pc < NULL_END
    if frame.is_return_address or not (is_null or ending.kind == "no-code"):
        return None
    cfa = frame.sp + arch.entry_cfa_offset
    ra = _word_at(cfa + arch.fixed_ra_offset, read_memory, arch) if arch.fixed_ra_offset else frame.ra
    if not ra or not (is_null or _follows_call(ra, read_memory, arch)):
        return None
    return Frame(ra, cfa + arch.sp_offset_from_cfa, frame.fp, is_return_address=True)


def _follows_call(ra: int, read_memory: ReadMemory, arch: Arch) -> bool:
    """Return whether the instruction before an address is a call."""
    sizes = range(arch.instruction_alignment, _MAX_CALL_SIZE + 1, arch.instruction_alignment)
    return any(re.fullmatch(arch.call, read_memory(ra - size, size) or b"", re.DOTALL) for size in sizes)


def caller_of(
    frame: Frame, where: Found, read_memory: ReadMemory, *, pac_mask: int = DEFAULT_PAC_MASK
) -> Frame | Ending:
    """Return the caller of a frame, or why it cannot be known.

    `where` is the result of `Section.find` for `frame.lookup_pc`. The caller's `pc` is the frame's RA, without the bits
    of `pac_mask` where the row says that it is signed; its `sp` follows from the CFA. The caller of a signal frame was
    interrupted: its PC is no return address, and its SP may be on another stack.
    """
    arch, state, is_signal_frame = where.arch, where.state, where.function.body.is_signal_frame
    if state is None:
        return Ending("no-row", "the rows of the function start later")
    if state.cfa is None:
        return Ending("outermost", "RA is undefined")
    cfa = _value(state.cfa, 0, frame, read_memory, arch, "CFA")
    if isinstance(cfa, Ending):
        return cfa
    ra = frame.ra if state.ra is None else _value(state.ra, cfa, frame, read_memory, arch, "RA")
    if ra is None:
        name = arch.register_name(arch.ra_register)
        return Ending("unknown-register", f"RA is in {name}, whose value is known in the topmost frame only")
    if isinstance(ra, Ending):
        return ra
    if state.mangled_ra:
        ra = strip_pac(ra, pac_mask)
    if ra == 0:
        return Ending("outermost", "the return address is 0")
    fp = frame.fp if state.fp is None else _value(state.fp, cfa, frame, read_memory, arch, "FP")
    if isinstance(fp, Ending):
        # In code without frame pointers FP is any number, and GCC's epilogues of realigned stacks give its place
        # relative to FP when FP has its caller's value again. A caller whose row is not based on FP is found anyway.
        fp = None
    sp = (cfa + arch.sp_offset_from_cfa) & ADDRESS_MASK
    # The topmost frame, or an interrupted one, may not have changed SP yet; any other has used some stack for a call.
    has_room = sp > frame.sp or (sp == frame.sp and not frame.is_return_address and arch.fixed_ra_offset == 0)
    if not (has_room or is_signal_frame):
        return Ending("stack-does-not-grow", f"SP of the caller is 0x{sp:x}, this frame's is 0x{frame.sp:x}")
    return Frame(ra, sp, fp, is_return_address=not is_signal_frame)


def strip_pac(address: int, pac_mask: int) -> int:
    """Remove a pointer authentication code: its bits become copies of bit 55 (user space: 0, kernel: 1)."""
    return address | pac_mask if address >> 55 & 1 else address & ~pac_mask


def _value(rule: Rule, cfa: int, frame: Frame, read_memory: ReadMemory, arch: Arch, what: str) -> int | Ending:
    """Evaluate a rule, whose base is a register's value in this frame, or the CFA."""
    base: int | None = cfa
    if rule.register is not None:
        # AMD64's column 16 is no register but the return address itself; no row can be based on it.
        values = {arch.sp_register: frame.sp, arch.fp_register: frame.fp, arch.ra_register: frame.ra}
        base = {**frame.registers, **values}.get(rule.register)
    if base is None:
        name = arch.register_name(rule.register or 0)
        return Ending("unknown-register", f"{what} needs {name}, whose value in this frame is not known")
    address = (base + rule.offset) & ADDRESS_MASK
    if not rule.deref:
        return address
    value = _word_at(address, read_memory, arch)
    if value is None:
        return Ending("unreadable-memory", f"{what} is saved at 0x{address:x}, which cannot be read")
    return value


def _word_at(address: int, read_memory: ReadMemory, arch: Arch) -> int | None:
    """Return the word at an address; None where it cannot be read."""
    data = read_memory(address, _WORD_SIZE)
    return None if data is None else int(struct.unpack(arch.byte_order + "Q", data)[0])


def topmost_frame(notes: Mapping[int, bytes], arch: Arch) -> Frame | None:
    """Return a thread's frame from its sets of registers; None where that of the general ones is missing or short."""
    words = _words(notes.get(NT_PRSTATUS), arch.thread_words, arch)
    return frame_of(words | _words(notes.get(NT_PRFPREG), arch.float_words, arch), arch) if words else None


def interrupted_frame(frame: Frame, read_memory: ReadMemory, arch: Arch) -> Frame | None:
    """Return the frame that a signal interrupted, where the frame's PC is at the return from the handler.

    None where it is not, and where the kernel's record cannot be read.
    """
    for code, distance, is_pointer in arch.signal_returns:
        if read_memory(frame.pc, len(code)) == code:
            address = frame.sp + distance
            if is_pointer:
                address = _word_at(address, read_memory, arch) or 0
            words = _words(read_memory(address, _WORD_SIZE * len(arch.signal_words)), arch.signal_words, arch)
            return frame_of(words, arch) if words else None
    return None


def _words(data: bytes | None, numbers: Sequence[int], arch: Arch) -> dict[int, int]:
    """Return the words of a record of the kernel by their numbers; none when it is missing or too short."""
    form = struct.Struct(f"{arch.byte_order}{len(numbers)}Q")
    return dict(zip(numbers, form.unpack_from(data), strict=True)) if data and len(data) >= form.size else {}


def frame_of(words: dict[int, int], arch: Arch) -> Frame:
    """Return the frame of a record of the kernel: its words by DWARF number, and `SAVED_PC`."""
    registers = MappingProxyType({number: word for number, word in words.items() if number >= 0})
    ra = None if arch.fixed_ra_offset else registers[arch.ra_register]
    return Frame(words[SAVED_PC], registers[arch.sp_register], registers[arch.fp_register], ra, registers)
