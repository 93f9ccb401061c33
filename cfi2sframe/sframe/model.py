# SPDX-License-Identifier: Apache-2.0
"""The logical SFrame section: what all versions can express, without widths, byte order or offsets.

A `Rule` is a base (a DWARF register or the CFA), an offset in bytes, and optionally a load. Default rows can express a
few rules, flexible rows (version 3) nearly all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.printable import counted

if TYPE_CHECKING:
    from cfi2sframe.arch import Arch


def rule_text(register: str | None, offset: int, *, deref: bool) -> str:
    """Return a rule as readelf writes it for SFrame and for CFI.

    `rsp+16` is a value and `(rbp-8)` what is saved there; from the CFA (`register` is None), `v-16` is a value and
    `c-8` what is saved there.
    """
    if register is None:
        return f"{'c' if deref else 'v'}{offset:+d}"
    text = f"{register}{offset:+d}"
    return f"({text})" if deref else text


def state_text(cfa: str | None, ra: str | None, fp: str | None, *, mangled_ra: bool) -> str:
    """Return a state as readelf writes its columns: `u` is unchanged, `[s]` signed. `cfa` is None when outermost."""
    if cfa is None:
        return "outermost"
    return f"cfa={cfa} ra={ra or 'u'}{'[s]' if mangled_ra else ''} fp={fp or 'u'}"


class NamedRule(NamedTuple):
    """A `Rule` whose register has the assembler's name instead of DWARF's number."""

    register: str | None
    offset: int
    deref: bool

    def __repr__(self) -> str:
        return rule_text(self.register, self.offset, deref=self.deref)


class Rule(NamedTuple):
    """`value = base + offset`, or with `deref` `value = *(base + offset)`.

    The base is the CFA when `register` is None.
    """

    register: int | None
    offset: int
    deref: bool

    def __repr__(self) -> str:
        name = None if self.register is None else f"r{self.register}"
        return rule_text(name, self.offset, deref=self.deref)

    def named(self, arch: Arch) -> NamedRule:
        """Return the rule with its register's name."""
        name = None if self.register is None else arch.register_name(self.register)
        return NamedRule(name, self.offset, self.deref)


class FrameState(NamedTuple):
    """How to compute a frame's CFA, and to recover RA and the caller's FP.

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


#: RA is undefined: unwinding ends here.
OUTERMOST: Final = FrameState(None)


class FrameRow(NamedTuple):
    """A state in force from `start_delta` (bytes from the function's start) to the next row or the function's end."""

    start_delta: int
    state: FrameState

    def __repr__(self) -> str:
        return f"+0x{self.start_delta:x}: {self.state}"


class Attributes(NamedTuple):
    """What an FDE states for all rows of its function. Only functions with equal attributes can be joined."""

    is_flexible: bool
    is_signal_frame: bool
    uses_b_key: bool


class FunctionBody(NamedTuple):
    """Everything that an SFrame FDE describes, except the function's start and size; functions may share bodies.

    Rows are columns: `states[N]` is in force from `starts[N]` (bytes from the function's start) to the next start or
    the function's end. `repeat_size` is 0 for PCINC. Otherwise the FDE is PCMASK: the rows describe a block of that
    many bytes, which repeats, and their starts count from the start of each block.
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
    def rows(self) -> tuple[FrameRow, ...]:
        """The rows as records."""
        return tuple(map(FrameRow, self.starts, self.states))

    def cut(self, start_delta: int, end_delta: int) -> FunctionBody:
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

    def with_attributes(self, attributes: Attributes) -> FunctionBody:
        """Return the same rows with other attributes."""
        return self._replace(
            is_flexible=attributes.is_flexible,
            is_signal_frame=attributes.is_signal_frame,
            uses_b_key=attributes.uses_b_key,
        )


class Function(NamedTuple):
    """The addresses `[start_vaddr, start_vaddr + size)` and their rows."""

    start_vaddr: int
    size: int
    body: FunctionBody

    def __repr__(self) -> str:
        rows = counted(len(self.body.starts), "row")
        return f"<function 0x{self.start_vaddr:x}..0x{self.start_vaddr + self.size:x}: {rows}>"


class Section(NamedTuple):
    """The logical section: version, ABI, flags, and functions in the order of the function table.

    Functions are columns: `bodies[N]` describes the addresses `[starts[N], starts[N] + sizes[N])`. `abi_id` is
    `sfh_abi_arch`. `is_sorted` and `start_is_pcrel` are the flags SFRAME_F_FDE_SORTED and
    SFRAME_F_FDE_FUNC_START_PCREL.
    """

    version: int
    abi_id: int
    starts: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    bodies: tuple[FunctionBody, ...] = ()
    is_sorted: bool = True
    start_is_pcrel: bool = True

    def __repr__(self) -> str:
        return f"<Section: version {self.version}, {counted(len(self.starts), 'function')}>"

    @property
    def functions(self) -> tuple[Function, ...]:
        """The functions as records."""
        return tuple(map(Function, self.starts, self.sizes, self.bodies))
