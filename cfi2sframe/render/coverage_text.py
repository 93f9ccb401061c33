# SPDX-License-Identifier: Apache-2.0
"""The account of one file as text: the answer first, then where the bytes and functions are, then what is missing.

Counts of zero are left out, except in tables.
"""

from __future__ import annotations

import sys
from itertools import islice
from typing import TYPE_CHECKING, Final

from cfi2sframe.printable import printable
from cfi2sframe.render.text import describe_stub

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.report.code_bytes import ByteCounts
    from cfi2sframe.report.coverage import Coverage, FunctionCounts, LeftOut
    from cfi2sframe.report.holes import InPart
    from cfi2sframe.report.without_cfi import WithoutCfi

#: How many functions each list names, unless someone asks for more.
DEFAULT_TOP: Final = 10
#: What `SourceCounts` counts, after name and size.
_SOURCE_COLUMNS: Final = ("FDEs", "described", "in part", "left out", "PLT stubs", "dropped", "damaged")
#: The widest column for section names; a longer name shifts the rest of its own line only.
_MAX_NAME_WIDTH: Final = 80
_LABEL_WIDTH: Final = 30
_COUNT_WIDTH: Final = 14


def headline(version: int, code: ByteCounts, functions: FunctionCounts) -> str:
    """Return how much of some code a version describes, as a sentence without a full stop."""
    if not code.code:
        return f"SFrame version {version}: no code"
    from_code = f" ({share(code.from_code, code.code)} from instructions)" if code.from_code else ""
    described = share(code.described, code.code)
    bytes_part = f"SFrame version {version} describes {described} of {code.code:,} bytes of code{from_code}"
    if not functions.wanted:
        return f"{bytes_part}; no function has CFI"
    what = f"function{'' if functions.wanted == 1 else 's'} with CFI"
    if functions.described == functions.wanted:
        count = f"all {functions.wanted:,}" if functions.wanted > 1 else "the only"
        return f"{bytes_part}, and {count} {what}"
    in_part = f" ({functions.in_parts:,} more in part)" if functions.in_parts else ""
    return f"{bytes_part}, and {functions.described:,} of {functions.wanted:,} {what}{in_part}"


def share(part: int, whole: int) -> str:
    """Return a share in percent. Only all of it is 100.00 %, and only nothing 0.00 %; empty without a whole."""
    if not whole:
        return ""
    percent = 100 * part / whole
    if 0 < percent < 0.01:
        return "<0.01 %"
    return f"{percent if part == whole else min(percent, 99.99):.2f} %"


def coverage_lines(coverage: Coverage, *, top: int = DEFAULT_TOP, details: bool = False) -> Iterator[str]:
    """Yield the lines of an account. Lists name the `top` largest functions; with `details` all, and there is more."""
    if details:
        top = sys.maxsize
    yield f"{printable(coverage.file)}: {headline(coverage.version, coverage.bytes, coverage.functions)}"
    yield f"  for {coverage.arch}, from {coverage.source_names or 'no CFI'}"
    yield ""
    yield from _byte_lines(coverage)
    yield from _function_lines(coverage)
    yield from _code_function_lines(coverage)
    yield from _section_size_lines(coverage, details=details)
    yield from _source_lines(coverage)
    if details:
        yield from _section_lines(coverage)
    yield from _without_cfi_lines(coverage, top)
    yield from _left_out_lines(coverage, top)
    if details:
        yield from _hole_lines(coverage)
    else:
        yield from _in_part_lines(coverage, top)
    yield from _stub_lines(coverage, top)
    yield from _damaged_lines(coverage, top)


# How much there is


def _count(indent: int, label: str, count: int, note: str = "") -> Iterator[str]:
    """Yield the line of a count, unless that is zero."""
    if count:
        yield f"{' ' * indent}{label:<{_LABEL_WIDTH - indent}}{count:>{_COUNT_WIDTH},}  {note}".rstrip()


def _shares(indent: int, counts: Iterable[tuple[str, int]], whole: int) -> Iterator[str]:
    for label, count in counts:
        yield from _count(indent, label, count, f"{share(count, whole):>8}")


def _parts(label: str, parts: Sequence[tuple[str, int]], whole: int) -> Iterator[str]:
    """Yield a sum's line, and those of its parts if there are several."""
    yield from _shares(4, ((label, sum(count for _, count in parts)),), whole)
    if sum(count > 0 for _, count in parts) > 1:
        yield from _shares(6, parts, whole)


