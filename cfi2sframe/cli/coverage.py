# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: report how much of each file SFrame can describe, and what is missing."""

import argparse
from functools import partial
from itertools import chain
from typing import Final

from cfi2sframe.api import convert_for
from cfi2sframe.cli.messages import EXIT_INCOMPLETE, EXIT_SUCCESS, PROGRAM, say, worst
from cfi2sframe.cli.options import (
    add_conversion_options,
    add_inputs,
    add_option,
    compared_sources,
    conversion_options,
    percentage,
    sources_of,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import add_output, answers_in, collect, count_or_all, printing_of, publish
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import RequestError
from cfi2sframe.report.coverage import Coverage, account
from cfi2sframe.report.coverage_report import coverage_report
from cfi2sframe.report.tables import FORMATS
from cfi2sframe.text import counted

#: Missing places that a report names by default.
_DEFAULT_TOP: Final = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} coverage FILE... [OPTION]...\n       {PROGRAM} coverage --compare OLD NEW [OPTION]...",
        "Report how much of the code an SFrame section describes, in bytes and in functions; what it leaves out,\n"
        "and why; and which code no CFI covers, the largest places first. No file is changed.",
        f"examples:\n  {PROGRAM} coverage /bin/ls\n  {PROGRAM} coverage --top 50 /usr/lib/*/libcrypto.so.3\n"
        f"  {PROGRAM} coverage /usr/lib/python3 -o coverage.html\n"
        f"  {PROGRAM} coverage --fail-under 99 --for glibc *.so\n"
        f"  {PROGRAM} coverage --compare old/ new/ --fail-on-new\n\n"
        "exit status: 0 success; 2 usage; 3 a file cannot be used; 4 --fail-under or --fail-on-new is not met.\n",
    )
    add_inputs(parser, "ELF file or directory; - is standard input")
    add_option(
        parser.add_argument_group("what is reported"),
        "--compare OLD NEW",
        "functions that lost rows, by name: of two files, or of two trees, whose files are matched by name",
    )
    group = add_output(parser, FORMATS)
    text = f"list the N largest places without rows, or all (default {_DEFAULT_TOP}; json and csv: all)"
    add_option(group, "--top N", text, type=count_or_all, default=_DEFAULT_TOP)
    add_conversion_options(parser)
    group = parser.add_argument_group("failure conditions")
    text = "fail (4) if less of a file's code is described, counted in bytes without padding"
    add_option(group, "--fail-under PERCENT", text, type=percentage)
    add_option(group, "--fail-on-new", "with --compare, fail (4) if any function lost rows, or is new without them")


def run(arguments: argparse.Namespace) -> int:
    """Account for every file; one that cannot be read does not stop the others."""
    if arguments.compare:
        return _compare(arguments)
    if arguments.fail_on_new:
        raise RequestError("--fail-on-new is only valid with --compare")
    sources = sources_of(arguments, with_archives=True)
    printing = printing_of(arguments, sources)
    # Formats for programs have all places.
    top = None if printing.format in ("json", "csv") else arguments.top
    options = conversion_options(arguments)

    def question(image: ElfImage) -> Coverage:
        coverage = account(convert_for(image, options, arguments.reader))
        # Full lists for thousands of files would not fit into memory.
        return coverage if top is None else coverage._replace(missing=coverage.largest(top))

    results = collect(arguments, sources, question)
    accounts = answers_in(results)
    status = publish(results, partial(coverage_report, accounts, top=top), printing, "none of these files has CFI")
    return worst((status, _fail_under(arguments, accounts)))


def _fail_under(arguments: argparse.Namespace, accounts: list[Coverage]) -> int:
    """Report the accounts that do not meet `--fail-under`; return the exit status."""
    limit = arguments.fail_under or 0
    under = [coverage for coverage in accounts if coverage.code_percent < limit]
    for coverage in under:
        say("error", f"{coverage.described_share} of the code is described, less than {limit:g} %", coverage.file)
    return EXIT_INCOMPLETE if under else EXIT_SUCCESS


def _compare(arguments: argparse.Namespace) -> int:
    """Compare the accounts of two builds."""
    from cfi2sframe.report.coverage_comparison import Covered, changes_of, coverage_comparison

    groups = compared_sources(arguments)
    printing = printing_of(arguments, chain.from_iterable(groups))
    options = conversion_options(arguments)

    def question(image: ElfImage) -> Covered:
        coverage = account(convert_for(image, options, arguments.reader), named_count=None)
        return Covered(coverage, frozenset(symbol.name for symbol in image.functions().values()))

    old, new = (collect(arguments, sources, question) for sources in groups)
    before, after = ({covered.coverage.file: covered for covered in answers_in(build)} for build in (old, new))
    if len(groups[0]) == len(groups[1]) == 1 and len(before) == 1:
        # Two single files are one, whatever their names.
        before = dict(zip([groups[1][0].name], before.values(), strict=True))
    changes = changes_of(before, after, {result.source.name: result.reason for result in new if result.is_skipped})
    report = partial(coverage_comparison, changes, top=None if printing.format in ("json", "csv") else arguments.top)
    status = publish([*old, *new], report, printing, "none of these files has CFI")
    lost = sum(len(change.lost) for change in changes)
    if arguments.fail_on_new and lost:
        say("error", f"{counted(lost, 'place')} newly without rows, wholly or in part", arguments.compare[1])
        status = worst((status, EXIT_INCOMPLETE))
    return worst((status, _fail_under(arguments, [covered.coverage for covered in after.values()])))
