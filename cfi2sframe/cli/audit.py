# SPDX-License-Identifier: Apache-2.0
"""The verb `audit`: where the CFI of a file says something else than its instructions."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cfi2sframe.cli.answers import answers_of, is_one_file, is_skipped
from cfi2sframe.cli.common import exit_status_of, fail, fail_early, say, worst
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import count_from_zero
from cfi2sframe.cli.outputs import add_output, check_output, format_of, json_list, json_text, output_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import CostError, OutputError, RequestError
from cfi2sframe.files import Source, Unusable
from cfi2sframe.guard import limited
from cfi2sframe.printable import counted, printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import TextIO

    from cfi2sframe.audit.account import Account
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.elf.image import ElfImage

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
    group = add_output(parser, ("text", "json"))
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
    try:
        with output_of(arguments) as out:
            return _audit(found, arguments, out)
    except OutputError as error:
        return fail(error, "")


def _audit(found: Sequence[Source | Unusable], arguments: argparse.Namespace, out: TextIO) -> int:
    """Print what is found out about all files; return the worst one's exit status."""
    is_single = is_one_file(found)
    printer = (_AuditJson if format_of(arguments) == "json" else _AuditText)(arguments, out, is_single=is_single)
    statuses = [EXIT_SUCCESS]
    question = partial(_account, kind=arguments.source, context=arguments.context)
    for source, result in answers_of(found, question, arguments):
        if not isinstance(result, Unusable):
            try:
                with limited(source.size if isinstance(source, Source) else 0):
                    text = printer.text_of(result)
            except (CostError, MemoryError) as error:
                statuses.append(fail(error, result.audit.name))
            else:
                printer.add(text)
                statuses.append(EXIT_DIFFERENCE if result.findings else EXIT_SUCCESS)
        elif not is_skipped(source, result):
            say("error", result.reason, result.name)
            statuses.append(exit_status_of(result.kind))
    printer.end()
    if not printer.count and statuses == [EXIT_SUCCESS]:
        say("error", "none of these files has CFI")
        return EXIT_UNUSABLE
    return worst(statuses)


def _account(image: ElfImage, kind: CfiKind | None, context: int) -> Account:
    from cfi2sframe.audit.account import account

    return account(image, kind, context=context)


class _AuditText:
    """Prints the findings of each file, and its sum; of several files, those without findings are in one sum."""

    def __init__(self, arguments: argparse.Namespace, out: TextIO, *, is_single: bool) -> None:
        self._out = out
        self._is_single = is_single
        self._with_undecided: bool = arguments.verbose
        self.count = self._clean_count = self._finding_count = 0

    def text_of(self, account: Account) -> str:
        """Return what was found in a file as text."""
        from cfi2sframe.render.audit_text import audit_lines

        self.count += 1
        self._clean_count += not account.findings
        self._finding_count += len(account.findings)
        if not (self._is_single or account.findings or self._with_undecided):
            return ""
        return "".join(f"{printable(line)}\n" for line in audit_lines(account, with_undecided=self._with_undecided))

    def add(self, text: str) -> None:
        """Print what was found in a file."""
        self._out.write(text)

    def end(self) -> None:
        """Print the sum of several files."""
        if not self._is_single and self.count:
            places = counted(self._finding_count, "place")
            clean = f"{self._clean_count:,} without a contradiction"
            self._out.write(f"{counted(self.count, 'file')}: {clean}, {places} in the others\n")


class _AuditJson:
    """Prints an account as JSON, or a list of several."""

    def __init__(self, _arguments: argparse.Namespace, out: TextIO, *, is_single: bool) -> None:
        self._out = out
        self._is_single = is_single
        self._accounts: list[str] = []

    @property
    def count(self) -> int:
        """How many files have been added."""
        return len(self._accounts)

    def text_of(self, account: Account) -> str:
        """Return an account as JSON."""
        from cfi2sframe.render.audit_json import audit_data

        return json_text(audit_data(account))

    def add(self, text: str) -> None:
        """Print nothing yet: the text is one list."""
        self._accounts.append(text)

    def end(self) -> None:
        """Print the accounts."""
        self._out.write(json_list(self._accounts, is_single=self._is_single))
