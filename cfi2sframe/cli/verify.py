# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`: compare sections with the CFI, or hold them to what a reader insists on."""

from __future__ import annotations

import sys
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.cli.answers import answers_of, is_one_file, is_skipped
from cfi2sframe.cli.common import exit_status_of, is_section, read_section, say, worst
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, EXIT_UNCOMPARED, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.options import (
    Inputs,
    add_conversion_options,
    add_inputs,
    add_option,
    check_apart,
    conversion_options,
    inputs_of,
    write_text,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import RequestError
from cfi2sframe.files.find import Unusable
from cfi2sframe.jobs.checks import Checked, CheckRequest, check
from cfi2sframe.printable import counted, printable
from cfi2sframe.readers import READERS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cfi2sframe.files.find import Source

#: Incremented when a field of the report changes its meaning or is removed.
SCHEMA_VERSION: Final = 1


class VerifyRequest(NamedTuple):
    """Files to check, and how; `report` is a file to write lines of JSON to."""

    inputs: Inputs
    check: CheckRequest
    report: str | None = None
    is_verbose: bool = False


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} verify FILE... [--would-be] [--reader NAME]... [OPTION]...\n"
        f"       {PROGRAM} verify FILE SECTION [--section-address ADDR] [OPTION]...",
        "Compare the SFrame section of each FILE, or the raw bytes in SECTION, with the CFI of FILE at every row of\n"
        "either: CFA, RA, FP, RA signing, outermost frames. Exit with 1 if anything differs, 3 if a FILE has no\n"
        "section, 5 if it has a section and no CFI; in folders, files without a section are skipped. With --reader,\n"
        "print what this reader would do with the section, and exit with 1 if it would not read it.",
        "examples:\n"
        f"  {PROGRAM} verify program\n"
        f"  {PROGRAM} verify -v -j 4 debian/tmp            every section in a tree\n"
        f"  {PROGRAM} verify --would-be /bin/ls            the section that convert would write\n"
        f"  {PROGRAM} verify program --reader kernel --reader glibc\n",
    )
    add_inputs(parser, "ELF file, folder or static archive; - is standard input")
    group = parser.add_argument_group("what to check")
    add_option(group, "--would-be", "check the section that convert would write, not the one in FILE")
    text = "check what this reader requires: a name as for --for; may be repeated"
    add_option(group, "--reader NAME", text, choices=READERS, dest="reader_names", action="append", default=[])
    add_option(group, "-v, --verbose", "print how much was compared")
    add_option(group, "--report FILE", "write a line of JSON for each file")
    add_conversion_options(parser)


def request_of(arguments: argparse.Namespace) -> VerifyRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    options = conversion_options(arguments)
    section, section_name = None, ""
    if len(arguments.inputs) == 2:
        first, second = map(is_section, arguments.inputs)
        if first and not second:
            raise RequestError(
                "FILE comes before SECTION: " + " ".join([PROGRAM, "verify", *reversed(arguments.inputs)])
            )
        if second and arguments.would_be:
            raise RequestError("--would-be and SECTION are mutually exclusive")
        if second:
            section_name = arguments.inputs.pop()
            with open(section_name, "rb") as file:
                section = read_section(file)
    if section is None and arguments.section_address is not None and not arguments.would_be:
        raise RequestError("--section-address is only valid with SECTION or --would-be")
    inputs = inputs_of(arguments)
    check_apart("report", arguments.report, inputs.names)
    readers = tuple(dict.fromkeys(arguments.reader_names))
    wanted = CheckRequest(options, section, section_name, arguments.would_be, readers, arguments.reader)
    return VerifyRequest(inputs, wanted, arguments.report, arguments.verbose)


def run(request: VerifyRequest) -> int:
    """Verify the sections of all files; return the worst file's exit status."""
    found = request.inputs.find()
    is_single = is_one_file(found)
    outcomes = []
    for source, result in answers_of(found, partial(check, request=request.check), request.inputs.process_count):
        outcomes.append(outcome := _outcome(source, result))
        if isinstance(result, Checked):
            for place, kind, message in result.findings:
                sys.stdout.write(f"{printable(f'{result.name}: {place}: {kind}: {message}')}\n")
            for sentence in result.sentences:
                sys.stdout.write(f"{printable(f'{result.name}: {sentence}')}\n")
            if request.is_verbose and is_single and not request.check.readers:
                say("info", _comparison([result]), result.name)
        elif outcome.status == "failed":
            say("error", result.reason, result.name)
    if request.is_verbose and not is_single:
        counts = Counter(outcome.status for outcome in outcomes)
        kinds = ", ".join(f"{count:,} {status}" for status, count in sorted(counts.items())) or "none"
        results = [outcome.result for outcome in outcomes if isinstance(outcome.result, Checked)]
        say("info", f"{counted(len(outcomes), 'file')}: {kinds}; {_comparison(results)}")
    status = worst(outcome.exit_status for outcome in outcomes)
    if all(outcome.status == "skipped" for outcome in outcomes):
        say("error", "none of these files has an .sframe section (--would-be: what convert would write)")
        status = EXIT_UNUSABLE
    if request.report is not None:
        import json

        write_text(request.report, "".join(f"{json.dumps(_data(outcome))}\n" for outcome in outcomes))
    return status


class _Outcome(NamedTuple):
    """What became of a file: what the check found, or why there was none."""

    result: Checked | Unusable
    status: Literal["clean", "different", "uncompared", "skipped", "failed"]
    exit_status: int


def _outcome(source: Source | Unusable, result: Checked | Unusable) -> _Outcome:
    if isinstance(result, Unusable):
        if is_skipped(source, result):
            return _Outcome(result, "skipped", EXIT_SUCCESS)
        return _Outcome(result, "failed", exit_status_of(result.kind))
    if not result.is_good:
        return _Outcome(result, "different", EXIT_DIFFERENCE)
    if not result.is_compared:
        return _Outcome(result, "uncompared", EXIT_UNCOMPARED)
    return _Outcome(result, "clean", EXIT_SUCCESS)


def _comparison(results: Sequence[Checked]) -> str:
    return (
        f"{sum(result.function_count for result in results):,} functions, "
        f"{sum(result.row_count for result in results):,} rows compared, "
        f"{sum(result.left_out_count for result in results):,} rightly left out, "
        f"{sum(len(result.findings) for result in results):,} differences"
    )


def _data(outcome: _Outcome) -> dict[str, object]:
    """Return the object that the report has for a file."""
    result = outcome.result
    data: dict[str, object] = {
        "schema": SCHEMA_VERSION,
        "file": result.name,
        "status": outcome.status,
        "exit_status": outcome.exit_status,
        "reason": result.reason if isinstance(result, Unusable) else "",
    }
    if isinstance(result, Checked):
        data |= {
            "functions": result.function_count,
            "rows": result.row_count,
            "left_out": result.left_out_count,
            "differences": [finding._asdict() for finding in result.findings],
            "readers": list(result.sentences),
        }
    return data
