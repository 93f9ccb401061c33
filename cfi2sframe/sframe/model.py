# SPDX-License-Identifier: Apache-2.0
"""The logical SFrame section, written or read: what all versions can express, without widths, byte order or offsets.

A section iterates over its functions, a function over its rows. A `Rule` is a base (a DWARF register or the CFA), an
offset in bytes, and optionally a load. Default rows can express a few rules, flexible rows (version 3) nearly all.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from functools import cached_property
from operator import le
from typing import Any, ClassVar, Final, NamedTuple, Self

from cfi2sframe.abi import ARCHES, Arch
from cfi2sframe.abi.rule import NamedRule
from cfi2sframe.abi.rule import Rule as Rule  # noqa: PLC0414 - fields of NamedTuples; also for importers
from cfi2sframe.constants.sframe import (
    ERRATA,
    ERRATA_OF_OUTERMOST_ROWS,
    ERRATA_OF_PCREL_STARTS,
    SFRAME_VERSION_1,
    SFRAME_VERSION_3,
)
from cfi2sframe.text import counted

#: The block size of a PCMASK function that stores none: always in version 1, whose readers test the bits of a PC.
NO_BLOCK_SIZE: Final = -1


def state_text(cfa: str | None, ra: str | None, fp: str | None, *, mangled_ra: bool) -> str:
    """Return a state as readelf writes its columns: `u` is unchanged, `[s]` signed. `cfa` is None when outermost."""
    if cfa is None:
        return "outermost"
    return f"cfa={cfa} ra={ra or 'u'}{'[s]' if mangled_ra else ''} fp={fp or 'u'}"


class FrameState(NamedTuple):
    """The rules that compute a frame's CFA, and recover RA and the caller's FP.

    `cfa` is None in the outermost frame, where RA is undefined and the other fields have no meaning. `ra` and `fp` are
    None where the value is still in its own register. `mangled_ra`: the RA is signed (AArch64).
    """

    cfa: Rule | None
    ra: Rule | None = None
    fp: Rule | None = None
    mangled_ra: bool = False

    def __repr__(self) -> str:
        cfa, ra, fp = (None if rule is None else repr(rule) for rule in (self.cfa, self.ra, self.fp))
        return state_text(cfa, ra, fp, mangled_ra=self.mangled_ra)


class States(tuple[FrameState, ...]):  # noqa: SLOT001 - it has an attribute
    """The states of rows, as a tuple that computes its hash once: functions that have one list are looked up by it."""

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return super().__hash__()

    def __reduce__(self) -> tuple[type[Self], tuple[tuple[FrameState, ...]]]:
        # Another process has other hashes.
        return type(self), (tuple(self),)


#: RA is undefined: unwinding ends here.
OUTERMOST: Final = FrameState(None)


class FrameRow(NamedTuple):
    """A state in force from `start_delta` (bytes from the function's start) to the next row or the function's end."""

    start_delta: int
    state: FrameState

    @property
    def cfa(self) -> Rule | None:
        """The CFA; None in the outermost frame."""
        return self.state.cfa

    @property
    def ra(self) -> Rule | None:
        """The return address; None where it is in its own register."""
        return self.state.ra

    @property
    def fp(self) -> Rule | None:
        """The caller's frame pointer; None where it is in its own register."""
        return self.state.fp

    def __repr__(self) -> str:
        return f"+0x{self.start_delta:x}: {self.state}"


class Attributes(NamedTuple):
    """Flags that an FDE has for all rows of its function. Only functions with equal attributes can be joined."""

    is_flexible: bool
    is_signal_frame: bool
    uses_b_key: bool


class FunctionBody(NamedTuple):
    """Everything that an SFrame FDE describes, except the function's start and size; functions may share bodies.

    Rows are columns: `states[N]` is in force from `starts[N]` (bytes from the function's start) to the next start or
    the function's end. `repeat_size` is 0 for PCINC. Otherwise the FDE is PCMASK: the rows describe a block of that
    many bytes (-1: unknown), which repeats, and their starts count from the start of each block.
    """

    starts: tuple[int, ...]
    states: tuple[FrameState, ...]
    is_flexible: bool = False
    is_signal_frame: bool = False
    uses_b_key: bool = False
    repeat_size: int = 0

    def __repr__(self) -> str:
        return f"<FunctionBody: {counted(len(self.starts), 'row')}>"

    @property
    def is_pcmask(self) -> bool:
        """True if the rows describe a block that repeats."""
        return self.repeat_size != 0

    @property
    def rows(self) -> tuple[FrameRow, ...]:
        """The rows as records."""
        return tuple(map(FrameRow, self.starts, self.states))

    def cut(self, start_delta: int, end_delta: int) -> "FunctionBody":
        """Return the rows in force in `[start_delta, end_delta)`, with starts from `start_delta`; only for PCINC."""
        starts = self.starts
        if start_delta == 0 and starts[-1] < end_delta:
            return self
        first = bisect_right(starts, start_delta) - 1
        last = bisect_left(starts, end_delta, first + 1)
        kept = (0, *(start - start_delta for start in starts[first + 1 : last]))
        return self._replace(starts=kept, states=self.states[first:last])

    @property
    def attributes(self) -> Attributes:
        """The fields that apply to all rows."""
        return Attributes(self.is_flexible, self.is_signal_frame, self.uses_b_key)


def no_row_state(body: FunctionBody, version: int) -> FrameState | None:
    """Return a function's state where no row is in force: None, but outermost without any rows (version 3, 3.1)."""
    is_outermost = version >= SFRAME_VERSION_3 and not body.starts and not body.is_flexible
    return OUTERMOST if is_outermost else None


class _Container:
    """A frozen record that iterates over what it contains; a NamedTuple would iterate over its fields.

    `_names` are those of the fields, in the order of the constructor.
    """

    _names: ClassVar[tuple[str, ...]]

    def _fill(self, *values: object) -> None:
        self.__dict__.update(zip(self._names, values, strict=True))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a {type(self).__name__} is immutable")

    def _values(self) -> tuple[Any, ...]:
        return tuple([self.__dict__[name] for name in self._names])

    def _meaning(self) -> tuple[Any, ...]:
        return self._values()

    def _replace(self, **changes: object) -> Self:
        return type(self)(**{**dict(zip(self._names, self._values(), strict=True)), **changes})

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Container) and self._meaning() == other._meaning()

    def __hash__(self) -> int:
        return hash(self._meaning())

    def __reduce__(self) -> tuple[type[Self], tuple[object, ...]]:
        return type(self), self._values()


