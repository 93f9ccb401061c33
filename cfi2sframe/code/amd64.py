# SPDX-License-Identifier: Apache-2.0
"""What the instructions of AMD64 do to a frame (Intel's manual, volume 2; AMD's, volume 3), from capstone's text.

An instruction that no table here names changes each general register that its text names, outside of an address, and
those that such instructions change without naming them. Only instructions of the tables change SP without naming it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.code.effects import (
    JUMP_TARGET,
    NO_EFFECT,
    NOTHING,
    CodeArch,
    Condition,
    Effect,
    Flow,
    Op,
    Step,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_WORD: Final = 8
_HALF: Final = 4
_RAX, _RDX, _RCX, _RBX, _RSI, _RDI, _RBP, _RSP, _R11 = 0, 1, 2, 3, 4, 5, 6, 7, 11
#: The flags tell nothing of two values.
_NO_COMPARISON: Final = Step(Op.COMPARE, NOTHING)
#: Instructions that leave the flags as they are, besides those on vectors.
_KEEP_FLAGS: Final = frozenset(
    {"mov", "movabs", "movzx", "movsx", "movsxd", "lea", "push", "pop", "leave", "not", "bswap", "xchg", "nop", "cdq"}
    | {"cqo", "cdqe", "cwde", "cbw", "cwd", "cmp", "pause", "movbe", "sarx", "shlx", "shrx", "rorx", "pdep", "pext"}
    | {"mulx", "endbr64", "jmp", "call", "ret", "prefetcht0", "prefetcht1", "prefetcht2", "prefetchnta", "prefetchw"}
    | {"lfence", "sfence", "mfence", "vzeroupper", "vzeroall", "movnti", "stosb", "stosd", "stosq", "movsb", "movsq"}
    | {"jrcxz", "jecxz", "loop", "loope", "loopne", "enter", "rdtsc", "rdtscp", "cpuid", "int3", "ud2", "hlt"}
)
#: Registers that calls do not keep (System V ABI for AMD64, 3.2.1): rax, rdx, rcx, rsi, rdi, r8 to r11.
_CLOBBERED: Final = frozenset({_RAX, _RDX, _RCX, _RSI, _RDI, 8, 9, 10, _R11})


def _register_names() -> dict[str, tuple[int, int]]:
    """Return the number and the size in bytes of each general register's names."""
    found: dict[str, tuple[int, int]] = {}
    for number, letter in ((_RAX, "a"), (_RBX, "b"), (_RCX, "c"), (_RDX, "d")):
        names = {f"r{letter}x": 8, f"e{letter}x": 4, f"{letter}x": 2, f"{letter}l": 1, f"{letter}h": 1}
        found |= {name: (number, size) for name, size in names.items()}
    for number, stem in ((_RSI, "si"), (_RDI, "di"), (_RBP, "bp"), (_RSP, "sp")):
        found |= {f"r{stem}": (number, 8), f"e{stem}": (number, 4), stem: (number, 2), f"{stem}l": (number, 1)}
    for number in range(8, 16):
        for suffix, size in (("", 8), ("d", 4), ("w", 2), ("b", 1)):
            found[f"r{number}{suffix}"] = (number, size)
    return found


_REGISTERS: Final = _register_names()
_SIZES: Final = {
    "byte": 1, "word": 2, "dword": 4, "qword": 8, "xword": 10, "tbyte": 10, "fword": 6,
    "xmmword": 16, "ymmword": 32, "zmmword": 64,
}  # fmt: skip
_MEMORY: Final = re.compile(r"(?:(\w+) ptr )?(?:(\w\w):)?\[([^\]]*)\]")
_TERM: Final = re.compile(r"([+-]?) ?(?:(\w+)\*(\d)|(0x[0-9a-f]+|\d+)|(\w+))")
_NUMBER: Final = re.compile(r"-?(?:0x[0-9a-f]+|\d+)")
_VECTOR: Final = re.compile(r"\b(?:[xyz]?mm\d|k\d|st\b|st\()")
#: How operands begin where a vector is changed, as most are in such code.
_VECTOR_TARGETS: Final = frozenset({"xmm", "ymm", "zmm"})
#: Prefixes that do not change what is said here.
_PREFIXES: Final = (
    "rep ",
    "repe ",
    "repz ",
    "repne ",
    "repnz ",
    "lock ",
    "bnd ",
    "notrack ",
    "xacquire ",
    "xrelease ",
    "data16 ",
)
#: The size of a call, a jump, a return or a push with an operand size prefix, with which processors differ, or fewer
#: than 8 bytes are pushed.
_SHORTENED_SIZES: Final = {"call": (6,), "jmp": (4, 6), "ret": (2, 4), "push": (3, 4)}


