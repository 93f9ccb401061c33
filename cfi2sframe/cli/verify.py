# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`: compare sections with the CFI, or hold them to what a reader insists on."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.cli.answers import answers_of, is_one_file, is_skipped
from cfi2sframe.cli.common import exit_status_of, fail, fail_early, is_section, read_section, say, worst
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, EXIT_UNCOMPARED, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import add_conversion_options, conversion_options
from cfi2sframe.cli.outputs import check_output
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import OutputError, RequestError
from cfi2sframe.files.find import Unusable
from cfi2sframe.jobs.checks import Checked, CheckRequest, check
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.files.find import Source

#: The readers that `api.judge` knows; not asked for here, so that `--help` loads no more than it needs.
READER_NAMES: Final = ("kernel", "kernel-arm64", "glibc", "libsframe", "gnu-ld")
#: Incremented when a field of the report changes its meaning or is removed.
SCHEMA_VERSION: Final = 1


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} verify FILE... [--would-be] [--reader NAME]... [OPTION]...\n"
        f"       {PROGRAM} verify FILE SECTION [--section-address ADDR] [OPTION]...",
        "Compare the SFrame section of each FILE with the FILE's CFI at every row boundary of either side: CFA, RA,\n"
        "FP, RA signing, outermost frames; its functions for code without CFI, with what the instructions say; and\n"
        "check what readers require. SECTION is a file with the raw bytes of a section for FILE. The exit status is\n"
        "1 if anything differs, 3 if a FILE has no section, 5 if it has a section and no CFI. In folders, files\n"
        "without a section are skipped.\n\n"
        "With --reader, hold the section to what this reader insists on instead, and print what it would do with it.\n"
        "The exit status is 1 if no known release of a named reader would read it.",
        "examples:\n"
        f"  {PROGRAM} verify program\n"
        f"  {PROGRAM} verify -v -j 4 debian/tmp            every section in a tree\n"
        f"  {PROGRAM} verify --would-be /bin/ls            the section that convert would write\n"
        f"  {PROGRAM} verify program --reader kernel --reader glibc\n"
        f"  {PROGRAM} verify lib.so lib.sframe --section-address 0x40000\n",
    )
    add_inputs(parser, "an ELF file, a folder or a static archive; - is standard input", is_writing=False)
    group = parser.add_argument_group("what to check")
    group.add_argument(
        "--would-be",
        action="store_true",
        help="check the section that convert would write, instead of the one that FILE has",
    )
    group.add_argument(
        "--reader",
        choices=READER_NAMES,
        action="append",
        default=[],
        help="what would this reader do with the section? kernel: Linux, in no release yet, for programs; "
        "kernel-arm64: for its own stacks; glibc: backtrace() of "
        "2.42 to 2.44; libsframe: readelf, gdb; gnu-ld (objects); may be repeated",
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print how much was compared")
    group.add_argument("--report", metavar="FILE", help="write a line of JSON for each file")
    add_conversion_options(parser)


def execute(arguments: argparse.Namespace) -> int:
    """Verify the sections of all files; return the worst file's exit status."""
    read = arguments.files_from
    try:
        check_output(arguments)
        section = None
        if len(arguments.inputs) == 2 and is_section(arguments.inputs[1]):
            if arguments.would_be:
                raise RequestError("--would-be and SECTION exclude one another")
            read = arguments.inputs.pop()
            with open(read, "rb") as file:
                section = read_section(file)
        elif arguments.section_address is not None and not arguments.would_be:
            raise RequestError("--section-address belongs to SECTION or --would-be; a file has its section's address")
        readers = tuple(dict.fromkeys(arguments.reader))
        request = CheckRequest(conversion_options(arguments), section, read or "", arguments.would_be, readers)
        found = list(sources_of(arguments))
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except OSError as error:
        return fail(error, read)
    is_single = is_one_file(found)
    answers = answers_of(found, partial(check, request=request), arguments)
    outcomes = list(_said((_outcome(source, result) for source, result in answers), arguments, is_single=is_single))
    if arguments.verbose and not is_single:
        say("info", _sum_of(outcomes))
    status = worst(outcome.exit_status for outcome in outcomes)
    if all(outcome.status == "skipped" for outcome in outcomes):
        say("error", "none of these files has an .sframe section (--would-be: what convert would write)")
        status = EXIT_UNUSABLE
    return worst((status, _write_report(arguments, outcomes)))


class _Outcome(NamedTuple):
    """What became of a file: what the check found, or why there was none."""

    result: Checked | Unusable
    status: Literal["clean", "different", "uncompared", "skipped", "failed"]
    exit_status: int


def _outcome(source: Source | Unusable, result: Checked | Unusable) -> _Outcome:
    if isinstance(result, Checked):
        if not result.is_good:
            return _Outcome(result, "different", EXIT_DIFFERENCE)
        return (
            _Outcome(result, "clean", EXIT_SUCCESS)
            if result.is_compared
            else _Outcome(result, "uncompared", EXIT_UNCOMPARED)
        )
    if is_skipped(source, result):
        return _Outcome(result, "skipped", EXIT_SUCCESS)
    return _Outcome(result, "failed", exit_status_of(result.kind))


def _said(outcomes: Iterable[_Outcome], arguments: argparse.Namespace, *, is_single: bool) -> Iterator[_Outcome]:
    """Print what was found out about each file."""
    for outcome in outcomes:
        result = outcome.result
        if isinstance(result, Checked):
            for line in _lines(result):
                sys.stdout.write(f"{printable(line)}\n")
            if arguments.verbose and is_single and not arguments.reader:
                say("info", _comparison(result), result.name)
        elif outcome.status == "failed":
            say("error", result.reason, result.name)
        yield outcome


def _lines(result: Checked) -> Iterator[str]:
    yield from (f"{result.name}: {place}: {kind}: {message}" for place, kind, message in result.findings)
    yield from (f"{result.name}: {sentence}" for sentence in result.sentences)


def _comparison(result: Checked) -> str:
    return (
        f"{result.function_count:,} functions, {result.row_count:,} rows compared, "
        f"{result.left_out_count:,} rightly left out, {len(result.findings):,} differences"
    )


def _sum_of(outcomes: Sequence[_Outcome]) -> str:
    """Return the one sentence about many files."""
    counts = Counter(outcome.status for outcome in outcomes)
    kinds = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items())) or "none"
    results = [outcome.result for outcome in outcomes if isinstance(outcome.result, Checked)]
    whole = Checked(
        "",
        sum(result.function_count for result in results),
        sum(result.row_count for result in results),
        sum(result.left_out_count for result in results),
        tuple(finding for result in results for finding in result.findings),
    )
    return f"{len(outcomes):,} files: {kinds}; {_comparison(whole)}"


def _write_report(arguments: argparse.Namespace, outcomes: Sequence[_Outcome]) -> int:
    """Write the report, if there is to be one; return an exit status."""
    if arguments.report is None:
        return EXIT_SUCCESS
    import json

    from cfi2sframe.files.write import write_output

    text = "".join(f"{json.dumps(_data(outcome))}\n" for outcome in outcomes)
    try:
        write_output(arguments.report, text.encode())
    except OutputError as error:
        return fail(error, "")
    return EXIT_SUCCESS


def _data(outcome: _Outcome) -> dict[str, object]:
    """Return the object that the report has for a file."""
    data: dict[str, object] = {
        "schema": SCHEMA_VERSION,
        "file": outcome.result.name,
        "status": outcome.status,
        "exit_status": outcome.exit_status,
        "reason": outcome.result.reason if isinstance(outcome.result, Unusable) else "",
    }
    if isinstance(outcome.result, Checked):
        result = outcome.result
        data |= {
            "functions": result.function_count,
            "rows": result.row_count,
            "left_out": result.left_out_count,
            "differences": [finding._asdict() for finding in result.findings],
            "readers": list(result.sentences),
        }
    return data
