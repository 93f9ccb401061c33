# SPDX-License-Identifier: Apache-2.0
"""The effects of s390x's instructions on a frame (z/Architecture Principles of Operation), from capstone's text.

The ABI (ELF ABI s390x supplement, 1.2): the caller leaves 160 bytes at SP in which the callee saves registers, and the
CFA is SP + 160 at a function's entry; r14 is the RA, r11 the frame pointer by custom. Leaf functions may save general
registers in floating point registers, which have DWARF's numbers 16 to 31.

An instruction that is in no table changes its first operand and, where that begins a number of 128 bits, the register
after it.
"""

import re
from collections.abc import Callable, Iterator
from typing import Final

from cfi2sframe.abi import S390X
from cfi2sframe.instructions.effects import (
    BETWEEN,
    JUMP,
    NO_EFFECT,
    NOTHING,
    PADDING,
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
    sizes,
    words,
)
from cfi2sframe.instructions.s390x_text import F0, FLOATS, S390xText
from cfi2sframe.range_map import ADDRESS_MASK

SP: Final = 15
RA: Final = 14
#: Compilers trap by a jump to its own second halfword, where no instruction is.
_TRAP_DISTANCE: Final = 2
#: Conditions as mnemonics spell them.
_CONDITION: Final = "nlh|nhe|nle|ne|nz|nh|nl|nm|np|no|lh|he|le|e|z|h|p|l|m|o"
_COMPARE_AND_BRANCH: Final = re.compile(rf"c(l?g?)([ri])([jb])({_CONDITION})?")
_JUMP_IF: Final = re.compile(rf"jg?({_CONDITION})|brcl?")
_BRANCH_IF: Final = re.compile(rf"b({_CONDITION})r?|bcr?")
_EQUAL: Final = {"e": True, "z": True, "nlh": True, "ne": False, "nz": False, "lh": False}
_COUNTS: Final = re.compile(r"b(r?)(ct|x)[hgler]*")
#: Instructions that leave for another mode, space or program, execute an instruction at an address in a register, or
#: change registers that their text does not have. Names that begin with "b" or "j" and are in no table count as such.
_UNKNOWN: Final = words(
    "ex sam24 sam31 ereg eregg pc pr pt pti trap2 trap4 lpsw lpswe lpswey rp sie sac sacf diag lctl lctlg tabort"
    " tbeginc cfc ectg upt"
)
#: Comparisons, of which some trap.
_COMPARISON: Final = re.compile(
    rf"c(lc|p|l?g?[hf]{{0,2}}(r|y|i|ih|iy|hr|lr|rl|si|m[hy]?)?(t({_CONDITION})?)?)|tm(y|[lh][lh]?)?"
)
#: Other instructions that only read their operands.
_READS_ONLY: Final = words("pfd tp sfpc lfpc lfas srnm srnmb srnmt stgrl strl sthrl spm sar bpp bprp")
#: Pairs of registers, which begin with the first operand.
_PAIRS: Final = words(
    "m mr ml mlr mlg mlgr mg mgrk mfy d dr dl dlr dlg dlgr dsg dsgr dsgf dsgfr srda srdl slda sldl flogr lpq lpd lpdg"
    " cds cdsy cdsg my myr may mayr"
)
#: The registers that are operands.
_NAMED: Final = words("clst srst srstu mvst")
#: The pairs that begin with the registers that are operands, and also r0 and r1.
_NAMED_PAIRS: Final = words(
    "mvcl clcl mvcle clcle mvclu clclu cuse cksm tre km kmc kma kmctr kmf kmo kimd klmd kmac ppno"
    " prno cu12 cu14 cu21 cu24 cu41 cu42 cuutf cutfu trte trtre troo trot trto trtt"
)
#: Loads of a whole register, and the bytes loaded.
_LOADS: Final = sizes({1: "lgb llgc", 2: "lgh llgh", 4: "lgf llgf", 8: "lg ld ldy ltg lgat"})
#: Stores of registers, and the most bytes stored.
_STORES: Final = sizes(
    {
        1: "stc stcy stch vsteb",
        2: "sth sthy sthh strvh vsteh vstebrh",
        4: "st sty stfh strv ste stey vstef vstebrf stcm stcmy stcmh",
        8: "stg std stdy strvg vsteg vstebrg cvd cvdy ntstg",
        16: "vst stpq cvdg vstrl vstrlr vstl vstbr vster czdt czxt cpdt cpxt",
        32: "vupkz",
        64: "stm stmy stmh stam stamy stctl",
        256: "vstm stctg",
    }
)
_CONDITIONAL_STORE: Final = re.compile(rf"stoc(?:g|fh)?({_CONDITION})?")
#: Instructions that change storage and perhaps registers, and the bytes of storage: 1 where the text may have more.
_CHANGES: Final = sizes(
    {
        1: "mvi mviy ni niy oi oiy xi xiy ts mvc mvn mvz mvcin mvo pack unpk tr nc oc xc zap ap sp srp ed edmk unpka"
        " unpku mp dp",
        2: "mvhhi",
        4: "mvhi stfpc asi alsi",
        8: "mvghi agsi algsi stck stckf",
        256: "stfle tbegin",
    }
)
#: Other instructions whose first operand is in storage, and those that may swap a register with storage.
_LARGEST: Final = 16
_SWAPS: Final = words("cs csy csg cds cdsy cdsg laa laal lan lao lax laag laalg lang laog laxg")
#: larl, brcl, brasl, whose distance counts halfwords from the instruction.
_SECOND_BYTES: Final = re.escape(bytes(register << 4 | kind for register in range(16) for kind in (0, 4, 5)))
_DISTANCES: Final = re.compile(rb"(?=\xc0[%b](.{4}))" % _SECOND_BYTES, re.DOTALL)


