# SPDX-License-Identifier: Apache-2.0
"""The account of one conversion: which functions and bytes the section describes, which it does not, and why.

Every FDE and every executable byte is counted exactly once; the sums are those of `FunctionCounts` and `ByteCounts`
(`code_bytes.py`).
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.demangle import readable_names
from cfi2sframe.dwarf.row_section import RowSection
from cfi2sframe.lower import InParts, Skip
from cfi2sframe.report.code_bytes import ByteCounts, count_bytes
from cfi2sframe.report.from_code import account_of_code
from cfi2sframe.report.holes import count_holes, functions_in_parts
from cfi2sframe.report.sources import SourceCounts, count_sources
from cfi2sframe.report.without_cfi import largest_without_cfi

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.plt.stub_reasons import StubReason
    from cfi2sframe.reasons import SkipReason, UnreadSource
    from cfi2sframe.report.code_bytes import SectionBytes
    from cfi2sframe.report.from_code import FromCode
    from cfi2sframe.report.holes import HoleCounts, InPart
    from cfi2sframe.report.without_cfi import WithoutCfi
    from cfi2sframe.sframe.lookup_cost import LookupCost


class LeftOut(NamedTuple):
    """A function that the SFrame version cannot express; `source` is the CFI section that describes it.

    `demangled` is the name in readable form. `row_address` is that of the first row that it cannot express. It and
    `address` are absolute; in an object, both are offsets in `section`. `size` counts bytes; `detail` is the rule in
    question.
    """

    name: str
    demangled: str
    section: str
    address: int
    size: int
    reason: SkipReason
    detail: str
    row_address: int
    source: str


class StubLeftOut(NamedTuple):
    """PLT stubs that the section does not describe. `address` is absolute, `size` counts bytes."""

    section: str
    address: int
    size: int
    reason: StubReason
    detail: str


class Damaged(NamedTuple):
    """A damaged FDE at `offset` of the CFI section `where`, and the damage."""

    where: str
    offset: int
    reason: str


class FunctionCounts(NamedTuple):
    """FDEs by what becomes of them. `fdes` is the sum of those from `default` to `damaged`.

    `default` and `flexible` FDEs are described from start to end, `in_parts` with holes. `replaced` FDEs are of PLT
    stubs, which are described by their instructions; `dropped` ones have no code of their own. `overlapping` counts
    those of the first four that lost a part of their range to other FDEs. `records` are the functions in the section,
    `stub_records` of them for stubs: they are more than the FDEs described when one is cut or split, and fewer when
    level 2 joins neighbours. `code_records` of them are for functions from instructions, which are no FDEs, and in no
    other count.
    """

    fdes: int
    default: int
    flexible: int
    in_parts: int
    left_out: int
    replaced: int
    dropped: int
    damaged: int
    overlapping: int
    records: int
    stub_records: int
    code_records: int = 0

    @property
    def described(self) -> int:
        """The FDEs that the section describes from start to end."""
        return self.default + self.flexible

    @property
    def wanted(self) -> int:
        """The FDEs with code of their own: those that a section should describe."""
        return self.described + self.in_parts + self.left_out + self.damaged

    @property
    def percent(self) -> float:
        """The share of FDEs with code of their own that are described from start to end; 100 without such FDEs."""
        return 100.0 * self.described / self.wanted if self.wanted else 100.0


class Sizes(NamedTuple):
    """Sizes in bytes: the CFI that was read, of all sources; its search table; and the SFrame section."""

    cfi: int
    eh_frame_hdr: int
    sframe: int

    @property
    def ratio(self) -> float | None:
        """The size of `.sframe` to that of the CFI with its search table; None without CFI."""
        whole = self.cfi + self.eh_frame_hdr
        return self.sframe / whole if whole else None


class Coverage(NamedTuple):
    """The whole account of a conversion.

    `source` names the CFI section that was read, the best one of several; `sources` has all of them, and `unread` those
    that could not be read. `section_vaddr` is the address that the section was made for, `errata` is None except in
    version 2. `reasons`, `holes` and `dropped` count functions that are left out, holes in functions that are described
    in part (`in_parts`), and FDEs by reason, as sentences. `without_cfi` has the largest stretches of code that no CFI
    covers, at most 1,000 of them, the largest first.
    `lookup_cost` is what a look-up costs a reader. `from_code` is None unless rows from instructions were asked for.
    """

    file: str
    is_object: bool
    arch: str
    version: int
    errata: int | None
    source: str
    section_vaddr: int
    functions: FunctionCounts
    bytes: ByteCounts
    sizes: Sizes
    row_count: int
    lookup_cost: LookupCost
    reasons: dict[str, int]
    holes: dict[str, HoleCounts]
    dropped: dict[str, int]
    sections: tuple[SectionBytes, ...]
    left_out: tuple[LeftOut, ...]
    in_parts: tuple[InPart, ...]
    without_cfi: tuple[WithoutCfi, ...]
    stubs_left_out: tuple[StubLeftOut, ...]
    damaged: tuple[Damaged, ...]
    sources: tuple[SourceCounts, ...]
    unread: tuple[UnreadSource, ...]
    from_code: FromCode | None = None

    @property
    def source_names(self) -> str:
        """The names of all sources that were read, the best one first."""
        return " + ".join(source.name for source in self.sources)


def account(conversion: Conversion) -> Coverage:
    """Return the account of a conversion. Mangled names are read in a forked process, if there are any."""
    image, target = conversion.image, conversion.target
    fdes = range(conversion.cfi.derived_numbers.start)
    dropped = Counter(reason.value for number, reason in conversion.code_map.dropped.items() if number in fdes)
    sections, uncovered = count_bytes(conversion)
    left_out = _left_out(conversion)
    in_parts = functions_in_parts(conversion)
    from_code, reasons = account_of_code(conversion, uncovered)
    without_cfi = largest_without_cfi(image, uncovered, reasons)
    stubs_left_out = conversion.code_map.stubs.left_out
    named: list[LeftOut | InPart | WithoutCfi] = [*left_out, *in_parts, *without_cfi]
    text_size = sum(2 * len(item.name) + len(item.section) for item in named)
    text_size += sum(len(item.detail) for item in left_out) + sum(len(item.detail) for item in without_cfi)
    text_size += sum(len(hole.detail) for item in in_parts for hole in item.holes)
    text_size += sum(len(skip.section_name) + len(skip.detail) for skip in stubs_left_out)
    text_size += sum(len(section.name) for section in sections)
    readable = readable_names(item.name for item in named)
    return Coverage(
        file=image.name,
        is_object=image.is_relocatable,
        arch=target.arch.name,
        version=target.version,
        errata=target.errata if target.version == 2 else None,
        source=conversion.cfi.sections[0].name if conversion.cfi.sections else "",
        section_vaddr=conversion.section_vaddr,
        functions=_count_functions(conversion),
        bytes=ByteCounts(*map(sum, zip(*(section.counts for section in sections), strict=True))),
        sizes=Sizes(
            sum(section.size for section in conversion.cfi.sections),
            sum(section.size for section in image.sections_named(".eh_frame_hdr")),
            len(conversion.data),
        ),
        row_count=conversion.rows.row_count,
        lookup_cost=conversion.lookup_cost,
        reasons=dict(sorted(Counter(item.reason.value for item in left_out).items())),
        holes=count_holes(conversion),
        dropped=dict(sorted(dropped.items())),
        sections=sections,
        left_out=tuple(item._replace(demangled=readable.get(item.name, item.name)) for item in left_out),
        in_parts=tuple(item._replace(demangled=readable.get(item.name, item.name)) for item in in_parts),
        without_cfi=tuple(item._replace(demangled=readable.get(item.name, item.name)) for item in without_cfi),
        stubs_left_out=tuple(
            StubLeftOut(skip.section_name, skip.start_vaddr, skip.size, skip.reason, skip.detail)
            for skip in stubs_left_out
        ),
        damaged=tuple(
            Damaged(f.section.name, f.failure.offset, f.failure.error.reason) for f in conversion.cfi.damaged
        ),
        sources=count_sources(conversion),
        unread=conversion.cfi.unread,
        from_code=from_code,
    )


def _count_functions(conversion: Conversion) -> FunctionCounts:
    derived = conversion.cfi.derived_numbers
    dropped = conversion.code_map.dropped.keys() - set(derived)
    replaced = conversion.code_map.replaced.difference(derived)
    default = flexible = in_parts = left_out = 0
    for number, result in enumerate(conversion.outcomes.results[: derived.start]):
        if number in dropped or number in replaced:
            continue
        if isinstance(result, Skip):
            left_out += 1
        elif isinstance(result, InParts):
            in_parts += 1
        elif result.is_flexible:
            flexible += 1
        else:
            default += 1
    return FunctionCounts(
        fdes=conversion.cfi.fde_count,
        default=default,
        flexible=flexible,
        in_parts=in_parts,
        left_out=left_out,
        replaced=len(replaced),
        dropped=len(dropped),
        damaged=len(conversion.cfi.damaged),
        overlapping=len(conversion.code_map.overlapped.difference(derived)),
        records=len(conversion.section.starts),
        stub_records=conversion.function_entries.count(None),
        code_records=sum(number in derived for number in conversion.function_entries) if derived else 0,
    )


def _left_out(conversion: Conversion) -> tuple[LeftOut, ...]:
    image = conversion.image
    skipped = conversion.skips
    with_names = [section for section in conversion.cfi.sections if isinstance(section, RowSection)]
    names = {vaddr: name for section in with_names for vaddr, name in section.names}
    names |= image.names_of(entry.fde.pc_begin_vaddr for entry, _ in skipped)
    result = []
    for entry, skip in skipped:
        begin = entry.fde.pc_begin_vaddr
        place = image.place(begin)
        row_address = place.offset + skip.start_delta
        result.append(
            LeftOut(
                names.get(begin, ""),
                "",
                place.section_name,
                place.offset,
                entry.fde.pc_range,
                skip.reason,
                skip.detail,
                row_address,
                entry.section.name,
            )
        )
    return tuple(result)