class _Memory(NamedTuple):
    """A memory operand: registers or `NOTHING`, a displacement, the bytes accessed; `segment` is one that counts."""

    base: int
    index: int  # type: ignore[assignment]  # hides tuple.index
    scale: int
    offset: int
    size: int
    segment: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the address is a sum of one register and a number."""
        return self.base != NOTHING and self.index == NOTHING and not self.segment


class _Text(NamedTuple):
    """An instruction as its handler sees it; `end` is the address of the next one."""

    name: str
    operands: tuple[str, ...]
    end: int
    size: int

    def register(self, number: int) -> int | None:
        """Return an operand's register of 64 bits; None when it is something else."""
        found = _REGISTERS.get(self.operands[number])
        return found[0] if found is not None and found[1] == _WORD else None

    def part(self, number: int) -> tuple[int, int] | None:
        """Return an operand's general register and the bytes of it that are meant; None when it is something else."""
        return _REGISTERS.get(self.operands[number])

    def value(self, number: int) -> int | None:
        """Return an operand that is a number."""
        text = self.operands[number]
        return int(text, 0) if _NUMBER.fullmatch(text) else None

    def memory(self, number: int) -> _Memory | None:
        """Return an operand in memory."""
        return _memory(self.operands[number], self.end)


def _memory(text: str, end: int) -> _Memory | None:
    match = _MEMORY.search(text)
    if match is None:
        return None
    word, segment, inside = match.groups()
    base = index = NOTHING
    scale, offset = 1, 0
    is_odd = segment in ("fs", "gs")
    for sign, scaled, factor, number, name in _TERM.findall(inside):
        if number:
            offset += -int(number, 0) if sign == "-" else int(number, 0)
        elif name == "rip":
            offset += end
        elif scaled:
            index, scale = _REGISTERS.get(scaled, (NOTHING, 0))[0], int(factor)
            is_odd |= index == NOTHING
        else:
            register, size = _REGISTERS.get(name, (NOTHING, 0))
            is_odd |= size != _WORD
            if base == NOTHING:
                base = register
            else:
                index, scale = register, 1
    # An index register without a name of its own ("riz") leaves the address as it is.
    return _Memory(base, index, scale, offset, _SIZES.get(word or "", _WORD), is_odd)


def _forget(registers: Iterable[int]) -> tuple[Step, ...]:
    return tuple([Step(Op.FORGET, register) for register in sorted(set(registers))])


def _named(operands: Iterable[str]) -> list[int]:
    """Return the general registers among operands."""
    return [_REGISTERS[text][0] for text in operands if text in _REGISTERS]


def _stored(memory: _Memory | None, source: int = NOTHING, size: int = 0) -> tuple[Step, ...]:
    """Return the store to an operand in memory; nothing where the address is no plain sum."""
    if memory is None or not memory.is_plain:
        return ()
    return (Step(Op.STORE, memory.base, source, memory.offset, size or memory.size),)


def _writes_first(text: _Text) -> Effect:
    """Return the effect of an instruction that changes its first operand, and in no way that is followed."""
    if not text.operands:
        return NO_EFFECT
    register = text.part(0)
    if register is not None:
        return Effect((Step(Op.FORGET, register[0]),))
    return Effect(_stored(text.memory(0)))


def _mov(text: _Text) -> Effect:
    target, part = text.register(0), text.part(0)
    value, source = text.value(1), text.register(1)
    if target is not None:
        if source is not None:
            return Effect((Step(Op.MOVE, target, source),))
        if value is not None:
            return Effect((Step(Op.CONSTANT, target, offset=value),))
        return Effect((_loaded(target, text.memory(1)),))
    if part is not None:
        if part[1] == 4 and value is not None:
            return Effect((Step(Op.CONSTANT, part[0], offset=value & 0xFFFFFFFF),))
        if part[1] == 1 and value is not None and text.operands[0][-1] == "l":
            return Effect((Step(Op.CONSTANT, part[0], offset=value & 0xFF, size=1),))
        return _short_copy(text, part[0])
    memory = text.memory(0)
    if memory is None:
        # A segment, control or debug register.
        return NO_EFFECT
    return Effect(_stored(memory, NOTHING if source is None else source))


