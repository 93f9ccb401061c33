#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Hide the CFI of every function under some folders, derive it from instructions, and compare.

held_to_cfi.py [--jobs N] [--findings FILE] ROOT...

Prints a table in Markdown: instructions decided, agreed and contradicted, by what a rule is about and by the reason why
nothing was decided, and the CPU time. --findings writes a line of JSON for each contradiction. A file with several hard
links counts once; symbolic links in folders are not followed. Exit status 1 when a file cannot be analysed, and 0 for
contradictions, which may be faults of the CFI.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
import time
import traceback
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe import load
from cfi2sframe.audit.auditing import audit
from cfi2sframe.audit.records import RuleSubject
from cfi2sframe.errors import InputError
from cfi2sframe.files import find_sources
from cfi2sframe.pool import results_of
from cfi2sframe.processes import Lost
from cfi2sframe.report.size.sources import split_found

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.audit.records import Audit
    from cfi2sframe.files import Source

#: Functions named for each file in the list of what was not decided.
_MAX_FUNCTIONS = 20


class FileResult(NamedTuple):
    """The result of one file: the audit, with the names of functions, or why there is none."""

    path: str
    audit: Audit | None
    names: dict[int, str]
    seconds: float = 0.0
    unusable: str = ""
    crash: str = ""


def audit_file(source: Source) -> FileResult:
    """Audit one file."""
    try:
        return _audit_file(source)
    finally:
        # The pool's processes collect nothing by themselves, and the next file has limits of its own.
        gc.collect()


def _audit_file(source: Source) -> FileResult:
    begin = time.process_time()
    try:
        image = load(source.path)
        result = audit(image)
    except InputError as error:
        return FileResult(source.path, None, {}, unusable=error.reason)
    except Exception:  # noqa: BLE001 - this program searches for exceptions that must never be raised
        return FileResult(source.path, None, {}, crash=traceback.format_exc())
    seconds = time.process_time() - begin
    few = sorted(result.undecided_functions, key=lambda each: -each[2])[:_MAX_FUNCTIONS]
    result = result._replace(undecided_functions=tuple(few))
    wanted = {finding.function_vaddr for finding in result.findings} | {vaddr for vaddr, _, _ in few}
    return FileResult(source.path, result, image.names_of(wanted), seconds)


def size_of(source: Source) -> int:
    """Return the bytes of a file."""
    return source.size


def results(roots: Iterable[str], jobs: int) -> Iterator[FileResult]:
    """Yield the results of all files, in the order in which they are ready."""
    sources, failures = split_found(find_sources(roots))
    for failure in failures:
        yield FileResult(failure.name, None, {}, crash=failure.reason)
    files = [source for source in sources if source.kind == "elf"]
    with results_of(audit_file, files, size_of, count=jobs) as done:
        for number, result in done:
            if isinstance(result, Lost):
                yield FileResult(files[number].path, None, {}, crash=result.reason)
            else:
                yield result


def table_of(results: Iterable[FileResult]) -> list[tuple[str, ...]]:
    """Return the sum over files as rows of cells."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    seconds = 0.0
    for result in results:
        found = result.audit
        if found is None:
            continue
        seconds += result.seconds
        counts["files"] += 1
        counts["functions"] += found.function_count
        counts["bytes"] += found.code_size
        counts["agreed"] += found.agreed_count
        counts["contradicted"] += found.contradicted_count
        counts["undecided"] += found.undecided_count
        counts["findings"] += len(found.findings)
        for subject, tally in found.tallies.items():
            counts[subject.value] += tally.contradicted
        for reason, count in found.undecided.items():
            reasons[reason.value] += count
    decided = counts["agreed"] + counts["contradicted"]
    total = decided + counts["undecided"]
    rows = [
        ("files", f"{counts['files']:,}"),
        ("functions", f"{counts['functions']:,}"),
        ("MB of code", f"{counts['bytes'] / 1e6:.1f}"),
        ("instructions", f"{total:,}"),
        ("decided", f"{decided:,} ({_share(decided, total)})"),
        ("agreed, of the decided", f"{counts['agreed']:,} ({_share(counts['agreed'], decided)})"),
        ("contradicted", f"{counts['contradicted']:,}"),
        *((f"- {subject.value}", f"{counts[subject.value]:,}") for subject in RuleSubject),
        ("- places", f"{counts['findings']:,}"),
        ("undecided", f"{counts['undecided']:,} ({_share(counts['undecided'], total)})"),
        *((f"- {reason}", f"{count:,} ({_share(count, total)})") for reason, count in reasons.most_common()),
        ("CPU seconds for a MB", f"{seconds / max(1, counts['bytes']) * 1e6:.1f}"),
    ]
    return [("", "count"), *rows]


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f} %" if whole else "none"


def findings_of(result: FileResult) -> Iterator[str]:
    """Yield the contradictions of a file, and what was not decided, as lines of JSON."""
    if result.audit is None:
        return
    for finding in result.audit.findings:
        data = finding._asdict() | {
            "file": result.path,
            "function": result.names.get(finding.function_vaddr, ""),
            "function_vaddr": hex(finding.function_vaddr),
            "vaddr": hex(finding.vaddr),
            "subject": finding.subject.value,
        }
        yield json.dumps(data)
    for vaddr, reason, count in result.audit.undecided_functions:
        name = result.names.get(vaddr, "")
        yield json.dumps(
            {
                "file": result.path,
                "function": name,
                "function_vaddr": hex(vaddr),
                "undecided": reason.name,
                "count": count,
            }
        )


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", metavar="ROOT", nargs="+", help="a folder, or a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--findings", metavar="FILE", help="write each contradiction as a line of JSON")
    arguments = parser.parse_args()
    found: list[FileResult] = []
    with open(arguments.findings or os.devnull, "w", encoding="utf-8") as file:
        for result in results(arguments.roots, arguments.jobs):
            found.append(result)
            if result.crash:
                sys.stderr.write(f"{result.path}: {result.crash}\n")
            file.writelines(f"{line}\n" for line in findings_of(result))
            file.flush()
    for number, row in enumerate(table_of(found)):
        print("| " + " | ".join(row) + " |")
        if number == 0:
            print("|---|" + "---:|" * (len(row) - 1))
    for reason, count in Counter(result.unusable for result in found if result.unusable).most_common():
        print(f"{count:,} files: {reason}", file=sys.stderr)
    return 1 if any(result.crash for result in found) else 0


if __name__ == "__main__":
    sys.exit(main())
