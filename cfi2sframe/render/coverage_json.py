# SPDX-License-Identifier: Apache-2.0
"""Coverage accounts as JSON-ready data; cfi2sframe/schemas/coverage.schema.json describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cfi2sframe.report.coverage import Coverage, LeftOut, StubLeftOut
    from cfi2sframe.report.holes import HoleInPart
    from cfi2sframe.report.without_cfi import WithoutCfi

#: Raised when a field changes its meaning or is removed; any version of the program may add fields.
SCHEMA_VERSION: Final = 1


def coverage_data(coverage: Coverage) -> dict[str, Any]:
    """Return the account as JSON-ready data, schema version `SCHEMA_VERSION`."""
    functions, code = coverage.functions, coverage.bytes
    data = {
        "schema": SCHEMA_VERSION,
        "file": coverage.file,
        "arch": coverage.arch,
        "sframe_version": coverage.version,
        "errata": coverage.errata,
        "source": coverage.source,
        "section_address": coverage.section_vaddr,
        "functions": {**functions._asdict(), "described": functions.described, "percent": functions.percent},
        "bytes": {**code._asdict(), "described": code.described, "percent": code.percent},
        "sizes": {**coverage.sizes._asdict(), "ratio": coverage.sizes.ratio},
        "rows": coverage.row_count,
        "lookup": {**coverage.lookup_cost._asdict(), "mean_rows": coverage.lookup_cost.mean_rows},
        "reasons": coverage.reasons,
        "holes": {reason: counts._asdict() for reason, counts in coverage.holes.items()},
        "dropped": coverage.dropped,
        "sections": [{"name": name, **counts._asdict()} for name, counts in coverage.sections],
        "left_out": list(map(_with_reason, coverage.left_out)),
        "in_parts": [{**item._asdict(), "holes": list(map(_with_reason, item.holes))} for item in coverage.in_parts],
        "without_cfi": list(map(_with_reason, coverage.without_cfi)),
        "stubs_left_out": list(map(_with_reason, coverage.stubs_left_out)),
        "damaged": [item._asdict() for item in coverage.damaged],
        "sources": [item._asdict() for item in coverage.sources],
        "unread": [item._asdict() for item in coverage.unread],
    }
    if coverage.from_code is not None:
        reasons = {reason: counts._asdict() for reason, counts in coverage.from_code.reasons.items()}
        data["from_code"] = {**coverage.from_code._asdict(), "reasons": reasons}
    return data


def _with_reason(item: LeftOut | HoleInPart | StubLeftOut | WithoutCfi) -> dict[str, Any]:
    reason = item.reason
    name, message = ("", "") if reason is None else (reason.name, reason.value)
    return {**item._asdict(), "reason": name, "message": message}
