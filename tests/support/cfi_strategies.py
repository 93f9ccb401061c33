# SPDX-License-Identifier: Apache-2.0
"""Hypothesis strategies of well-formed CFI programs, together with their meaning.

Each drawn program comes as abstract steps in plain bytes (nothing factored) and as the CIE and FDE that
encode them: a naive evaluator can work from the steps without reading a byte.
"""

from functools import lru_cache
from typing import Literal, NamedTuple, TypeAlias

from hypothesis import strategies as st

from tests.support import cfi_asm as asm

Operation: TypeAlias = Literal[
    "advance",
    "def_cfa",
    "def_cfa_register",
    "def_cfa_offset",
    "def_cfa_expression",
    "offset",
    "val_offset",
    "register",
    "undefined",
    "same_value",
    "expression",
    "val_expression",
    "restore",
    "remember_state",
    "restore_state",
    "negate_ra_state",
    "no_effect",
]


class Machine(NamedTuple):
    """What a program of one architecture may use; the registers are DWARF numbers."""

    name: Literal["amd64", "aarch64", "s390x"]
    sp: int
    fp: int
    ra: int
    others: tuple[int, ...]
    code_align: int
    data_align: int
    initial_cfa_offset: int
    ra_is_saved_at_entry: bool
    little_endian: bool
    has_ra_state: bool


AMD64 = Machine("amd64", 7, 6, 16, (0, 3, 10, 12, 15, 17, 66), 1, -8, 8, True, True, False)
AARCH64 = Machine("aarch64", 31, 29, 30, (0, 9, 16, 19, 28, 72, 79), 4, -8, 0, False, True, True)
S390X = Machine("s390x", 15, 11, 14, (0, 1, 6, 12, 16, 24, 31, 68), 1, -8, 160, False, False, False)
MACHINES = (AMD64, AARCH64, S390X)


class Step(NamedTuple):
    """One abstract instruction.

    `offset` counts bytes: the distance of an "advance", or what is added to the CFA or to a register.
    `holder` is the register that keeps another one's value; `expression` holds DWARF expression bytes.
    """

    operation: Operation
    register: int = 0
    holder: int = 0
    offset: int = 0
    expression: bytes = b""


class Program(NamedTuple):
    """A drawn program: `initial` is what the CIE encodes, `steps` is what the FDE encodes."""

    machine: Machine
    cie: asm.Cie
    fde: asm.Fde
    initial: tuple[Step, ...]
    steps: tuple[Step, ...]

    def section(self, address: int = 0, *, debug_frame: bool = False) -> asm.EhFrame:
        """Return a section of this CIE and FDE alone, in the machine's byte order."""
        entries: tuple[asm.Entry, ...] = (self.cie, self.fde)
        if not debug_frame:
            entries = (*entries, asm.Terminator())
        return asm.EhFrame(entries, address, little_endian=self.machine.little_endian, debug_frame=debug_frame)


class _State(NamedTuple):
    """What decides which steps may follow."""

    cfa_is_expression: bool
    remembered: tuple[bool, ...]


def _breg(register: int, offset: int) -> bytes:
    if register < 32:
        return bytes((0x70 + register,)) + asm.sleb128(offset)
    return b"\x92" + asm.uleb128(register) + asm.sleb128(offset)


def cfa_offsets() -> st.SearchStrategy[int]:
    """Offsets of a CFA in bytes, in the widths that 8, 16 and 32 bits can and cannot hold."""
    edges = (0, 8, 16, 120, 127, 128, 160, 248, 255, 256, 32767, 32768, 65536, (1 << 31) - 8, 1 << 31)
    return st.sampled_from(edges) | st.integers(0, 64).map(lambda words: 8 * words) | st.integers(0, 1 << 32)


def _save_offsets() -> st.SearchStrategy[int]:
    edges = (-8, -16, -128, -136, 0, 8, 120, 128, -32768, -32776, -(1 << 31), -(1 << 31) - 8)
    return st.sampled_from(edges) | st.integers(-64, 64).map(lambda words: 8 * words)


