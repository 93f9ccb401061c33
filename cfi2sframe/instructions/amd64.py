# SPDX-License-Identifier: Apache-2.0
"""The effects of AMD64's instructions on a frame (Intel's manual, volume 2; AMD's, volume 3), from capstone's text.

An instruction that is in no table changes its first operand. Only instructions in the tables change SP without naming
it.
"""

import re
from collections.abc import Iterator
from typing import Final

from cfi2sframe.abi import AMD64
from cfi2sframe.elf.disassembler import AMD64_DISASSEMBLER
from cfi2sframe.instructions.effects import (
    BETWEEN,
    JUMP,
    NO_EFFECT,
    NOTHING,
    PADDING,
    TRAP,
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
from cfi2sframe.range_map import ADDRESS_MASK

RAX, RDX, RCX, RBX, RSI, RDI, RBP, RSP, R11 = 0, 1, 2, 3, 4, 5, 6, 7, 11

#: The number and the size of each general register's names.
_REGISTERS: Final = {
    **{f"r{n}{suffix}": (n, size) for n in range(8, 16) for suffix, size in (("", 8), ("d", 4), ("w", 2), ("b", 1))},
    **{
        name: (register, size)
        for register, x in ((RAX, "a"), (RBX, "b"), (RCX, "c"), (RDX, "d"))
        for name, size in ((f"r{x}x", 8), (f"e{x}x", 4), (f"{x}x", 2), (f"{x}l", 1), (f"{x}h", 1))
    },
    **{
        name: (register, size)
        for register, x in ((RSI, "si"), (RDI, "di"), (RBP, "bp"), (RSP, "sp"))
        for name, size in ((f"r{x}", 8), (f"e{x}", 4), (x, 2), (f"{x}l", 1))
    },
}
_FULL: Final = {name: register for name, (register, size) in _REGISTERS.items() if size == 8}
_SIZES: Final = {
    "byte": 1, "word": 2, "dword": 4, "qword": 8, "xword": 10, "tbyte": 10, "fword": 6,
    "xmmword": 16, "ymmword": 32, "zmmword": 64,
}  # fmt: skip
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:(\w\w):)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?) ?(?:(\w+)\*(\d)|(0x[0-9a-f]+|\d+)|(\w+))")
#: call, jmp; `lea r64, [rip + distance]`: the last byte before the distance, whose four bytes are at the end of each.
#: A pattern that begins with a set of bytes is searched 3 times as quickly as one that begins with alternatives.
_DISTANCES: Final = re.compile(
    rb"[\xe8\xe9\x05\x0d\x15\x1d\x25\x2d\x35\x3d](?:(?<=[\xe8\xe9])|(?<=([\x48\x4c]\x8d).))(?=(.{4}))", re.DOTALL
)
#: `mov r32, number`, as code at fixed addresses loads one.
_NUMBERS: Final = re.compile(rb"(?=[\xb8-\xbf](.{4}))", re.DOTALL)
_PREFIXES: Final = words("rep repe repz repne repnz lock bnd notrack xacquire xrelease data16")
#: The size of an instruction with an operand size prefix, with which processors differ, or fewer than 8 bytes move.
_SHORTENED: Final = {"call": (6,), "jmp": (4, 6), "ret": (2, 4), "push": (3, 4)}
_SP_UP: Final = Step(Op.MOVE, RSP, RSP, 8)
_SP_DOWN: Final = Step(Op.MOVE, RSP, RSP, -8)
_RETURN: Final = (Step(Op.LOAD, JUMP, RSP), _SP_UP)

