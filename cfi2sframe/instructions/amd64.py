# SPDX-License-Identifier: Apache-2.0
"""What the instructions of AMD64 do to a frame (Intel's manual, volume 2; AMD's, volume 3), from capstone's text.

An instruction that no table here names changes each general register that its text names outside of an address, and
those that such instructions change without naming them. Only instructions of the tables change SP without naming it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cfi2sframe.abi import AMD64
from cfi2sframe.instructions.effects import (
    BETWEEN,
    JUMP,
    NO_EFFECT,
    NOTHING,
    PADDING,
    PAGE_BITS,
    TRAP,
    Abi,
    Effect,
    Flow,
    Op,
    Reference,
    Step,
    address,
    bits,
    forget,
    number,
    words,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R11 = 0, 1, 2, 3, 4, 5, 6, 7, 11


def _names() -> dict[str, tuple[int, int]]:
    """Return the number and the size of each general register's names."""
    found: dict[str, tuple[int, int]] = {}
    for register, letter in ((RAX, "a"), (RBX, "b"), (RCX, "c"), (RDX, "d")):
        for name, size in ((f"r{letter}x", 8), (f"e{letter}x", 4), (f"{letter}x", 2), (f"{letter}l", 1)):
            found[name] = register, size
        found[f"{letter}h"] = register, 1
    for register, stem in ((RSI, "si"), (RDI, "di"), (RBP, "bp"), (RSP, "sp")):
        found |= {f"r{stem}": (register, 8), f"e{stem}": (register, 4), stem: (register, 2), f"{stem}l": (register, 1)}
    for register in range(8, 16):
        found |= {f"r{register}{suffix}": (register, size) for suffix, size in (("", 8), ("d", 4), ("w", 2), ("b", 1))}
    return found


_REGISTERS: Final = _names()
_FULL: Final = {name: register for name, (register, size) in _REGISTERS.items() if size == 8}
_SIZES: Final = {
    "byte": 1, "word": 2, "dword": 4, "qword": 8, "xword": 10, "tbyte": 10, "fword": 6,
    "xmmword": 16, "ymmword": 32, "zmmword": 64,
}  # fmt: skip
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:(\w\w):)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?) ?(?:(\w+)\*(\d)|(0x[0-9a-f]+|\d+)|(\w+))")
_VECTOR: Final = re.compile(r"\b(?:[xyz]?mm\d|k\d|st\b|st\()")
#: call, jmp; `lea r64, [rip + distance]`: the last byte before the distance, whose four bytes are at the end of each.
#: A pattern that begins with a set of bytes is searched 3 times as quickly as one that begins with alternatives.
_DISTANCES: Final = re.compile(
    rb"[\xe8\xe9\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?:(?<=[\xe8\xe9])|(?<=([\x48\x4c]\x8d).))(?=(.{4}))", re.DOTALL
)
_CALL: Final = 0xE8
#: `mov r32, number`, as code at fixed addresses loads one.
_NUMBERS: Final = re.compile(rb"(?=[\xb8-\xbf](.{4}))", re.DOTALL)
_PREFIXES: Final = words("rep repe repz repne repnz lock bnd notrack xacquire xrelease data16")
#: The size of an instruction with an operand size prefix, with which processors differ, or fewer than 8 bytes move.
_SHORTENED: Final = {"call": (6,), "jmp": (4, 6), "ret": (2, 4), "push": (3, 4)}
_ADDRESSES: Final = (1 << 64) - 1
_SP_UP: Final = Step(Op.MOVE, RSP, RSP, 8)
_SP_DOWN: Final = Step(Op.MOVE, RSP, RSP, -8)
_RETURN: Final = (Step(Op.LOAD, JUMP, RSP), _SP_UP)