def effect_of(vaddr: int, size: int, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`Abi.effect_of`)."""
    text = S390xText(vaddr, size, mnemonic, operands)
    flow = _flow(text)
    if flow is not None:
        return flow
    if mnemonic in _READS_ONLY or _COMPARISON.fullmatch(mnemonic):
        return Effect(_comparison(text))
    if mnemonic in _UNKNOWN or mnemonic[:1] in "bj" or _COMPARE_AND_BRANCH.fullmatch(mnemonic):
        return None
    steps = _value(text)
    return Effect(_other(text) if steps is None else steps)


def _flow(text: S390xText) -> Effect | None:
    """Return the effect of a jump, a branch, a call or a return; None for any other instruction, or an unknown one."""
    name = text.name
    handler = _FLOWS.get(name)
    if handler is not None:
        return handler(text)
    compare = _COMPARE_AND_BRANCH.fullmatch(name)
    if compare is not None:
        place = 2 if compare[4] else 3
        compared = _comparison(text) if compare[1] in ("g", "lg") else ()
        if compare[3] == "j":
            return _direct(text, place, Flow.BRANCH, compared, equal=_EQUAL.get(compare[4]))
        return _indirect(text, place, Flow.BRANCH_INDIRECT)
    jump, branch = _JUMP_IF.fullmatch(name), _BRANCH_IF.fullmatch(name)
    # Without a condition in the name, a mask is the first operand.
    has_mask = name in ("brc", "brcl", "bc", "bcr")
    if has_mask and number(text.operands[0]) == 0:
        return PADDING
    if jump is not None:
        return _direct(text, int(has_mask), Flow.BRANCH, equal=_EQUAL.get(jump[1] or ""))
    if branch is not None:
        flow = Flow.JUMP_INDIRECT if has_mask and number(text.operands[0]) == 15 else Flow.BRANCH_INDIRECT
        return _indirect(text, int(has_mask), flow)
    counts = _COUNTS.fullmatch(name)
    if counts is not None:
        steps, place = forget(text.register(0)), 1 if counts[2] == "ct" else 2
        if counts[1]:
            return _direct(text, place, Flow.BRANCH, steps)
        return Effect(steps) if text.register(place) == 0 else None
    return None


def _system_call(text: S390xText) -> Effect:
    """Return the effect of `svc`, whose number is in r1 where the text has 0."""
    given = number(text.operands[0])
    call = Step(Op.NUMBER, JUMP, offset=given) if given else Step(Op.MOVE, JUMP, 1)
    return Effect((call, *forget(2)), Flow.SYSTEM_CALL)


def _direct(
    text: S390xText, place: int, flow: Flow, steps: tuple[Step, ...] = (), *, equal: bool | None = None
) -> Effect | None:
    """Return the effect of a jump or a branch whose operand is its target."""
    target = address_in(text.operands[place])
    if target is None:
        return None
    if target == text.vaddr + _TRAP_DISTANCE:
        return Effect(steps, Flow.STOP if flow is Flow.JUMP else Flow.NEXT)
    return Effect(steps, flow, target, equal)


def _indirect(text: S390xText, place: int, flow: Flow) -> Effect | None:
    """Return the effect of a jump to the address in a register; r0 means none."""
    register = text.register(place)
    if register == 0 or text.operands[place] == "0":
        return NO_EFFECT
    if register != NOTHING:
        return Effect((Step(Op.MOVE, JUMP, register),), flow)
    memory = text.memory(place)
    steps = None if memory.base == NOTHING else _address(JUMP, memory)
    return None if steps is None else Effect(steps, flow)


def _linked(text: S390xText, target: int | None) -> Effect | None:
    """Return the effect of a jump that leaves the address of the next instruction in a register.

    It is a call if that register is r14, or r0 in a direct one, as in profiled code. Without a target (register 0), the
    instruction only gives that address.
    """
    link, register = text.register(0), text.register(1)
    if link == NOTHING or (target is None and register == NOTHING and not text.memory(1).is_known):
        return None
    here = Step(Op.NUMBER, link, offset=text.end)
    if (target == text.end and text.name == "bras") or (target is None and (register == 0 or text.operands[1] == "0")):
        return Effect((here,))
    leads = (Step(Op.MOVE, JUMP, register),) if register != NOTHING else forget(JUMP)
    if link == RA or (link == 0 and target is not None):
        return Effect((here,) if target is not None else (*leads, here), Flow.CALL, target)
    if target is not None:
        return Effect((here,), Flow.JUMP, target)
    return Effect((*leads, here), Flow.JUMP_INDIRECT)


_FLOWS: Final[dict[str, Callable[[S390xText], Effect | None]]] = {
    **dict.fromkeys(("nop", "nopr", "jnop", "jgnop"), lambda _text: PADDING),
    **dict.fromkeys(("j", "jg", "jlu"), lambda text: _direct(text, 0, Flow.JUMP)),
    **dict.fromkeys(("brasl", "bras"), lambda text: _linked(text, address_in(text.operands[1]))),
    **dict.fromkeys(("basr", "balr", "bas", "bal"), lambda text: _linked(text, None)),
    **dict.fromkeys(("br", "b"), lambda text: _indirect(text, 0, Flow.JUMP_INDIRECT)),
    "svc": _system_call,
    "exrl": lambda text: Effect(flow=Flow.EXECUTE, target=address_in(text.operands[1])),
}


def _comparison(text: S390xText) -> tuple[Step, ...]:
    """Return the step that compares all bytes of two registers."""
    first, second = text.register(0), text.register(1)
    is_whole = text.name == "cgr" or text.name[:4] in ("cgrj", "clgr")
    return (Step(Op.COMPARE, first, second),) if is_whole and NOTHING not in (first, second) else ()


def _value(text: S390xText) -> tuple[Step, ...] | None:
    """Return the steps of an instruction that gives registers values that are followed; None for any other."""
    name, target, source = text.name, text.register(0), text.register(1)
    value = number(text.operands[text.last])
    if name in ("lgr", "ldgr", "lgdr", "ldr", "ltgr"):
        return (Step(Op.MOVE, target, source),)
    if value is not None and (name in ("lghi", "lgfi") or (name in ("llill", "llilf") and value >= 0)):
        return (Step(Op.NUMBER, target, offset=value, size=4),)
    if name == "larl" and value is not None:
        return (Step(Op.NUMBER, target, offset=value & ADDRESS_MASK),)
    if name in ("aghi", "agfi", "aghik", "algfi", "alghsik", "slgfi") and value is not None:
        return (Step(Op.MOVE, target, text.register(text.last - 1), -value if name == "slgfi" else value),)
    if name in ("agr", "agrk", "algr", "algrk", "sgr", "sgrk", "slgr", "slgrk"):
        first = target if text.last == 1 else source
        return _sum(target, first, text.register(text.last), -1 if name[0] == "s" else 1)
    if name in ("agfr", "sgfr", "slgfr") and target == SP:
        return (Step(Op.MOVE_FRAME, SP),)
    if name == "lmg":
        at = text.memory(2)
        loads = [Step(Op.LOAD, register, at.base, at.offset + 8 * n) for n, register in enumerate(text.many())]
        # The loads use the base's value from before, so it is loaded last.
        return tuple(sorted(loads, key=lambda step: step.register == at.base))
    return _loaded(name, target, text.memory(1))


def _loaded(name: str, target: int, memory: Storage) -> tuple[Step, ...] | None:
    """Return the steps of an instruction that gives a register a value from memory, or an address."""
    if not memory.is_known:
        return None
    if name in ("la", "lay"):
        return _address(target, memory)
    if name in ("ag", "agf") and memory.index != NOTHING:
        word = memory.loaded(BETWEEN, 8 if name == "ag" else 4, is_signed=True)
        return (word, Step(Op.ADD, target, BETWEEN))
    size = _LOADS.get(name)
    return None if size is None else (memory.loaded(target, size, is_signed=not name.startswith("ll")),)


def _address(target: int, memory: Storage) -> tuple[Step, ...] | None:
    """Return the steps to the address of an operand."""
    if memory.base == NOTHING:
        return (Step(Op.NUMBER, target, offset=memory.offset),)
    if memory.index == NOTHING:
        return (Step(Op.MOVE, target, memory.base, memory.offset),)
    steps = _sum(target, memory.base, memory.index)
    return (*steps, Step(Op.MOVE, target, target, memory.offset)) if steps is not None and memory.offset else steps


def _sum(target: int, first: int, second: int, sign: int = 1) -> tuple[Step, ...] | None:
    """Return the steps to the sum, or the difference, of two registers."""
    if target == second and sign == 1:
        first, second = second, first
    if target == second:
        # The difference of an allocation, or a number that is not followed.
        return (Step(Op.MOVE_FRAME, SP),) if target == SP else None
    copy = () if target == first else (Step(Op.MOVE, target, first),)
    return (*copy, Step(Op.ADD, target, second, scale=sign))


def _other(text: S390xText) -> tuple[Step, ...]:
    """Return the steps of an instruction whose result is not followed."""
    name, first = text.name, text.memory(0)
    if name == "stmg":
        at = text.memory(2)
        places = [at._replace(offset=at.offset + 8 * place) for place in range(16)]
        return tuple(step for at, source in zip(places, text.many(), strict=False) for step in at.stored(8, source))
    if name in ("stg", "std", "stdy"):
        return text.stored(8, text.register(0))
    if name in _STORES or _CONDITIONAL_STORE.fullmatch(name):
        return text.stored(_STORES.get(name, 8))
    is_storage = first.is_known or name in _SWAPS
    stores = text.stored(max(first.size, _CHANGES.get(name, _LARGEST))) if is_storage else ()
    return (*stores, *forget(*_changed(text)))


def _changed(text: S390xText) -> list[int]:
    """Return the registers that an instruction changes whose result is not followed."""
    name, first, named = text.name, text.register(0), text.named()
    if name in ("lm", "lmy", "lmh", "lmd"):
        return text.many()
    if name in _IMPLICIT:
        return [*_IMPLICIT[name], *named]
    if name in _NAMED:
        return named
    if name in _NAMED_PAIRS:
        return [0, 1, *named, *(register | 1 for register in named)]
    if first == NOTHING:
        # The first operand is in storage.
        return [*named, *(register | 1 for register in named)]
    return [first, first | 1] if name in _PAIRS or (first >= F0 and "x" in name) else [first]


#: Registers that instructions change without naming them.
_IMPLICIT: Final = {
    **dict.fromkeys(("trt", "trtr"), (1, 2)),
    "edmk": (1,),
    "stfle": (0,),
    "pfpo": (1, *FLOATS),
    **dict.fromkeys(("tbegin", "vlm"), FLOATS),
}


def _executed(executing: str, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of the instruction that `exrl` executes (`Abi.executed`).

    The last byte of the first operand of `exrl`, unless that is r0, changes its second byte. Where the text names no
    register, that byte is a length, of which the text has the least, or a number.
    """
    if not executing.startswith(("%r0,", "0,")) and S390xText(0, 0, mnemonic, operands).named():
        return None
    effect = effect_of(0, 0, mnemonic, operands)
    return effect if effect is not None and effect.flow is Flow.NEXT else None


def _references(data: bytes, vaddr: int, _is_fixed: bool) -> Iterator[tuple[int, int]]:  # noqa: FBT001
    """Yield the addresses to which some bytes may refer (`Abi.references`)."""
    for match in _DISTANCES.finditer(data):
        at = vaddr + match.start()
        yield at, at + 2 * int.from_bytes(match[1], "big", signed=True)


ABI: Final = Abi(
    arch=S390X,
    clobbered=bits((0, 1, 2, 3, 4, 5, RA, *FLOATS[:8])),
    callee_area=160,
    red_zone=0,
    # exit, sigreturn, clone, rt_sigreturn, exit_group, clone3
    last_calls=frozenset({1, 119, 120, 173, 248, 435}),
    effect_of=effect_of,
    references=_references,
    disassembler=("CS_ARCH_SYSTEMZ", "CS_ARCH_SYSZ", "CS_MODE_BIG_ENDIAN"),
    stub_literal_size=4,
    depends_on_address=lambda mnemonic, _operands: mnemonic[:1] in "bjc" or mnemonic in ("larl", "exrl"),
    executed=_executed,
)
