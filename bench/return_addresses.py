#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measure how many return addresses have the row of their call when they are looked up themselves.

return_addresses.py [--version {1,2,3}] [FILE...]

Readers like the kernel's and glibc's look them up so. Each file is converted without its padding and with it; the
table, in Markdown, is that of docs/lab/size-and-speed.md. Without files: programs and libraries of this machine and of
the corpora of other architectures (`make corpus-files`), those of `NAMES` that are there.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import Options, load
from cfi2sframe.conversion import convert_image
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.report.return_addresses import ReturnAddresses, count_return_addresses

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

CORPUS: Final = Path(__file__).resolve().parents[1] / "build/corpus"
#: Where files are looked for, and what the table calls each place.
ROOTS: Final = {"AMD64": Path("/"), "AArch64": CORPUS / "arm64", "s390x": CORPUS / "s390x"}
#: C, C++, Rust and Go; hand-written assembly in the libraries of OpenSSL; of several files of a name the first.
NAMES: Final = (
    *("usr/bin/bash", "usr/bin/git", "usr/bin/perl", "usr/bin/python3.*", "usr/bin/gdb", "usr/bin/ssh"),
    *("usr/bin/rg", "usr/bin/restic", "usr/bin/node", "usr/bin/cmake", "usr/bin/qemu-aarch64", "usr/bin/vim.basic"),
    *("usr/bin/mold", "usr/bin/cargo", "usr/bin/busybox", "usr/lib/gcc/*/*/cc1plus"),
    *(
        f"usr/lib/*-linux-gnu/{name}"
        for name in (
            *("libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libcrypto.so.3", "libssl.so.3"),
            *("libgnutls.so.30", "libsqlite3.so.0", "librsvg-2.so.2", "libpython3.*.so.1.0", "libz3.so.4"),
        )
    ),
)
#: Without padding and with it: the share of calls whose return address has their row, and the return addresses in
#: padding that have none. With it: those elsewhere that have none, and those with another function's row or another.
COLUMNS: Final = (
    *("file", "calls", "same row without", "with padding", "in padding without", "with"),
    *("no function", "next function", "other row"),
)


class Measured(NamedTuple):
    """A file's return addresses, without and with padding; `name` is what the table calls it."""

    place: str
    name: str
    before: ReturnAddresses
    after: ReturnAddresses


def chosen_files() -> Iterator[tuple[str, Path]]:
    """Yield the files of `NAMES` that are there, with what the table calls their places."""
    for place, root in ROOTS.items():
        seen = set[Path]()
        for name in NAMES:
            path = next((path for path in sorted(root.glob(name)) if path.is_file()), None)
            if path is not None and path.resolve() not in seen:
                seen.add(path.resolve())
                yield place, path


def measure(place: str, path: Path, version: int) -> Measured | None:
    """Return a file's return addresses; None, with a message, where it cannot be converted."""
    counts = []
    try:
        arch = load(str(path)).arch
        for with_padding in (False, True):
            # Each has the budget of a file of its own.
            conversion = convert_image(load(str(path)), Options(version=version, with_padding=with_padding))
            counts.append(count_return_addresses(conversion))
    except Cfi2SFrameError as error:
        sys.stderr.write(f"return_addresses: {path}: {error}\n")
        return None
    return Measured(place or arch.name, path.name, *counts)


def sum_of(place: str, rows: Iterable[Measured]) -> Measured:
    """Return the sum of some files."""
    rows = list(rows)
    before, after = (
        ReturnAddresses(*map(sum, zip(*counts, strict=True)))._replace(max_rows=max(each.max_rows for each in counts))
        for counts in ([row.before for row in rows], [row.after for row in rows])
    )
    return Measured(place, f"all {len(rows)}", before, after)


def line_of(row: Measured) -> str:
    """Return a row of the table. Shares and counts are of the calls that the section describes."""
    before, after = row.before, row.after
    return (
        f"| {row.place} {row.name} | {after.described:,} | {before.percent:.2f} % | {after.percent:.2f} % "
        f"| {before.padding:,} | {after.padding:,} | {after.no_function:,} | {after.next_function:,} "
        f"| {after.other_row:,} |"
    )


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--version", type=int, choices=(1, 2, 3), default=3, help="of SFrame (default: 3)")
    arguments = parser.parse_args()
    wanted = [("", path) for path in arguments.files] or list(chosen_files())
    print(f"| {' | '.join(COLUMNS)} |")
    print(f"|---|{'---:|' * (len(COLUMNS) - 1)}")
    rows: list[Measured] = []
    for place, path in wanted:
        row = measure(place, path, arguments.version)
        if row is not None:
            rows.append(row)
            print(line_of(row), flush=True)
    places = list(dict.fromkeys(row.place for row in rows))
    for place in places if len(rows) > 1 else ():
        print(line_of(sum_of(place, (row for row in rows if row.place == place))))
    if len(places) > 1:
        print(line_of(sum_of("all ABIs:", rows)))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
