# SPDX-License-Identifier: Apache-2.0
"""What the instructions of s390x do to a frame (z/Architecture Principles of Operation), from capstone's text.

The ABI (ELF ABI s390x supplement, 1.2): the caller leaves 160 bytes at SP in which the callee saves registers, and the
CFA is SP + 160 at a function's entry; r14 is the RA, r11 the frame pointer by custom. Leaf functions may save general
registers in floating point registers, which have DWARF's numbers 16 to 31.

An instruction that no table names changes its first operand and, where that begins a pair or a number of 128 bits, the
register after it. `s390x_names` has those that change more, or less.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cfi2sframe.abi import S390X
from cfi2sframe.instructions import s390x_names as names
from cfi2sframe.instructions.effects import (
    BETWEEN,
    JUMP,
    NO_EFFECT,
    NOTHING,
    PADDING,
    PAGE_BITS,
    Abi,
    Effect,
    Flow,
    Op,
    Reference,
    Step,
    Storage,
    StubForms,
    bits,
    forget,
    number,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

SP: Final = 15
FP: Final = 11
RA: Final = 14
F0: Final = 16
FLOATS: Final = tuple(range(F0, F0 + 16))
#: General registers, and floating point registers in the order of DWARF's numbers. Vector registers 0 to 15 hold one of
#: these each, in their first half.
_REGISTERS: Final = {
    **{f"%r{n}": n for n in range(16)},
    **{f"%{kind}{name[1:]}": number for number, name in enumerate(S390X.registers) if number >= F0 for kind in "fv"},
}
_OPERAND: Final = re.compile(r"[^,() ]+(?:\([^)]*\))?")
#: Compilers jump into the midst of the jump itself, where no instruction is, for a trap.
_TRAP_DISTANCE: Final = 2
_COMPARE_AND_BRANCH: Final = re.compile(rf"c(l?g?)([ri])([jb])({names.CONDITION})?")
_JUMP_IF: Final = re.compile(rf"jg?({names.CONDITION})|brcl?")
_BRANCH_IF: Final = re.compile(rf"b({names.CONDITION})r?|bcr?")
_EQUAL: Final = {"e": True, "z": True, "nlh": True, "ne": False, "nz": False, "lh": False}
_EQUAL_MASKS: Final = {8: True, 6: False, 7: False}
#: brasl, brcl, larl, whose distance counts halfwords from the instruction.
_DISTANCES: Final = re.compile(rb"(?=\xc0(.)(.{4}))", re.DOTALL)
_LARL, _BRCL, _BRASL = 0, 4, 5
_COUNTS: Final = re.compile(r"br?ctg?r?h?")
_INDEXES: Final = re.compile(r"br?x(h|le)g?")


_NO_MEMORY: Final = Storage(NOTHING, NOTHING, 0, 0, is_known=False)


class S390xText:
    """An instruction's text: its name and its operands, of which those past the last one are empty."""

    def __init__(self, address: int, size: int, name: str, operands: str) -> None:
        self.address, self.end, self.name = address, address + size, name
        self.operands: list[str] = _OPERAND.findall(operands)

    def operand(self, place: int) -> str:
        """Return the text of an operand."""
        return self.operands[place] if 0 <= place < len(self.operands) else ""

    def register(self, place: int) -> int:
        """Return an operand's general or floating point register; `NOTHING` where it is something else."""
        return _REGISTERS.get(self.operand(place), NOTHING)

    def number(self, place: int) -> int | None:
        """Return an operand that is a number; None where it is something else."""
        return number(self.operand(place)) if "(" not in self.operand(place) else None

    def target(self, place: int) -> int | None:
        """Return an operand that is an address of code or data."""
        value = self.number(place)
        return None if value is None else value & (1 << 64) - 1

    def memory(self, place: int) -> Storage:
        """Return an operand in memory, of as many bytes as the text says, or `_NO_MEMORY`; a number is an address."""
        digits, _, inside = self.operand(place).partition("(")
        offset = number(digits)
        if offset is None:
            return _NO_MEMORY
        length, registers = 1, []
        parts = inside.rstrip(")").replace(" ", "").split(",") if inside else []
        # A last 0 is no base register, as capstone 6 writes it.
        for part in parts[:-1] if len(parts) > 1 and parts[-1] == "0" else parts:
            if part[:1].isdigit():
                length = int(part, 0)
            else:
                # A vector of indices is no part of a plain address.
                registers.append(_REGISTERS.get(part, F0))
        *index, base = registers or [NOTHING]
        return Storage(base, index[0] if index else NOTHING, offset, length)

    def named(self) -> list[int]:
        """Return the registers that are operands by themselves."""
        return [_REGISTERS[text] for text in self.operands if text in _REGISTERS]

    def many(self) -> list[int]:
        """Return the registers from the first operand to the second, of which the last one is followed by the first."""
        first, last = self.register(0), self.register(1)
        return [(first + place) % 16 for place in range((last - first) % 16 + 1)]