def _short_copy(text: _Text, target: int) -> Effect:
    """Return the effect of a copy of fewer than 8 bytes."""
    source = text.part(1)
    if source is not None and text.operands[1][-1] != "h":
        return Effect((Step(Op.MOVE, target, source[0], size=source[1]),))
    memory = text.memory(1)
    if memory is not None and text.name.startswith("movzx"):
        if memory.size == 1:
            return _limit_or_table(target, memory, 0xFF)
        return Effect((_loaded(target, memory),))
    if memory is not None and memory.size == 4:
        return Effect((_loaded(target, memory, is_signed=text.name == "movsxd"),))
    return Effect((Step(Op.FORGET, target),))


def _limit_or_table(target: int, memory: _Memory, limit: int) -> Effect:
    step = _loaded(target, memory)
    return Effect((step if step.op is Op.LOAD_INDEXED else Step(Op.LIMIT, target, offset=limit),))


def _loaded(target: int, memory: _Memory | None, *, is_signed: bool = False) -> Step:
    if memory is None or memory.segment:
        return Step(Op.FORGET, target)
    if memory.index != NOTHING:
        return Step(
            Op.LOAD_INDEXED, target, memory.base, memory.offset, memory.size, memory.index, memory.scale, is_signed
        )
    return Step(Op.LOAD, target, memory.base, memory.offset, memory.size, is_signed=is_signed)


def _extended(text: _Text) -> Effect:
    """Return the effect of a copy that extends its source."""
    part, memory = text.part(0), text.memory(1)
    if part is None:
        return _writes_first(text)
    if text.name in ("movsxd", "movsx") and memory is not None and part[1] == _WORD:
        return Effect((_loaded(part[0], memory, is_signed=True),))
    return _short_copy(text, part[0])


def _sum(text: _Text) -> Effect:
    target, value, source = text.register(0), text.value(1), text.register(1)
    if target is None or (value is None and source is None):
        return _writes_first(text)
    if value is not None:
        # Numbers of 32 bits are extended with their sign; capstone writes them so.
        return Effect((Step(Op.MOVE, target, target, value if text.name == "add" else -value),))
    if source is None:
        return Effect((Step(Op.FORGET, target),))
    return Effect((Step(Op.ADD, target, source, scale=1 if text.name == "add" else -1),))


def _exclusive_or(text: _Text) -> Effect:
    part = text.part(0)
    if part is not None and part == text.part(1) and part[1] >= _HALF:
        return Effect((Step(Op.CONSTANT, part[0]),))
    return _writes_first(text)


def _step_by_one(text: _Text) -> Effect:
    target = text.register(0)
    if target is None:
        return _writes_first(text)
    return Effect((Step(Op.MOVE, target, target, 1 if text.name == "inc" else -1),))


def _lea(text: _Text) -> Effect:
    target, memory = text.register(0), text.memory(1)
    if target is None or memory is None or memory.base == memory.index == NOTHING:
        if target is not None and memory is not None and not memory.segment:
            return Effect((Step(Op.CONSTANT, target, offset=memory.offset),))
        return _writes_first(text)
    # A segment does not change the address that is computed, but 32-bit registers do.
    if memory.segment or memory.base == NOTHING or memory.scale != 1:
        return Effect((Step(Op.FORGET, target),))
    if memory.index == NOTHING:
        return Effect((Step(Op.MOVE, target, memory.base, memory.offset),))
    first, second = memory.base, memory.index
    if second == target:
        first, second = second, first
    if second == target:
        return Effect((Step(Op.FORGET, target),))
    return Effect((Step(Op.MOVE, target, first, memory.offset), Step(Op.ADD, target, second)))


def _and(text: _Text) -> Effect:
    part, value = text.part(0), text.value(1)
    if part is None or value is None or value < 0 or part[0] == _RSP:
        return _writes_first(text)
    return Effect((Step(Op.LIMIT, part[0], offset=value),))


def _push(text: _Text) -> Effect | None:
    part, memory = text.part(0), text.memory(0)
    if (part is not None and part[1] != _WORD) or (memory is not None and memory.size != _WORD):
        return None
    # Segment registers are pushed as 8 bytes, too.
    source = NOTHING if part is None else part[0]
    return Effect((Step(Op.STORE, _RSP, source, -_WORD), Step(Op.MOVE, _RSP, _RSP, -_WORD)))