class Function(_Container):
    """The addresses `[start_vaddr, start_vaddr + size)` and their rows, over which it iterates."""

    _names = ("start_vaddr", "size", "body")
    start_vaddr: int
    size: int
    body: FunctionBody

    def __init__(self, start_vaddr: int, size: int, body: FunctionBody) -> None:
        self._fill(start_vaddr, size, body)

    def __iter__(self) -> Iterator[FrameRow]:
        return map(FrameRow, self.body.starts, self.body.states)

    def __len__(self) -> int:
        return len(self.body.starts)

    def __repr__(self) -> str:
        body = self.body
        marks = {"PCMASK": body.is_pcmask, "flexible": body.is_flexible, "signal frame": body.is_signal_frame}
        marks |= {"B key": body.uses_b_key}
        text = "".join(f", {name}" for name, has_it in marks.items() if has_it)
        return f"<function 0x{self.start_vaddr:x}..0x{self.end_vaddr:x}: {counted(len(self), 'row')}{text}>"

    @property
    def rows(self) -> tuple[FrameRow, ...]:
        """The rows as records, which are made each time."""
        return self.body.rows

    @property
    def end_vaddr(self) -> int:
        """The first virtual address after the function."""
        return self.start_vaddr + self.size

    def row_index_at(self, pc: int, version: int) -> int | None:
        """Return the index of the row in force at an address inside, or None where the rows start later.

        PCINC: the last row that starts at or before the PC's distance from the function's start (version 3, 2.3.3.1
        "PC types"). PCMASK: the same with the distance from the start of the repeating block; version 1 stores no block
        size, and its readers test the PC's bits instead.
        """
        starts, repeat_size = self.body.starts, self.body.repeat_size
        if repeat_size == NO_BLOCK_SIZE:
            matching = (n for n in range(len(starts) - 1, -1, -1) if pc & starts[n] >= starts[n])
            return next(matching, None) if version == SFRAME_VERSION_1 else None
        distance = pc - self.start_vaddr
        index = bisect_right(starts, distance % repeat_size if repeat_size else distance) - 1
        return index if index >= 0 else None


class Found(NamedTuple):
    """The function that holds a PC, and the row in force there, with its places of CFA, RA and FP.

    `row` is None where the function's rows start later, or where it has none. `version` and `arch` are the section's.
    `cfa`, `ra` and `fp` have registers by name; `state` and `row` have them by DWARF's number. A rule that is None is
    printed as `u`, `mangled_ra` as `[s]`.
    """

    function: Function
    row: FrameRow | None
    version: int
    arch: Arch

    @property
    def state(self) -> FrameState | None:
        """The rules in force, or None where no row is: the rows start later."""
        return no_row_state(self.function.body, self.version) if self.row is None else self.row.state

    @property
    def is_outermost(self) -> bool:
        """True if the frame has no caller: RA is undefined."""
        return self.state is not None and self.state.cfa is None

    @property
    def cfa(self) -> NamedRule | None:
        """The CFA's value. None in an outermost frame, and where no row is in force."""
        return self._named(self._rules.cfa)

    @property
    def ra(self) -> NamedRule | None:
        """The return address. None where it is still in its own register; also where `cfa` is None."""
        return self._named(self._rules.ra)

    @property
    def fp(self) -> NamedRule | None:
        """The caller's frame pointer. None where it is still in its own register; also where `cfa` is None."""
        return self._named(self._rules.fp)

    @property
    def mangled_ra(self) -> bool:
        """True if the return address carries a pointer authentication code (AArch64)."""
        return self.state is not None and self.state.mangled_ra

    @property
    def _rules(self) -> FrameState:
        """The state in force; in an outermost frame, and where no row is in force, one without rules."""
        return OUTERMOST if self.state is None or self.state.cfa is None else self.state

    def _named(self, rule: Rule | None) -> NamedRule | None:
        return None if rule is None else rule.named(self.arch)

    def __repr__(self) -> str:
        if self.state is None:
            return "no row"
        cfa, ra, fp = (None if rule is None else repr(rule) for rule in (self.cfa, self.ra, self.fp))
        return state_text(cfa, ra, fp, mangled_ra=self.mangled_ra)


