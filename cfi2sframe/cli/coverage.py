# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: how much of each file SFrame can describe, and what is missing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli.answers import collect, publish
from cfi2sframe.cli.messages import EXIT_INCOMPLETE, PROGRAM, say, worst
from cfi2sframe.cli.options import (
    Inputs,
    Printing,
    add_conversion_options,
    add_inputs,
    add_option,
    add_output,
    conversion_options,
    count_or_all,
    debug_file_of,
    inputs_of,
    percentage,
    printing_of,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.report.tables import FORMATS

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.conversion.convert import Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.report.coverage import Coverage

#: How many missing places a report names, unless someone asks for more.
_DEFAULT_TOP: Final = 10


class CoverageRequest(NamedTuple):
    """Files to account for, converted with these options; `top` is how many missing places to name (None: all).

    `fail_under`: fail if less of a file's code is described, in percent.
    """

    inputs: Inputs
    printing: Printing
    options: Options
    reader: str | None = None
    top: int | None = _DEFAULT_TOP
    fail_under: float | None = None
    debug_file: str | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} coverage FILE... [OPTION]...",
        "Report how much of the code an SFrame section describes, in bytes and in functions; what it leaves out,\n"
        "and why; and which code no CFI covers, the largest places first. No file is changed.",
        f"examples:\n  {PROGRAM} coverage /bin/ls\n  {PROGRAM} coverage --top 50 /usr/lib/*/libcrypto.so.3\n"
        f"  {PROGRAM} coverage /usr/lib/python3 -o coverage.html\n"
        f"  {PROGRAM} coverage --fail-under 99 --for glibc *.so\n\n"
        "exit status: 0 success; 2 usage; 3 a file cannot be used; 4 --fail-under is broken.\n",
    )
    add_inputs(parser, "ELF file or directory; - is standard input")
    group = add_output(parser, FORMATS)
    text = f"list the N largest places without rows, or all (default {_DEFAULT_TOP}; json and csv: all)"
    add_option(group, "--top N", text, type=count_or_all, default=_DEFAULT_TOP)
    add_conversion_options(parser)
    group = parser.add_argument_group("failure conditions")
    text = "fail (4) if less of a file's code is described, counted in bytes without padding"
    add_option(group, "--fail-under PERCENT", text, type=percentage)


def request_of(arguments: argparse.Namespace) -> CoverageRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    inputs = inputs_of(arguments)
    printing = printing_of(arguments, inputs.names)
    # Programs get everything.
    top = None if printing.format in ("json", "csv") else arguments.top
    options, debug_file = conversion_options(arguments), debug_file_of(arguments)
    return CoverageRequest(inputs, printing, options, arguments.reader, top, arguments.fail_under, debug_file)


def run(request: CoverageRequest) -> int:
    """Account for every file; one that cannot be read does not stop the others."""
    from cfi2sframe.report.coverage_report import coverage_report

    collected = collect(request.inputs.find(), partial(_account, request=request), request.inputs.process_count)
    report = partial(coverage_report, collected.answers, top=request.top)
    status = publish(collected, report, request.printing, "none of these files has CFI")
    under = [each for each in collected.answers if each.code_percent < (request.fail_under or 0)]
    for each in under:
        say("error", f"{each.described_share} of the code is described, less than {request.fail_under:g} %", each.file)
    return worst((status, EXIT_INCOMPLETE)) if under else status


def _account(image: ElfImage, request: CoverageRequest) -> Coverage:
    """Return what the report needs of an account: those of thousands of files would not fit into memory."""
    from cfi2sframe.api import convert_for
    from cfi2sframe.elf.debug_file import with_debug_file
    from cfi2sframe.report.coverage import account

    with with_debug_file(image, request.debug_file):
        coverage = account(convert_for(image, request.options, request.reader))
    return coverage if request.top is None else coverage._replace(missing=coverage.largest(request.top))
