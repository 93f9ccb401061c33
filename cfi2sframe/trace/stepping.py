# SPDX-License-Identifier: Apache-2.0
"""One step of a stack trace: from a frame and the row at its PC to its caller (version 2, appendix A).

The same for all ABIs and versions: a decoded row's rules contain what differs, such as where RA and FP are. On s390x
the CFA is 160 bytes above the caller's SP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.trace.frame import ADDRESS_MASK, Ending, Frame

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.model import Found, FrameState, Rule
    from cfi2sframe.trace.frame import ReadMemory

#: The bits of a signed AArch64 address that hold its authentication code, where the process does not give the mask:
#: user addresses have 48 bits.
DEFAULT_PAC_MASK: Final = 0xFFFF_0000_0000_0000
_WORD_SIZE: Final = 8


def step(
    frame: Frame,
    state: FrameState,
    read_memory: ReadMemory,
    arch: Arch,
    *,
    is_signal_frame: bool = False,
    pac_mask: int = DEFAULT_PAC_MASK,
) -> Frame | Ending:
    """Return the caller of a frame, or why it cannot be known.

    `state` is that of the row at `frame.lookup_pc`. `is_signal_frame`: its function was called by the kernel, so the
    caller's PC is an interrupted instruction, not a return address, and its SP may be on another stack. `pac_mask`: the
    bits to strip from a mangled RA.
    """
    if state.cfa is None:
        return Ending("outermost", "RA is undefined")
    cfa = _value(state.cfa, 0, frame, read_memory, arch, "CFA")
    if isinstance(cfa, Ending):
        return cfa
    ra = _return_address(state, cfa, frame, read_memory, arch)
    if isinstance(ra, Ending):
        return ra
    if state.mangled_ra:
        ra = strip_pac(ra, pac_mask)
    fp = frame.fp if state.fp is None else _known(_value(state.fp, cfa, frame, read_memory, arch, "FP"))
    sp = (cfa + arch.sp_offset_from_cfa) & ADDRESS_MASK
    if ra == 0:
        return Ending("outermost", "the return address is 0")
    # The topmost frame, or an interrupted one, may not have changed SP yet; any other has used some stack for a call.
    has_room = sp > frame.sp or (sp == frame.sp and not frame.is_return_address and arch.fixed_ra_offset == 0)
    if not (has_room or is_signal_frame):
        return Ending("stack-does-not-grow", f"SP of the caller is 0x{sp:x}, this frame's is 0x{frame.sp:x}")
    return Frame(ra, sp, fp, is_return_address=not is_signal_frame)


def caller_of(
    frame: Frame, where: Found, read_memory: ReadMemory, *, pac_mask: int = DEFAULT_PAC_MASK
) -> Frame | Ending:
    """Return the caller of a frame, or why it cannot be known: `step` with what `Section.find` has found.

    `where` is what is in force at `frame.lookup_pc`. The caller's `pc` is the frame's RA, its `fp` the value of FP, and
    its `sp` follows from the CFA (`cfa_of`).
    """
    state = where.state
    if state is None:
        return Ending("no-row", "the rows of the function start later")
    is_signal_frame = where.function.body.is_signal_frame
    return step(frame, state, read_memory, where.arch, is_signal_frame=is_signal_frame, pac_mask=pac_mask)


def _known(value: int | Ending) -> int | None:
    """Return a value, or None where it is not known.

    In code without frame pointers FP is any number, and CFI may give a stale place for it: in GCC's epilogues of
    realigned stacks it is still relative to FP when FP has its caller's value again. A caller whose row is not based on
    FP can be found all the same.
    """
    return None if isinstance(value, Ending) else value


def cfa_of(caller: Frame, arch: Arch) -> int:
    """Return the CFA of a frame whose caller is known."""
    return (caller.sp - arch.sp_offset_from_cfa) & ADDRESS_MASK


def strip_pac(address: int, pac_mask: int) -> int:
    """Remove a pointer authentication code: its bits become copies of bit 55 (user space: 0, kernel: 1)."""
    return address | pac_mask if address >> 55 & 1 else address & ~pac_mask


def _return_address(state: FrameState, cfa: int, frame: Frame, read_memory: ReadMemory, arch: Arch) -> int | Ending:
    if state.ra is not None:
        return _value(state.ra, cfa, frame, read_memory, arch, "RA")
    if frame.ra is None:
        name = arch.register_name(arch.ra_register)
        return Ending("ra-not-saved", f"RA is in {name}, whose value is known in the topmost frame only")
    return frame.ra


def _value(rule: Rule, cfa: int, frame: Frame, read_memory: ReadMemory, arch: Arch, what: str) -> int | Ending:
    """Evaluate a rule. The base is a register's value in this frame, or the CFA."""
    base: int | None = cfa
    if rule.register is not None:
        base = _register(rule.register, frame, arch)
        if base is None:
            name = arch.register_name(rule.register)
            return Ending("unknown-register", f"{what} needs {name}, whose value in this frame is not known")
    address = (base + rule.offset) & ADDRESS_MASK if base is not None else 0
    if not rule.deref:
        return address
    data = read_memory(address, _WORD_SIZE)
    if data is None:
        return Ending("unreadable-memory", f"{what} is saved at 0x{address:x}, which cannot be read")
    return int.from_bytes(data, "little" if arch.byte_order == "<" else "big")


def _register(number: int, frame: Frame, arch: Arch) -> int | None:
    if number == arch.sp_register:
        return frame.sp
    if number == arch.fp_register:
        return frame.fp
    if number == arch.ra_register:
        # AMD64's column 16 is no register but the return address itself; no row can be based on it.
        return frame.ra
    return frame.registers.get(number)