def expressions(machine: Machine) -> st.SearchStrategy[bytes]:
    """Expressions of shapes that compilers and linkers emit, and some that only a fuzzer would."""
    register = st.sampled_from((machine.sp, machine.fp, *machine.others))
    small = st.integers(-40, 40).map(lambda words: 8 * words)
    shape = st.sampled_from((b"", b"\x06", b"\x06\x23\x08", b"\x06\x06", b"\x23\x10", b"\x96", b"\x06\x38\x1c"))
    based = st.builds(lambda reg, off, tail: _breg(reg, off) + tail, register, small, shape)
    plt = st.sampled_from(
        tuple(b"\x77\x08\x80\x00\x3f\x1a" + bytes((0x30 + limit,)) + b"\x2a\x33\x24\x22" for limit in (9, 10, 11))
    )
    vg_scaled = st.builds(lambda off: _breg(machine.sp, off) + b"\x92\x2e\x00\x38\x1e\x22", small)
    odd = st.sampled_from((b"", b"\x30", b"\x9c", b"\x12", b"\x22", b"\xff", b"\x03" + bytes(8), b"\x08"))
    return based | plt | vg_scaled | odd


def _registers(machine: Machine) -> st.SearchStrategy[int]:
    return st.sampled_from((machine.fp, machine.ra)) | st.sampled_from((machine.sp, *machine.others))


@lru_cache
def _steps_in(machine: Machine, *, cfa_is_expression: bool, can_restore: bool) -> st.SearchStrategy[Step]:
    """The steps that are well-formed in a state."""
    register = _registers(machine)
    base = st.sampled_from((machine.sp, machine.fp)) | st.sampled_from(machine.others)
    distance = st.sampled_from((0, 1, 1, 2, 4, 63, 64, 255, 256, 65535, 65536)) | st.integers(0, 300)
    choices = [
        distance.map(lambda units: Step("advance", offset=units * machine.code_align)),
        st.builds(lambda reg, off: Step("def_cfa", reg, offset=off), base, cfa_offsets()),
        expressions(machine).map(lambda code: Step("def_cfa_expression", expression=code)),
        st.builds(lambda reg, off: Step("offset", reg, offset=off), register, _save_offsets()),
        st.builds(lambda reg, off: Step("val_offset", reg, offset=off), register, _save_offsets()),
        st.builds(lambda reg, holder: Step("register", reg, holder), register, register),
        register.map(lambda reg: Step("undefined", reg)),
        register.map(lambda reg: Step("same_value", reg)),
        register.map(lambda reg: Step("restore", reg)),
        st.builds(lambda reg, code: Step("expression", reg, expression=code), register, expressions(machine)),
        st.builds(lambda reg, code: Step("val_expression", reg, expression=code), register, expressions(machine)),
        st.just(Step("remember_state")),
        st.just(Step("no_effect")),
    ]
    if not cfa_is_expression:
        choices += [
            base.map(lambda reg: Step("def_cfa_register", reg)),
            cfa_offsets().map(lambda off: Step("def_cfa_offset", offset=off)),
        ]
    if can_restore:
        choices.append(st.just(Step("restore_state")))
    if machine.has_ra_state:
        choices.append(st.just(Step("negate_ra_state")))
    # Row ends matter more than any single rule: without them a program has one row only.
    return choices[0] | st.one_of(choices)


def _after(state: _State, step: Step) -> _State:
    match step.operation:
        case "def_cfa":
            return state._replace(cfa_is_expression=False)
        case "def_cfa_expression":
            return state._replace(cfa_is_expression=True)
        case "remember_state":
            return state._replace(remembered=(*state.remembered, state.cfa_is_expression))
        case "restore_state":
            return _State(state.remembered[-1], state.remembered[:-1])
        case _:
            return state


def _advances(units: int) -> list[asm.Instruction]:
    forms = ((asm.advance0, 1 << 6), (asm.advance1, 1 << 8), (asm.advance2, 1 << 16), (asm.advance4, 1 << 32))
    return [form(units) for form, limit in forms if units < limit]


def _saves(machine: Machine, step: Step) -> list[asm.Instruction]:
    factored, register = step.offset // machine.data_align, step.register
    if step.operation == "val_offset":
        forms = [asm.val_offset_sf(register, factored)]
        return forms if factored < 0 else [*forms, asm.val_offset(register, factored)]
    forms = [asm.offset_extended_sf(register, factored)]
    if factored >= 0:
        forms.append(asm.offset_extended(register, factored))
        if register < 0x40:
            forms.append(asm.offset(register, factored))
    if factored <= 0:
        forms.append(asm.gnu_negative_offset_extended(register, -factored))
    return forms