def _pop(text: _Text) -> Effect | None:
    part, memory = text.part(0), text.memory(0)
    if (part is not None and part[1] != _WORD) or (memory is not None and memory.size != _WORD):
        return None
    up = Step(Op.MOVE, _RSP, _RSP, _WORD)
    if part is None:
        # An address with SP is computed after the step.
        return Effect((up, *_stored(memory)))
    load = Step(Op.LOAD, part[0], _RSP)
    return Effect((load,) if part[0] == _RSP else (load, up))


def _leave(_text: _Text) -> Effect:
    return Effect((Step(Op.MOVE, _RSP, _RBP), Step(Op.LOAD, _RBP, _RSP), Step(Op.MOVE, _RSP, _RSP, _WORD)))


def _enter(text: _Text) -> Effect | None:
    size, level = text.value(0), text.value(1)
    if size is None or level != 0:
        return None
    push = (Step(Op.STORE, _RSP, _RBP, -_WORD), Step(Op.MOVE, _RSP, _RSP, -_WORD))
    return Effect((*push, Step(Op.MOVE, _RBP, _RSP), Step(Op.MOVE, _RSP, _RSP, -size)))


def _compare(text: _Text) -> Effect:
    left, right, value = text.part(0), text.part(1), text.value(1)
    if left is None or (right is None and value is None):
        return NO_EFFECT
    if value is not None:
        return Effect((Step(Op.COMPARE, left[0], offset=value, size=left[1]),))
    return Effect((Step(Op.COMPARE, left[0], right[0] if right else NOTHING, size=left[1]),))


def _ret(text: _Text) -> Effect:
    popped = text.value(0) if text.operands else 0
    return Effect(flow=Flow.RETURN, popped=popped or 0)


def _jump(text: _Text) -> Effect | None:
    target = text.value(0)
    if target is not None:
        return Effect(flow=Flow.JUMP, target=target)
    step = _target(text)
    return None if step is None else Effect((step,), Flow.JUMP_INDIRECT)


def _call(text: _Text) -> Effect | None:
    target = text.value(0)
    if target is not None:
        return Effect(flow=Flow.CALL, target=target)
    step = _target(text)
    return None if step is None else Effect((step,), Flow.CALL_INDIRECT)


def _target(text: _Text) -> Step | None:
    """Return the step that gives `JUMP_TARGET` its value."""
    register, memory = text.register(0), text.memory(0)
    if register is not None:
        return Step(Op.MOVE, JUMP_TARGET, register)
    if memory is None or memory.size != _WORD:
        return None
    return _loaded(JUMP_TARGET, memory)


def _exchange(text: _Text) -> Effect:
    steps = _forget(_named(text.operands))
    return Effect((*steps, *_stored(text.memory(0)), *_stored(text.memory(1))))


def _flags_pushed(text: _Text) -> Effect:
    if text.name.startswith("push"):
        return Effect((Step(Op.STORE, _RSP, NOTHING, -_WORD), Step(Op.MOVE, _RSP, _RSP, -_WORD)))
    return Effect((Step(Op.MOVE, _RSP, _RSP, _WORD),))


def _implicit(*registers: int) -> Callable[[_Text], Effect]:
    """Return the handler of an instruction that changes its first operand and these registers."""

    def handle(text: _Text) -> Effect:
        return Effect((*_forget(registers), *_writes_first(text).steps))

    return handle


def _only(*registers: int) -> Callable[[_Text], Effect]:
    """Return the handler of an instruction that changes these registers, and reads its operands."""
    effect = Effect(_forget(registers))
    return lambda _text: effect


def _product(text: _Text) -> Effect:
    """Return the effect of `imul`, whose form with one operand has its result in rdx and rax."""
    return _writes_first(text) if len(text.operands) > 1 else Effect(_forget((_RAX, _RDX)))


def _system_call(text: _Text) -> Effect | None:
    if text.name == "int":
        # Calls of 32-bit code have numbers of their own.
        return Effect(_forget((_RAX,))) if text.value(0) == 0x80 else None
    return Effect((Step(Op.MOVE, JUMP_TARGET, _RAX), *_forget((_RAX, _RCX, _R11))), Flow.SYSTEM_CALL)


