# SPDX-License-Identifier: Apache-2.0
"""What the instructions of s390x do to a frame (z/Architecture Principles of Operation), from capstone's text.

The ABI (ELF ABI s390x supplement, 1.2): the caller leaves 160 bytes at SP in which the callee saves registers, so that
the CFA is SP + 160 at a function's entry; r14 is the RA, r11 the frame pointer by custom. Leaf functions may save
general registers in floating point registers, which have DWARF's numbers 16 to 31 here.

An instruction that no table here names changes each register that its text names outside of an address, the second of
the pair where that may be the first of one, the registers 0 to 2, and the condition code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cfi2sframe.code.effects import NO_EFFECT, CodeArch, Effect, Flow
from cfi2sframe.code.s390x import flow, undecoded, values
from cfi2sframe.code.s390x.names import (
    COMPARES,
    CONDITIONS,
    EXECUTED,
    FIRST_AND_FLAGS,
    FIRST_ONLY,
    FLAGS_ONLY,
    MOVES,
    MOVES_AND_FLAGS,
    NAMED,
    NAMED_PAIRS,
    PAIR,
    PAIR_SWAP_SIZES,
    READS_ONLY,
    STORE_SIZES,
    SWAP_SIZES,
    UNKNOWN,
    UPDATE_SIZES,
    with_conditions,
)
from cfi2sframe.code.s390x.steps import (
    FLAGS,
    FP,
    RA,
    SP,
    WORD,
    default,
    first,
    first_and_flags,
    implicit,
    named,
    named_pairs,
    pair,
)
from cfi2sframe.code.s390x.text import FLOATS, S390xText, parse

if TYPE_CHECKING:
    from collections.abc import Callable

#: What the ABI lets a called function change: r0 to r5 and r14, and f0 to f7.
_CLOBBERED: Final = frozenset({0, 1, 2, 3, 4, 5, RA, *FLOATS[:8]})
#: The mnemonic of what capstone does not know; its operands are bytes.
_UNDECODED: Final = ".byte"
_FLAGS_ONLY_EFFECT: Final = Effect((FLAGS,))
#: What has the address of the next instruction, or of something at a distance, or may lead into the midst of itself.
_DEPENDING: Final = frozenset(
    {"larl", "brasl", "bras", "basr", "balr", "bas", "bal", "j", "jg", "brc", "brcl", "brct", "brctg", "brcth"}
    | {"brxh", "brxle", "brxhg", "brxlg", *with_conditions("j", "jg", *(f"{stem}j" for stem in COMPARES))}
)


_HANDLERS: Final[dict[str, Callable[[S390xText], Effect | None]]] = {
    **dict.fromkeys(READS_ONLY, lambda _text: NO_EFFECT),
    **dict.fromkeys(FLAGS_ONLY, lambda _text: _FLAGS_ONLY_EFFECT),
    **dict.fromkeys(FIRST_ONLY, first),
    **dict.fromkeys(FIRST_AND_FLAGS, first_and_flags),
    **dict.fromkeys(PAIR, pair),
    **dict.fromkeys(NAMED, named),
    **dict.fromkeys(NAMED_PAIRS, named_pairs),
    **dict.fromkeys(UNKNOWN, lambda _text: None),
    **{name: values.stores(size, place) for name, (size, place) in STORE_SIZES.items()},
    **{name: values.updates(size) for name, size in UPDATE_SIZES.items()},
    **{name: values.swaps(size) for name, size in SWAP_SIZES.items()},
    **{name: values.swaps(size, is_pair=True) for name, size in PAIR_SWAP_SIZES.items()},
    **dict.fromkeys(MOVES, values.moves),
    **dict.fromkeys(MOVES_AND_FLAGS, values.moves_and_flags),
    # Copies and sums
    **dict.fromkeys(("lgr", "ldgr", "lgdr", "ldr"), values.copies()),
    "llgfr": values.copies(4),
    "lgfr": values.copies(4, is_signed=True),
    "ltgfr": values.copies(4, is_signed=True, sets_flags=True),
    "ltgr": values.copies(sets_flags=True),
    **dict.fromkeys(("lghi", "lgfi"), values.constants(0, is_signed=True)),
    **dict.fromkeys(("llill", "llilf"), values.constants(0)),
    "llilh": values.constants(16),
    **dict.fromkeys(("llihl", "llihf"), values.constants(32)),
    "llihh": values.constants(48),
    "larl": values.larl,
    **dict.fromkeys(("la", "lay", "lae", "laey"), values.la),
    **dict.fromkeys(("aghi", "agfi", "aghik", "algfi", "alghsik"), values.adds_number()),
    "slgfi": values.adds_number(-1),
    **dict.fromkeys(("agr", "agrk", "algr", "algrk"), values.adds_register),
    "ag": values.adds_memory(8),
    "agf": values.adds_memory(4),
    **dict.fromkeys(("llgc", "llgcr"), values.short_limit(0xFF)),
    **dict.fromkeys(("llgh", "llghr", "llghrl"), values.short_limit(0xFFFF)),
    "sllg": values.shifts_left,
    **dict.fromkeys(("risbg", "risbgn"), values.rotates_and_selects),
    # Loads and stores
    **dict.fromkeys(("lg", "lgat", "ld", "ldy"), values.loads()),
    "ltg": values.loads(sets_flags=True),
    "lgf": values.loads(4, is_signed=True),
    "llgf": values.loads(4),
    "lgh": values.loads(2, is_signed=True),
    "lgrl": values.loads_relative(8),
    "lgfrl": values.loads_relative(4, is_signed=True),
    "llgfrl": values.loads_relative(4),
    "lmg": values.loads_many,
    **dict.fromkeys(("lm", "lmy", "lmh", "lmd"), values.loads_many_halves),
    "vlm": values.loads_vectors,
    **dict.fromkeys(("stg", "std", "stdy"), values.stores(WORD, follows_source=True)),
    "stmg": values.stores_many,
    **dict.fromkeys(("stm", "stmy", "stmh", "stam", "stamy", "stctl"), values.stores_range(4)),
    "stctg": values.stores_range(8),
    "vstm": values.stores_range(16),
    **dict.fromkeys(("czdt", "czxt", "cpdt", "cpxt"), values.stores_zoned),
    # Comparisons
    **dict.fromkeys(("cgr", "cghi", "cgfi"), flow.compares(WORD, is_signed=True)),
    **dict.fromkeys(("cr", "chi", "cfi"), flow.compares(4, is_signed=True)),
    **dict.fromkeys(("clgr", "clgfi"), flow.compares(WORD, is_signed=False)),
    **dict.fromkeys(("clr", "clfi"), flow.compares(4, is_signed=False)),
    # Flow
    **dict.fromkeys(("nop", "nopr", "jnop", "jgnop"), lambda _text: flow.PADDING),
    **dict.fromkeys(("j", "jg", "jlu"), flow.jump),
    **dict.fromkeys(("b", "br"), flow.jump_indirect),
    **dict.fromkeys(("brc", "brcl", "bc", "bcr"), flow.conditional),
    **dict.fromkeys(("brasl", "bras"), flow.call),
    **dict.fromkeys(("basr", "balr", "bas", "bal"), flow.call_indirect),
    **dict.fromkeys(("brct", "brcth", "bct", "bctr"), flow.counts(None)),
    **dict.fromkeys(("brctg", "bctg", "bctgr"), flow.counts(-1)),
    **dict.fromkeys(("brxh", "brxle", "brxhg", "brxlg", "bxh", "bxle", "bxhg", "bxleg"), flow.indexes),
    **{stem + suffix: flow.on_condition(condition) for suffix, condition in CONDITIONS.items() for stem in ("j", "jg")},
    **{f"b{suffix}": flow.on_condition_indirect(condition) for suffix, condition in CONDITIONS.items()},
    **{f"b{suffix}r": flow.on_condition_indirect(condition) for suffix, condition in CONDITIONS.items()},
    **flow.compares_and_branches(),
    "bi": flow.jump_to_loaded,
    **{f"bi{suffix}": flow.branch_to_loaded(condition) for suffix, condition in CONDITIONS.items()},
    "svc": flow.svc,
    "exrl": flow.exrl,
    **dict.fromkeys(("tbegin", "tbeginc"), flow.tbegin),
    # Registers that the text does not name
    **dict.fromkeys(("trt", "trtr"), implicit(1, 2)),
    "cfc": implicit(1, 2, 3),
    "upt": implicit(*range(6)),
    "pfpo": implicit(1, *FLOATS),
    "edmk": values.moves_and_changes(1),
    "stfle": values.moves_and_changes(0),
}


def effect_of(address: int, size: int, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`CodeArch.effect_of`)."""
    if mnemonic == _UNDECODED:
        found = undecoded.read(address, operands)
        if found is None:
            return None
        mnemonic, operands = found
    return _HANDLERS.get(mnemonic, default)(parse(address, size, mnemonic, operands))