def effect_of(address: int, size: int, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`Abi.effect_of`)."""
    text = S390xText(address, size, mnemonic, operands)
    if mnemonic in names.UNKNOWN:
        return None
    flow = _flow(text)
    if flow is not None:
        return flow if flow is not _NOT_KNOWN else None
    if mnemonic in names.READS_ONLY or names.READS_ONLY_PATTERN.fullmatch(mnemonic):
        return Effect(_comparison(text))
    steps = _value(text)
    if steps is None:
        steps = _memory_steps(text)
    if steps is None and mnemonic[:1] in "bj":
        return None
    return Effect(forget(*_changed(text)) if steps is None else steps)


_NOT_KNOWN: Final = Effect(flow=Flow.STOP)


def _flow(text: S390xText) -> Effect | None:
    """Return the effect of what changes the flow of control, `_NOT_KNOWN` or, for anything else, None."""
    name = text.name
    handler = _FLOWS.get(name)
    if handler is not None:
        return handler(text)
    found = _COMPARE_AND_BRANCH.fullmatch(name)
    if found is not None:
        place = 2 if found[4] else 3
        compared = _comparison(text) if found[1] in ("g", "lg") else ()
        equal = _EQUAL.get(found[4]) if found[4] else _EQUAL_MASKS.get(text.number(2) or 0)
        if found[3] == "j":
            return _direct(text, place, Flow.BRANCH, compared, equal=equal)
        return _indirect(text, place, Flow.BRANCH_INDIRECT)
    jump, branch = _JUMP_IF.fullmatch(name), _BRANCH_IF.fullmatch(name)
    # Without a condition in the name, a mask is the first operand.
    has_mask = name in ("brc", "brcl", "bc", "bcr")
    if has_mask and text.number(0) == 0:
        return PADDING
    if jump is not None:
        return _direct(text, int(has_mask), Flow.BRANCH, equal=_EQUAL.get(jump[1] or ""))
    if branch is not None:
        flow = Flow.JUMP_INDIRECT if has_mask and text.number(0) == 15 else Flow.BRANCH_INDIRECT
        return _indirect(text, int(has_mask), flow)
    if _COUNTS.fullmatch(name) or _INDEXES.fullmatch(name):
        steps = forget(text.register(0))
        place = 1 if _COUNTS.fullmatch(name) else 2
        if name.startswith("br"):
            return _direct(text, place, Flow.BRANCH, steps)
        return Effect(steps) if text.register(place) == 0 else _NOT_KNOWN
    return None


def _system_call(text: S390xText) -> Effect:
    """Return the effect of `svc`, whose number is in r1 where the text has 0."""
    given = text.number(0)
    call = Step(Op.NUMBER, JUMP, offset=given) if given else Step(Op.MOVE, JUMP, 1)
    return Effect((call, *forget(2)), Flow.SYSTEM_CALL)


def _direct(
    text: S390xText, place: int, flow: Flow, steps: tuple[Step, ...] = (), *, equal: bool | None = None
) -> Effect:
    """Return the effect of a jump or a branch whose operand is its target."""
    target = text.target(place)
    if target is None:
        return _NOT_KNOWN
    if target == text.address + _TRAP_DISTANCE:
        return Effect(steps, Flow.STOP if flow is Flow.JUMP else Flow.NEXT)
    return Effect(steps, flow, target, equal)


def _indirect(text: S390xText, place: int, flow: Flow) -> Effect:
    """Return the effect of a jump to the address in a register; r0 means none."""
    register = text.register(place)
    if register == 0 or text.operands[place] == "0":
        return NO_EFFECT
    if register != NOTHING:
        return Effect((Step(Op.MOVE, JUMP, register),), flow)
    memory = text.memory(place)
    steps = None if memory.base == NOTHING else _address(JUMP, memory)
    return _NOT_KNOWN if steps is None else Effect(steps, flow)


def _linked(text: S390xText, target: int | None) -> Effect:
    """Return the effect of a jump that leaves an address.

    Only r14, or r0, which no address can be made with, tell of a call. Without a target, an instruction gives the
    address of the next one.
    """
    link, register = text.register(0), text.register(1)
    if link == NOTHING or (target is None and register == NOTHING and not text.memory(1).is_known):
        return _NOT_KNOWN
    here = Step(Op.NUMBER, link, offset=text.end)
    if (target == text.end and text.name == "bras") or (target is None and (register == 0 or text.operands[1] == "0")):
        return Effect((here,))
    leads = (Step(Op.MOVE, JUMP, register),) if register != NOTHING else forget(JUMP)
    if link in (RA, 0):
        return Effect((here,) if target is not None else (*leads, here), Flow.CALL, target)
    if target is not None:
        return Effect((here,), Flow.JUMP, target)
    return Effect((*leads, here), Flow.JUMP_INDIRECT)


def _comparison(text: S390xText) -> tuple[Step, ...]:
    """Return the step that compares all bytes of two registers."""
    first, second = text.register(0), text.register(1)
    is_whole = text.name in ("cgr", "clgr") or text.name[:4] in ("cgrj", "clgr")
    return (Step(Op.COMPARE, first, second),) if is_whole and NOTHING not in (first, second) else ()


def _value(text: S390xText) -> tuple[Step, ...] | None:
    """Return the steps of an instruction that gives a register a value that is followed; None for any other."""
    name, target, source = text.name, text.register(0), text.register(1)
    last = len(text.operands) - 1
    value = text.number(last)
    if name in ("lgr", "ldgr", "lgdr", "ldr", "ltgr"):
        return (Step(Op.MOVE, target, source),)
    if name in ("lgfr", "llgfr", "ltgfr"):
        return (Step(Op.EXTEND, target, source, 0, 4, is_signed=name != "llgfr"),)
    if value is not None and (name in ("lghi", "lgfi") or (name in ("llill", "llilf") and value >= 0)):
        return (Step(Op.NUMBER, target, offset=value, size=4),)
    if name == "larl" and value is not None:
        return (Step(Op.NUMBER, target, offset=value & (1 << 64) - 1),)
    if name in ("aghi", "agfi", "aghik", "algfi", "alghsik", "slgfi") and value is not None:
        return (Step(Op.MOVE, target, text.register(last - 1), -value if name == "slgfi" else value),)
    if name in ("agr", "agrk", "algr", "algrk", "sgr", "sgrk", "slgr", "slgrk"):
        first = target if last == 1 else source
        return _sum(target, first, text.register(last), -1 if name[0] == "s" else 1)
    if name in ("agfr", "sgfr", "slgfr") and target == SP:
        return (Step(Op.MOVE_FRAME, SP),)
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
    size = names.LOADS.get(name)
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
        # A difference of an allocation, or a number that is not followed.
        return (Step(Op.MOVE_FRAME, SP),) if target == SP else None
    copy = () if target == first else (Step(Op.MOVE, target, first),)
    return (*copy, Step(Op.ADD, target, second, scale=sign))


def _memory_steps(text: S390xText) -> tuple[Step, ...] | None:
    """Return the steps of what stores, or loads many registers; None for any other."""
    name = text.name
    first, second, third = map(text.memory, range(3))
    if name == "stmg":
        places = [third._replace(offset=third.offset + 8 * place) for place in range(16)]
        return tuple(step for at, source in zip(places, text.many(), strict=False) for step in at.stored(8, source))
    if name == "lmg":
        loads = [Step(Op.LOAD, register, third.base, third.offset + 8 * n) for n, register in enumerate(text.many())]
        # The address is that of before the first load.
        return tuple(sorted(loads, key=lambda step: step.register == third.base))
    if name in ("lm", "lmy", "lmh", "lmd"):
        return forget(*text.many())
    if name == "vlm":
        return forget(*FLOATS)
    if name in names.STORES_MANY:
        count = int(text.operands[1].lstrip("%racfv") or 0) - int(text.operands[0].lstrip("%racfv") or 0)
        return third.stored(names.STORES_MANY[name] * (count % 32 + 1))
    if name in ("stg", "std", "stdy"):
        return second.stored(8, text.register(0))
    if name in names.STORES or names.STORES_PATTERN.fullmatch(name):
        size, place = names.STORES.get(name, (8, 1))
        return text.memory(place).stored(size)
    if first.is_known:
        # Instructions on storage: the first operand changes, and what `_changed` says.
        size = max(first.size, names.FIRST_SIZES.get(name, 16 if first.size == 1 else 1))
        return (*first.stored(size), *forget(*_changed(text)))
    if name in names.SWAPS:
        return (*third.stored(16), *forget(*_changed(text)))
    return None


def _changed(text: S390xText) -> list[int]:
    """Return the registers that an instruction changes besides what is followed."""
    name, first, named = text.name, text.register(0), text.named()
    if name in names.IMPLICIT:
        return [*names.IMPLICIT[name], *named]
    if name == "pfpo":
        return [1, *FLOATS]
    if name == "tbegin":
        return list(FLOATS)
    if name in names.NAMED:
        return named
    if name in names.NAMED_PAIRS:
        return [0, 1, *named, *(register | 1 for register in named)]
    if first == NOTHING:
        # The first operand is in storage.
        return [*named, *(register | 1 for register in named)]
    return [first, first | 1] if name in names.PAIR or (first >= F0 and "x" in name) else [first]


_FLOWS: Final[dict[str, Callable[[S390xText], Effect]]] = {
    **dict.fromkeys(("nop", "nopr", "jnop", "jgnop"), lambda _text: PADDING),
    **dict.fromkeys(("j", "jg", "jlu"), lambda text: _direct(text, 0, Flow.JUMP)),
    **dict.fromkeys(("brasl", "bras"), lambda text: _linked(text, text.target(1))),
    **dict.fromkeys(("basr", "balr", "bas", "bal"), lambda text: _linked(text, None)),
    **dict.fromkeys(("br", "b"), lambda text: _indirect(text, 0, Flow.JUMP_INDIRECT)),
    "svc": _system_call,
    "exrl": lambda text: Effect(flow=Flow.EXECUTE, target=text.target(1)),
}


def _executed(executing: str, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of the instruction that `exrl` executes (`Abi.executed`).

    Its second byte is changed: by the last byte of the first operand of `exrl`, unless that is r0. For instructions on
    storage that byte is a length, of which the text has the least, or a number.
    """
    if not executing.startswith(("%r0,", "0,")) and mnemonic not in names.EXECUTED:
        return None
    effect = effect_of(0, 0, mnemonic, operands)
    return effect if effect is not None and effect.flow is Flow.NEXT else None


