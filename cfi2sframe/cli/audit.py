# SPDX-License-Identifier: Apache-2.0
"""The verb `audit`: where the CFI of a file says something else than its instructions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cfi2sframe.cli.answers import collect, publish
from cfi2sframe.cli.common import fail, fail_early, worst
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import count_from_zero
from cfi2sframe.cli.outputs import REPORT_FORMATS, add_output, check_output, format_of, output_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import CostError, OutputError, RequestError
from cfi2sframe.guard import limited
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.find import Source
    from cfi2sframe.instructions.audit_account import Account
    from cfi2sframe.report.records import Report

_DEFAULT_CONTEXT = 3


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} audit FILE... [OPTION]...",
        "Follow what the instructions of each FILE do to the stack, and compare it with the CFI: where the CFA, the\n"
        "RA and FP are. Print each place where the two contradict one another, with the directive that would be\n"
        "right there. What the instructions do not tell is not compared. The exit status is 1 if anything\n"
        "contradicts. In folders, files without CFI are skipped.",
        f"examples:\n  {PROGRAM} audit memcpy.o\n  {PROGRAM} audit -v /usr/lib/x86_64-linux-gnu/libc.so.6\n"
        f"  {PROGRAM} audit -r -j 4 build --json -o audit.json\n",
    )
    add_inputs(parser, "an ELF file, a folder or a static archive; - is standard input", is_writing=False)
    group = parser.add_argument_group("what to compare")
    group.add_argument(
        "--from",
        dest="source",
        choices=("eh_frame", "debug_frame", "gopclntab"),
        help="the only CFI to compare (default: all that a file has; where several describe an address, the first of "
        "these)",
    )
    group = add_output(parser, REPORT_FORMATS)
    group.add_argument(
        "--context",
        type=count_from_zero,
        default=_DEFAULT_CONTEXT,
        metavar="N",
        help=f"show N instructions before and after each place (default {_DEFAULT_CONTEXT})",
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="name functions that could not be compared, and why"
    )


def execute(arguments: argparse.Namespace) -> int:
    """Audit all files; return the worst file's exit status."""
    try:
        check_output(arguments)
        found = list(sources_of(arguments))
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except OSError as error:
        return fail(error, arguments.files_from)
    question = partial(_account, kind=arguments.source, context=arguments.context)
    try:
        collected = collect(found, question, _keep, arguments)
        if collected.kept and format_of(arguments) == "text":
            with limited(collected.size):
                _write_text(collected.kept, arguments)
            status = collected.status
        else:
            status = publish(collected, _report, arguments, "none of these files has CFI")
    except (OutputError, RequestError, CostError) as error:
        return fail(error, "")
    return worst((status, EXIT_DIFFERENCE if any(each.findings for each in collected.kept) else EXIT_SUCCESS))


def _account(image: ElfImage, kind: CfiKind | None, context: int) -> Account:
    from cfi2sframe.instructions.audit_account import account

    return account(image, kind, context=context)


def _keep(account: Account, _source: Source) -> Account:
    return account


def _report(accounts: list[Account]) -> Report:
    from cfi2sframe.report.audit import audit_report

    return audit_report(accounts)


def _write_text(accounts: list[Account], arguments: argparse.Namespace) -> None:
    from cfi2sframe.report.audit import audit_lines

    with output_of(arguments) as out:
        for line in audit_lines(accounts, with_undecided=arguments.verbose):
            out.write(f"{printable(line)}\n")