def effect_of_executed(executing: str, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of the instruction that `exrl` executes (`CodeArch.effect_of_executed`).

    Its second byte is changed: by the last byte of the first operand of `exrl`, unless that is r0. For instructions on
    storage that byte is a length, of which the text has the least, or a number.
    """
    is_unmodified = executing.startswith(("%r0,", "0,"))
    if not is_unmodified and mnemonic not in EXECUTED:
        return None
    effect = effect_of(0, 0, mnemonic, operands)
    if effect is None or effect.target is not None:
        return None
    return effect if effect.flow in (Flow.NEXT, Flow.JUMP_INDIRECT, Flow.RETURN) else None


def depends_on_address(mnemonic: str, operands: str) -> bool:
    """Whether equal texts at other addresses may have other effects (`CodeArch.depends_on_address`)."""
    del operands
    return mnemonic in _DEPENDING or mnemonic == _UNDECODED


def prepare(disassembler: Any) -> None:  # noqa: ANN401 - capstone has no types
    """Make a disassembler pass over what it does not know (`CodeArch.prepare`)."""
    disassembler.skipdata_setup = (_UNDECODED, undecoded.skip, None)
    disassembler.skipdata = True


S390X_CODE: Final = CodeArch(
    sp_register=SP,
    fp_register=FP,
    ra_register=RA,
    entry_sp_offset=-160,
    ra_slot=None,
    call_clobbered=_CLOBBERED,
    red_zone=0,
    alignment=2,
    system_call_register=1,
    last_system_calls=frozenset({1, 119, 173, 248}),
    sigreturn_calls=frozenset({119, 173}),
    clone_calls=frozenset({120, 435}),
    entry_marks=(),
    jump_marks=(),
    effect_of=effect_of,
    depends_on_address=depends_on_address,
    prepare=prepare,
    effect_of_executed=effect_of_executed,
)
