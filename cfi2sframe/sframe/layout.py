# SPDX-License-Identifier: Apache-2.0
"""A logical section to a plan: decides every width, order and offset."""

from __future__ import annotations

from itertools import accumulate, count
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.errors import RequestError
from cfi2sframe.intern import distinct
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.rows import BodyPlanner, PlannedBody

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.model import Section


class PlannedFunction(NamedTuple):
    """A record of the function table: `start_field` as stored, `fre_offset` in the FRE sub-section."""

    start_field: int
    size: int
    fre_offset: int
    body: PlannedBody


class SectionPlan(NamedTuple):
    """A section ready to be encoded.

    The function table is columns: `start_fields` as stored, `sizes` in bytes, `fre_offsets` in the FRE sub-section,
    `function_bodies`. `bodies` are the bodies to be stored, in the order of their bytes; functions may refer to the
    same one. `fre_count` counts the rows of all functions (`sfh_num_fres`), `fre_size` the bytes of the FRE
    sub-section (`sfh_fre_len`).
    """

    version: int
    flags: int
    arch: Arch
    start_fields: tuple[int, ...]
    sizes: tuple[int, ...]
    fre_offsets: tuple[int, ...]
    function_bodies: tuple[PlannedBody, ...]
    bodies: tuple[PlannedBody, ...]
    fre_count: int
    fre_size: int

    @property
    def functions(self) -> tuple[PlannedFunction, ...]:
        """The function table as records."""
        return tuple(map(PlannedFunction, self.start_fields, self.sizes, self.fre_offsets, self.function_bodies))

    @property
    def size(self) -> int:
        """The section's size in bytes."""
        return s.HEADER_SIZE + s.FDE_SIZE[self.version] * len(self.sizes) + self.fre_size


def plan_section(section: Section, arch: Arch, section_vaddr: int, *, share: bool = False) -> SectionPlan:
    """Decide every width, order and offset.

    `section_vaddr` is the section's virtual address, which function starts are relative to. With `share`, functions
    whose rows (version 3: attribute and rows) are equal refer to one copy; in versions 1 and 2 also to the beginning of
    a longer list. Raises `RequestError` when a start does not fit the version's field, a data word
    needs more than 32 bits, or the rows outgrow their 32-bit offsets.
    """
    distinct_bodies, numbers = distinct(section.bodies)
    plans = list(map(BodyPlanner(arch, section.version).plan, distinct_bodies))
    function_bodies = tuple(map(plans.__getitem__, numbers))
    if share:
        # In the order in which functions first refer to them.
        bodies, body_numbers = distinct(share_rows(plans, section.version))
        references: Iterable[int] = map(body_numbers.__getitem__, numbers)
    else:
        bodies, references = list(function_bodies), range(len(function_bodies))
    ends = list(accumulate([len(body.data) for body in bodies], initial=0))
    if ends[-1] >= 1 << 32:
        raise RequestError("the rows have more than 4 GiB, which no SFrame version can address")
    fre_offsets = tuple(map(ends.__getitem__, references))
    row_counts = [body.row_count for body in plans]
    return SectionPlan(
        section.version,
        _flags(section),
        arch,
        _start_fields(section, section_vaddr),
        section.sizes,
        fre_offsets,
        function_bodies,
        tuple(bodies),
        sum(map(row_counts.__getitem__, numbers)),
        ends[-1],
    )


def move_plan(plan: SectionPlan, section: Section, section_vaddr: int) -> SectionPlan:
    """Return a section's plan for another address; only function starts change.

    Raises `RequestError` when a start does not fit the version's field.
    """
    return plan._replace(start_fields=_start_fields(section, section_vaddr))


def _start_fields(section: Section, section_vaddr: int) -> tuple[int, ...]:
    """Return the start field of each function, relative to the section or to the field itself."""
    field_vaddr = section_vaddr + (s.HEADER_SIZE if section.start_is_pcrel else 0)
    step = s.FDE_SIZE[section.version] if section.start_is_pcrel else 0
    limit = 1 << (63 if section.version >= s.SFRAME_VERSION_3 else 31)
    fields = tuple(map(sub, section.starts, count(field_vaddr, step)))
    if not fields or (-limit <= min(fields) and max(fields) < limit):
        return fields
    # Addresses wrap at 64 bits, and so do distances.
    fields = tuple((field + (1 << 63)) % (1 << 64) - (1 << 63) for field in fields)
    for start_vaddr, field in zip(section.starts, fields, strict=True):
        if not -limit <= field < limit:
            raise RequestError(
                f"the function at 0x{start_vaddr:x} is too far from .sframe at 0x{section_vaddr:x} "
                f"for the 32-bit starts of version {section.version}; version 3 has 64 bits"
            )
    return fields


def share_rows(plans: Sequence[PlannedBody], version: int) -> list[PlannedBody]:
    """Return for each plan the one whose bytes it refers to: its own, an equal one, or a longer one.

    Readers decode as many rows as the function's record has, so a body may refer to the beginning of a longer one. In
    version 3 the number of rows is in the attribute before them, so only equal bodies can share bytes. Beginnings are
    shared only as long as readers accept the number of rows (`constants.max_decoded_rows`).
    """
    if version >= s.SFRAME_VERSION_3:
        equal: dict[bytes, PlannedBody] = {}
        return [equal.setdefault(plan.data, plan) for plan in plans]
    first: dict[tuple[int, bytes], PlannedBody] = {}
    for plan in plans:
        first.setdefault((plan.fre_type, plan.data), plan)
    # In sorted order, a body is followed by the longer ones that begin with it.
    ordered = sorted(first)
    stored = dict(first)
    for key, following in zip(reversed(ordered[:-1]), reversed(ordered[1:]), strict=True):
        if following[0] == key[0] and following[1].startswith(key[1]):
            stored[key] = stored[following]
    _share_less(first, stored)
    return [stored[plan.fre_type, plan.data] for plan in plans]


def _share_less(lists: dict[tuple[int, bytes], PlannedBody], stored: dict[tuple[int, bytes], PlannedBody]) -> None:
    """Give more row lists bytes of their own, until readers accept the number of rows of all lists together.

    Each stored byte raises the bound by the same amount, so the longest lists come first.
    """
    row_count = sum([plan.row_count for plan in lists.values()])
    size = sum(map(len, {plan.data for plan in stored.values()}))
    if row_count <= s.max_decoded_rows(size):
        return
    for key in sorted(lists, key=_size_of, reverse=True):
        if stored[key] is not lists[key]:
            stored[key] = lists[key]
            size += len(key[1])
            if row_count <= s.max_decoded_rows(size):
                return


def _size_of(key: tuple[int, bytes]) -> int:
    return len(key[1])


def _flags(section: Section) -> int:
    flags = s.SFRAME_F_FDE_SORTED if section.is_sorted else 0
    if section.start_is_pcrel:
        flags |= s.SFRAME_F_FDE_FUNC_START_PCREL
    return flags
