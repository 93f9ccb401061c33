# SPDX-License-Identifier: Apache-2.0
"""All size decisions: a logical section becomes a plan in which every width, order and offset is settled.

The smallest FRE type that holds a function's last row start, the smallest data word that holds a row's numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.errors import RequestError
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.model import Rule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.model import FrameState, FunctionBody, Section

_WORD_SIZES: Final = (1, 2, 4)


class PlannedState(NamedTuple):
    """A row but for its start: the info byte, and words as stored, signed, of `1 << size_code` bytes."""

    info: int
    size_code: int
    words: tuple[int, ...]


class PlannedBody(NamedTuple):
    """A function's rows with their FRE type and info bytes; `size` counts the bytes in the FRE sub-section.

    Row N starts at `starts[N]` and says `states[N]`; equal states are one object.
    """

    fre_type: int
    info: int
    info2: int
    repeat_size: int
    starts: tuple[int, ...]
    states: tuple[PlannedState, ...]
    size: int


class PlannedFunction(NamedTuple):
    """A record of the function table: `start_field` as stored, `fre_offset` counted in the FRE sub-section."""

    start_field: int
    size: int
    fre_offset: int
    body: PlannedBody


class SectionPlan(NamedTuple):
    """A section ready to be written; `bodies` in the order of their bytes, each once, whoever shares it."""

    version: int
    flags: int
    arch: Arch
    functions: tuple[PlannedFunction, ...]
    bodies: tuple[PlannedBody, ...]
    fre_count: int
    fre_size: int

    @property
    def size(self) -> int:
        """The section's size in bytes."""
        return s.HEADER_SIZE + s.FDE_SIZE[self.version] * len(self.functions) + self.fre_size


def plan_section(section: Section, arch: Arch, section_vaddr: int, *, share: bool = False) -> SectionPlan:
    """Settle every width, order and offset.

    `section_vaddr` is the section's address, which function starts are relative to. `share`: functions whose rows
    (version 3: attribute and rows) are equal refer to one copy; in versions 1 and 2 also to the beginning of a longer
    list. Raises `RequestError` when a start does not fit the version's field, or the section outgrows its 32-bit
    offsets.
    """
    # Equal functions come as one object: identity will do, and saves hashing every row.
    planned: dict[int, PlannedBody] = {}
    planner = _Planner(arch, section.version)
    plans: list[PlannedBody] = []
    for _start, _size, body in section.functions:
        body_plan = planned.get(id(body))
        if body_plan is None:
            body_plan = planned[id(body)] = planner.plan_body(body)
        plans.append(body_plan)
    stored = share_rows(plans, section.version) if share else plans
    functions: list[PlannedFunction] = []
    bodies: list[PlannedBody] = []
    offsets: dict[int, int] = {}
    fre_offset = 0
    make_function = tuple.__new__
    for start_field, (_start, size, _body), body_plan, stored_plan in zip(
        _start_fields(section, section_vaddr), section.functions, plans, stored, strict=True
    ):
        offset = offsets.get(id(stored_plan)) if share else None
        if offset is None:
            offset = offsets[id(stored_plan)] = fre_offset
            bodies.append(stored_plan)
            fre_offset += stored_plan.size
        functions.append(make_function(PlannedFunction, (start_field, size, offset, body_plan)))
    if fre_offset >= 1 << 32:
        raise RequestError("the rows take more than 4 GiB, which no SFrame version can address")
    fre_count = sum(len(body_plan.starts) for body_plan in plans)
    return SectionPlan(section.version, _flags(section), arch, tuple(functions), tuple(bodies), fre_count, fre_offset)


def move_plan(plan: SectionPlan, section: Section, section_vaddr: int) -> SectionPlan:
    """Return a section's plan for another address: only function starts depend on it.

    Raises `RequestError` when a start does not fit the version's field.
    """
    functions = tuple(
        function._replace(start_field=start_field)
        for function, start_field in zip(plan.functions, _start_fields(section, section_vaddr), strict=True)
    )
    return plan._replace(functions=functions)


def _start_fields(section: Section, section_vaddr: int) -> Iterator[int]:
    """Yield the start field of each function, relative to the section or to the field itself."""
    field_vaddr = section_vaddr + (s.HEADER_SIZE if section.start_is_pcrel else 0)
    step = s.FDE_SIZE[section.version] if section.start_is_pcrel else 0
    limit = 1 << (63 if section.version >= s.SFRAME_VERSION_3 else 31)
    for start_vaddr, _size, _body in section.functions:
        start_field = start_vaddr - field_vaddr
        if not -limit <= start_field < limit:
            # Addresses wrap at 64 bits, and so does the distance from the lowest to the highest.
            start_field = (start_field + (1 << 63)) % (1 << 64) - (1 << 63)
        if not -limit <= start_field < limit:
            raise RequestError(
                f"the function at 0x{start_vaddr:x} is too far from .sframe at 0x{section_vaddr:x} "
                f"for the 32-bit starts of version {section.version}; version 3 has 64 bits"
            )
        yield start_field
        field_vaddr += step


