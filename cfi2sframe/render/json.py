# SPDX-License-Identifier: Apache-2.0
"""Size reports as JSON-ready data; `docs/size-report.schema.json` describes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cfi2sframe.report.size.tables import quotient, verdict

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cfi2sframe.report.size.records import (
        CfiSizes,
        Comparison,
        Failure,
        FileSizes,
        Functions,
        FunctionSize,
        Layout,
        Pair,
        SizeReport,
        Totals,
        VersionSizes,
        VersionTotal,
    )

#: Raised whenever a field changes its meaning or goes away; new fields do not raise it.
SCHEMA_VERSION: Final = 1


def report_data(report: SizeReport) -> dict[str, Any]:
    """Return a report as data."""
    return {
        "schema": SCHEMA_VERSION,
        "kind": "sizes",
        "version": report.version,
        "totals": totals_data(report.totals),
        "files": [file_data(file) for file in report.files],
        "omitted_files": report.omitted_count,
        "functions": _functions(report.functions),
        "failures": [_failure(failure) for failure in report.failures],
    }


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """Return a comparison as data."""
    old, new = comparison.totals
    return {
        "schema": SCHEMA_VERSION,
        "kind": "comparison",
        "version": comparison.version,
        "totals": {"old": totals_data(old), "new": totals_data(new)},
        "files": [_pair(pair, comparison.version) for pair in comparison.pairs],
        "omitted_files": comparison.omitted_count,
        "failures": [_failure(failure) for failure in comparison.failures],
    }


def _pair(pair: Pair, version: int) -> dict[str, Any]:
    return {
        "name": pair.name,
        "verdict": verdict(pair, version),
        "change": pair.change(version),
        "old": None if pair.old is None else file_data(pair.old),
        "new": None if pair.new is None else file_data(pair.new),
    }


def totals_data(totals: Totals) -> dict[str, Any]:
    """Return sums as data."""
    return {
        "files": totals.file_count,
        "sizes": totals.sizes._asdict(),
        "fdes": totals.fde_count,
        "versions": [_version(total, total.sizes) | {"files": total.file_count} for total in totals.versions],
    }


def file_data(file: FileSizes) -> dict[str, Any]:
    """Return a file as data."""
    return {
        "name": file.name,
        "arch": file.arch,
        "kind": file.kind,
        "source": file.source,
        "sizes": file.sizes._asdict(),
        "sframe_version": file.sframe_version,
        "fdes": file.fde_count,
        "versions": [_version(v, file.sizes) | {"refusal": v.refusal or None} for v in file.versions],
        "functions": _functions(file.functions),
    }


def _version(version: VersionSizes | VersionTotal, sizes: CfiSizes) -> dict[str, Any]:
    return {
        "version": version.version,
        "cfi2sframe": _layout(version.cfi2sframe, sizes),
        "gnu": _layout(version.gnu, sizes),
        "left_out": dict(version.left_out),
    }


def _layout(layout: Layout | None, sizes: CfiSizes) -> dict[str, Any] | None:
    if layout is None:
        return None
    return {
        "size": layout.size,
        "parts": layout.parts._asdict(),
        "functions": {
            "total": layout.function_count,
            "default": layout.default_count,
            "flexible": layout.flexible_count,
            "pcmask": layout.pcmask_count,
            "left_out": layout.left_out_count,
        },
        "rows": {
            "total": layout.row_count,
            "stored": layout.stored_row_count,
            "per_function": quotient(layout.row_count, layout.function_count),
            "by_size": _text_keys(layout.row_sizes),
            "functions_by_rows": dict(layout.rows_per_function),
        },
        "ratios": {
            "to_cfi": quotient(layout.size, sizes.cfi),
            "to_cfi_and_hdr": quotient(layout.size, sizes.base),
            "to_text": quotient(layout.size, sizes.text),
            "to_file": quotient(layout.size, sizes.file),
        },
    }


def _text_keys(counts: Mapping[int, int]) -> dict[str, int]:
    return {str(key): count for key, count in counts.items()}


def _functions(functions: Functions) -> dict[str, Any]:
    return {
        "described": functions.described_count,
        "larger_than_fde": functions.larger_count,
        "costliest": [_function(function) for function in functions.costliest],
        "larger": [_function(function) for function in functions.larger],
    }


def _function(function: FunctionSize) -> dict[str, Any]:
    return function._asdict() | {"excess": function.excess}


def _failure(failure: Failure) -> dict[str, Any]:
    return failure._asdict()
