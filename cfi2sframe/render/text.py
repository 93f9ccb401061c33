# SPDX-License-Identifier: Apache-2.0
"""Coverage accounts as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.report.coverage import Coverage, LeftOut, StubLeftOut
    from cfi2sframe.report.holes import InPart
    from cfi2sframe.sframe.lookup_cost import LookupCost


#: What `ByteCounts` counts, after the total.
_BYTE_KINDS: Final = (
    *("default rows", "flexible rows", "PLT stubs", "padding", "left out"),
    *("other padding", "without CFI"),
)
#: What `SourceCounts` counts, after name and size.
_SOURCE_COLUMNS: Final = (
    "FDEs",
    "described",
    "in part",
    "left out",
    "PLT stubs",
    "dropped",
    "damaged",
    "contradicting",
)
#: The widest column for section names; a longer name shifts the rest of its own line only.
_MAX_NAME_WIDTH: Final = 80


def describe_left_out(item: LeftOut, coverage: Coverage) -> str:
    """Return one left-out function as a sentence that does not name the file."""
    detail = f" ({item.detail})" if item.detail else ""
    return f"{_function(item, coverage)}: no SFrame FDE: {item.reason.value}{detail}"


def describe_in_part(item: InPart, coverage: Coverage) -> str:
    """Return a function that is described in part as a sentence that does not name the file."""
    first = item.holes[0]
    detail = f" ({first.detail})" if first.detail else ""
    more = f", and {len(item.holes) - 1:,} more" if len(item.holes) > 1 else ""
    left_out = sum(hole.size for hole in item.holes)
    return (
        f"{_function(item, coverage)}: {left_out:,} of {item.size:,} bytes are left out: "
        f"{first.reason.value}{detail} at 0x{first.address:x}{more}"
    )


def _function(item: LeftOut | InPart, coverage: Coverage) -> str:
    """Return a function's name and place."""
    place = f"0x{item.address:x}"
    if coverage.is_object and item.section != ".text":
        place = f"{printable(item.section)}+{place}"
    return f"'{printable(item.name)}' at {place}" if item.name else f"function at {place}"


def describe_stub(item: StubLeftOut) -> str:
    """Return stubs that are left out as a sentence that does not name the file."""
    detail = f" ({item.detail})" if item.detail else ""
    place = f"at 0x{item.address:x} in {printable(item.section)}"
    return f"{item.size:,} bytes of PLT stubs {place}: {item.reason.value}{detail}"


def summary(coverage: Coverage) -> str:
    """Return the one-line summary of a conversion."""
    functions, sizes = coverage.functions, coverage.sizes
    wanted = functions.fdes - functions.dropped - functions.replaced
    in_part = f" and {functions.in_parts:,} in part" if functions.in_parts else ""
    line = (
        f"SFrame version {coverage.version}: "
        f"{functions.described:,} of {wanted:,} functions{in_part}, "
        f"{coverage.bytes.described:,} of {coverage.bytes.total:,} executable bytes, {sizes.sframe:,} bytes of .sframe"
    )
    if sizes.ratio is not None:
        line += f" ({sizes.ratio:.2f} of {coverage.source_names}"
        line += f" + .eh_frame_hdr, {sizes.cfi + sizes.eh_frame_hdr:,} bytes)"
    return f"{line}; {_walked(coverage.lookup_cost)}" if coverage.lookup_cost.code_size else line


def _walked(cost: LookupCost) -> str:
    return f"a look-up walks {cost.mean_rows:.1f} rows on average, {cost.max_rows:,} at most"


def coverage_lines(coverage: Coverage) -> Iterator[str]:
    """Yield the lines of the whole account."""
    functions, counts = coverage.functions, coverage.bytes
    yield f"{printable(coverage.file)}: {coverage.arch}, {coverage.source_names}, SFrame version {coverage.version}"
    yield ""
    yield f"  functions           {functions.fdes:>12,}"
    yield f"    default rows      {functions.default:>12,}"
    yield f"    flexible rows     {functions.flexible:>12,}"
    yield f"    described in part {functions.in_parts:>12,}"
    yield f"    left out          {functions.left_out:>12,}"
    yield f"    PLT stubs         {functions.replaced:>12,}  ({functions.stub_records:,} functions from instructions)"
    yield f"    dropped           {functions.dropped:>12,}{_list(coverage.dropped)}"
    yield f"    damaged           {functions.damaged:>12,}"
    if functions.overlapping:
        yield f"    (overlapping      {functions.overlapping:>12,}  cut where another FDE holds)"
    yield f"  executable bytes    {counts.total:>12,}"
    for label, value in zip(_BYTE_KINDS, counts[1:], strict=True):
        yield f"    {label:<18}{value:>12,}  {_percent(value, counts.total)}"
    yield f"  section             {coverage.sizes.sframe:>12,} bytes, {coverage.row_count:,} rows{_ratio(coverage)}"
    yield f"  section address     {coverage.section_vaddr:>#12x}"
    cost = coverage.lookup_cost
    if cost.code_size:
        yield (
            f"  rows a look-up walks{cost.mean_rows:>12.1f}  on average over the code, {cost.max_rows:,} at most; "
            f"{cost.search_steps} steps in the function table"
        )
    yield from _source_lines(coverage)
    yield from _return_address_lines(coverage)
    yield from _section_lines(coverage)
    yield from _left_out_lines(coverage)
    yield from _in_part_lines(coverage)
    if coverage.stubs_left_out:
        yield ""
        yield "  PLT stubs left out"
        for stub in coverage.stubs_left_out:
            yield f"    {describe_stub(stub)}"
    if coverage.damaged:
        yield ""
        yield "  damaged FDEs"
        for item in coverage.damaged:
            yield f"    {printable(item.where)}+0x{item.offset:x}: {item.reason}"


