# SPDX-License-Identifier: Apache-2.0
"""What an instruction does to the frame of a stub, from its effect on registers and memory (`code/`).

A stub moves SP by words, saves the RA in what it pushes, and leaves FP alone. An instruction that does anything else to
them, or stores where a caller's frame may be, has no effect here. Effects do not tell of stores at an index; the tables
of the ABIs leave such instructions out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.code.effects import Effect, Flow, Op
from cfi2sframe.plt.stub_model import ENDS_FLOW, StubEffect

if TYPE_CHECKING:
    from cfi2sframe.plt.stub_model import DecodedInstruction, StubArch

_WORD_SIZE: Final = 8
_FLOWS: Final = ENDS_FLOW | {Flow.NEXT, Flow.CALL}
_ADDRESS_BITS: Final = 64


def understand(stubs: StubArch, insn: DecodedInstruction, data: bytes) -> tuple[StubEffect, bytes] | None:
    """Return the effect of an instruction of a block, and the mask of its constant bits; None when it is not known.

    `data` are the bytes of the block.
    """
    offset, size, mnemonic, operands = insn
    mask = stubs.constant_bits(mnemonic, operands, data[offset : offset + size])
    if mask is None:
        return None
    known = stubs.code.effect_of(offset, size, mnemonic, operands)
    effect = None if known is None else _stub_effect(stubs, known)
    return None if effect is None else (effect, mask)


def _stub_effect(stubs: StubArch, effect: Effect) -> StubEffect | None:
    if effect.flow not in _FLOWS or effect.popped:
        return None
    code = stubs.code
    sp = code.sp_register
    push_size = 0
    stores = []
    for step in effect.steps:
        if step.op is Op.STORE:
            if step.register != sp:
                return None
            # From where SP was before.
            stores.append((step.offset - push_size, step.size, step.source))
        elif step.op is Op.MOVE and step.register == step.source == sp and step.size == _WORD_SIZE:
            push_size -= step.offset
        elif step.register in (sp, code.fp_register, code.ra_register):
            return None
    if push_size % _WORD_SIZE:
        # It would split the words that the analysis follows.
        return None
    ra_at: int | None = None
    overwrites_top = False
    for offset, size, source in stores:
        if -push_size <= offset <= -size:
            if source == code.ra_register:
                ra_at = offset + push_size
        elif offset == push_size == 0 and size == _WORD_SIZE and not stubs.save_area_size:
            overwrites_top = True
        elif not 0 <= offset <= stubs.save_area_size - size:
            return None
    delta = None if effect.target is None else _as_signed(effect.target)
    return StubEffect(effect.flow, push_size, ra_at, overwrites_top, effect.is_padding, delta)


def _as_signed(address: int) -> int:
    """Return an address below 0, which is written modulo 2**64, as it is."""
    sign = 1 << _ADDRESS_BITS - 1
    return (address & 2 * sign - 1 ^ sign) - sign
