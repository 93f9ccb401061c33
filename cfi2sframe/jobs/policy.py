# SPDX-License-Identifier: Apache-2.0
"""What a conversion that leaves functions out is reported as, and when the caller forbids to write it."""

from __future__ import annotations

from itertools import chain, islice
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import CfiError, IncompleteError
from cfi2sframe.reasons import SkipReason

if TYPE_CHECKING:
    from cfi2sframe.conversion import Conversion
    from cfi2sframe.errors import Cfi2SFrameError
    from cfi2sframe.report.coverage import Coverage

_MAX_WARNINGS: Final = 10


def warnings_of(coverage: Coverage | None) -> tuple[str, ...]:
    """Return a warning for each source that was not read and for each function that is left out, or in part.

    They are the first ten, and one that says how many more there are.
    """
    if coverage is None:
        return ()
    from cfi2sframe.report.sentences import missing_sentences

    unread = (f"{item.name} is not used: {item.reason}" for item in coverage.unread)
    # Nothing is lost where a stack ends, as in _start.
    lost = tuple([m for m in coverage.missing if m.kind != "left out" or m.reason != SkipReason.RA_UNDEFINED.name])
    shown = tuple(islice(chain(unread, missing_sentences(coverage._replace(missing=lost))), _MAX_WARNINGS))
    stub_count = len(coverage.of_kind("PLT stubs"))
    more = len(coverage.unread) + coverage.damaged_count + coverage.left_out_count + coverage.in_part_count + stub_count
    more -= len(shown) + len(coverage.missing) - len(lost)
    what = "skipped or described in part" if coverage.in_part_count else "skipped"
    return (*shown, f"{more:,} more functions {what}") if more else shown


def refusal_of(
    conversion: Conversion, coverage: Coverage | None, *, is_strict: bool, fail_under: float | None = None
) -> Cfi2SFrameError | None:
    """Return what is to be raised because the caller's conditions forbid to write a conversion, or None.

    `fail_under` is a percentage of the bytes of code, with CFI or without; it needs the account.
    """
    if is_strict and conversion.cfi.damaged:
        return CfiError("--strict: an FDE is damaged; nothing written")
    if is_strict and conversion.cfi.unread:
        return IncompleteError(f"--strict: {conversion.cfi.unread[0].name} cannot be read; nothing written")
    if is_strict and not conversion.is_whole:
        is_missing = conversion.skips or conversion.code_map.stubs.left_out
        what = "cannot be represented" if is_missing else "are described in part"
        return IncompleteError(f"--strict: some functions {what}; nothing written")
    if coverage is not None and fail_under is not None and coverage.code_percent < fail_under:
        return IncompleteError(
            f"{coverage.code_percent:.2f} % of the bytes of code are described, less than {fail_under:g} %"
        )
    return None