def words_size(state: FrameState, arch: Arch, *, is_flexible: bool) -> int:
    """Return the bytes that a row's data words take."""
    words, code = _words(state, arch, is_flexible=is_flexible)
    return len(words) << code


def share_rows(plans: Sequence[PlannedBody], version: int) -> list[PlannedBody]:
    """Return for each function the body whose bytes it refers to: its own, an equal one, or one that begins with it.

    Readers find as many rows as the function has, so what follows them does not matter; in version 3 the attribute in
    front of the rows has their number, so only equal bodies can be shared there.
    """
    if version < s.SFRAME_VERSION_3:
        return _share_beginnings(plans)
    stored: dict[int, PlannedBody] = {}
    first: dict[tuple[object, ...], PlannedBody] = {}
    for plan in plans:
        if id(plan) not in stored:
            # Equal states are one object, and their identity is quicker to compare than what they say.
            key = (plan.info, plan.info2, plan.repeat_size, plan.starts, tuple(map(id, plan.states)))
            stored[id(plan)] = first.setdefault(key, plan)
    return [stored[id(plan)] for plan in plans]


def _share_beginnings(plans: Sequence[PlannedBody]) -> list[PlannedBody]:
    """Share rows where the function's record has their number."""
    state_numbers: dict[int, int] = {}
    keys: dict[int, tuple[int, ...]] = {}
    first: dict[tuple[int, ...], PlannedBody] = {}
    for plan in plans:
        if id(plan) in keys:
            continue
        # Numbers in order of appearance, not identities: the choice must be the same in every run.
        numbers = [state_numbers.setdefault(id(state), len(state_numbers)) for state in plan.states]
        rows = [item for pair in zip(plan.starts, numbers, strict=True) for item in pair]
        keys[id(plan)] = key = (plan.fre_type, *rows)
        first.setdefault(key, plan)
    # In sorted order, whatever begins with a list follows it directly.
    ordered = sorted(first)
    for key, following in zip(reversed(ordered[:-1]), reversed(ordered[1:]), strict=True):
        if following[: len(key)] == key:
            first[key] = first[following]
    return [first[keys[id(plan)]] for plan in plans]


def _flags(section: Section) -> int:
    flags = s.SFRAME_F_FDE_SORTED if section.is_sorted else 0
    if section.start_is_pcrel:
        flags |= s.SFRAME_F_FDE_FUNC_START_PCREL
    if section.all_keep_frame_pointer:
        flags |= s.SFRAME_F_FRAME_POINTER
    return flags


_States = dict[int, tuple[PlannedState, int, "FrameState"]]


class _Planner:
    """Chooses FRE types and data word sizes; states recur, so each one's words are settled once."""

    def __init__(self, arch: Arch, version: int) -> None:
        self.arch = arch
        self.version = version
        self.states: dict[PlannedState, PlannedState] = {}
        # By identity, for speed; the entries keep their frame states alive, and give the bytes that a row takes.
        self.default: _States = {}
        self.flexible: _States = {}

    def plan_body(self, body: FunctionBody) -> PlannedBody:
        last_start = body.rows[-1].start_delta if body.rows else 0
        fre_type = 0 if last_start < 0x100 else 1 if last_start < 0x10000 else 2
        known = self.flexible if body.is_flexible else self.default
        rows = body.rows
        try:
            entries = [known[id(state)] for _, state in rows]
        except KeyError:
            entries = [self._entry(known, state, is_flexible=body.is_flexible) for _, state in rows]
        size = s.FDE_ATTRIBUTE_SIZE if self.version >= s.SFRAME_VERSION_3 else 0
        size += len(rows) * (s.FRE_START_SIZE[fre_type] + 1) + sum([entry[1] for entry in entries])
        info, info2 = self._info_bytes(body, fre_type)
        starts, states = tuple([row[0] for row in rows]), tuple([entry[0] for entry in entries])
        return PlannedBody(fre_type, info, info2, body.repeat_size, starts, states, size)

    def _entry(self, known: _States, state: FrameState, *, is_flexible: bool) -> tuple[PlannedState, int, FrameState]:
        entry = known.get(id(state))
        if entry is None:
            planned = self._plan_state(state, is_flexible=is_flexible)
            entry = known[id(state)] = (planned, len(planned.words) << planned.size_code, state)
        return entry

    def _info_bytes(self, body: FunctionBody, fre_type: int) -> tuple[int, int]:
        pc_type = s.SFRAME_FDE_PCTYPE_MASK if body.repeat_size else s.SFRAME_FDE_PCTYPE_INC
        info = fre_type | pc_type << s.FDE_INFO_PCTYPE_SHIFT
        if body.uses_b_key:
            info |= s.FDE_INFO_PAUTH_KEY_B
        if body.is_signal_frame and self.version >= s.SFRAME_VERSION_3:
            info |= s.FDE_INFO_SIGNAL
        return info, s.SFRAME_FDE_TYPE_FLEX if body.is_flexible else s.SFRAME_FDE_TYPE_DEFAULT

    def _plan_state(self, state: FrameState, *, is_flexible: bool) -> PlannedState:
        words, code = _words(state, self.arch, is_flexible=is_flexible)
        info = len(words) << s.FRE_INFO_COUNT_SHIFT | code << s.FRE_INFO_SIZE_SHIFT
        if not is_flexible and state.cfa is not None and state.cfa.register == self.arch.sp_register:
            info |= s.FRE_INFO_CFA_BASE_SP
        if state.mangled_ra:
            info |= s.FRE_INFO_MANGLED_RA
        planned = PlannedState(info, code, words)
        # Equal states become one object, whatever objects they came from: sharing compares them so.
        return self.states.setdefault(planned, planned)