#: Instructions that leave for another privilege level or code segment, or change SP in a way that is not followed.
_UNKNOWN: Final = words(
    "iret iretd iretq retf retfq ljmp lcall sysret sysretq sysexit sysexitq sysenter rsm eretu erets uiret pushal"
    " popal pushaw popaw enter pushf popf pushfd popfd vmlaunch vmresume skinit pop2 push2"
)
_BRANCHES: Final = words("jo jno js jns jp jnp jl jge jle jg ja jae jb jbe je jne jrcxz jecxz xbegin loop loope loopne")
_READS_ONLY: Final = words(
    "test cmp bt prefetch prefetchw prefetchnta prefetcht0 prefetcht1 prefetcht2 clflush clflushopt clwb ldmxcsr"
    " vldmxcsr fld fild fldcw fadd fsub fmul fdiv fiadd fimul fcom fcomp"
)
#: Instructions with the same effect for any operands.
_FIXED: Final = {
    **dict.fromkeys(("int3", "hlt", "ud2", "ud0", "ud1", "ud2b", "int1"), TRAP),
    "nop": PADDING,
    "cdqe": Effect((Step(Op.SIGN_EXTEND, RAX),)),
    "pause": NO_EFFECT,
    "syscall": Effect((Step(Op.MOVE, JUMP, RAX), *forget(RAX, RCX, R11)), Flow.SYSTEM_CALL),
}
#: The registers that instructions change without naming them.
_IMPLICIT: Final = {
    **dict.fromkeys(words("mul div idiv rdtsc xgetbv rdpmc rdmsr rdpkru cmpxchg8b cmpxchg16b"), (RAX, RDX)),
    **dict.fromkeys(words("cdq cqo cwd"), (RDX,)),
    **dict.fromkeys(words("cwde cbw lahf xlatb cmpxchg int"), (RAX,)),
    **dict.fromkeys(words("movsb movsw movsd movsq cmpsb cmpsw cmpsd cmpsq"), (RSI, RDI, RCX)),
    **dict.fromkeys(words("stosb stosw stosd stosq scasb scasw scasd scasq insb insw insd"), (RDI, RCX)),
    **dict.fromkeys(words("lodsb lodsw lodsd lodsq outsb outsw outsd"), (RAX, RSI, RCX)),
    **dict.fromkeys(words("cpuid encls enclu enclv getsec"), (RAX, RBX, RCX, RDX)),
    # VIA's PadLock
    **dict.fromkeys(words("xcryptcbc xcryptcfb xcryptctr xcryptecb xcryptofb xsha1 xsha256"), (RAX, RCX, RSI, RDI)),
    **dict.fromkeys(words("montmul xstore"), (RAX, RDX, RCX, RSI, RDI)),
    "rdtscp": (RAX, RDX, RCX),
    **dict.fromkeys(words("pcmpestri pcmpistri vpcmpestri vpcmpistri"), (RCX,)),
}
#: Bytes that are stored, where capstone gives the size of a word, or none: for FNSAVE, those that QEMU stores with
#: REX.W, which processors ignore; for XSAVE, more than any processor stores.
_AREAS: Final = {
    **dict.fromkeys(words("sgdt sidt"), 10),
    **dict.fromkeys(words("fxsave fxsave64"), 512),
    "fnstenv": 28,
    "fnsave": 136,
    **dict.fromkeys(words("xsave xsave64 xsavec xsavec64 xsaveopt xsaveopt64 xsaves xsaves64"), 1 << 14),
}
#: Instructions that change their first two operands, and those that change none.
_CHANGES_TWO: Final = words("xchg xadd mulx")
_CHANGES_NONE: Final = words("mul div idiv scasb scasw scasd scasq")


def _memory(text: str, end: int) -> Storage:
    """Return an operand in memory of an instruction that ends at an address."""
    match = _MEMORY.search(text)
    word, segment, inside = match.groups() if match is not None else ("", "fs", "")
    base = index = NOTHING
    scale, offset, is_known = 1, 0, segment not in ("fs", "gs")
    for sign, scaled, factor, digits, name in _TERM.findall(inside):
        if digits:
            offset += -int(digits, 0) if sign == "-" else int(digits, 0)
        elif name == "rip":
            offset += end
        elif scaled or base != NOTHING:
            index, scale = _FULL.get(scaled or name, NOTHING), int(factor or 1)
            # An index register without a name of its own ("riz") leaves the address as it is.
            is_known &= index != NOTHING or scaled == "riz"
        else:
            base = _FULL.get(name, NOTHING)
            is_known &= base != NOTHING
    return Storage(base, index, offset, _SIZES.get(word or "", 8), scale, is_known)


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
    """Return the effect of a jump, a branch, a call or a return."""
    if name == "ret":
        popped = number(ops[0]) if ops else None
        return Effect((*_RETURN, Step(Op.MOVE, RSP, RSP, popped)) if popped else _RETURN, Flow.RETURN)
    target = address_in(ops[0])
    if name in _BRANCHES:
        steps = forget(RCX) if name.startswith("loop") else forget(RAX) if name == "xbegin" else ()
        equal = {"je": True, "jne": False}.get(name)
        return None if target is None else Effect(steps, Flow.BRANCH, target, equal)
    if target is not None:
        return Effect((), Flow.JUMP if name == "jmp" else Flow.CALL, target)
    flow = Flow.CALL if name == "call" else Flow.JUMP_INDIRECT
    if ops[0] in _FULL:
        return Effect((Step(Op.MOVE, JUMP, _FULL[ops[0]]),), flow)
    memory = _memory(ops[0], end)
    # Without a size, it leads to another segment.
    return Effect((memory.loaded(JUMP, 8),), flow) if ops[0].startswith("qword") else None


_STACK: Final = words("push pop leave pushfq popfq")


