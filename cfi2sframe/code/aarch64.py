# SPDX-License-Identifier: Apache-2.0
"""What the instructions of AArch64 do to a frame (Arm Architecture Reference Manual, ARM DDI 0487, part C).

The bits of a pointer authentication code are no part of the values: what signs or authenticates the RA leaves it as it
is, and changes RA_SIGN_STATE. Memory that is accessed at an index or through a vector is not announced as stored, and
neither is what the instructions that copy memory of any size change: they are like calls of a function that does so.
"""

from __future__ import annotations

import re
from itertools import product
from typing import TYPE_CHECKING, Final

from cfi2sframe.code import aarch64_memory as memory
from cfi2sframe.code import aarch64_registers as registers
from cfi2sframe.code.aarch64_text import SP, WORD_SIZE, as_number, parse
from cfi2sframe.code.effects import (
    JUMP_TARGET,
    NO_EFFECT,
    NOTHING,
    RA_SIGN_STATE,
    CodeArch,
    Condition,
    Effect,
    Flow,
    Op,
    Step,
)

if TYPE_CHECKING:
    from cfi2sframe.code.aarch64_memory import Handler
    from cfi2sframe.code.aarch64_text import Aarch64Text

_FP: Final = 29
_RA: Final = 30
#: The register with the number of one of Linux's system calls; exit, exit_group; rt_sigreturn (asm-generic/unistd.h).
_SYSTEM_CALL: Final = 8
_EXITS: Final = frozenset({93, 94})
_CLONES: Final = frozenset({220, 435})
_SIGRETURN: Final = frozenset({139})
_A_KEY: Final = 1
_B_KEY: Final = 2
#: Registers that calls do not keep (AAPCS64, 6.1.1); x18 belongs to the platform.
_CLOBBERED: Final = frozenset({*range(19), _RA})

_CHANGES_FLAGS: Final = Effect((registers.FLAGS,))
_STOP: Final = Effect(flow=Flow.STOP)
#: CPYFP, SETGM and the like (FEAT_MOPS).
_MEMORY_COPY: Final = re.compile(r"(?:cpyf?|setg?)[pme](?:w|r|t|n)*")
_REGISTER: Final = re.compile(r"\bx([0-9]+)")


def _direct(flow: Flow, condition: Condition, operands: str) -> Effect | None:
    """Return the effect of a jump, a branch or a call, whose last operand is the target."""
    target = as_number(operands.rpartition(" ")[2])
    return None if target is None else Effect((), flow, target, 0, condition)


def _indirect(flow: Flow, *, is_signed: bool = False) -> Handler:
    """Return the handler of what goes to an address in a register, in x30 where none is named."""

    def handle(text: Aarch64Text) -> Effect:
        register = text.register(0) if text.operands else (_RA, WORD_SIZE)
        if is_signed or register is None or register[0] == NOTHING:
            return Effect(registers.forget(JUMP_TARGET), flow)
        return Effect((Step(Op.MOVE, JUMP_TARGET, register[0]),), flow)

    return handle


def _sign_state(key: int) -> Effect:
    return Effect((Step(Op.CONSTANT, RA_SIGN_STATE, offset=key),))


def _signing(key: int) -> Handler:
    """Return the handler of what signs, or authenticates, the RA with SP or without, or another pointer."""
    effect = _sign_state(key)

    def handle(text: Aarch64Text) -> Effect:
        return effect if text.operands in (("x30", "sp"), ("x30",)) else registers.changes_first(text)

    return handle


def _strip(text: Aarch64Text) -> Effect:
    return NO_EFFECT if text.operands == ("x30",) else registers.changes_first(text)


def _system_register(text: Aarch64Text) -> Effect | None:
    """Return the effect of MSR; None for the registers that are SP, or select one."""
    name = text.operands[0].lower() if text.operands else ""
    if name.startswith(("spsel", "sp_el")):
        return None
    return _CHANGES_FLAGS if name == "nzcv" else NO_EFFECT