def _words(state: FrameState, arch: Arch, *, is_flexible: bool) -> tuple[tuple[int, ...], int]:
    """Return a row's data words, as signed numbers of their size, and the size's code."""
    if is_flexible:
        return _flexible_words(state, arch)
    words = _default_words(state, arch)
    return words, max(map(_signed_code, words), default=0)


def _signed_code(word: int) -> int:
    """Return the smallest data word size code that holds a signed number."""
    for code, size in enumerate(_WORD_SIZES):
        if -(1 << (8 * size - 1)) <= word < 1 << (8 * size - 1):
            return code
    raise RequestError(f"{word} does not fit a data word of 32 bits")


def _unsigned_code(word: int) -> int:
    """Return the smallest data word size code that holds an unsigned number."""
    for code, size in enumerate(_WORD_SIZES):
        if 0 <= word < 1 << (8 * size):
            return code
    raise RequestError(f"{word} does not fit a data word of 32 bits")


def _cfa_word(rule: Rule, arch: Arch) -> int:
    return (rule.offset - arch.cfa_offset_bias) // arch.cfa_offset_scale


def _default_words(state: FrameState, arch: Arch) -> tuple[int, ...]:
    """Return the words of a default row (version 3, "Default FDE Type Interpretation"); none in the outermost frame."""
    if state.cfa is None:
        return ()
    cfa = _cfa_word(state.cfa, arch)
    if arch.fixed_ra_offset:
        return (cfa,) if state.fp is None else (cfa, state.fp.offset)
    if state.fp is not None:
        return (cfa, _saved_word(state.ra), _saved_word(state.fp))
    return (cfa,) if state.ra is None else (cfa, _saved_word(state.ra))


def _saved_word(rule: Rule | None) -> int:
    """Return the word for a saved RA or FP; 0 is the padding, an odd one names a register (s390x, version 2)."""
    if rule is None:
        return 0
    return rule.offset if rule.register is None else rule.register << 1 | 1


def _flexible_words(state: FrameState, arch: Arch) -> tuple[tuple[int, ...], int]:
    """Return the words of a flexible row, as signed numbers of their size, and the size's code.

    Version 3, "Flexible FDE Type Interpretation": pairs of an unsigned control word and a signed offset. An RA that is
    where the ABI has it takes no word, or the padding word when FP follows.
    """
    if state.cfa is None:
        return (), 0
    fixed_ra = Rule(None, arch.fixed_ra_offset, deref=True) if arch.fixed_ra_offset else None
    pairs: list[tuple[int, int] | None] = [(_control_word(state.cfa), _cfa_word(state.cfa, arch))]
    if state.ra is not None and state.ra != fixed_ra:
        pairs.append((_control_word(state.ra), state.ra.offset))
    elif state.fp is not None:
        pairs.append(None)
    if state.fp is not None:
        pairs.append((_control_word(state.fp), state.fp.offset))
    code = max(max(_unsigned_code(pair[0]), _signed_code(pair[1])) for pair in pairs if pair)
    bits = 8 << code
    words: list[int] = []
    for pair in pairs:
        if pair is None:
            words.append(0)
        else:
            words += (pair[0] - (1 << bits) if pair[0] >> (bits - 1) else pair[0], pair[1])
    return tuple(words), code


def _control_word(rule: Rule) -> int:
    word = s.FLEX_DEREF_P if rule.deref else 0
    return word if rule.register is None else word | rule.register << s.FLEX_REG_SHIFT | s.FLEX_REG_P
