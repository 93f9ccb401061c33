#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Derive rows from files whose CFI is hidden, with where functions start, and compare them with that CFI.

hidden_cfi.py [--jobs N] [--strip] [--findings FILE] ROOT...

Prints a table in Markdown: the bytes of code that have CFI, those that got a derived row, and what is known of these
rows; and the CPU time. --strip hides symbols, too (of linked files: an object's relocations need them). --findings
writes each place with another row, but for rows that lead to the same places, as a line of JSON. Files that could not
be compared are named, with the reason. A file with several hard links counts once; symbolic links in folders are not
followed. Exit status 1 when a derived row is wrong, or either it or the CFI's and nothing tells which, and when a file
makes the program fail.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from held_files import FileResult, judged, results, share, table_lines
from hidden_rows import SOUND, WRONG, Comparison, Verdict, compare, joined

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.files import Source


def compare_file(source: Source, *, strip: bool) -> FileResult[Comparison]:
    """Compare the rows of one file."""
    return judged(source, partial(compare, strip=strip))


def table_of(results: Iterable[FileResult[Comparison]]) -> list[tuple[str, ...]]:
    """Return the sum over files as rows of cells."""
    sizes: Counter[Verdict] = Counter()
    files = functions = code_size = derived_size = 0
    places: Counter[Verdict] = Counter()
    seconds = 0.0
    for result in results:
        found = result.found
        if found is None:
            continue
        files += 1
        seconds += result.seconds
        functions += found.function_count
        code_size += found.code_size
        derived_size += found.derived_size
        sizes.update(found.sizes)
        places.update(difference.verdict for difference in joined(found.differences))
    return [
        ("", "count", "places"),
        ("files", f"{files:,}", ""),
        ("functions", f"{functions:,}", ""),
        ("bytes of code with CFI", f"{code_size:,}", ""),
        ("with a derived row", f"{derived_size:,} ({share(derived_size, code_size)})", ""),
        *(
            (
                f"- {verdict.value}",
                f"{sizes[verdict]:,} ({share(sizes[verdict], derived_size)})",
                "" if verdict in SOUND else f"{places[verdict]:,}",
            )
            for verdict in Verdict
        ),
        ("CPU seconds for a MB", f"{seconds / max(1, code_size) * 1e6:.1f}", ""),
    ]


def findings_of(result: FileResult[Comparison]) -> Iterator[str]:
    """Yield the places of a file with another row as lines of JSON."""
    for each in joined(result.found.differences if result.found is not None else ()):
        data = each._asdict() | {
            "file": result.path,
            "vaddr": hex(each.vaddr),
            "function_vaddr": hex(each.function_vaddr),
            "verdict": each.verdict.name,
        }
        yield json.dumps(data)


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("roots", metavar="ROOT", nargs="+", help="a folder, or a file")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument("--strip", action="store_true", help="hide the symbols of linked files, too")
    parser.add_argument("--findings", metavar="FILE", help="write each place with another row as a line of JSON")
    arguments = parser.parse_args()
    found: list[FileResult[Comparison]] = []
    with open(arguments.findings or os.devnull, "w", encoding="utf-8") as file:
        for result in results(arguments.roots, partial(compare_file, strip=arguments.strip), arguments.jobs):
            found.append(result)
            if result.found is None:
                sys.stderr.write(f"{result.path}: {result.crash or result.unusable}\n")
            file.writelines(f"{line}\n" for line in findings_of(result))
            file.flush()
    for line in table_lines(table_of(found)):
        print(line)
    is_wrong = any(result.found is not None and WRONG & result.found.sizes.keys() for result in found)
    return 1 if is_wrong or any(result.crash for result in found) else 0


if __name__ == "__main__":
    sys.exit(main())
