# SPDX-License-Identifier: Apache-2.0
"""The effects of AArch64's instructions on a frame (Arm Architecture Reference Manual, ARM DDI 0487, part C).

A pointer authentication code is no part of a value: instructions that sign or authenticate the RA only change
RA_SIGN_STATE. An instruction that is in no table changes its first operand; with an operand in memory, it changes each
register that it names outside of the address, and up to 64 bytes there.
"""

import re
import struct
from collections.abc import Iterator
from typing import Final

from cfi2sframe.abi import AARCH64_LE
from cfi2sframe.instructions.effects import (
    BETWEEN,
    JUMP,
    NO_EFFECT,
    NOTHING,
    PADDING,
    RA_SIGN_STATE,
    Abi,
    Effect,
    Flow,
    Op,
    Step,
    Storage,
    address_in,
    bits,
    forget,
    number,
    words,
)

SP: Final = 31
FP: Final = 29
RA: Final = 30
_SYSTEM_CALL: Final = 8

#: General registers: DWARF's number, or `NOTHING` for the zero register, and the bytes that a name stands for.
_REGISTERS: Final[dict[str, tuple[int, int]]] = {
    **{f"x{n}": (n, 8) for n in range(31)},
    **{f"w{n}": (n, 4) for n in range(31)},
    "sp": (SP, 8),
    "wsp": (SP, 4),
    "xzr": (NOTHING, 8),
    "wzr": (NOTHING, 4),
}
_NONE: Final = (NOTHING, 0)
#: Bytes of a register by the first letter of its name; others, such as those of SVE, may have 256.
_SIZES: Final = {"x": 8, "w": 4, "b": 1, "h": 2, "s": 4, "d": 8, "q": 16}
_LARGEST: Final = 64
_SVE_SIZE: Final = 4 * 256
#: Loads and stores of a register or of a part of one, or of two registers.
_LOAD: Final = re.compile(r"ld(?:u|t|a|x|ax|ap|apu|la)?r(s?[bhw])?|ld(?:n|x|ax|t|tn|iap)?p|ldp(sw)")
_STORE: Final = re.compile(r"st(?:u|t|l|ll|lu)?r([bh])?|st(?:n|g|t|tn|il)?p")
_NO_STORE: Final = re.compile(r"ld[1-4]\w*|ldff1\w*|ldn[ft]1\w*|ld[rn]?p?|ldg|r?pr?fu?m|prf[bhwd]")
#: Instructions that only read their first operand.
_READS_ONLY: Final = words(
    "cmp cmn tst ccmp ccmn cmpp rmif setf8 setf16 ctermeq ctermne wfet wfit gcspushm gcsss1 prfm prfum rprfm"
)
#: Instructions that leave for another exception level, or go back to the start of a transaction.
_UNKNOWN: Final = words("eret eretaa eretab drps dcps1 dcps2 dcps3 tstart tcommit tcancel")
#: The highest byte of ADR and ADRP, of B and BL.
_REFERRING: Final = re.compile(rb"[\x10\x30\x50\x70\x90\xb0\xd0\xf0\x14-\x17\x94-\x97]")
#: Instructions after ADRP among which its ADD is searched.
_ADD_DISTANCE: Final = 4
_WORD: Final = struct.Struct("<I")
_BRANCH: Final = re.compile(r"bc?\.\w+|cb\w*|tbn?z")
#: CPYFP, SETGM and the like (FEAT_MOPS), which count in their registers.
_MEMORY_COPY: Final = re.compile(r"(?:cpyf?|setg?)[pme](?:w|r|t|n)*")


def _signed(key: int) -> Effect:
    return Effect((Step(Op.NUMBER, RA_SIGN_STATE, offset=key),))


