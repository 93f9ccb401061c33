# SPDX-License-Identifier: Apache-2.0
"""Functions that are left out, and conversions, as sentences that do not name the file."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from cfi2sframe.printable import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.report.coverage import Coverage, Missing


def missing_sentences(coverage: Coverage) -> Iterator[str]:
    """Yield a sentence for each damaged FDE, each function that is left out or described in part, and stubs."""
    for item in coverage.of_kind("damaged"):
        yield f"{item.section}+0x{item.address:x}: {item.message}; the FDE is skipped"
    yield from left_out_sentences(coverage)
    yield from in_part_sentences(coverage)
    for item in coverage.of_kind("PLT stubs"):
        yield f"PLT stubs in {printable(item.section)} (0x{item.address:x}) skipped, {item.size:,} bytes: {_why(item)}"


def left_out_sentences(coverage: Coverage) -> Iterator[str]:
    """Yield a sentence for each function that is left out."""
    for item in coverage.of_kind("left out"):
        yield f"{_function(item, coverage)} skipped: {_why(item)}"


def in_part_sentences(coverage: Coverage) -> Iterator[str]:
    """Yield a sentence for each function that is described in part."""
    for _, holes in groupby(coverage.of_kind("in part"), lambda item: (item.section, item.function_address)):
        yield _in_part(list(holes), coverage)


def _in_part(holes: Sequence[Missing], coverage: Coverage) -> str:
    first = holes[0]
    size = sum(hole.size for hole in holes)
    more = f", and {len(holes) - 1:,} more" if len(holes) > 1 else ""
    what = f"{size:,} of {first.function_size:,} bytes skipped"
    return f"{_function(first, coverage)}: {what}: {_why(first)} at 0x{first.address:x}{more}"


def _why(item: Missing) -> str:
    return f"{item.message} ({item.detail})" if item.detail else item.message


def _function(item: Missing, coverage: Coverage) -> str:
    """Return a function's name, in readable form, and its place."""
    place = f"0x{item.function_address:x}"
    if coverage.is_object and item.section != ".text":
        place = f"{printable(item.section)}+{place}"
    return f"{printable(item.demangled)} ({place})" if item.name else f"function at {place}"


def summary(coverage: Coverage) -> str:
    """Return the one-line summary of a conversion."""
    in_part = f" and {coverage.in_part_count:,} in part" if coverage.in_part_count else ""
    derived = sum(s.described_count + s.in_part_count for s in coverage.sources if s.name == "code")
    from_code = f" and {counted(derived, 'function')} from instructions" if derived else ""
    line = (
        f"SFrame version {coverage.sframe_version}: "
        f"{coverage.described_count:,} of {coverage.function_count:,} functions{in_part}{from_code}, "
        f"{coverage.described_size:,} of {coverage.code_size + coverage.other_padding_size:,} executable bytes, "
        f"{coverage.sframe_size:,} bytes of .sframe"
    )
    if coverage.ratio is not None:
        size = coverage.cfi_size + coverage.eh_frame_hdr_size
        source_names = " + ".join(source.name for source in coverage.sources)
        line += f" ({coverage.ratio:.2f} of {source_names} + .eh_frame_hdr, {size:,} bytes)"
    if coverage.looked_up_size:
        line += f"; rows scanned per lookup: {coverage.mean_rows:.1f} (mean), {coverage.max_rows:,} (max)"
    return line
