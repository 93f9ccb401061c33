# SPDX-License-Identifier: Apache-2.0
"""Functions with CFI directives, assembled and audited."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cfi2sframe import load
from cfi2sframe.audit.compare import Audit, audit
from cfi2sframe.conversion.sources import find_cfi, read_programs


class Said(NamedTuple):
    """A finding as a test names it: where it is, counted from its function's start, and what it says."""

    offset: int
    subject: str
    cfi_rule: str
    code_rule: str


def function(body: str, name: str = "f") -> str:
    """Return a function with CFI around some lines, separated by semicolons."""
    lines = "\n".join(f"\t{line.strip()}" for line in body.split(";"))
    return f"\t.globl {name}\n\t.type {name}, @function\n{name}:\t.cfi_startproc\n{lines}\n\t.cfi_endproc\n"


def audited(path: Path) -> Audit:
    """Return the audit of a file."""
    return audit(load(path))


def said_of(result: Audit) -> list[Said]:
    """Return the findings of an audit."""
    return [
        Said(int(each.function.split("+")[1], 16), each.subject, each.cfi_rule, each.code_rule)
        for each in result.findings
    ]


def numbers_of(path: Path, places: Iterable[str]) -> list[int]:
    """Return the numbers of the functions of an object that places in its code are in, in the order of their FDEs."""
    image = load(path)
    entries = read_programs(image, *find_cfi(image, None)).entries
    functions = [range(start, start + size) for start, size in zip(entries.starts, entries.sizes, strict=True)]
    starts = {code.name: code.start_vaddr for code in image.code_ranges}
    parts = [place.rsplit("+", 1) for place in places]
    vaddrs = [starts[section] + int(offset, 16) for section, offset in parts]
    return [next(number for number, function in enumerate(functions) if vaddr in function) for vaddr in vaddrs]


def contradicted(path: Path) -> set[int]:
    """Return in which functions an audit finds something, by their numbers in the order of their FDEs."""
    places = [place for finding in audited(path).findings for place in (finding.place, *finding.also_places)]
    return set(numbers_of(path, places))