_RETURN: Final = Effect((Step(Op.MOVE, JUMP, RA),), Flow.RETURN)
_AUTHENTICATED_RETURN: Final = Effect((*_signed(0).steps, *_RETURN.steps), Flow.RETURN)
_UNSIGNED: Final = Effect(forget(RA, RA_SIGN_STATE))
_EFFECTS: Final[dict[str, Effect]] = {
    "nop": PADDING,
    **dict.fromkeys(("paciasp", "paciaz"), _signed(1)),
    **dict.fromkeys(("pacibsp", "pacibz"), _signed(2)),
    **dict.fromkeys(("autiasp", "autiaz", "autibsp", "autibz"), _signed(0)),
    **dict.fromkeys(("retaa", "retab"), _AUTHENTICATED_RETURN),
    # The PC takes part in these signatures (FEAT_PAuth_LR), which RA_SIGN_STATE cannot tell.
    **dict.fromkeys(("paciasppc", "pacibsppc", "pacnbiasppc", "pacnbibsppc"), _UNSIGNED),
    **dict.fromkeys(("autiasppc", "autibsppc", "autiasppcr", "autibsppcr"), _UNSIGNED),
    **dict.fromkeys(words("pacia1716 pacib1716 autia1716 autib1716"), Effect(forget(17))),
    **dict.fromkeys(words("pacia171615 pacib171615 autia171615 autib171615"), Effect(forget(17))),
    # Linux's system calls change x0 only; SMCCC allows firmware to change x0 to x17.
    "svc": Effect((Step(Op.MOVE, JUMP, _SYSTEM_CALL), *forget(0)), Flow.SYSTEM_CALL),
    **dict.fromkeys(("hvc", "smc"), Effect(forget(*range(18)))),
    "ld64b": Effect(forget(*range(8))),
    **dict.fromkeys(("brk", "hlt"), Effect(flow=Flow.STOP)),
}
_HINTS: Final = {
    0: PADDING,
    **dict.fromkeys((8, 10, 12, 14), Effect(forget(17))),
    **dict.fromkeys((24, 25), _signed(1)),
    **dict.fromkeys((26, 27), _signed(2)),
    **dict.fromkeys((28, 29, 30, 31), _signed(0)),
    40: Effect(forget(16)),
}
#: Instructions that sign or authenticate the RA or another pointer: the key, 0 for none.
_SIGNING: Final = {
    **dict.fromkeys(("pacia", "paciza"), 1),
    **dict.fromkeys(("pacib", "pacizb"), 2),
    **dict.fromkeys(("autia", "autiza", "autib", "autizb"), 0),
}


def effect_of(_address: int, _size: int, name: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`Abi.effect_of`)."""
    if name in _EFFECTS:
        return _EFFECTS[name]
    if name in _READS_ONLY:
        return NO_EFFECT
    if name in _UNKNOWN:
        return None
    start = operands.rfind("[")
    # A lane of a vector has its number in brackets, too.
    if start < 0 or (start and operands[start - 2 : start] != ", "):
        return _without_memory(name, operands.split(", ") if operands else [])
    end = operands.find("]", start)
    before = operands[: start - 2].split(", ") if start else []
    if _MEMORY_COPY.fullmatch(name):
        return Effect(forget(*(int(n) for n in re.findall(r"\bx([0-9]+)", operands))))
    return _with_memory(name, before, operands[start + 1 : end].split(", "), operands[end + 1 :])


def _register(ops: list[str], place: int) -> tuple[int, int]:
    """Return an operand's general register and its size; `NOTHING` for any other operand."""
    return _REGISTERS.get(ops[place], _NONE) if place < len(ops) else _NONE


def _without_memory(name: str, ops: list[str]) -> Effect | None:
    """Return the effect of an instruction without an operand in memory."""
    flow = _flow(name, ops)
    if flow is not None:
        return flow
    register, size = _register(ops, 0)
    if name in ("hint", "udf"):
        stop = Effect(flow=Flow.STOP, is_padding=number(ops[0]) == 0)
        return stop if name == "udf" else _HINTS.get(number(ops[0]) or 0, NO_EFFECT)
    if name in _SIGNING and ops[0] == "x30" and ops[1:] in (["sp"], []):
        return _signed(_SIGNING[name])
    if name == "xpaci" and ops[0] == "x30":
        return NO_EFFECT
    if name == "mrrs":
        return Effect(forget(register, _register(ops, 1)[0]))
    return NO_EFFECT if register == NOTHING else _computed(name, ops, register, size)


def _computed(name: str, ops: list[str], register: int, size: int) -> Effect | None:
    """Return the effect of an instruction that gives its first operand a value."""
    steps = _value(name, ops, register, size)
    if steps is not None:
        return Effect(steps)
    if register == SP:
        # An alignment, or an allocation.
        return Effect((Step(Op.MOVE_FRAME, SP),)) if name in ("and", "add", "sub", "addvl", "addpl") else None
    if name == "and" and size == 8:
        # An alignment in another register.
        return Effect((Step(Op.MOVE, register, _register(ops, 1)[0]), Step(Op.MOVE_FRAME, register)))
    return Effect(forget(register))


