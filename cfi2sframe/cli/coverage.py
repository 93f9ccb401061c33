# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: how much of each file SFrame can describe, and what is missing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.answers import collect, publish
from cfi2sframe.cli.common import fail, fail_early
from cfi2sframe.cli.exit_status import PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import add_conversion_options, conversion_options, count_from_one
from cfi2sframe.cli.outputs import REPORT_FORMATS, add_output, check_output, format_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import OutputError, RequestError

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.find import Source
    from cfi2sframe.report.coverage import Coverage
    from cfi2sframe.report.records import Report

#: How many missing places a report names, unless someone asks for more.
_DEFAULT_TOP: Final = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} coverage FILE... [OPTION]...",
        "Say how much of the code the SFrame section describes, in bytes and in functions; what it leaves out, and\n"
        "why; and which code no CFI covers, the largest places first. No file is changed.",
        f"examples:\n  {PROGRAM} coverage /bin/ls\n  {PROGRAM} coverage --details --top 50 /usr/lib/*/libcrypto.so.3\n"
        f"  {PROGRAM} coverage /usr/lib/python3 -o coverage.html\n"
        f"  {PROGRAM} coverage --json --sframe-version 2 *.so\n",
    )
    add_inputs(parser, "an ELF file, a folder or a static archive; - is standard input", is_writing=False)
    group = add_output(parser, REPORT_FORMATS)
    group.add_argument(
        "--top",
        type=count_from_one,
        default=_DEFAULT_TOP,
        metavar="N",
        help=f"name the N largest places that are missing (default {_DEFAULT_TOP}; json: all, but of code without CFI "
        "1,000 in a file)",
    )
    group.add_argument("--details", action="store_true", help="name all of them")
    add_conversion_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Account for every file; one that cannot be read does not stop the others."""
    try:
        options = conversion_options(arguments)
        check_output(arguments)
        found = list(sources_of(arguments))
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except OSError as error:
        return fail(error, arguments.files_from)
    # Programs get everything.
    is_limited = format_of(arguments) not in ("json", "csv") and not arguments.details
    top: int | None = arguments.top if is_limited else None
    try:
        collected = collect(found, partial(_account, options=options), partial(_keep, top=top), arguments)
        return publish(collected, partial(_report, top=top), arguments, "none of these files has CFI")
    except (OutputError, RequestError) as error:
        return fail(error, "")


def _account(image: ElfImage, options: Options) -> Coverage:
    from cfi2sframe.conversion import convert_image
    from cfi2sframe.report.coverage import account

    return account(convert_image(image, options))


def _keep(coverage: Coverage, _source: Source, top: int | None) -> Coverage:
    """Return what the report needs of an account: the accounts of thousands of files would not fit into memory."""
    return coverage if top is None else coverage._replace(missing=coverage.largest(top))


def _report(accounts: list[Coverage], top: int | None) -> Report:
    from cfi2sframe.report.coverage_report import coverage_report

    return coverage_report(accounts, top=top)