def _stack(name: str, ops: list[str], end: int) -> Effect | None:
    """Return the effect of a push, a pop or LEAVE; None where SP does not move by 8 bytes."""
    if name == "leave":
        return Effect((Step(Op.MOVE, RSP, RBP), Step(Op.LOAD, RBP, RSP), _SP_UP))
    if name in ("pushfq", "popfq"):
        return Effect((Step(Op.STORE, RSP, NOTHING, -8), _SP_DOWN) if name == "pushfq" else (_SP_UP,))
    # Segment registers are pushed and popped as 8 bytes, too.
    register, size = _REGISTERS.get(ops[0], (NOTHING, 8))
    memory = _memory(ops[0], end) if "[" in ops[0] else None
    if (size if memory is None else memory.size) != 8:
        return None
    if name == "push":
        first = (memory.loaded(BETWEEN, 8),) if memory is not None else ()
        return Effect((*first, Step(Op.STORE, RSP, BETWEEN if first else register, -8), _SP_DOWN))
    if register == NOTHING:
        # An address with SP is computed after the step.
        return Effect((_SP_UP, *(memory.stored(8) if memory is not None else ())))
    load = Step(Op.LOAD, register, RSP)
    return Effect((load,) if register == RSP else (load, _SP_UP))


def _value(name: str, ops: list[str], end: int) -> tuple[Step, ...] | None:
    """Return the steps of an instruction whose result is followed; None for any other."""
    first, second = (*ops, "", "")[:2]
    if name in ("mov", "movabs"):
        return _mov(first, second, end)
    register, size = _REGISTERS.get(first, (NOTHING, 0))
    memory = _memory(second, end) if "[" in second else None
    if name == "xor" and first == second and size >= 4:
        return (Step(Op.NUMBER, register),)
    if name in ("movzx", "movsx", "movsxd") and size >= 4 and memory is not None:
        return (memory.loaded(register, memory.size, is_signed=name != "movzx"),)
    if size != 8:
        return None
    value = number(second)
    sign = {"add": 1, "sub": -1}.get(name)
    if sign is not None and value is not None:
        return (Step(Op.MOVE, register, register, sign * value),)
    if sign is not None and second in _FULL:
        return (Step(Op.ADD, register, _FULL[second], scale=sign),)
    if name == "and" and (value is not None or second in _FULL):
        return (Step(Op.MOVE_FRAME, register),)
    if name == "lea" and memory is not None and (memory.is_known or memory.base != NOTHING):
        return _lea(register, memory, second)
    return None


def _mov(to: str, source: str, end: int) -> tuple[Step, ...] | None:
    """Return the steps of MOV; None where it changes only a part of a register that is not followed."""
    if to not in _REGISTERS:
        # Without brackets, it is a segment, control or debug register.
        memory = _memory(to, end)
        return memory.stored(memory.size, _FULL.get(source, NOTHING)) if "[" in to else ()
    register, size = _REGISTERS[to]
    value = number(source)
    if size == 8 and source in _FULL:
        return (Step(Op.MOVE, register, _FULL[source]),)
    if size >= 4 and value is not None:
        return (Step(Op.NUMBER, register, offset=value if size == 8 else value & 0xFFFFFFFF, size=4),)
    if size >= 4 and "[" in source:
        memory = _memory(source, end)
        return (memory.loaded(register, memory.size),)
    return forget(register) if size == 8 else None


def _lea(target: int, memory: Storage, text: str) -> tuple[Step, ...] | None:
    """Return the steps of LEA. A segment does not change the address, but 32-bit registers do."""
    if memory.base == memory.index == NOTHING:
        return (Step(Op.NUMBER, target, offset=memory.offset & ADDRESS_MASK),) if "*" not in text else None
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
    if name == "imul" and len(ops) == 1:
        name = "mul"
    changed = ops[: 2 if name in _CHANGES_TWO else 0 if name in _CHANGES_NONE else 1]
    # A store of SSE2 has the name of a string instruction, whose operands are both in memory.
    implicit = () if name == "movsd" and ops[1].startswith("xmm") else _IMPLICIT.get(name, ())
    registers = [*implicit, *(_REGISTERS[text][0] for text in changed if text in _REGISTERS)]
    if RSP in registers:
        return None
    memories = [_memory(text, end) for text in changed if "[" in text]
    stores = [step for memory in memories for step in memory.stored(_AREAS.get(name, memory.size))]
    return Effect((*stores, *forget(*registers)))


def _references(data: bytes, vaddr: int, is_fixed: bool) -> Iterator[tuple[int, int]]:  # noqa: FBT001
    """Yield the addresses to which some bytes may refer (`Abi.references`)."""
    for match in _DISTANCES.finditer(data):
        start = match.start() if match[1] is None else match.start(1)
        yield vaddr + start, vaddr + match.end() + 4 + int.from_bytes(match[2], "little", signed=True)
    for match in _NUMBERS.finditer(data) if is_fixed else ():
        yield vaddr + match.start(), int.from_bytes(match[1], "little")


ABI: Final = Abi(
    arch=AMD64,
    # System V ABI for AMD64, 3.2.1
    clobbered=bits((RAX, RDX, RCX, RSI, RDI, 8, 9, 10, R11)),
    callee_area=0,
    red_zone=128,
    # rt_sigreturn, clone, exit, exit_group, clone3
    last_calls=frozenset({15, 56, 60, 231, 435}),
    effect_of=effect_of,
    references=_references,
    disassembler=AMD64_DISASSEMBLER,
    depends_on_address=lambda _mnemonic, operands: "rip" in operands,
)