def _flow(name: str, ops: list[str]) -> Effect | None:
    """Return the effect of a jump, a branch, a call or a return; None for any other instruction."""
    if name in ("b", "bl", "b.al", "b.nv"):
        target = address_in(ops[0])
        return None if target is None else Effect((), Flow.CALL if name == "bl" else Flow.JUMP, target)
    if name.startswith("ret") and name != "ret":
        return Effect(forget(JUMP), Flow.RETURN)
    if name in ("ret", "br", "blr"):
        register = _register(ops, 0)[0] if ops else RA
        flow = {"ret": Flow.RETURN, "br": Flow.JUMP_INDIRECT, "blr": Flow.CALL}[name]
        return Effect((Step(Op.MOVE, JUMP, register),), flow)
    if name.startswith("blr"):
        return Effect((), Flow.CALL)
    if name.startswith("bra"):
        return Effect(forget(JUMP), Flow.JUMP_INDIRECT)
    if _BRANCH.fullmatch(name):
        target = address_in(ops[-1])
        equal = {"b.eq": True, "b.ne": False}.get(name)
        return None if target is None else Effect((), Flow.BRANCH, target, equal)
    return None


def _value(name: str, ops: list[str], register: int, size: int) -> tuple[Step, ...] | None:
    """Return the steps of an instruction that gives a register a value that is followed; None for any other."""
    source, source_size = _register(ops, 1)
    value = number(ops[-1].removeprefix("lsl ")) if len(ops) > 1 else None
    if size < 8:
        is_number = name == "mov" and len(ops) == 2 and value is not None and register != SP
        return (Step(Op.NUMBER, register, offset=(value or 0) & 0xFFFFFFFF),) if is_number else None
    if name in ("mov", "movz", "orr") and len(ops) == 2:
        if source != NOTHING and source_size == 8:
            return (Step(Op.MOVE, register, source),)
        if ops[1] == "xzr":
            return (Step(Op.NUMBER, register),)
        return None if value is None else (Step(Op.NUMBER, register, offset=value),)
    if name == "movz" and len(ops) == 3 and value is not None:
        return (Step(Op.NUMBER, register, offset=(number(ops[1]) or 0) << value),)
    if name in ("adr", "adrp") and (vaddr := address_in(ops[-1])) is not None:
        # A page alone is no address of code or data.
        return (Step(Op.NUMBER, register, offset=vaddr, size=8 if name == "adr" else 1),)
    if name in ("add", "sub", "adds", "subs") and source != NOTHING and len(ops) > 2:
        return _sum(ops, register, source, -1 if name.startswith("sub") else 1)
    return None


def _sum(ops: list[str], register: int, source: int, sign: int) -> tuple[Step, ...] | None:
    """Return the steps of a sum of any form, whose last operand may be extended and shifted."""
    kind, _, amount = ops[3].partition(" ") if len(ops) > 3 else ("", "", "")
    shift = number(amount) or 0
    value = number(ops[2])
    if value is not None:
        return (Step(Op.MOVE, register, source, sign * (value << shift)),)
    addend, size = _register(ops, 2)
    if addend == NOTHING or kind not in ("", "lsl", "uxtb", "uxth", "uxtw", "uxtx", "sxtb", "sxth", "sxtw", "sxtx"):
        return None
    size = _SIZES[kind[-1]] if kind[1:3] == "xt" else size
    step = Step(Op.ADD, register, addend, 0, size, scale=sign << shift, is_signed=size < 8 and kind[:1] == "s")
    if register == source:
        return (step,)
    if register != addend:
        return (Step(Op.MOVE, register, source), step)
    return (Step(Op.MOVE, BETWEEN, addend), Step(Op.MOVE, register, source), step._replace(source=BETWEEN))


def _with_memory(name: str, ops: list[str], inside: list[str], after: str) -> Effect | None:
    """Return the effect of an instruction with an operand in memory, from the text in brackets, and after these."""
    memory = _storage(inside)
    back = _written_back(memory, after)
    registers = [_register(ops, place)[0] for place in range(len(ops))]
    if (load := _LOAD.fullmatch(name)) is not None:
        return Effect((*_loads(ops, memory, load[1] or load[2] or ""), *back))
    if (store := _STORE.fullmatch(name)) is not None:
        sources = [NOTHING if register == memory.base and back else register for register in registers]
        return Effect((*_stores(ops, sources, memory, store[1] or ""), *back))
    if name in ("ldraa", "ldrab"):
        # The base becomes the sum with the authenticated address, or one that faults.
        return Effect(forget(registers[0], memory.base if back else NOTHING))
    size = _SVE_SIZE if ops and ops[0].lstrip("{")[:1] in ("z", "p") else _LARGEST
    stored = () if _NO_STORE.fullmatch(name) else memory.stored(size)
    if name.startswith("st"):
        # Only these write a register: whether they have stored.
        registers = registers[:1] if name.startswith(("stx", "stlx", "st64bv")) else []
    return Effect((*stored, *forget(*registers), *back))