def _read_system_register(text: Aarch64Text) -> Effect:
    # RNDR and RNDRRS change the flags.
    is_random = text.operands[-1].lower().startswith(("rndr", "s3_3_c2_c4"))
    return registers.changes_first_and_flags(text) if is_random else registers.changes_first(text)


def _hint(text: Aarch64Text) -> Effect | None:
    """Return the effect of a hint by its number; those that have none are NOPs."""
    number = text.value(0)
    return None if number is None else _HINTS.get(number, NO_EFFECT)


def _trap(text: Aarch64Text) -> Effect:
    # Zeros are an undefined instruction.
    return Effect(flow=Flow.STOP, is_padding=text.name == "udf" and text.value(0) == 0)


def _memory_copy(operands: str) -> Effect:
    """Return the effect of what copies or sets memory of any size: it counts in its registers."""
    named = sorted({int(number) for number in _REGISTER.findall(operands)})
    return Effect((*registers.forget(*named), registers.FLAGS))


def _forgets(*numbers: int) -> Effect:
    return Effect(registers.forget(*numbers))


def _names(*parts: str) -> list[str]:
    """Return the names that consist of one word of each part."""
    return ["".join(words) for words in product(*[part.split(",") for part in parts])]


_READS_ONLY: Final = (
    *("yield", "wfe", "wfi", "wfet", "wfit", "sev", "sevl", "dgh", "csdb", "esb", "psb", "tsb", "gcsb", "clrbhb"),
    *("dmb", "dsb", "dfb", "isb", "sb", "ssbb", "pssbb", "clrex", "bti", "stshh", "pacm", "xpaclri"),
    *(
        "prfm",
        "prfum",
        "rprfm",
        "prfb",
        "prfh",
        "prfw",
        "prfd",
        "ic",
        "tlbi",
        "at",
        "cfp",
        "dvp",
        "cpp",
        "cosp",
        "sysp",
    ),
    *("smstart", "smstop", "zero", "setffr", "gcspushm", "gcspushx", "gcspopcx", "gcspopx", "gcsss1"),
)
_FLAGS_ONLY: Final = (
    *("cmn", "tst", "ccmp", "ccmn", "fcmp", "fcmpe", "fccmp", "fccmpe", "rmif", "setf8", "setf16", "cfinv"),
    *("axflag", "xaflag", "cmpp", "ctermeq", "ctermne"),
)
_FIRST_ONLY: Final = (
    *("eor", "bic", "orn", "eon", "mvn", "neg", "ngc", "adc", "sbc", "asr", "lsl", "ror", "extr", "movk"),
    *("bfm", "bfi", "bfc", "bfxil", "sbfm", "sbfx", "sbfiz", "ubfm", "ubfiz", "lslv", "lsrv", "asrv", "rorv"),
    *("clz", "cls", "ctz", "cnt", "abs", "rbit", "rev", "rev16", "rev32", "rev64", "smax", "smin", "umax", "umin"),
    *("mul", "mneg", "madd", "msub", "smaddl", "smsubl", "smnegl", "smull", "smulh", "umaddl", "umsubl", "umnegl"),
    *("umull", "umulh", "maddpt", "msubpt", "addpt", "subpt", "udiv", "sdiv"),
    *_names("crc32,crc32c", "b,h,w,x"),
    *("csel", "csinc", "csinv", "csneg", "csetm", "cinc", "cinv", "cneg", "fmov", "umov", "smov"),
    *_names("fcvt", "a,m,n,p,z", "s,u"),
    *("irg", "gmi", "addg", "subg", "subp", "ldg", "ldgm", "pacga", "sysl", "gcspopm", "gcsss2"),
    *("pacda", "pacdb", "pacdza", "pacdzb", "autda", "autdb", "autdza", "autdzb", "xpacd", "chkfeat"),
    *("addvl", "addpl", "addsvl", "addspl", "rdvl", "rdsvl", "lasta", "lastb", "clasta", "clastb"),
    *_names(",u", "cnt,inc,dec,sqinc,sqdec,qinc,qdec", "b,h,w,d,p"),
)
#: RA of the A key and of the B key, and where it is as it was.
_SIGNED_A: Final = _sign_state(_A_KEY)
_SIGNED_B: Final = _sign_state(_B_KEY)
_NOT_SIGNED: Final = _sign_state(0)
#: What has no operands, or has the same effect with any.
_EFFECTS: Final[dict[str, Effect]] = {
    **dict.fromkeys(_READS_ONLY, NO_EFFECT),
    **dict.fromkeys(_FLAGS_ONLY, _CHANGES_FLAGS),
    "nop": Effect(is_padding=True),
    **dict.fromkeys(("paciasp", "paciaz"), _SIGNED_A),
    **dict.fromkeys(("pacibsp", "pacibz"), _SIGNED_B),
    **dict.fromkeys(("autiasp", "autiaz", "autibsp", "autibz"), _NOT_SIGNED),
    **dict.fromkeys(("retaa", "retab"), Effect((*_NOT_SIGNED.steps, Step(Op.MOVE, JUMP_TARGET, _RA)), Flow.RETURN)),
    # The PC takes part in these signatures (FEAT_PAuth_LR), which RA_SIGN_STATE cannot tell.
    **dict.fromkeys(_names("pac,pacnb", "ia,ib", "sppc"), _forgets(_RA)),
    **dict.fromkeys(_names("aut", "ia,ib", "sppc,sppcr"), _forgets(_RA)),
    **dict.fromkeys(_names("reta", "a,b", "sppc,sppcr"), Effect(registers.forget(JUMP_TARGET), Flow.RETURN)),
    **dict.fromkeys(_names("pac,aut", "ia,ib", "1716,171615"), _forgets(17)),
    # Linux's system calls change x0 only; SMCCC allows firmware to change x0 to x17.
    "svc": Effect((Step(Op.MOVE, JUMP_TARGET, _SYSTEM_CALL), *registers.forget(0)), Flow.SYSTEM_CALL),
    **dict.fromkeys(("hvc", "smc"), _forgets(*range(18))),
    "ld64b": _forgets(*range(8)),
}
_HINTS: Final[dict[int, Effect]] = {
    0: _EFFECTS["nop"],
    **dict.fromkeys((8, 10, 12, 14), _forgets(17)),
    **dict.fromkeys((24, 25), _SIGNED_A),
    **dict.fromkeys((26, 27), _SIGNED_B),
    **dict.fromkeys((28, 29, 30, 31), _NOT_SIGNED),
    40: _forgets(16),
}
#: Conditions, where they are those of a comparison of two numbers without signs.
_CONDITIONS: Final = {
    "eq": Condition.EQUAL,
    "ne": Condition.NOT_EQUAL,
    **dict.fromkeys(("hs", "cs"), Condition.ABOVE_OR_EQUAL),
    **dict.fromkeys(("lo", "cc"), Condition.BELOW),
    "hi": Condition.ABOVE,
    "ls": Condition.BELOW_OR_EQUAL,
    **dict.fromkeys(("mi", "pl", "vs", "vc", "ge", "lt", "gt", "le"), Condition.NONE),
}
#: What goes to a target in the text. CBZ and its like compare for themselves.
_DIRECT: Final[dict[str, tuple[Flow, Condition]]] = {
    **dict.fromkeys(("b", "b.al", "b.nv", "bc.al", "bc.nv"), (Flow.JUMP, Condition.NONE)),
    "bl": (Flow.CALL, Condition.NONE),
    **{name: (Flow.BRANCH, known) for word, known in _CONDITIONS.items() for name in _names("b.,bc.", word)},
    **dict.fromkeys(_names("cb,cbb,cbh", "z,nz,eq,ne,gt,lt,ge,le,hi,lo,hs,ls"), (Flow.BRANCH, Condition.NONE)),
    **dict.fromkeys(("tbz", "tbnz"), (Flow.BRANCH, Condition.NONE)),
}
_ORDERS: Final = ",a,l,al"
_ATOMIC_WORDS: Final = "add,clr,eor,set,smax,smin,umax,umin"
_HANDLERS: Final[dict[str, Handler]] = {
    **dict.fromkeys(_FIRST_ONLY, registers.changes_first),
    **dict.fromkeys(
        ("ands", "bics", "adcs", "sbcs", "negs", "ngcs", "subps", "fjcvtzs"), registers.changes_first_and_flags
    ),
    **dict.fromkeys(("mov", "movz", "movn"), registers.mov),
    **dict.fromkeys(("adr", "adrp"), registers.address),
    **dict.fromkeys(("add", "adds", "sub", "subs"), registers.add_or_sub),
    **dict.fromkeys(("sxtb", "sxth", "sxtw", "uxtb", "uxth", "uxtw"), registers.extend),
    "cmp": registers.cmp,
    "orr": registers.orr,
    "and": registers.mask,
    "ubfx": registers.bit_field,
    "lsr": registers.shift_right,
    "cset": registers.condition_set,
    # Memory
    **dict.fromkeys(_names("ld", "r,ur,tr,ar,xr,axr,apr,apur,lar"), memory.load()),
    **dict.fromkeys(_names("ld", "p,np,xp,axp,tp,tnp,iapp,ap,app"), memory.load()),
    **dict.fromkeys(_names("ld", "r,ur,tr,ar,xr,axr,apr,apur,lar", "b"), memory.load(1)),
    **dict.fromkeys(_names("ld", "r,ur,tr,ar,xr,axr,apr,apur,lar", "h"), memory.load(2)),
    **dict.fromkeys(_names("ld", "r,ur,tr,apur", "sb"), memory.load(1, is_signed=True)),
    **dict.fromkeys(_names("ld", "r,ur,tr,apur", "sh"), memory.load(2, is_signed=True)),
    **dict.fromkeys(("ldrsw", "ldursw", "ldtrsw", "ldapursw", "ldpsw"), memory.load(4, is_signed=True)),
    **dict.fromkeys(("ldraa", "ldrab"), memory.authenticated_load),
    **dict.fromkeys(_names("st", "r,ur,tr,lr,llr,lur,p,np,tp,tnp,gp,ilp,lp"), memory.store()),
    **dict.fromkeys(_names("st", "r,ur,tr,lr,llr,lur", "b"), memory.store(1)),
    **dict.fromkeys(_names("st", "r,ur,tr,lr,llr,lur", "h"), memory.store(2)),
    **dict.fromkeys(("stxr", "stlxr", "stxp", "stlxp"), memory.store(has_status=True)),
    **dict.fromkeys(("stxrb", "stlxrb"), memory.store(1, has_status=True)),
    **dict.fromkeys(("stxrh", "stlxrh"), memory.store(2, has_status=True)),
    **dict.fromkeys(("stg", "st2g"), memory.tags(0)),
    "stzg": memory.tags(16),
    "stz2g": memory.tags(32),
    **dict.fromkeys(_names("cas", _ORDERS), memory.atomic(0)),
    **dict.fromkeys(_names("cas", _ORDERS, "b"), memory.atomic(0, 1)),
    **dict.fromkeys(_names("cas", _ORDERS, "h"), memory.atomic(0, 2)),
    **dict.fromkeys(_names("casp", _ORDERS), memory.atomic(0, pairs=2)),
    **dict.fromkeys(_names("swp", _ORDERS), memory.atomic(1)),
    **dict.fromkeys(_names("swp", _ORDERS, "b"), memory.atomic(1, 1)),
    **dict.fromkeys(_names("swp", _ORDERS, "h"), memory.atomic(1, 2)),
    **dict.fromkeys(_names("ld", _ATOMIC_WORDS, _ORDERS), memory.atomic(1)),
    **dict.fromkeys(_names("ld", _ATOMIC_WORDS, _ORDERS, "b"), memory.atomic(1, 1)),
    **dict.fromkeys(_names("ld", _ATOMIC_WORDS, _ORDERS, "h"), memory.atomic(1, 2)),
    **dict.fromkeys(_names("st", _ATOMIC_WORDS, ",l"), memory.atomic(None)),
    **dict.fromkeys(_names("st", _ATOMIC_WORDS, ",l", "b"), memory.atomic(None, 1)),
    **dict.fromkeys(_names("st", _ATOMIC_WORDS, ",l", "h"), memory.atomic(None, 2)),
    **dict.fromkeys(("dc", "sys"), memory.cache),
    # Pointer authentication, system registers
    **dict.fromkeys(("pacia", "paciza"), _signing(_A_KEY)),
    **dict.fromkeys(("pacib", "pacizb"), _signing(_B_KEY)),
    **dict.fromkeys(("autia", "autiza", "autib", "autizb"), _signing(0)),
    "xpaci": _strip,
    "msr": _system_register,
    "mrs": _read_system_register,
    "hint": _hint,
    # Flow
    "br": _indirect(Flow.JUMP_INDIRECT),
    "blr": _indirect(Flow.CALL_INDIRECT),
    "ret": _indirect(Flow.RETURN),
    **dict.fromkeys(_names("bra", "a,b,az,bz"), _indirect(Flow.JUMP_INDIRECT, is_signed=True)),
    **dict.fromkeys(_names("blra", "a,b,az,bz"), _indirect(Flow.CALL_INDIRECT, is_signed=True)),
    **dict.fromkeys(("udf", "brk", "hlt"), _trap),
}
#: What leaves for another exception level, or goes back to the start of a transaction.
_UNKNOWN: Final = frozenset(
    {"eret", "eretaa", "eretab", "drps", "dcps1", "dcps2", "dcps3", "tstart", "tcommit", "tcancel"}
)


