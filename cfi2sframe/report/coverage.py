# SPDX-License-Identifier: Apache-2.0
"""The account of one conversion: how much of the code the section describes, what it leaves out, and why.

Every FDE and every executable byte is counted exactly once.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from heapq import nlargest
from typing import Any, Final, NamedTuple

from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.fates import Fate
from cfi2sframe.conversion.sources import UnreadSource
from cfi2sframe.dwarf.fdes import FdeIndex, FunctionTable
from cfi2sframe.elf.cfi import SOURCE_NAMES
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import check_type
from cfi2sframe.process.demangle import readable_names
from cfi2sframe.report.code_bytes import DESCRIBED, Stretch, count_code
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.why import Reason, Why

#: How many stretches of code without CFI an account names, the largest ones.
NAMED_COUNT: Final = 1000


class Missing(NamedTuple):
    """Code that the section does not describe, or a damaged FDE.

    `kind` is "left out" (a function), "in part" (a hole of a function), "PLT stubs", "without CFI" or "damaged".
    `function` is its readable name, `symbol` the file's. `address` is absolute; in an object, an offset in `section`;
    for a damaged FDE, the offset in its CFI section. `size` counts bytes. `reason` is a constant's name, `message` its
    sentence; code without CFI has them only after `--from code`. `detail` is the rule that SFrame cannot express, and
    `row_address` is where it comes into force. `source` is the CFI section.
    """

    kind: str
    section: str
    address: int
    size: int
    reason: str = ""
    detail: str = ""
    symbol: str = ""
    function: str = ""
    row_address: int = 0
    function_address: int = 0
    function_size: int = 0
    source: str = ""
    message: str = ""


class MissingSum(NamedTuple):
    """The missing places of one kind for one reason, and the bytes that nothing else describes.

    `kind` and `message` are those of `Missing`.
    """

    kind: str
    message: str
    place_count: int
    size: int


class Coverage(NamedTuple):
    """The account of a conversion, or the sums of several.

    Sizes count bytes. `code_size` is the sum of `described_size`, `left_out_size` and `without_cfi_size`, and
    `described_size` the sum of the five sizes after it. `other_padding_size` is padding after code that is not
    described; it is never executed, and not counted as code. `function_count` FDEs have code of their own:
    `described_count` (of these `flexible_count` in flexible rows), `in_part_count`, `left_out_count` and
    `damaged_count`.

    `section_address` is that of the raw bytes; a converted file has its section elsewhere. `errata` is None except in
    version 2. `sources` has the sources of CFI, the best first, each with the number of functions that it describes,
    wholly or in part; "code" has functions derived from instructions, which no count of FDEs includes. `missing` has
    the FDEs in order, then the largest 1,000 stretches without CFI; `missing_sums` counts all. FDEs of stubs are not
    used, because their instructions are; dropped FDEs have no code of their own, and `dropped` counts them by reason.
    `unread` has the sources that could not be read, `debug_file` the path of the separate debug file, if one was used.
    """

    file: str
    arch: str
    is_object: bool
    sframe_version: int
    errata: int | None
    section_address: int
    code_size: int
    described_size: int
    default_size: int
    flexible_size: int
    stub_size: int
    padding_size: int
    from_code_size: int
    left_out_size: int
    without_cfi_size: int
    other_padding_size: int
    function_count: int
    described_count: int
    flexible_count: int
    in_part_count: int
    left_out_count: int
    damaged_count: int
    stub_fde_count: int
    dropped_count: int
    cfi_size: int
    eh_frame_hdr_size: int
    sframe_size: int
    record_count: int
    row_count: int
    sources: dict[str, int] = {}  # noqa: RUF012 - never changed
    missing_sums: tuple[MissingSum, ...] = ()
    missing: tuple[Missing, ...] = ()
    dropped: dict[str, int] = {}  # noqa: RUF012 - never changed
    unread: tuple[UnreadSource, ...] = ()
    debug_file: str = ""

    @property
    def code_percent(self) -> float:
        """The share of the code that the section describes; 100 without any."""
        return 100.0 * self.described_size / self.code_size if self.code_size else 100.0

    @property
    def described_share(self) -> str:
        """The share of the code that the section describes, as text; empty without any."""
        return share(self.described_size, self.code_size)

    @property
    def incomplete_count(self) -> int:
        """The functions that are not described from start to end."""
        return self.function_count - self.described_count

    @property
    def ratio(self) -> float | None:
        """The size of `.sframe` to that of the CFI with its search table; None without CFI."""
        whole = self.cfi_size + self.eh_frame_hdr_size
        return self.sframe_size / whole if whole else None

    def of_kind(self, kind: str) -> list[Missing]:
        """Return the missing places of one kind."""
        return [place for place in self.missing if place.kind == kind]

    def largest(self, count: int) -> tuple[Missing, ...]:
        """Return the largest places that are missing."""
        return tuple(nlargest(count, self.missing, key=lambda place: place.size))


#: The fields that are added up: all numbers about the code, the functions and the section.
SUMMED: Final = Coverage._fields[Coverage._fields.index("code_size") : Coverage._fields.index("sources")]


def share(part: int, whole: int) -> str:
    """Return a share in percent; rounding makes none 100.00 % or 0.00 %. Empty if `whole` is 0."""
    if not whole:
        return ""
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "<0.01 %"
    return f"{percent if part == whole else min(percent, 99.99):.2f} %"


def account(conversion: Conversion, named_count: int | None = NAMED_COUNT) -> Coverage:
    """Return the account of a conversion, which names so many stretches of code without CFI; None: all.

    Raises `RequestError` for anything else, such as a path.
    """
    check_type(conversion, Conversion, "a conversion", "convert returns one for a file")
    image, target = conversion.image, conversion.target
    sizes, uncovered = count_code(conversion)
    of_kind = Counter[str]()
    for (kind, _), size in sizes.items():
        of_kind[kind] += size
    described_size = sum(of_kind[kind] for kind in DESCRIBED)
    code_size = sizes.total()
    fates = Counter(conversion.fates)
    dropped = {fate.value: count for fate, count in fates.items() if fate.is_dropped}
    named, without_cfi = list(_missing(conversion)), _missing_without_cfi(image, uncovered)
    shown = [*named, *sorted(without_cfi, key=lambda place: -place.size)[:named_count]]
    readable = readable_names(place.symbol for place in shown)
    return Coverage(
        file=image.name,
        arch=target.arch.name,
        is_object=image.is_relocatable,
        sframe_version=target.version,
        errata=target.errata if target.version == 2 else None,
        section_address=conversion.section_vaddr,
        code_size=code_size,
        described_size=described_size,
        **{f"{kind}_size": of_kind[kind] for kind in DESCRIBED},
        left_out_size=code_size - described_size - of_kind["without CFI"],
        without_cfi_size=of_kind["without CFI"],
        other_padding_size=sum(code.end_vaddr - code.start_vaddr for code in image.code_ranges) - code_size,
        described_count=fates[Fate.DESCRIBED],
        flexible_count=_flexible_count(conversion),
        damaged_count=len(conversion.cfi.damaged),
        stub_fde_count=fates[Fate.STUBS],
        dropped_count=sum(dropped.values()),
        sources=_sources(conversion),
        missing_sums=_sums([*named, *without_cfi], sizes),
        missing=tuple(place._replace(function=readable.get(place.symbol, place.symbol)) for place in shown),
        dropped=dict(sorted(dropped.items())),
        unread=conversion.cfi.unread,
        debug_file="" if image.debug_file is None else image.debug_file.name,
        **figures(conversion, fates),
    )


def figures(conversion: Conversion, fates: Counter[Fate]) -> dict[str, int]:
    """Return the fields that an account and a `size.FileSize` have in common; `fates` counts those of FDEs."""
    return {
        "function_count": sum(fates[fate] for fate in Fate if fate.has_code) + len(conversion.cfi.damaged),
        "in_part_count": fates[Fate.IN_PARTS],
        "left_out_count": fates[Fate.LEFT_OUT],
        "cfi_size": sum(section.size for section in conversion.cfi.sections),
        "eh_frame_hdr_size": sum(section.size for section in conversion.image.sections_named(".eh_frame_hdr")),
        "sframe_size": len(conversion.data),
        "record_count": len(conversion.section.starts),
        "row_count": conversion.rows.row_count,
    }


def _flexible_count(conversion: Conversion) -> int:
    flexible = {fde for _, _, fde, rows in conversion.pieces if isinstance(rows, FunctionBody) and rows.is_flexible}
    return sum(fde is not None and conversion.fates[fde] is Fate.DESCRIBED for fde in flexible)


def _sources(conversion: Conversion) -> dict[str, int]:
    """Return `Coverage.sources`."""
    sources = dict[str, int]()
    for kind, fdes in conversion.cfi.entries.sources.items():
        counts = Counter(conversion.fates[fdes.start : fdes.stop])
        sources[SOURCE_NAMES[kind]] = counts[Fate.DESCRIBED] + counts[Fate.IN_PARTS] + counts[Fate.DERIVED]
    return sources


def _missing(conversion: Conversion) -> Iterator[Missing]:
    """Yield functions that are left out, holes of those described in part, stubs, and damaged FDEs."""
    image, entries, fates = conversion.image, conversion.cfi.entries, conversion.fates
    holes: dict[FdeIndex, list[tuple[int, int, Why]]] = {}
    for start, end, origin, why in conversion.pieces:
        if origin is not None and isinstance(why, Why) and fates[origin].has_code:
            holes.setdefault(origin, []).append((start, end, why))
    for fde, size in entries.clipped.items():
        if fates[fde] is Fate.IN_PARTS:
            end = entries.starts[fde] + entries.sizes[fde]
            why = Why(Reason.PAST_CODE, "", entries.sizes[fde])
            holes.setdefault(FdeIndex(fde), []).append((end, end + size, why))
    with_names = [section for section in conversion.cfi.sections if isinstance(section, FunctionTable)]
    names = {vaddr: name for section in with_names for vaddr, name in section.names}
    names |= image.names_of(entries.starts[fde] for fde in holes)
    for fde in sorted(holes, key=lambda fde: (fates[fde] is Fate.IN_PARTS, fde)):
        entry = entries[fde]
        kind, size, vaddr = "in part", entry.size + entries.clipped.get(fde, 0), entry.start_vaddr
        if fates[fde] is Fate.LEFT_OUT:
            # One place for all rows, whose reasons may differ.
            kind, size = "left out", entry.size
            holes[fde] = [(vaddr, vaddr + size, holes[fde][0][2])]
        place, name = image.place(vaddr), names.get(vaddr, "")
        for start, end, why in holes[fde]:
            address = place.offset + start - vaddr
            yield Missing(
                *(kind, place.section_name, address, end - start, why.reason.name, why.detail, name),
                row_address=place.offset + why.start_delta,
                function_address=place.offset,
                function_size=size,
                source=entry.section.name,
                message=why.reason.value,
            )
    for stub in conversion.stubs_left_out:
        where = stub.section_name, stub.start_vaddr, stub.size
        yield Missing("PLT stubs", *where, stub.reason.name, stub.detail, message=stub.reason.value)
    for damaged in conversion.cfi.damaged:
        section = damaged.section.name
        yield Missing("damaged", section, damaged.offset, 0, source=section, message=damaged.error.reason)


def _missing_without_cfi(image: ElfImage, stretches: Iterable[Stretch]) -> list[Missing]:
    return [
        Missing(
            *("without CFI", code.section, image.place(code.start).offset, code.end - code.start),
            *(code.reason, code.detail, code.name),
            message=code.message,
        )
        for code in stretches
    ]


def _sums(missing: Iterable[Missing], sizes: Mapping[tuple[str, str], int]) -> tuple[MissingSum, ...]:
    """Return the sums of places and of the bytes that are not described, the largest first."""
    places = Counter((place.kind, place.message) for place in missing)
    lost = {key: size for key, size in sizes.items() if key[0] not in DESCRIBED}
    sums = [MissingSum(*key, places[key], lost.get(key, 0)) for key in {**places, **lost}]
    return tuple(sorted(sums, key=lambda total: (-total.size, -total.place_count, total[:2])))


def coverage_data(coverage: Coverage) -> dict[str, Any]:
    """Return an account as data for JSON."""
    lists = ("missing_sums", "missing", "unread")
    return {**coverage._asdict(), **{name: [item._asdict() for item in getattr(coverage, name)] for name in lists}}