def _nothing(_text: _Text) -> Effect:
    return NO_EFFECT


def _nop(_text: _Text) -> Effect:
    return Effect(is_padding=True)


def _trap(_text: _Text) -> Effect:
    return Effect(flow=Flow.STOP, is_padding=True)


def _other(text: _Text) -> Effect:
    """Return the effect of an instruction that no table names."""
    registers = _named(text.operands)
    if "pcmp" in text.name and "str" in text.name:
        registers.append(_RCX)
    elif not any(map(_VECTOR.search, text.operands)):
        registers += (_RAX, _RDX, _RCX, _RBX, _RSI, _RDI, _R11)
    return Effect((*_forget(registers), *(_stored(text.memory(0)) if text.operands else ())))


_CONDITIONS: Final = {
    "je": Condition.EQUAL,
    "jne": Condition.NOT_EQUAL,
    "ja": Condition.ABOVE,
    "jae": Condition.ABOVE_OR_EQUAL,
    "jb": Condition.BELOW,
    "jbe": Condition.BELOW_OR_EQUAL,
    **dict.fromkeys(("jo", "jno", "js", "jns", "jp", "jnp", "jl", "jge", "jle", "jg"), Condition.NONE),
    **dict.fromkeys(("jrcxz", "jecxz", "xbegin"), Condition.NONE),
}
_LOOPS: Final = frozenset({"loop", "loope", "loopne"})
#: What leaves for another privilege level or code segment, or does with SP what is not said here.
_UNKNOWN: Final = frozenset(
    {"iret", "iretd", "iretq", "retf", "retfq", "ljmp", "lcall", "sysret", "sysretq", "sysexit", "sysexitq", "sysenter"}
    | {"rsm", "eretu", "erets", "uiret", "pushal", "popal", "pushaw", "popaw", "pushf", "popf", "pushfd", "popfd"}
    | {"vmlaunch", "vmresume", "skinit", "pop2", "push2"}
)
_READS_ONLY: Final = (
    *("test", "bt", "prefetch", "prefetchw", "prefetchnta", "prefetcht0", "prefetcht1", "prefetcht2", "clflush"),
    *("clflushopt", "clwb", "ldmxcsr", "vldmxcsr", "fld", "fild", "fldcw", "comiss", "comisd", "ucomiss", "ucomisd"),
    *("vcomiss", "vcomisd", "vucomiss", "vucomisd", "ptest", "vptest", "vtestps", "vtestpd", "lfence", "mfence"),
    *("sfence", "pause", "endbr64", "emms", "femms", "vzeroupper", "vzeroall", "cld", "std", "clc", "stc", "cmc"),
    *("cli", "sti", "wait", "sahf", "serialize", "fadd", "fsub", "fmul", "fdiv", "fiadd", "fimul", "fcom", "fcomp"),
)
_FIRST_ONLY: Final = (
    *("or", "not", "neg", "adc", "sbb", "shl", "shr", "sar", "sal", "rol", "ror", "rcl", "rcr", "shld", "shrd"),
    *("bsf", "bsr", "popcnt", "tzcnt", "lzcnt", "andn", "bextr", "blsi", "blsr", "blsmsk", "bzhi", "pdep", "pext"),
    *("rorx", "sarx", "shlx", "shrx", "bswap", "movbe", "crc32", "btc", "btr", "bts", "adcx", "adox", "rdfsbase"),
    *("rdgsbase", "rdrand", "rdseed", "rdpid", "rdsspd", "rdsspq", "fst", "fstp", "fist", "fistp", "fisttp", "fnstcw"),
    *("fnstsw", "fnstenv", "stmxcsr", "vstmxcsr", "movnti", "str", "sldt", "smsw", "pmovmskb", "movmskps", "movmskpd"),
)
_HANDLERS: Final[dict[str, Callable[[_Text], Effect | None]]] = {
    **dict.fromkeys(_READS_ONLY, _nothing),
    **dict.fromkeys(_FIRST_ONLY, _writes_first),
    **dict.fromkeys(("mov", "movabs"), _mov),
    **dict.fromkeys(("movzx", "movsx", "movsxd"), _extended),
    **dict.fromkeys(("add", "sub"), _sum),
    **dict.fromkeys(("inc", "dec"), _step_by_one),
    **dict.fromkeys(("int3", "hlt", "ud2", "ud0", "ud1", "ud2b", "int1"), _trap),
    **dict.fromkeys(("pushfq", "popfq"), _flags_pushed),
    **dict.fromkeys(("mul", "div", "idiv"), _only(_RAX, _RDX)),
    **dict.fromkeys(("rdtsc", "xgetbv", "rdpmc", "rdmsr"), _only(_RAX, _RDX)),
    **dict.fromkeys(("cdq", "cqo", "cwd"), _only(_RDX)),
    **dict.fromkeys(("cdqe", "cwde", "cbw", "xlatb", "lahf", "in"), _only(_RAX)),
    **dict.fromkeys(("movsb", "movsw", "movsq"), _only(_RSI, _RDI, _RCX)),
    **dict.fromkeys(("stosb", "stosw", "stosd", "stosq", "scasb", "scasw", "scasd", "scasq"), _only(_RDI, _RCX)),
    **dict.fromkeys(("cmpsb", "cmpsw", "cmpsq"), _only(_RSI, _RDI, _RCX)),
    **dict.fromkeys(("lodsb", "lodsw", "lodsd", "lodsq"), _only(_RAX, _RSI, _RCX)),
    **dict.fromkeys(("cmpxchg8b", "cmpxchg16b"), _implicit(_RAX, _RDX)),
    **dict.fromkeys(("xchg", "xadd", "mulx"), _exchange),
    **dict.fromkeys(("syscall", "int"), _system_call),
    "rdtscp": _only(_RAX, _RDX, _RCX),
    "cpuid": _only(_RAX, _RBX, _RCX, _RDX),
    "cmpxchg": _implicit(_RAX),
    "imul": _product,
    "xor": _exclusive_or,
    "lea": _lea,
    "and": _and,
    "push": _push,
    "pop": _pop,
    "leave": _leave,
    "enter": _enter,
    "cmp": _compare,
    "nop": _nop,
    "ret": _ret,
    "jmp": _jump,
    "call": _call,
}