#: What leaves for another privilege level or code segment, or does with SP what is not said here.
_UNKNOWN: Final = words(
    "iret iretd iretq retf retfq ljmp lcall sysret sysretq sysexit sysexitq sysenter rsm eretu erets uiret pushal"
    " popal pushaw popaw pushf popf pushfd popfd vmlaunch vmresume skinit pop2 push2"
)
_BRANCHES: Final = words("jo jno js jns jp jnp jl jge jle jg ja jae jb jbe je jne jrcxz jecxz xbegin loop loope loopne")
_READS_ONLY: Final = words(
    "test cmp bt prefetch prefetchw prefetchnta prefetcht0 prefetcht1 prefetcht2 clflush clflushopt clwb ldmxcsr"
    " vldmxcsr fld fild fldcw comiss comisd ucomiss ucomisd vcomiss vcomisd vucomiss vucomisd ptest vptest vtestps"
    " vtestpd lfence mfence sfence endbr64 emms femms vzeroupper vzeroall cld std clc stc cmc cli sti wait sahf"
    " serialize fadd fsub fmul fdiv fiadd fimul fcom fcomp"
)
#: What has the same effect with any operands.
_FIXED: Final = {
    **dict.fromkeys(("int3", "hlt", "ud2", "ud0", "ud1", "ud2b", "int1"), TRAP),
    "nop": PADDING,
    "pause": NO_EFFECT,
    "syscall": Effect((Step(Op.MOVE, JUMP, RAX), *forget(RAX, RCX, R11)), Flow.SYSTEM_CALL),
    "cdqe": Effect((Step(Op.EXTEND, RAX, RAX, 0, 4, is_signed=True),)),
}
#: The registers that instructions change without naming them, besides their first operand or without one.
_IMPLICIT: Final = {
    **dict.fromkeys(("mul", "div", "idiv", "rdtsc", "xgetbv", "rdpmc", "rdmsr"), (RAX, RDX)),
    **dict.fromkeys(("cdq", "cqo", "cwd"), (RDX,)),
    **dict.fromkeys(("cwde", "cbw", "lahf", "xlatb", "cmpxchg"), (RAX,)),
    **dict.fromkeys(("movsb", "movsw", "movsd", "movsq", "cmpsb", "cmpsw", "cmpsd", "cmpsq"), (RSI, RDI, RCX)),
    **dict.fromkeys(("stosb", "stosw", "stosd", "stosq", "scasb", "scasw", "scasd", "scasq"), (RDI, RCX)),
    **dict.fromkeys(("lodsb", "lodsw", "lodsd", "lodsq"), (RAX, RSI, RCX)),
    **dict.fromkeys(("cmpxchg8b", "cmpxchg16b"), (RAX, RDX)),
    "cpuid": (RAX, RBX, RCX, RDX),
    "rdtscp": (RAX, RDX, RCX),
    "int": (RAX,),
}
#: Names of which the first operand is what changes, and no register besides it.
_FIRST_ONLY: Final = re.compile(
    r"mov.*|lea|add|sub|and|or|xor|not|neg|inc|dec|adc|sbb|sh[lr]d?|s[ah][lr]|r[oc][lr]|bs[fr]|popcnt|[tl]zcnt|andn"
    r"|bextr|bls\w+|bzhi|p(dep|ext)|rorx|sarx|sh[lr]x|bswap|crc32|bt[crs]|ad[co]x|rd[fg]sbase|rdrand|rdseed|rdpid"
    r"|rdssp[dq]|f[n]?st.*|fisttp?|stmxcsr|vstmxcsr|str|sldt|smsw|pmovmskb|set\w+|cmov\w+|vmov.*|vpmovmskb|pextr[bdqw]"
)