def effect_of(_address: int, _size: int, mnemonic: str, operands: str) -> Effect | None:
    """Return the effect of an instruction from its text (`CodeArch.effect_of`)."""
    handler = _HANDLERS.get(mnemonic)
    if handler is not None:
        return handler(parse(mnemonic, operands))
    direct = _DIRECT.get(mnemonic)
    if direct is not None:
        return _direct(*direct, operands)
    effect = _EFFECTS.get(mnemonic)
    if effect is not None:
        return effect
    if mnemonic in _UNKNOWN:
        return None
    if _MEMORY_COPY.fullmatch(mnemonic):
        return _memory_copy(operands)
    return memory.other(parse(mnemonic, operands))


def depends_on_address(_mnemonic: str, _operands: str) -> bool:
    """Return False: texts have addresses, not distances (`CodeArch.depends_on_address`)."""
    return False


AARCH64_CODE: Final = CodeArch(
    sp_register=SP,
    fp_register=_FP,
    ra_register=_RA,
    entry_sp_offset=0,
    ra_slot=None,
    call_clobbered=_CLOBBERED,
    red_zone=0,
    alignment=4,
    system_call_register=_SYSTEM_CALL,
    last_system_calls=_EXITS | _SIGRETURN,
    sigreturn_calls=_SIGRETURN,
    clone_calls=_CLONES,
    # paciasp, pacibsp, bti c
    entry_marks=tuple(word.to_bytes(4, "little") for word in (0xD503233F, 0xD503237F, 0xD503245F)),
    # bti j
    jump_marks=((0xD503249F).to_bytes(4, "little"),),
    effect_of=effect_of,
    depends_on_address=depends_on_address,
)