def _byte_lines(coverage: Coverage) -> Iterator[str]:
    counts = coverage.bytes
    yield from _count(2, "bytes of code", counts.code)
    described = (
        ("default rows", counts.default),
        ("flexible rows", counts.flexible),
        ("PLT stubs", counts.stubs),
        ("from instructions", counts.from_code),
        ("padding after functions", counts.padding),
    )
    yield from _parts("described", described, counts.code)
    yield from _shares(4, (("left out", counts.left_out), ("without CFI", counts.uncovered)), counts.code)
    yield from _count(
        2, "bytes of padding without CFI", counts.other_padding, "never executed, and not counted as code"
    )


def _function_lines(coverage: Coverage) -> Iterator[str]:
    functions = coverage.functions
    yield from _count(2, "functions with CFI", functions.wanted)
    described = (("default rows", functions.default), ("flexible rows", functions.flexible))
    yield from _parts("described", described, functions.wanted)
    others = (
        ("described in part", functions.in_parts),
        ("left out", functions.left_out),
        ("damaged", functions.damaged),
    )
    yield from _shares(4, others, functions.wanted)
    yield from _count(4, "(overlapping)", functions.overlapping, "cut where another FDE holds")
    note = "described by their instructions instead"
    yield from _count(2, "FDEs of PLT stubs", functions.replaced, note)
    for reason, count in coverage.dropped.items():
        yield from _count(2, "FDEs dropped", count, reason)


def _code_function_lines(coverage: Coverage) -> Iterator[str]:
    """Yield the functions that no CFI covers, of which the instructions tell the rows."""
    account = coverage.from_code
    if account is None or not account.functions:
        return
    yield from _count(2, "functions from instructions", account.functions, "no CFI covers them")
    others = (
        ("described", account.described),
        ("described in part", account.in_parts),
        ("left out", account.left_out),
    )
    yield from _shares(4, others, account.functions)


def _section_size_lines(coverage: Coverage, *, details: bool) -> Iterator[str]:
    sizes, cost = coverage.sizes, coverage.lookup_cost
    cfi = coverage.source_names + (" + .eh_frame_hdr" if sizes.eh_frame_hdr else "")
    ratio = "" if sizes.ratio is None else f"; {sizes.ratio:.2f} of the bytes of {cfi}"
    yield from _count(2, "bytes of .sframe", sizes.sframe, f"{coverage.row_count:,} rows{ratio}")
    if details:
        yield f"  {'address of .sframe':<{_LABEL_WIDTH - 2}}{coverage.section_vaddr:>#{_COUNT_WIDTH}x}"
    if cost.code_size:
        yield (
            f"  {'rows a look-up walks':<{_LABEL_WIDTH - 2}}{cost.mean_rows:>{_COUNT_WIDTH}.1f}  "
            f"on average over the code, {cost.max_rows:,} at most; {cost.search_steps} steps in the function table"
        )


def _source_lines(coverage: Coverage) -> Iterator[str]:
    """Yield what each source contributes, where there are several, and the ones that were not read."""
    if len(coverage.sources) > 1:
        yield ""
        shown = [
            number for number, counts in enumerate(zip(*(s[2:] for s in coverage.sources), strict=True)) if any(counts)
        ]
        yield f"  {'FDEs by source':<20}" + "".join(f"{_SOURCE_COLUMNS[number]:>14}" for number in shown)
        for name, _, *counts in coverage.sources:
            yield f"  {name:<20}" + "".join(f"{counts[number]:>14,}" for number in shown)
    for item in coverage.unread:
        yield f"  {printable(item.name)} is not used: {printable(item.reason)}"


def _section_lines(coverage: Coverage) -> Iterator[str]:
    """Yield a table of the executable sections; a column without any bytes is left out."""
    columns = [
        (name, [getattr(section.counts, field) for section in coverage.sections])
        for name, field in (
            *(("code", "code"), ("described", "described"), ("from code", "from_code"), ("left out", "left_out")),
            *(("without CFI", "uncovered"), ("padding", "other_padding")),
        )
    ]
    shown = [column for column in columns if any(column[1])]
    if not shown:
        return
    yield ""
    names = [printable(section.name) for section in coverage.sections]
    width = min(max(20, *map(len, names)), _MAX_NAME_WIDTH)
    yield f"  {'bytes by section':<{width}}" + "".join(f"{heading:>14}" for heading, _ in shown)
    for number, name in enumerate(names):
        yield f"  {name:<{width}}" + "".join(f"{counts[number]:>14,}" for _, counts in shown)


# What is missing


def _range(address: int, size: int, section: str) -> str:
    return f"0x{address:x}-0x{address + size:x} in {printable(section) or 'code'}"


