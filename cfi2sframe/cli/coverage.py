# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: how much of each file SFrame can describe, and what is missing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from cfi2sframe.cli.answers import answers_of, is_one_file, is_skipped
from cfi2sframe.cli.common import exit_status_of, fail, fail_early, say, worst
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import add_conversion_options, conversion_options, count_from_one
from cfi2sframe.cli.outputs import add_output, check_output, format_of, json_list, json_text, output_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import OutputError, RequestError
from cfi2sframe.files import Source, Unusable
from cfi2sframe.guard import limited

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from typing import TextIO

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.render.coverage_table import FileCoverage
    from cfi2sframe.report.coverage import Coverage

#: How many functions each list of the text names, unless someone asks for more; as in `render.coverage_text`, which is
#: not imported before it is needed.
_DEFAULT_TOP = 10


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} coverage FILE... [OPTION]...",
        "Say how much of the code the SFrame section describes, in bytes and in functions; what it leaves out, and\n"
        "why; and which code no CFI covers, the largest functions first. Several files are a table, with their\n"
        "sum. No file is changed.",
        f"examples:\n  {PROGRAM} coverage /bin/ls\n  {PROGRAM} coverage --details --top 50 /usr/lib/*/libcrypto.so.3\n"
        f"  {PROGRAM} coverage /usr/lib/python3 -o coverage.json\n"
        f"  {PROGRAM} coverage --json --sframe-version 2 *.so\n",
    )
    add_inputs(parser, "an ELF file, a folder or a static archive; - is standard input", is_writing=False)
    group = add_output(parser, ("text", "json"))
    group.add_argument(
        "--top",
        type=count_from_one,
        default=_DEFAULT_TOP,
        metavar="N",
        help=f"name the N largest functions of each kind that is missing (default {_DEFAULT_TOP}; code without CFI: "
        "1,000 at most)",
    )
    group.add_argument(
        "--details",
        action="store_true",
        help="name all of them, with every hole of functions that are described in part, and count the bytes of each "
        "section; of several files, each by itself before the table",
    )
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
    try:
        with output_of(arguments) as out:
            return _cover(found, options, arguments, out)
    except OutputError as error:
        return fail(error, "")


def _cover(found: Sequence[Source | Unusable], options: Options, arguments: argparse.Namespace, out: TextIO) -> int:
    """Print the accounts of all files; return the worst one's exit status."""
    printer_type = _JsonPrinter if format_of(arguments) == "json" else _TextPrinter
    printer = printer_type(arguments, out, is_single=is_one_file(found))
    statuses = [EXIT_SUCCESS]
    question = partial(_account, options=options)
    for source, result in answers_of(found, question, arguments):
        if not isinstance(result, Unusable):
            try:
                with limited(source.size if isinstance(source, Source) else 0):
                    text = printer.text_of(result)
            except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
                statuses.append(fail(error, result.file))
            else:
                # What fails here is the output.
                printer.add(text)
        elif not is_skipped(source, result):
            say("error", result.reason, result.name)
            statuses.append(exit_status_of(result.kind))
    printer.end()
    if printer.is_empty and statuses == [EXIT_SUCCESS]:
        say("error", "none of these files has CFI")
        return EXIT_UNUSABLE
    return worst(statuses)


def _account(image: ElfImage, options: Options) -> Coverage:
    from cfi2sframe.conversion import convert_image
    from cfi2sframe.report.coverage import account

    return account(convert_image(image, options))


class _TextPrinter:
    """Prints an account as text, or a table of several."""

    def __init__(self, arguments: argparse.Namespace, out: TextIO, *, is_single: bool) -> None:
        self._out = out
        self.is_empty = True
        self._is_single = is_single
        self._top: int = arguments.top
        self._details: bool = arguments.details
        self._files: list[FileCoverage] = []

    def text_of(self, coverage: Coverage) -> str:
        """Return an account as text, unless the table is all that is wanted. Raises what is the file's fault."""
        self.is_empty = False
        if not self._is_single:
            from cfi2sframe.render.coverage_table import FileCoverage

            self._files.append(FileCoverage.of(coverage))
            if not self._details:
                return ""
        from cfi2sframe.render.coverage_text import coverage_lines

        lines = coverage_lines(coverage, top=self._top, details=self._details)
        return "".join(f"{line}\n" for line in lines) + ("" if self._is_single else "\n")

    def add(self, text: str) -> None:
        """Print an account."""
        self._out.write(text)

    def end(self) -> None:
        """Print the table, if there is one."""
        if self._files:
            from cfi2sframe.render.coverage_table import table_lines

            self._out.writelines(f"{line}\n" for line in table_lines(self._files))


class _JsonPrinter:
    """Prints an account as JSON, or a list of several."""

    def __init__(self, _arguments: argparse.Namespace, out: TextIO, *, is_single: bool) -> None:
        self._out = out
        self.is_empty = True
        self._is_single = is_single
        self._accounts: list[str] = []

    def text_of(self, coverage: Coverage) -> str:
        """Return an account as JSON. Raises what is the file's fault."""
        self.is_empty = False
        from cfi2sframe.render.coverage_json import coverage_data

        return json_text(coverage_data(coverage))

    def add(self, text: str) -> None:
        """Print nothing yet: the text is one list."""
        self._accounts.append(text)

    def end(self) -> None:
        """Print the accounts."""
        self._out.write(json_list(self._accounts, is_single=self._is_single))
