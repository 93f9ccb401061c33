# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: how much of each file SFrame can describe, and what is missing."""

import argparse
from functools import partial
from typing import Final

from cfi2sframe.api import convert_for
from cfi2sframe.cli.messages import EXIT_INCOMPLETE, PROGRAM, say, worst
from cfi2sframe.cli.options import (
    add_conversion_options,
    add_inputs,
    add_option,
    conversion_options,
    percentage,
    sources_of,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import add_output, answers_in, collect, count_or_all, printing_of, publish
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.report.coverage import Coverage, account
from cfi2sframe.report.coverage_report import coverage_report
from cfi2sframe.report.tables import FORMATS

#: How many missing places a report names by default.
_DEFAULT_TOP: Final = 10


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
        "exit status: 0 success; 2 usage; 3 a file cannot be used; 4 less is described than --fail-under.\n",
    )
    add_inputs(parser, "ELF file or directory; - is standard input")
    group = add_output(parser, FORMATS)
    text = f"list the N largest places without rows, or all (default {_DEFAULT_TOP}; json and csv: all)"
    add_option(group, "--top N", text, type=count_or_all, default=_DEFAULT_TOP)
    add_conversion_options(parser)
    group = parser.add_argument_group("failure conditions")
    text = "fail (4) if less of a file's code is described, counted in bytes without padding"
    add_option(group, "--fail-under PERCENT", text, type=percentage)


def run(arguments: argparse.Namespace) -> int:
    """Account for every file; one that cannot be read does not stop the others."""
    sources, limit = sources_of(arguments, with_archives=True), arguments.fail_under
    printing = printing_of(arguments, sources)
    # Formats for programs have all places.
    top = None if printing.format in ("json", "csv") else arguments.top
    options = conversion_options(arguments)

    def question(image: ElfImage) -> Coverage:
        coverage = account(convert_for(image, options, arguments.reader))
        # The full lists of thousands of files would not fit into memory.
        return coverage if top is None else coverage._replace(missing=coverage.largest(top))

    results = collect(arguments, sources, question)
    accounts = answers_in(results)
    status = publish(results, partial(coverage_report, accounts, top=top), printing, "none of these files has CFI")
    under = [each for each in accounts if each.code_percent < (limit or 0)]
    for each in under:
        say("error", f"{each.described_share} of the code is described, less than {limit:g} %", each.file)
    return worst((status, EXIT_INCOMPLETE)) if under else status