def _more(count: int) -> Iterator[str]:
    if count > 0:
        yield f"    {'...':>12}  {count:,} more; --details lists them"


def _without_cfi_lines(coverage: Coverage, top: int) -> Iterator[str]:
    if not coverage.without_cfi:
        return
    yield ""
    if coverage.from_code is not None:
        yield "  code without CFI that is not described by its instructions: bytes, stretches, and why"
        for reason, counts in sorted(coverage.from_code.reasons.items(), key=lambda item: -item[1].bytes):
            yield f"    {counts.bytes:>12,} {counts.stretches:>9,}  {reason}"
    yield "  code without CFI: bytes, and where; the largest first"
    left = coverage.bytes.uncovered
    for item in islice(coverage.without_cfi, top):
        left -= item.size
        yield f"    {item.size:>12,}  {_missing(item)}{_why(item)}"
    if left:
        yield f"    {left:>12,}  elsewhere"


def _left_out_lines(coverage: Coverage, top: int) -> Iterator[str]:
    if not coverage.left_out:
        return
    yield ""
    yield f"  functions left out, because SFrame version {coverage.version} cannot express a row of them"
    for reason, count in coverage.reasons.items():
        yield f"    {count:>12,}  {reason}"
    yield "  their bytes, where, and why; the largest first"
    items = sorted(coverage.left_out, key=lambda item: -item.size)
    for item in islice(items, top):
        why = f"{item.reason.value}{_where(item, item.row_address, item.detail)}"
        yield f"    {item.size:>12,}  {_missing(item)}: {why}"
    yield from _more(len(items) - top)


def _why(item: WithoutCfi) -> str:
    """Return why nothing follows from the instructions of code without CFI, where that was asked."""
    if item.reason is None:
        return ""
    return f": {item.reason.value}" + (f" ({printable(item.detail)})" if item.detail else "")


def _missing(item: LeftOut | InPart | WithoutCfi) -> str:
    name = f"  {printable(item.demangled)}" if item.name else ""
    return f"{_range(item.address, item.size, item.section)}{name}"


def _where(item: LeftOut | InPart, address: int, detail: str) -> str:
    """Return where in a function a rule is, unless at its start, and which rule."""
    return (f" at 0x{address:x}" if address != item.address else "") + (f" ({detail})" if detail else "")


def _hole_counts(coverage: Coverage) -> Iterator[str]:
    yield ""
    yield f"  functions described in part, except what SFrame version {coverage.version} cannot express"
    for reason, counts in coverage.holes.items():
        rows = f"{counts.rows:,} row{'' if counts.rows == 1 else 's'}"
        yield f"    {counts.holes:>12,}  {reason}: {counts.bytes:,} bytes, {rows}"


def _in_part_lines(coverage: Coverage, top: int) -> Iterator[str]:
    if not coverage.in_parts:
        return
    yield from _hole_counts(coverage)
    yield "  their bytes that are left out, where, and why; the largest first"
    sizes = [(sum(hole.size for hole in item.holes), item) for item in coverage.in_parts]
    sizes.sort(key=lambda pair: -pair[0])
    for size, item in islice(sizes, top):
        first = item.holes[0]
        more = f", and {len(item.holes) - 1:,} more" if len(item.holes) > 1 else ""
        why = f"{first.reason.value}{_where(item, first.address, first.detail)}{more}"
        yield f"    {size:>12,}  {_missing(item)}: {why}"
    yield from _more(len(sizes) - top)


def _hole_lines(coverage: Coverage) -> Iterator[str]:
    """Yield every hole of the functions that are described in part, in the order of the FDEs."""
    if not coverage.in_parts:
        return
    yield from _hole_counts(coverage)
    for item in coverage.in_parts:
        yield f"    {item.size:>12,}  {_missing(item)}, except"
        for hole in item.holes:
            yield f"    {hole.size:>16,}  {hole.reason.value}{_where(item, hole.address, hole.detail)}"


def _stub_lines(coverage: Coverage, top: int) -> Iterator[str]:
    if coverage.stubs_left_out:
        yield ""
        yield "  PLT stubs left out"
        yield from (f"    {describe_stub(stub)}" for stub in coverage.stubs_left_out[:top])
        yield from _more(len(coverage.stubs_left_out) - top)


def _damaged_lines(coverage: Coverage, top: int) -> Iterator[str]:
    if coverage.damaged:
        yield ""
        yield "  damaged FDEs"
        yield from (f"    {printable(item.where)}+0x{item.offset:x}: {item.reason}" for item in coverage.damaged[:top])
        yield from _more(len(coverage.damaged) - top)