def _references(data: bytes, vaddr: int, pages: Container[int], _is_fixed: bool) -> Iterator[Reference]:  # noqa: FBT001
    """Yield what some bytes may refer to (`Abi.references`)."""
    for match in _DISTANCES.finditer(data):
        kind = match[1][0] & 15
        at = vaddr + match.start()
        target = at + 2 * int.from_bytes(match[2], "big", signed=True)
        if kind in (_LARL, _BRCL, _BRASL) and target >> PAGE_BITS in pages:
            yield Reference(at, target, kind == _BRASL)


ABI: Final = Abi(
    arch=S390X,
    clobbered=bits((0, 1, 2, 3, 4, 5, RA, *FLOATS[:8])),
    callee_area=160,
    red_zone=0,
    # exit, exit_group, sigreturn, rt_sigreturn; clone, clone3
    last_calls=frozenset({1, 119, 173, 248}),
    clone_calls=frozenset({120, 435}),
    effect_of=effect_of,
    references=_references,
    disassembler=("CS_ARCH_SYSTEMZ", "CS_ARCH_SYSZ", "CS_MODE_BIG_ENDIAN"),
    stubs=StubForms(
        words("larl lgfi jg brcl bcr bc nop nopr br basr lg lgf stg mvc"),
        blocks=(16, 32),
        headers=(0, 32),
        literal_size=4,
    ),
    depends_on_address=lambda mnemonic, _operands: mnemonic[:1] in "bjc" or mnemonic in ("larl", "exrl"),
    executed=_executed,
)
