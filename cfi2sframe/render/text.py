# SPDX-License-Identifier: Apache-2.0
"""Functions that are left out, and conversions, as sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.printable import counted, printable

if TYPE_CHECKING:
    from cfi2sframe.report.coverage import Coverage, LeftOut, StubLeftOut
    from cfi2sframe.report.holes import InPart
    from cfi2sframe.sframe.lookup_cost import LookupCost


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
    """Return a function's name, in readable form, and its place."""
    place = f"0x{item.address:x}"
    if coverage.is_object and item.section != ".text":
        place = f"{printable(item.section)}+{place}"
    return f"'{printable(item.demangled)}' at {place}" if item.name else f"function at {place}"


def describe_stub(item: StubLeftOut) -> str:
    """Return stubs that are left out as a sentence that does not name the file."""
    detail = f" ({item.detail})" if item.detail else ""
    place = f"at 0x{item.address:x} in {printable(item.section)}"
    return f"{item.size:,} bytes of PLT stubs {place}: {item.reason.value}{detail}"


def summary(coverage: Coverage) -> str:
    """Return the one-line summary of a conversion."""
    functions, sizes = coverage.functions, coverage.sizes
    in_part = f" and {functions.in_parts:,} in part" if functions.in_parts else ""
    derived = 0 if coverage.from_code is None else coverage.from_code.functions - coverage.from_code.left_out
    from_code = f" and {counted(derived, 'function')} from instructions" if derived else ""
    line = (
        f"SFrame version {coverage.version}: "
        f"{functions.described:,} of {functions.wanted:,} functions{in_part}{from_code}, "
        f"{coverage.bytes.described:,} of {coverage.bytes.total:,} executable bytes, {sizes.sframe:,} bytes of .sframe"
    )
    if sizes.ratio is not None:
        line += f" ({sizes.ratio:.2f} of {coverage.source_names}"
        line += f" + .eh_frame_hdr, {sizes.cfi + sizes.eh_frame_hdr:,} bytes)"
    return f"{line}; {_walked(coverage.lookup_cost)}" if coverage.lookup_cost.code_size else line


def _walked(cost: LookupCost) -> str:
    return f"a look-up walks {cost.mean_rows:.1f} rows on average, {cost.max_rows:,} at most"
