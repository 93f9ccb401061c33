# SPDX-License-Identifier: Apache-2.0
"""Coverage accounts as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.report.coverage import Coverage, LeftOut, StubLeftOut
    from cfi2sframe.sframe.lookup_cost import LookupCost


#: What `ByteCounts` counts, after the total.
_BYTE_KINDS: Final = (
    *("default rows", "flexible rows", "PLT stubs", "padding", "left out"),
    *("other padding", "without CFI"),
)
#: The widest column for section names; a longer name shifts the rest of its own line only.
_MAX_NAME_WIDTH: Final = 80


def describe_left_out(item: LeftOut, coverage: Coverage) -> str:
    """Return one left-out function as a sentence that does not name the file."""
    place = f"0x{item.address:x}"
    if coverage.is_object and item.section != ".text":
        place = f"{printable(item.section)}+{place}"
    name = f"'{printable(item.name)}'" if item.name else "function"
    detail = f" ({item.detail})" if item.detail else ""
    return f"{name} at {place}: no SFrame FDE: {item.reason.value}{detail}"


def describe_stub(item: StubLeftOut) -> str:
    """Return stubs that are left out as a sentence that does not name the file."""
    detail = f" ({item.detail})" if item.detail else ""
    place = f"at 0x{item.address:x} in {printable(item.section)}"
    return f"{item.size:,} bytes of PLT stubs {place}: {item.reason.value}{detail}"


def summary(coverage: Coverage) -> str:
    """Return the one-line summary of a conversion."""
    functions, sizes = coverage.functions, coverage.sizes
    wanted = functions.fdes - functions.dropped - functions.replaced
    line = (
        f"SFrame version {coverage.version}: "
        f"{functions.described:,} of {wanted:,} functions, "
        f"{coverage.bytes.described:,} of {coverage.bytes.total:,} executable bytes, {sizes.sframe:,} bytes of .sframe"
    )
    if sizes.ratio is not None:
        line += f" ({sizes.ratio:.2f} of {coverage.source}"
        line += f" + .eh_frame_hdr, {sizes.cfi + sizes.eh_frame_hdr:,} bytes)"
    return f"{line}; {_walked(coverage.lookup_cost)}" if coverage.lookup_cost.code_size else line


def _walked(cost: LookupCost) -> str:
    return f"a look-up walks {cost.mean_rows:.1f} rows on average, {cost.max_rows:,} at most"


def coverage_lines(coverage: Coverage) -> Iterator[str]:
    """Yield the lines of the whole account."""
    functions, counts = coverage.functions, coverage.bytes
    yield f"{printable(coverage.file)}: {coverage.arch}, {coverage.source}, SFrame version {coverage.version}"
    yield ""
    yield f"  functions           {functions.fdes:>12,}"
    yield f"    default rows      {functions.default:>12,}"
    yield f"    flexible rows     {functions.flexible:>12,}"
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
    yield from _return_address_lines(coverage)
    yield from _section_lines(coverage)
    yield from _left_out_lines(coverage)
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
    return "" if ratio is None else f", {ratio:.2f} of {coverage.source} + .eh_frame_hdr"


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
        yield (
            f"    0x{item.address:x}{name}, {item.size:,} bytes of {printable(item.section) or 'code'}: "
            f"{item.reason.value} at 0x{item.row_address:x}{detail}"
        )
    yield ""
    for reason, count in coverage.reasons.items():
        yield f"    {count:>8,}  {reason}"
