# SPDX-License-Identifier: Apache-2.0
"""What the instructions of AMD64 do to a frame (Intel's manual, volume 2; AMD's, volume 3), from capstone's text.

An instruction that no table here names changes each general register that its text names, outside of an address, and
those that such instructions change without naming them. Only instructions of the tables change SP without naming it.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from cfi2sframe.code import amd64_values as values
from cfi2sframe.code.amd64_text import NUMBER, R11, RAX, RBP, RBX, RCX, RDI, RDX, RSI, RSP, WORD, Amd64Text
from cfi2sframe.code.effects import JUMP_TARGET, NO_EFFECT, NOTHING, CodeArch, Condition, Effect, Flow, Op, Step

if TYPE_CHECKING:
    from collections.abc import Callable

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
_CLOBBERED: Final = frozenset({RAX, RDX, RCX, RSI, RDI, 8, 9, 10, R11})
#: How operands begin where a vector is changed, as most are in such code.
_VECTOR_TARGETS: Final = frozenset({"xmm", "ymm", "zmm"})
#: Instructions on vectors that set flags, or change rcx: comisd, ptest, vtestps, pcmpistri.
_SETS_FLAGS: Final = re.compile("com|test|str")
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


def _ret(text: Amd64Text) -> Effect:
    popped = text.value(0) if text.operands else 0
    return Effect(flow=Flow.RETURN, popped=popped or 0)


def _jump(text: Amd64Text) -> Effect | None:
    target = text.value(0)
    if target is not None:
        return Effect(flow=Flow.JUMP, target=target)
    step = _target(text)
    return None if step is None else Effect((step,), Flow.JUMP_INDIRECT)


def _call(text: Amd64Text) -> Effect | None:
    target = text.value(0)
    if target is not None:
        return Effect(flow=Flow.CALL, target=target)
    step = _target(text)
    return None if step is None else Effect((step,), Flow.CALL_INDIRECT)


def _target(text: Amd64Text) -> Step | None:
    """Return the step that gives `JUMP_TARGET` its value."""
    register, memory = text.register(0), text.memory(0)
    if register is not None:
        return Step(Op.MOVE, JUMP_TARGET, register)
    if memory is None or memory.size != WORD:
        return None
    return values.loaded(JUMP_TARGET, memory)


def _system_call(text: Amd64Text) -> Effect | None:
    if text.name == "int":
        # Calls of 32-bit code have numbers of their own.
        return Effect(values.forget((RAX,))) if text.value(0) == 0x80 else None
    return Effect((Step(Op.MOVE, JUMP_TARGET, RAX), *values.forget((RAX, RCX, R11))), Flow.SYSTEM_CALL)


def _nothing(_text: Amd64Text) -> Effect:
    return NO_EFFECT


def _nop(_text: Amd64Text) -> Effect:
    return Effect(is_padding=True)


def _trap(_text: Amd64Text) -> Effect:
    return Effect(flow=Flow.STOP, is_padding=True)


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
_HANDLERS: Final[dict[str, Callable[[Amd64Text], Effect | None]]] = {
    **dict.fromkeys(_READS_ONLY, _nothing),
    **dict.fromkeys(_FIRST_ONLY, values.changes_first),
    **dict.fromkeys(("mov", "movabs"), values.mov),
    **dict.fromkeys(("movzx", "movsx", "movsxd"), values.extend),
    **dict.fromkeys(("add", "sub"), values.add_or_sub),
    **dict.fromkeys(("inc", "dec"), values.step_by_one),
    **dict.fromkeys(("int3", "hlt", "ud2", "ud0", "ud1", "ud2b", "int1"), _trap),
    **dict.fromkeys(("pushfq", "popfq"), values.flags),
    **dict.fromkeys(("mul", "div", "idiv"), values.changes_only(RAX, RDX)),
    **dict.fromkeys(("rdtsc", "xgetbv", "rdpmc", "rdmsr"), values.changes_only(RAX, RDX)),
    **dict.fromkeys(("cdq", "cqo", "cwd"), values.changes_only(RDX)),
    **dict.fromkeys(("cdqe", "cwde", "cbw", "xlatb", "lahf", "in"), values.changes_only(RAX)),
    **dict.fromkeys(("movsb", "movsw", "movsq"), values.changes_only(RSI, RDI, RCX)),
    **dict.fromkeys(
        ("stosb", "stosw", "stosd", "stosq", "scasb", "scasw", "scasd", "scasq"), values.changes_only(RDI, RCX)
    ),
    **dict.fromkeys(("cmpsb", "cmpsw", "cmpsq"), values.changes_only(RSI, RDI, RCX)),
    **dict.fromkeys(("lodsb", "lodsw", "lodsd", "lodsq"), values.changes_only(RAX, RSI, RCX)),
    **dict.fromkeys(("cmpxchg8b", "cmpxchg16b"), values.changes_first_and(RAX, RDX)),
    **dict.fromkeys(("xchg", "xadd", "mulx"), values.exchange),
    **dict.fromkeys(("syscall", "int"), _system_call),
    "rdtscp": values.changes_only(RAX, RDX, RCX),
    "cpuid": values.changes_only(RAX, RBX, RCX, RDX),
    "cmpxchg": values.changes_first_and(RAX),
    "imul": values.product,
    "xor": values.exclusive_or,
    "lea": values.lea,
    "and": values.mask,
    "push": values.push,
    "pop": values.pop,
    "leave": values.leave,
    "enter": values.enter,
    "cmp": values.compare,
    "nop": _nop,
    "ret": _ret,
    "jmp": _jump,
    "call": _call,
}


def effect_of(address: int, size: int, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`CodeArch.effect_of`)."""
    # "xmm0, xmm1", and not "xmmword ptr [rsp], xmm0".
    if operands[:3] in _VECTOR_TARGETS and operands[3:4] != "w" and not _SETS_FLAGS.search(mnemonic):
        return NO_EFFECT
    name = mnemonic
    while " " in name:
        prefix = next((prefix for prefix in _PREFIXES if name.startswith(prefix)), None)
        if prefix is None:
            return None
        name = name.removeprefix(prefix)
    text = Amd64Text(name, tuple(operands.split(", ")) if operands else (), address + size, size)
    if name in _UNKNOWN:
        return None
    if size in _SHORTENED_SIZES.get(name, ()) and name == mnemonic and _is_shortened(text):
        return None
    condition = _CONDITIONS.get(name)
    if condition is not None or name in _LOOPS:
        target = text.value(0)
        steps = values.forget((RCX,)) if name in _LOOPS else values.forget((RAX,)) if name == "xbegin" else ()
        return None if target is None else Effect(steps, Flow.BRANCH, target, condition=condition or Condition.NONE)
    handler = _HANDLERS.get(name)
    if handler is None:
        handler = values.changes_first if name.startswith(("set", "cmov")) else values.other
    effect = handler(text)
    if effect is None or name in _KEEP_FLAGS or name.startswith(("set", "cmov", "vmov", "mov")):
        return effect
    return effect._replace(steps=(*effect.steps, _NO_COMPARISON))


def _is_shortened(text: Amd64Text) -> bool:
    """Whether an instruction of such a size has an operand size prefix."""
    operand = text.operands[0] if text.operands else ""
    if text.name == "ret":
        return True
    return NUMBER.fullmatch(operand) is not None


def depends_on_address(mnemonic: str, operands: str) -> bool:
    """Whether equal texts at other addresses may have other effects (`CodeArch.depends_on_address`)."""
    del mnemonic
    return "rip" in operands


AMD64_CODE: Final = CodeArch(
    sp_register=RSP,
    fp_register=RBP,
    ra_register=16,
    entry_sp_offset=-8,
    ra_slot=-8,
    call_clobbered=_CLOBBERED,
    red_zone=128,
    alignment=1,
    system_call_register=RAX,
    last_system_calls=frozenset({15, 60, 231}),
    sigreturn_calls=frozenset({15}),
    clone_calls=frozenset({56, 435}),
    # endbr64
    entry_marks=(b"\xf3\x0f\x1e\xfa",),
    jump_marks=(),
    effect_of=effect_of,
    depends_on_address=depends_on_address,
)
