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
import json
import os
import sys
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from held_files import FileResult, judged, results, share, table_lines, unusable_lines

from cfi2sframe.audit.auditing import audit
from cfi2sframe.audit.records import Audit, RuleSubject

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files import Source

#: Functions named for each file in the list of what was not decided.
_MAX_FUNCTIONS = 20


class Audited(NamedTuple):
    """The audit of a file, and the names of its functions."""

    audit: Audit
    names: dict[int, str]


def audit_file(source: Source) -> FileResult[Audited]:
    """Audit one file."""
    return judged(source, audit_image)


def audit_image(image: ElfImage) -> Audited:
    """Audit an image, and name the functions concerned. Raises as `audit` does."""
    result = audit(image)
    few = sorted(result.undecided_functions, key=lambda each: -each[2])[:_MAX_FUNCTIONS]
    result = result._replace(undecided_functions=tuple(few))
    wanted = {finding.function_vaddr for finding in result.findings} | {vaddr for vaddr, _, _ in few}
    return Audited(result, image.names_of(wanted))


def table_of(results: Iterable[FileResult[Audited]]) -> list[tuple[str, ...]]:
    """Return the sum over files as rows of cells."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    seconds = 0.0
    for result in results:
        if result.found is None:
            continue
        found = result.found.audit
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
        ("decided", f"{decided:,} ({share(decided, total)})"),
        ("agreed, of the decided", f"{counts['agreed']:,} ({share(counts['agreed'], decided)})"),
        ("contradicted", f"{counts['contradicted']:,}"),
        *((f"- {subject.value}", f"{counts[subject.value]:,}") for subject in RuleSubject),
        ("- places", f"{counts['findings']:,}"),
        ("undecided", f"{counts['undecided']:,} ({share(counts['undecided'], total)})"),
        *((f"- {reason}", f"{count:,} ({share(count, total)})") for reason, count in reasons.most_common()),
        ("CPU seconds for a MB", f"{seconds / max(1, counts['bytes']) * 1e6:.1f}"),
    ]
    return [("", "count"), *rows]


def findings_of(result: FileResult[Audited]) -> Iterator[str]:
    """Yield the contradictions of a file, and what was not decided, as lines of JSON."""
    if result.found is None:
        return
    audited, names = result.found
    for finding in audited.findings:
        data = finding._asdict() | {
            "file": result.path,
            "function": names.get(finding.function_vaddr, ""),
            "function_vaddr": hex(finding.function_vaddr),
            "vaddr": hex(finding.vaddr),
            "subject": finding.subject.value,
        }
        yield json.dumps(data)
    for vaddr, reason, count in audited.undecided_functions:
        name = names.get(vaddr, "")
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
    found: list[FileResult[Audited]] = []
    with open(arguments.findings or os.devnull, "w", encoding="utf-8") as file:
        for result in results(arguments.roots, audit_file, arguments.jobs):
            found.append(result)
            if result.crash:
                sys.stderr.write(f"{result.path}: {result.crash}\n")
            file.writelines(f"{line}\n" for line in findings_of(result))
            file.flush()
    for line in table_lines(table_of(found)):
        print(line)
    for line in unusable_lines(found):
        print(line, file=sys.stderr)
    return 1 if any(result.crash for result in found) else 0


if __name__ == "__main__":
    sys.exit(main())