class _AddressOperand:
    """A memory operand: registers or `NOTHING`, a displacement, the bytes accessed."""

    def __init__(self, text: str, end: int) -> None:
        match = _MEMORY.search(text)
        word, segment, inside = match.groups() if match is not None else ("", "fs", "")
        self.base = self.index = NOTHING
        self.scale, self.offset = 1, 0
        self.size = _SIZES.get(word or "", 8)
        #: Whether the address is a sum of whole registers.
        self.is_known = segment not in ("fs", "gs")
        for sign, scaled, factor, digits, name in _TERM.findall(inside):
            if digits:
                self.offset += -int(digits, 0) if sign == "-" else int(digits, 0)
            elif name == "rip":
                self.offset += end
            elif scaled:
                self.index, self.scale = _FULL.get(scaled, NOTHING), int(factor)
                # An index register without a name of its own ("riz") leaves the address as it is.
                self.is_known &= scaled in _FULL or scaled == "riz"
            elif self.base == NOTHING:
                self.base = _FULL.get(name, NOTHING)
                self.is_known &= name in _FULL
            else:
                self.index = _FULL.get(name, NOTHING)
                self.is_known &= name in _FULL

    @property
    def is_plain(self) -> bool:
        """Whether the address is one register and a number."""
        return self.is_known and self.base != NOTHING and self.index == NOTHING

    def stored(self, source: int = NOTHING) -> tuple[Step, ...]:
        """Return the store to the operand; nothing where its address is no plain sum."""
        return (Step(Op.STORE, self.base, source, self.offset, self.size),) if self.is_plain else ()

    def loaded(self, register: int, *, is_signed: bool = False) -> Step:
        """Return the load of a register from the operand, which may be a word of a table."""
        if not self.is_known:
            return Step(Op.FORGET, register)
        if self.index != NOTHING or (self.size != 8 and self.base != NOTHING):
            return Step(Op.INDEX, register, self.base, self.offset, self.size, self.index, is_signed=is_signed)
        if self.size != 8:
            return Step(Op.FORGET, register)
        return Step(Op.LOAD, register, self.base, self.offset)


