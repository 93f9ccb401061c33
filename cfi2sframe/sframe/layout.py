# SPDX-License-Identifier: Apache-2.0
"""Where everything in a section goes: a logical section becomes a plan in which every order and offset is settled."""

from __future__ import annotations

from itertools import accumulate, count
from operator import sub
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.errors import RequestError
from cfi2sframe.sframe import constants as s
from cfi2sframe.sframe.rows import BodyPlanner, PlannedBody

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.model import Section


class PlannedFunction(NamedTuple):
    """A record of the function table: `start_field` as stored, `fre_offset` counted in the FRE sub-section."""

    start_field: int
    size: int
    fre_offset: int
    body: PlannedBody


class SectionPlan(NamedTuple):
    """A section ready to be written.

    The function table as columns: `start_fields` as stored, `sizes` in bytes, `fre_offsets` counted in the FRE
    sub-section, `function_bodies`. `bodies` are in the order of their bytes, each once, whoever shares it.
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
    """Settle every width, order and offset.

    `section_vaddr` is the section's address, which function starts are relative to. `share`: functions whose rows
    (version 3: attribute and rows) are equal refer to one copy; in versions 1 and 2 also to the beginning of a longer
    list. Raises `RequestError` when a start does not fit the version's field, or the section outgrows its 32-bit
    offsets.
    """
    # Programs that recur come as one object: identity will do, and saves hashing every row. What belongs to each
    # distinct body stands in lists by its number: in large sections, dictionaries are all over the memory.
    keys = list(map(id, section.bodies))
    distinct = dict(zip(keys, section.bodies, strict=True))
    numbers = list(map(dict(zip(distinct, count(), strict=False)).__getitem__, keys))
    plans = list(map(BodyPlanner(arch, section.version).plan, distinct.values()))
    function_bodies = tuple(map(plans.__getitem__, numbers))
    stored = share_rows(plans, section.version) if share else plans
    # In the order in which the functions refer to them.
    bodies = tuple({id(body): body for body in stored}.values()) if share else function_bodies
    ends = list(accumulate([len(body.data) for body in bodies], initial=0))
    if ends[-1] >= 1 << 32:
        raise RequestError("the rows take more than 4 GiB, which no SFrame version can address")
    fre_offsets = tuple(ends[:-1])
    if share:
        offset_of = dict(zip(map(id, bodies), fre_offsets, strict=True))
        offsets = list(map(offset_of.__getitem__, map(id, stored)))
        fre_offsets = tuple(map(offsets.__getitem__, numbers))
    row_counts = [body.row_count for body in plans]
    return SectionPlan(
        section.version,
        _flags(section),
        arch,
        _start_fields(section, section_vaddr),
        section.sizes,
        fre_offsets,
        function_bodies,
        bodies,
        sum(map(row_counts.__getitem__, numbers)),
        ends[-1],
    )


def move_plan(plan: SectionPlan, section: Section, section_vaddr: int) -> SectionPlan:
    """Return a section's plan for another address: only function starts depend on it.

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
    # Addresses wrap at 64 bits, and so does the distance from the lowest to the highest.
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

    Readers find as many rows as the function has, so what follows them does not matter; in version 3 the attribute in
    front of the rows has their number, so only equal bodies can be shared there. Longer ones are shared as far as
    readers go (`constants.max_decoded_rows`).
    """
    if version >= s.SFRAME_VERSION_3:
        equal: dict[bytes, PlannedBody] = {}
        return [equal.setdefault(plan.data, plan) for plan in plans]
    # Rows are read from their beginning, so equal beginnings are equal rows, whatever follows.
    first: dict[tuple[int, bytes], PlannedBody] = {}
    for plan in plans:
        first.setdefault((plan.fre_type, plan.data), plan)
    # In sorted order, whatever begins with a list follows it directly.
    ordered = sorted(first)
    stored = dict(first)
    for key, following in zip(reversed(ordered[:-1]), reversed(ordered[1:]), strict=True):
        if following[0] == key[0] and following[1].startswith(key[1]):
            stored[key] = stored[following]
    _share_less(first, stored)
    return [stored[plan.fre_type, plan.data] for plan in plans]


def _share_less(lists: dict[tuple[int, bytes], PlannedBody], stored: dict[tuple[int, bytes], PlannedBody]) -> None:
    """Store more of the lists by themselves until readers accept how many rows all of them have together.

    Each byte that is stored raises the bound by as much, whichever list it belongs to: long ones make the fewest
    changes.
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
    if section.all_keep_frame_pointer:
        flags |= s.SFRAME_F_FRAME_POINTER
    return flags