def _cfa_forms(machine: Machine, step: Step) -> list[asm.Instruction]:
    is_whole = step.offset % machine.data_align == 0
    factored = step.offset // machine.data_align
    if step.operation == "def_cfa":
        forms = [asm.def_cfa(step.register, step.offset)]
        return [*forms, asm.def_cfa_sf(step.register, factored)] if is_whole else forms
    forms = [asm.def_cfa_offset(step.offset)]
    return [*forms, asm.def_cfa_offset_sf(factored)] if is_whole else forms


def _register_forms(step: Step) -> list[asm.Instruction]:
    register = step.register
    restores = [asm.restore_extended(register)] + ([asm.restore(register)] if register < 0x40 else [])
    forms: dict[Operation, list[asm.Instruction]] = {
        "def_cfa_register": [asm.def_cfa_register(register)],
        "register": [asm.register(register, step.holder)],
        "undefined": [asm.undefined(register)],
        "same_value": [asm.same_value(register)],
        "restore": restores,
        "expression": [asm.expression(register, step.expression)],
        "val_expression": [asm.val_expression(register, step.expression)],
    }
    return forms[step.operation]


def encodings(machine: Machine, step: Step) -> list[asm.Instruction]:
    """Return every instruction that encodes the step."""
    match step.operation:
        case "advance":
            return _advances(step.offset // machine.code_align)
        case "def_cfa" | "def_cfa_offset":
            return _cfa_forms(machine, step)
        case "offset" | "val_offset":
            return _saves(machine, step)
        case "def_cfa_expression":
            return [asm.def_cfa_expression(step.expression)]
        case "remember_state":
            return [asm.remember_state()]
        case "restore_state":
            return [asm.restore_state()]
        case "negate_ra_state":
            return [asm.aarch64_negate_ra_state()]
        case "no_effect":
            return [asm.nop(), asm.gnu_args_size(0), asm.gnu_args_size(200)]
        case _:
            return _register_forms(step)


@lru_cache
def _initial_steps(machine: Machine) -> st.SearchStrategy[tuple[Step, ...]]:
    usual = [Step("def_cfa", machine.sp, offset=machine.initial_cfa_offset)]
    if machine.ra_is_saved_at_entry:
        usual.append(Step("offset", machine.ra, offset=-8))
    register = _registers(machine)
    extra = st.lists(
        register.map(lambda reg: Step("same_value", reg))
        | register.map(lambda reg: Step("undefined", reg))
        | st.builds(lambda reg, off: Step("offset", reg, offset=off), register, _save_offsets()),
        max_size=2,
    )
    return st.just(tuple(usual)) | extra.map(lambda steps: (*usual, *steps))


@st.composite
def programs(
    draw: st.DrawFn,
    machine: Machine | None = None,
    max_steps: int = 24,
    operations: frozenset[Operation] | None = None,
) -> Program:
    """Draw a program; `operations` restricts its steps to some kinds, for tests of one feature.

    Remembered states are all restored by the end, the advances fit in the function (a last row may be
    empty), and a register's number fits the opcode that names it.
    """
    machine = draw(st.sampled_from(MACHINES)) if machine is None else machine
    initial = draw(_initial_steps(machine))
    state, steps = _State(cfa_is_expression=False, remembered=()), list[Step]()
    for _ in range(draw(st.integers(0, max_steps))):
        step = draw(_steps_in(machine, cfa_is_expression=state.cfa_is_expression, can_restore=bool(state.remembered)))
        if operations is None or step.operation in operations:
            steps.append(step)
            state = _after(state, step)
    for _ in state.remembered:
        steps.append(Step("restore_state"))
        steps.append(Step("advance", offset=machine.code_align))
    length = sum(step.offset for step in steps if step.operation == "advance")
    tail = draw(st.sampled_from((0, 1, 1, 5, 300))) if length else draw(st.integers(1, 300))
    cie = asm.Cie(
        version=draw(st.sampled_from((1, 3))),
        code_align=machine.code_align,
        data_align=machine.data_align,
        ra_register=machine.ra,
        instructions=tuple(draw(st.sampled_from(encodings(machine, step))) for step in initial),
    )
    fde = asm.Fde(
        cie,
        0x1000,
        length + tail * machine.code_align,
        tuple(draw(st.sampled_from(encodings(machine, step))) for step in steps),
    )
    return Program(machine, cie, fde, initial, tuple(steps))