def effect_of(address: int, size: int, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`CodeArch.effect_of`)."""
    if operands[:3] in _VECTOR_TARGETS and "str" not in mnemonic:
        return NO_EFFECT
    name = mnemonic
    while " " in name:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return None
        name = name.removeprefix(prefix)
    text = _Text(name, tuple(operands.split(", ")) if operands else (), address + size, size)
    if name in _UNKNOWN:
        return None
    if size in _SHORTENED_SIZES.get(name, ()) and name == mnemonic and _is_shortened(text):
        return None
    condition = _CONDITIONS.get(name)
    if condition is not None or name in _LOOPS:
        target = text.value(0)
        steps = _forget((_RCX,)) if name in _LOOPS else _forget((_RAX,)) if name == "xbegin" else ()
        return None if target is None else Effect(steps, Flow.BRANCH, target, condition=condition or Condition.NONE)
    handler = _HANDLERS.get(name)
    if handler is None:
        handler = _writes_first if name.startswith(("set", "cmov")) else _other
    effect = handler(text)
    if effect is None or name in _KEEP_FLAGS or name.startswith(("set", "cmov", "vmov", "mov")):
        return effect
    return effect._replace(steps=(*effect.steps, _NO_COMPARISON))


def _is_shortened(text: _Text) -> bool:
    """Whether an instruction of such a size has an operand size prefix."""
    operand = text.operands[0] if text.operands else ""
    if text.name == "ret":
        return True
    return _NUMBER.fullmatch(operand) is not None


def depends_on_address(mnemonic: str, operands: str) -> bool:
    """Whether equal texts at other addresses may have other effects (`CodeArch.depends_on_address`)."""
    del mnemonic
    return "rip" in operands


def open_disassembler() -> object:
    """Return capstone's disassembler for x86-64, without details."""
    import capstone

    return capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)


AMD64_CODE: Final = CodeArch(
    sp_register=_RSP,
    fp_register=_RBP,
    ra_register=16,
    entry_sp_offset=-8,
    ra_slot=-8,
    call_clobbered=_CLOBBERED,
    red_zone=128,
    alignment=1,
    system_call_register=_RAX,
    last_system_calls=frozenset({15, 60, 231}),
    sigreturn_calls=frozenset({15}),
    clone_calls=frozenset({56, 435}),
    open_disassembler=open_disassembler,
    effect_of=effect_of,
    depends_on_address=depends_on_address,
)