def _list(counts: dict[str, int]) -> str:
    return "  (" + ", ".join(f"{count:,} {name}" for name, count in counts.items()) + ")" if counts else ""


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:6.2f} %" if whole else ""


def _ratio(coverage: Coverage) -> str:
    ratio = coverage.sizes.ratio
    return "" if ratio is None else f", {ratio:.2f} of {coverage.source_names} + .eh_frame_hdr"


def _source_lines(coverage: Coverage) -> Iterator[str]:
    """Yield what each source contributes, where there are several, and the ones that were not read."""
    if len(coverage.sources) > 1:
        yield ""
        yield f"  {'source':<20}" + "".join(f"{name:>14}" for name in _SOURCE_COLUMNS)
        for name, _, *counts in coverage.sources:
            yield f"  {name:<20}" + "".join(f"{count:>14,}" for count in counts)
    for item in coverage.unread:
        yield f"  {printable(item.name)} is not used: {printable(item.reason)}"


def _return_address_lines(coverage: Coverage) -> Iterator[str]:
    returns = coverage.return_addresses
    if returns is None:
        return
    yield f"  calls               {returns.calls:>12,}  by the row at their return address"
    for label, value in (
        ("the call's", returns.same_row),
        ("none: padding", returns.padding),
        ("none: elsewhere", returns.no_function),
        ("next function's", returns.next_function),
        ("another", returns.other_row),
    ):
        yield f"    {label:<18}{value:>12,}  {_percent(value, returns.described)}"
    yield f"    (not described    {returns.without:>12,}  the section has no row for the call itself)"
    yield (
        f"    rows walked       {returns.mean_rows:>12.1f}  on average over the return addresses, "
        f"{returns.max_rows:,} at most"
    )


def _section_lines(coverage: Coverage) -> Iterator[str]:
    if not coverage.sections:
        return
    yield ""
    width = min(max(20, *(len(printable(s.name)) for s in coverage.sections)), _MAX_NAME_WIDTH)
    yield (f"  {'section':<{width}}{'bytes':>12}{'described':>12}{'left out':>12}{'padding':>12}{'without CFI':>12}")
    for name, counts in coverage.sections:
        yield (
            f"  {printable(name):<{width}}{counts.total:>12,}{counts.described:>12,}"
            f"{counts.left_out:>12,}{counts.other_padding:>12,}{counts.uncovered:>12,}"
        )


def _left_out_lines(coverage: Coverage) -> Iterator[str]:
    if not coverage.left_out:
        return
    yield ""
    yield "  left out"
    for item in coverage.left_out:
        detail = f" ({item.detail})" if item.detail else ""
        name = f" {printable(item.name)}" if item.name else ""
        source = f" by {printable(item.source)}" if len(coverage.sources) > 1 else ""
        yield (
            f"    0x{item.address:x}{name}, {item.size:,} bytes of {printable(item.section) or 'code'}{source}: "
            f"{item.reason.value} at 0x{item.row_address:x}{detail}"
        )
    yield ""
    for reason, count in coverage.reasons.items():
        yield f"    {count:>8,}  {reason}"


def _in_part_lines(coverage: Coverage) -> Iterator[str]:
    if not coverage.in_parts:
        return
    yield ""
    yield "  described in part"
    for item in coverage.in_parts:
        name = f" {printable(item.name)}" if item.name else ""
        yield f"    0x{item.address:x}{name}, {item.size:,} bytes of {printable(item.section) or 'code'}, except"
        for hole in item.holes:
            detail = f" ({hole.detail})" if hole.detail else ""
            yield f"      {hole.size:,} bytes at 0x{hole.address:x}: {hole.reason.value}{detail}"
    yield ""
    for reason, counts in coverage.holes.items():
        yield f"    {counts.holes:>8,}  {reason}: {counts.bytes:,} bytes, {counts.rows:,} rows"