def effect_of(vaddr: int, size: int, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`Abi.effect_of`)."""
    # "xmm0, xmm1", and not "xmmword ptr [rsp], xmm0".
    if operands[:3] in ("xmm", "ymm", "zmm") and operands[3:4] != "w" and "str" not in mnemonic:
        return NO_EFFECT
    *prefixes, name = mnemonic.split(" ")
    if not _PREFIXES.issuperset(prefixes) or name in _UNKNOWN:
        return None
    ops = operands.split(", ") if operands else []
    end = vaddr + size
    if size in _SHORTENED.get(name, ()) and not prefixes and (not ops or number(ops[0]) is not None):
        return None
    if name in _BRANCHES or name in ("jmp", "call", "ret"):
        return _flow(name, ops, end)
    if name in _FIXED:
        return _FIXED[name]
    if name in _STACK:
        return _stack(name, ops, end)
    if name == "cmp" and ops[0] in _FULL and ops[1] in _FULL:
        return Effect((Step(Op.COMPARE, _FULL[ops[0]], _FULL[ops[1]]),))
    steps = () if name in _READS_ONLY else _value(name, ops, end)
    return Effect(steps) if steps is not None else _other(name, ops, end)


def _flow(name: str, ops: list[str], end: int) -> Effect | None:
    """Return the effect of what changes the flow of control."""
    if name == "ret":
        popped = number(ops[0]) if ops else None
        return Effect((*_RETURN, Step(Op.MOVE, RSP, RSP, popped)) if popped else _RETURN, Flow.RETURN)
    target = address(ops[0])
    if name in _BRANCHES:
        steps = forget(RCX) if name.startswith("loop") else forget(RAX) if name == "xbegin" else ()
        equal = {"je": True, "jne": False}.get(name)
        return None if target is None else Effect(steps, Flow.BRANCH, target, equal)
    if target is not None:
        return Effect((), Flow.JUMP if name == "jmp" else Flow.CALL, target)
    flow = Flow.CALL if name == "call" else Flow.JUMP_INDIRECT
    if ops[0] in _FULL:
        return Effect((Step(Op.MOVE, JUMP, _FULL[ops[0]]),), flow)
    memory = _AddressOperand(ops[0], end)
    return Effect((memory.loaded(JUMP),), flow) if memory.size == 8 else None


_STACK: Final = words("push pop leave enter pushfq popfq")


def _stack(name: str, ops: list[str], end: int) -> Effect | None:
    """Return the effect of what moves SP without naming it; None where it moves it by other than 8 bytes."""
    if name == "leave":
        return Effect((Step(Op.MOVE, RSP, RBP), Step(Op.LOAD, RBP, RSP), _SP_UP))
    if name == "enter":
        size, level = number(ops[0]), number(ops[1])
        frame = (Step(Op.STORE, RSP, RBP, -8), _SP_DOWN, Step(Op.MOVE, RBP, RSP))
        # With a level, it copies the frame pointers of callers.
        return None if size is None or level != 0 else Effect((*frame, Step(Op.MOVE, RSP, RSP, -size)))
    if name in ("pushfq", "popfq"):
        return Effect((Step(Op.STORE, RSP, NOTHING, -8), _SP_DOWN) if name == "pushfq" else (_SP_UP,))
    part = _REGISTERS.get(ops[0])
    memory = _AddressOperand(ops[0], end) if "[" in ops[0] else None
    if (part is not None and part[1] != 8) or (memory is not None and memory.size != 8):
        return None
    if name == "push":
        # Segment registers are pushed as 8 bytes, too.
        first = (memory.loaded(BETWEEN),) if memory is not None else ()
        source = BETWEEN if memory is not None else NOTHING if part is None else part[0]
        return Effect((*first, Step(Op.STORE, RSP, source, -8), _SP_DOWN))
    if part is None:
        # An address with SP is computed after the step.
        return Effect((_SP_UP, *(memory.stored() if memory is not None else ())))
    load = Step(Op.LOAD, part[0], RSP)
    return Effect((load,) if part[0] == RSP else (load, _SP_UP))


def _value(name: str, ops: list[str], end: int) -> tuple[Step, ...] | None:
    """Return the steps of an instruction whose result is followed; None for any other."""
    target = _FULL.get(ops[0]) if len(ops) > 1 else None
    source = _FULL.get(ops[1]) if len(ops) > 1 else None
    value = number(ops[1]) if len(ops) > 1 else None
    memory = _AddressOperand(ops[1], end) if len(ops) > 1 and "[" in ops[1] else None
    if name in ("mov", "movabs"):
        return _mov(ops, target, source, value, memory or (_AddressOperand(ops[0], end) if "[" in ops[0] else None))
    part = _REGISTERS.get(ops[0]) if ops else None
    if name == "xor" and part is not None and ops[0] == ops[1] and part[1] >= 4:
        return (Step(Op.NUMBER, part[0]),)
    if name in ("movzx", "movsx", "movsxd") and part is not None and part[1] >= 4:
        if memory is not None:
            return (memory.loaded(part[0], is_signed=name != "movzx"),)
        return (Step(Op.EXTEND, part[0], _REGISTERS[ops[1]][0], 0, _REGISTERS[ops[1]][1], is_signed=name != "movzx"),)
    if target is None:
        return None
    sign = {"add": 1, "sub": -1}.get(name)
    if sign is not None and value is not None:
        return (Step(Op.MOVE, target, target, sign * value),)
    if sign is not None and source is not None:
        return (Step(Op.ADD, target, source, scale=sign),)
    if name == "and" and (value is not None or source is not None):
        return (Step(Op.MOVE_FRAME, target),)
    if name == "lea" and memory is not None and (memory.is_known or memory.base != NOTHING):
        return _lea(target, memory, ops[1])
    return None


def _mov(
    ops: list[str], target: int | None, source: int | None, value: int | None, memory: _AddressOperand | None
) -> tuple[Step, ...] | None:
    """Return the steps of MOV; one of its operands may be in memory."""
    if target is not None:
        if source is not None:
            return (Step(Op.MOVE, target, source),)
        if value is not None:
            return (Step(Op.NUMBER, target, offset=value, size=4),)
        return (memory.loaded(target),) if memory is not None else forget(target)
    part = _REGISTERS.get(ops[0])
    if part is not None:
        if part[1] == 4 and value is not None:
            return (Step(Op.NUMBER, part[0], offset=value & 0xFFFFFFFF, size=4),)
        return (memory.loaded(part[0]),) if memory is not None and part[1] == 4 else None
    if memory is None or "[" not in ops[0]:
        # A segment, control or debug register.
        return ()
    return memory.stored(NOTHING if source is None else source)


def _lea(target: int, memory: _AddressOperand, text: str) -> tuple[Step, ...] | None:
    """Return the steps of LEA; a segment does not change the address that is computed, but 32-bit registers do."""
    if memory.base == memory.index == NOTHING:
        return (Step(Op.NUMBER, target, offset=memory.offset & _ADDRESSES),) if "*" not in text else None
    if memory.base == NOTHING or memory.scale != 1:
        return None
    if memory.index == NOTHING:
        return (Step(Op.MOVE, target, memory.base, memory.offset),)
    first, second = memory.base, memory.index
    if second == target:
        first, second = second, first
    if target in (second, RSP):
        return None
    return (Step(Op.MOVE, target, first, memory.offset), Step(Op.ADD, target, second))


def _other(name: str, ops: list[str], end: int) -> Effect | None:
    """Return the effect of an instruction whose results are not followed; None where it may give SP a value."""
    named = [_REGISTERS[text][0] for text in ops if text in _REGISTERS]
    if name in _IMPLICIT:
        is_first = name == "cmpxchg" and ops[0] in _REGISTERS
        changed = [*_IMPLICIT[name], *(named[:1] if is_first else ())]
    elif name == "imul":
        changed = named[:1] if len(ops) > 1 else [RAX, RDX]
    elif _FIRST_ONLY.fullmatch(name):
        changed = named[:1] if ops and ops[0] in _REGISTERS else []
    elif "pcmp" in name and "str" in name:
        changed = [*named, RCX]
    elif any(map(_VECTOR.search, ops)) or name in ("xchg", "xadd", "mulx"):
        changed = named
    else:
        changed = [*named, RAX, RDX, RCX, RBX, RSI, RDI, R11]
    if RSP in changed:
        return None
    written = () if name in ("mul", "div", "idiv", "imul") else ops[: 2 if name in ("xchg", "xadd") else 1]
    stores = [step for text in written if "[" in text for step in _AddressOperand(text, end).stored()]
    return Effect((*stores, *forget(*changed)))


def _references(data: bytes, vaddr: int, pages: Container[int], is_fixed: bool) -> Iterator[Reference]:  # noqa: FBT001
    """Yield what some bytes may refer to (`Abi.references`)."""
    for match in _DISTANCES.finditer(data):
        target = vaddr + match.end() + 4 + int.from_bytes(match[2], "little", signed=True)
        if target >> PAGE_BITS in pages:
            is_loaded = match[1] is not None
            start = match.start(1) if is_loaded else match.start()
            yield Reference(vaddr + start, target, not is_loaded and match[0][0] == _CALL)
    for match in _NUMBERS.finditer(data) if is_fixed else ():
        target = int.from_bytes(match[1], "little")
        if target >> PAGE_BITS in pages:
            yield Reference(vaddr + match.start(), target, is_call=False)


ABI: Final = Abi(
    arch=AMD64,
    # System V ABI for AMD64, 3.2.1
    clobbered=bits((RAX, RDX, RCX, RSI, RDI, 8, 9, 10, R11)),
    callee_area=0,
    red_zone=128,
    last_calls=frozenset({15, 60, 231}),
    clone_calls=frozenset({56, 435}),
    effect_of=effect_of,
    references=_references,
    disassembler=("CS_ARCH_X86", "CS_ARCH_X86", "CS_MODE_64"),
    depends_on_address=lambda _mnemonic, operands: "rip" in operands,
)