def _storage(inside: list[str]) -> Storage:
    """Return the operand in memory in brackets: a base and, perhaps, a number or another register."""
    base = _register(inside, 0)[0]
    offset = 0 if len(inside) == 1 else number(inside[1]) if inside[-1] != "mul vl" else None
    index = NOTHING if offset is not None else _register(inside, 1)[0]
    is_known = index != NOTHING or (base != NOTHING and offset is not None)
    return Storage(base, index, offset or 0, _LARGEST, is_known=is_known)


def _written_back(memory: Storage, after: str) -> tuple[Step, ...]:
    """Return the step that moves the base: by the number in brackets before `!`, or by an operand after these."""
    base, moved = memory.base, number(after[2:]) if after[:2] == ", " else 0
    if after[:1] == "!":
        moved = memory.offset if memory.is_known and memory.index == NOTHING else None
    if base == NOTHING or moved == 0:
        return ()
    if moved is None:
        return (Step(Op.MOVE_FRAME, SP),) if base == SP else forget(base)
    return (Step(Op.MOVE, base, base, moved),)


def _loads(ops: list[str], memory: Storage, part: str) -> list[Step]:
    """Return the loads of registers, one after the other; the base is loaded last, as the others need it."""
    steps: list[Step] = []
    for place, text in enumerate(ops):
        register, full = _REGISTERS.get(text, _NONE)
        size = _SIZES.get(part[-1:] or text[:1], 16)
        if register != NOTHING:
            is_followed = memory.index != NOTHING or (len(ops) == 1 and size < 8) or size == full == 8
            at = memory._replace(offset=memory.offset + place * size)
            load = at.loaded(register, size, is_signed=part[:1] == "s")
            step = load if is_followed else Step(Op.FORGET, register)
            steps = [*steps, step] if register == memory.base else [step, *steps]
    return steps


def _stores(ops: list[str], sources: list[int], memory: Storage, part: str) -> list[Step]:
    """Return the stores of registers, one after the other, where the address is plain."""
    steps: list[Step] = []
    offset = memory.offset
    for text, source in zip(ops, sources, strict=False):
        # Registers of SVE may have 256 bytes.
        size = _SIZES.get(part or text[:1], 256) if text not in ("sp", "wsp") else 8
        is_whole = size == 8 and text[:1] == "x"
        steps += memory._replace(offset=offset).stored(size, source if is_whole else NOTHING)
        offset += size
    return steps


def _references(data: bytes, vaddr: int, _is_fixed: bool) -> Iterator[tuple[int, int]]:  # noqa: FBT001
    """Yield the addresses to which instructions refer (`Abi.references`): little-endian for both byte orders."""
    for match in _REFERRING.finditer(data[3::4]):
        offset = 4 * match.start()
        word, at = _WORD.unpack_from(data, offset)[0], vaddr + offset
        if word & 0x7C000000 == 0x14000000:
            yield at, at + 4 * ((word & 0x3FFFFFF ^ 0x2000000) - 0x2000000)
            continue
        immediate = (word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3
        distance = (immediate ^ 0x100000) - 0x100000
        if word >> 31 == 0:
            yield at, at + distance
            continue
        page = (at >> 12) + distance << 12
        for following_offset in range(offset + 4, min(offset + 4 * _ADD_DISTANCE, len(data) - 4) + 1, 4):
            following = _WORD.unpack_from(data, following_offset)[0]
            # add x, x, #number, where the second x is that of adrp.
            if following & 0xFFC00000 == 0x91000000 and following >> 5 & 31 == word & 31:
                yield at, page + (following >> 10 & 0xFFF)


ABI: Final = Abi(
    arch=AARCH64_LE,
    # AAPCS64, 6.1.1; x18 belongs to the platform.
    clobbered=bits((*range(19), RA)),
    callee_area=0,
    red_zone=0,
    # exit, exit_group, rt_sigreturn, clone, clone3 (asm-generic/unistd.h)
    last_calls=frozenset({93, 94, 139, 220, 435}),
    effect_of=effect_of,
    references=_references,
    # Instructions are little-endian, whatever data is. Texts have addresses, not distances.
    disassembler=("CS_ARCH_AARCH64", "CS_ARCH_ARM64", "CS_MODE_LITTLE_ENDIAN"),
)
