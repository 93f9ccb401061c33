# SPDX-License-Identifier: Apache-2.0
"""Size reports as data for JSON, which `cfi2sframe/schemas/size-report.schema.json` describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cfi2sframe.report.size.records import (
        CfiSizes,
        FileSizes,
        Folders,
        FunctionSize,
        NamedFunctions,
        Pair,
        SectionSizes,
        SizeComparison,
        SizeReport,
        Totals,
        VersionSizes,
        VersionTotal,
    )

#: Raised whenever a field changes its meaning or is removed; new fields do not raise it.
SCHEMA_VERSION: Final = 2


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
        "failures": [failure._asdict() for failure in report.failures],
        "level": report.level,
        "groupings": [] if report.folders is None else [_grouping(report.folders)],
    }


def _grouping(folders: Folders) -> dict[str, Any]:
    return {
        "by": "folder",
        "groups": [
            {"name": group.name, "totals": totals_data(group.totals), "larger_than_fde": group.larger_count}
            for group in folders.groups
        ],
        "omitted_groups": folders.omitted_count,
    }


def comparison_data(comparison: SizeComparison) -> dict[str, Any]:
    """Return a comparison as data."""
    old, new = comparison.totals
    return {
        "schema": SCHEMA_VERSION,
        "kind": "comparison",
        "version": comparison.version,
        "totals": {"old": totals_data(old), "new": totals_data(new)},
        "files": [_pair(pair, comparison.version) for pair in comparison.pairs],
        "omitted_files": comparison.omitted_count,
        "failures": [failure._asdict() for failure in comparison.failures],
        "level": comparison.level,
    }


def _pair(pair: Pair, version: int) -> dict[str, Any]:
    return {
        "name": pair.name,
        "verdict": pair.verdict(version),
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
        "cfi2sframe": _section(version.cfi2sframe, sizes),
        "gnu": _section(version.gnu, sizes),
        "left_out": dict(version.left_out),
        "in_parts": version.in_parts_count,
    }


def _section(section: SectionSizes | None, sizes: CfiSizes) -> dict[str, Any] | None:
    if section is None:
        return None
    return {
        "size": section.size,
        "parts": section.parts._asdict(),
        "functions": {
            "total": section.function_count,
            "default": section.default_count,
            "flexible": section.flexible_count,
            "pcmask": section.pcmask_count,
            "from_code": section.code_count,
            "left_out": section.left_out_count,
        },
        "rows": {
            "total": section.row_count,
            "stored": section.stored_row_count,
            "per_function": section.mean_row_count,
            "by_size": {str(size): count for size, count in section.row_sizes.items()},
            "functions_by_rows": dict(section.rows_per_function),
        },
        "lookup": {**section.lookup_cost._asdict(), "mean_rows": section.lookup_cost.mean_rows},
        "ratios": sizes.ratios(section.size)._asdict(),
    }


def _functions(functions: NamedFunctions) -> dict[str, Any]:
    return {
        "described": functions.described_count,
        "larger_than_fde": functions.larger_count,
        "costliest": [_function(function) for function in functions.costliest],
        "larger": [_function(function) for function in functions.larger],
    }


def _function(function: FunctionSize) -> dict[str, Any]:
    return function._asdict() | {"excess": function.excess}