class Section(_Container):
    """The logical section: version, ABI, flags, and functions in the order of the function table.

    Functions are columns: `bodies[N]` describes the addresses `[starts[N], starts[N] + sizes[N])`. `abi_id` is
    `sfh_abi_arch`. `is_sorted` and `start_is_pcrel` are the flags SFRAME_F_FDE_SORTED and
    SFRAME_F_FDE_FUNC_START_PCREL. A section that was read (`DecodedSection`) equals one that was made: how it is
    stored is no part of its meaning.
    """

    _names = ("version", "abi_id", "starts", "sizes", "bodies", "is_sorted", "start_is_pcrel")
    version: int
    abi_id: int
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    bodies: tuple[FunctionBody, ...]
    is_sorted: bool
    start_is_pcrel: bool

    def __init__(
        self,
        version: int,
        abi_id: int,
        starts: tuple[int, ...] = (),
        sizes: tuple[int, ...] = (),
        bodies: tuple[FunctionBody, ...] = (),
        is_sorted: bool = True,  # noqa: FBT001, FBT002 - fields
        start_is_pcrel: bool = True,  # noqa: FBT001, FBT002
    ) -> None:
        fields = (version, abi_id, starts, sizes, bodies, is_sorted, start_is_pcrel)
        self.__dict__.update(zip(Section._names, fields, strict=True))

    def _meaning(self) -> tuple[Any, ...]:
        return tuple([self.__dict__[name] for name in Section._names])

    def __iter__(self) -> Iterator[Function]:
        return map(Function, self.starts, self.sizes, self.bodies)

    def __len__(self) -> int:
        return len(self.starts)

    def __repr__(self) -> str:
        return f"<Section: version {self.version}, {self.arch.name}, {counted(len(self), 'function')}>"

    @property
    def arch(self) -> Arch:
        """The ABI."""
        return next(arch for arch in ARCHES if arch.abi_id == self.abi_id)

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions as records, which are made each time."""
        return tuple(self)

    @property
    def row_count(self) -> int:
        """The rows of all functions; those that functions share count for each."""
        return sum([len(body.starts) for body in self.bodies])

    @property
    def errata(self) -> int:
        """The first errata of version 2 that have all that the section uses."""
        if any(state.cfa is None for body in self.bodies for state in body.states):
            return ERRATA_OF_OUTERMOST_ROWS
        return ERRATA_OF_PCREL_STARTS if self.start_is_pcrel else min(ERRATA)

    @property
    def ascending(self) -> "Section":
        """The section with its functions in the order of their starts; equal starts keep the order of the table."""
        return self._sorted or self

    @cached_property
    def _sorted(self) -> "Section | None":
        if all(map(le, self.starts, self.starts[1:])):
            return None
        order = sorted(range(len(self)), key=self.starts.__getitem__)
        starts, sizes, bodies = (tuple([column[n] for n in order]) for column in (self.starts, self.sizes, self.bodies))
        return self._replace(starts=starts, sizes=sizes, bodies=bodies)

    def holder_of(self, pc: int) -> Function | None:
        """Return the function that holds the virtual address `pc`: of several, the one that starts last; or None."""
        section = self.ascending
        place = bisect_right(section.starts, pc) - 1
        if place < 0 or pc - section.starts[place] >= section.sizes[place]:
            return None
        return Function(section.starts[place], section.sizes[place], section.bodies[place])

    def find(self, pc: int) -> Found | None:
        """Return the places of CFA, RA and FP at the virtual address `pc`, or None where no function holds it.

        For a return address, look its predecessor up: it may be the first address of the next function.
        """
        function = self.holder_of(pc)
        if function is None:
            return None
        index = function.row_index_at(pc, self.version)
        body = function.body
        row = None if index is None else FrameRow(body.starts[index], body.states[index])
        return Found(function, row, self.version, self.arch)
