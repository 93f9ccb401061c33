# SPDX-License-Identifier: Apache-2.0
"""What the instructions of s390x stubs do to the frame: nothing, as long as stores stay in the caller's save area."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.plt.stub_model import Block, Effect, Flow, StubArch

if TYPE_CHECKING:
    from typing import Any

_SP: Final = 15
#: FP, RA and SP of the caller.
_FRAME_REGISTERS: Final = (11, 14, 15)
#: The low four bits of operation codes whose first byte is 0xC0.
_LARL: Final = 0
_LGFI: Final = 1
#: The caller's register save area, which a callee may write to; the slots of r6 to r15 start at 48.
_SAVE_AREA_SIZE: Final = 160


def open_disassembler() -> Any:  # noqa: ANN401 - capstone has no types
    """Return capstone's disassembler for s390x."""
    import capstone

    # Renamed in capstone 6.
    arch = getattr(capstone, "CS_ARCH_SYSTEMZ", None) or capstone.CS_ARCH_SYSZ
    return capstone.Cs(arch, capstone.CS_MODE_BIG_ENDIAN)


def understand(insn: Any, offset: int, data: bytes) -> tuple[Effect, bytes] | None:  # noqa: ANN401
    """Return an instruction's effect and the mask of its constant bits, or None when the effect is not known."""
    code = data[offset : offset + insn.size]
    effect = _understand(code, offset)
    if effect is None:
        return None
    has_constant = code[0] == 0xC0
    return effect, b"\xff\xff\0\0\0\0" if has_constant else b"\xff" * len(code)


def _understand(code: bytes, offset: int) -> Effect | None:
    register, low = code[1] >> 4, code[1] & 0xF
    match code[0], len(code):
        case 0x07, 2:  # BCR: mask 15 jumps (not by r0, which means no jump), mask 0 does nothing
            if register == 15 and low:
                return Effect(Flow.LEAVE)
            return Effect(is_padding=True) if register == 0 else None
        case 0x0D, 2:  # BASR without a branch loads the address of the next instruction
            return Effect() if low == 0 and register not in _FRAME_REGISTERS else None
        case 0xC0, 6 if low in (_LARL, _LGFI):
            return Effect() if register not in _FRAME_REGISTERS else None
        case 0xC0, 6 if code[1] == 0xF4:  # BRCL with mask 15: JG
            return Effect(Flow.JUMP, target_delta=branch_delta(code, 0, 6) + offset)
        case 0xE3, 6 if code[5] in (0x04, 0x14):  # LG, LGF
            return Effect() if register not in _FRAME_REGISTERS else None
        case 0xE3, 6 if code[5] == 0x24:  # STG
            return _store(code[2] >> 4, (code[2] & 0xF) << 8 | code[3] | code[4] << 12, 8, low)
        case 0xD2, 6:  # MVC
            return _store(code[2] >> 4, (code[2] & 0xF) << 8 | code[3], code[1] + 1, 0)
    return None


def _store(base: int, displacement: int, size: int, index: int) -> Effect | None:
    """Return the effect of a store into the caller's save area, which changes no frame; None for any other store."""
    if base != _SP or index or displacement + size > _SAVE_AREA_SIZE:
        return None
    return Effect()


def branch_delta(data: bytes, offset: int, _size: int) -> int:
    """Return the target of the `jg` (or `larl`) at `offset`, counted from the start of `data`."""
    return offset + 2 * int.from_bytes(data[offset + 2 : offset + 6], "big", signed=True)


def words_read(kind: Block, data: bytes, start_vaddr: int) -> frozenset[int]:
    """Return the addresses that a block at `start_vaddr` computes by LARL, and loads from."""
    return frozenset(
        start_vaddr + branch_delta(data, insn.offset, insn.size)
        for insn in kind.instructions
        if data[insn.offset] == 0xC0 and data[insn.offset + 1] & 0xF == _LARL
    )


S390X_STUBS: Final = StubArch(
    open_disassembler,
    understand,
    branch_delta,
    words_read,
    block_sizes=(16, 32),
    header_sizes=(0, 32),
    tail_sizes=(0,),
    # The offset of the stub's relocation, which its second half loads.
    literal_size=4,
)
