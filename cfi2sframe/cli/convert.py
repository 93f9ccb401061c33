# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`: make a section from a file's CFI, as raw bytes, in a copy of the file or in place.

`remove` has the same options for files and output, and the same run.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Final

from cfi2sframe.cli.messages import EXIT_DIFFERENCE, PROGRAM, fail, say, worst
from cfi2sframe.cli.options import (
    add_conversion_options,
    add_inputs,
    add_option,
    check_report,
    conversion_options,
    debug_file_of,
    is_one_file,
    percentage,
    process_count,
    sources_of,
    write_report,
)
from cfi2sframe.cli.outcomes import exit_status, json_line, say_in_few_lines, say_outcome, say_verdict, sums
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.progress import watched
from cfi2sframe.errors import ErrorKind, OutputError, RequestError
from cfi2sframe.files.source import Source, named_source
from cfi2sframe.jobs.job import Job, run_job
from cfi2sframe.jobs.products import conversion_job
from cfi2sframe.jobs.records import Conditions, Outcome, Request
from cfi2sframe.text import counted

#: Runs with fewer bytes of input use one process.
POOL_SIZE: Final = 1 << 20


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} [convert] IN -o OUT [OPTION]...\n"
        f"       {PROGRAM} [convert] (--in-place | --check) FILE... [OPTION]...",
        "Convert the DWARF CFI of IN to an SFrame section, as raw bytes or in a copy of IN, or put it into each FILE.",
        "examples:\n"
        f"  {PROGRAM} in.o -o out.o              an object for the linker\n"
        f"  {PROGRAM} --in-place program         a program that carries its section\n"
        f"  {PROGRAM} in.o -o out.sframe         the section's raw bytes\n"
        f"  {PROGRAM} --in-place -v debian/tmp   a tree; objects only with --for ld\n"
        f"  {PROGRAM} --check debian/tmp         what that would do\n\n"
        "exit status: 0 success; 1 --check would change a file; 2 usage; 3 unusable file; 4 a failure condition.\n",
    )
    add_write_options(parser, "ELF output, or raw bytes if OUT is - or ends in .sframe")
    group = add_conversion_options(parser)
    add_option(group, "--replace", "also replace a damaged section, or one with rows that the new one lacks")
    group = parser.add_argument_group("failure conditions")
    add_option(group, "--strict", "fail (4) if a function is left out, even in part, (3) if an FDE is damaged")
    text = "fail (4) if less of the code is described, counted in bytes without padding"
    add_option(group, "--fail-under PERCENT", text, type=percentage)


def run(arguments: argparse.Namespace) -> int:
    """Convert what the arguments name; return the worst file's exit status."""
    request = request_of(arguments)
    sources = sources_to_write(arguments)
    wants_account = bool(arguments.report or (arguments.verbose and is_one_file(sources)))
    return run_jobs(arguments, conversion_job(request._replace(wants_account=wants_account)), sources)


def request_of(arguments: argparse.Namespace) -> Request:
    """Return the request of the arguments. Raises `RequestError` when they contradict one another, and `OSError`."""
    options, debug_file, output = conversion_options(arguments), debug_file_of(arguments), arguments.output
    check_outputs(arguments)
    is_raw = output is not None and (output == "-" or output.endswith(".sframe"))
    if is_raw:
        _refuse(arguments, ("replace", "keep-rights"), "for ELF output")
    elif options.section_vaddr is not None:
        raise RequestError("--section-address is only valid for raw output; an ELF file determines the address itself")
    return Request(
        options,
        arguments.reader,
        debug_file,
        is_raw=is_raw,
        replaces=arguments.replace,
        verifies=not arguments.no_verify,
        only_checks=arguments.check,
        conditions=Conditions(arguments.strict, arguments.fail_under),
    )


# Shared with remove


def add_write_options(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the options of both verbs; `text` is the help of `-o`."""
    add_inputs(parser, "ELF file; with --in-place or --check, also directory; with -o, - is stdin")
    group = parser.add_argument_group("output")
    add_option(group, "-o, --output OUT", text)
    add_option(group, "--in-place", "rewrite each FILE, keeping mode, owner and times where permitted")
    add_option(group, "--check", "print what --in-place would do, and exit with 1 if it would change a file")
    add_option(group, "--keep-rights", "refuse a file whose owner, set-ID bits or attributes cannot be kept")
    add_option(group, "--no-verify", "do not read back and check what was written")
    add_option(group, "--report FILE", "write a line of JSON for each file")
    add_option(group, "-v, --verbose", "print a summary on standard error")


def check_outputs(arguments: argparse.Namespace) -> None:
    """Raise `RequestError` unless the options name files to rewrite, or one input and its output."""
    if not arguments.inputs and arguments.files_from is None:
        raise RequestError("no input file")
    if arguments.in_place or arguments.check:
        if arguments.output is not None:
            raise RequestError(f"-o and --{'in-place' if arguments.in_place else 'check'} are mutually exclusive")
        if "-" in arguments.inputs:
            raise RequestError("standard input cannot be rewritten in place")
        if arguments.exclude and not any(map(os.path.isdir, arguments.inputs)):
            raise RequestError("--exclude is only valid for directories")
        return
    if arguments.output is None:
        raise RequestError("no output specified; use -o OUT or --in-place")
    if arguments.output == "-" and sys.stdout.isatty():
        raise RequestError("a terminal cannot show raw bytes; redirect standard output, or name a file")
    if len(arguments.inputs) > 1:
        raise RequestError("-o takes a single input; use --in-place to rewrite several files")
    _refuse(arguments, ("exclude", "files-from", "jobs"), "with --in-place or --check")
    if arguments.report == arguments.output == "-":
        raise RequestError("-o - and --report - would both write to standard output")


def _refuse(arguments: argparse.Namespace, options: Sequence[str], where: str) -> None:
    """Raise `RequestError` if any of these options is given: they are only valid elsewhere."""
    for option in options:
        if getattr(arguments, option.replace("-", "_")):
            raise RequestError(f"--{option} is only valid {where}")


# The run


def sources_to_write(arguments: argparse.Namespace) -> list[Source]:
    """Return the files to rewrite, or the input of an output. Raises `RequestError` and `OSError`."""
    output = arguments.output
    if output is None:
        sources = sources_of(arguments, cleans=not arguments.check)
    else:
        sources = [named_source(arguments.inputs[0])]
    check_report(arguments, [] if output is None else [output], sources)
    return sources


def run_jobs(arguments: argparse.Namespace, job: Job, sources: Sequence[Source], *, removes: bool = False) -> int:
    """Do a job of either verb with each file, and print the outcomes; return the worst exit status."""
    only_checks, is_single, is_verbose = arguments.check, is_one_file(sources), arguments.verbose
    job = job._replace(output=arguments.output, keeps_rights=arguments.keep_rights)
    started = time.monotonic()
    outcomes: list[Outcome] = []
    done: list[Outcome] = []

    def work(source: Source) -> Outcome:
        return run_job(job._replace(source=source))

    def lost(source: Source, reason: str) -> Outcome:
        detail = "" if only_checks else "; the file may or may not have been converted"
        return Outcome(source.name, source.other_names, "failed", ErrorKind.SYSTEM, f"{reason}{detail}")

    count = 1 if sum(source.size for source in sources) < POOL_SIZE else process_count(arguments.jobs)
    try:
        with closing(watched(work, sources, lost, count=count, on_done=done.append)) as results:
            for outcome in results:
                outcomes.append(outcome)
                if is_single or is_verbose:
                    say_outcome(outcome, is_single=is_single, is_verbose=is_verbose, only_checks=only_checks)
                elif only_checks and exit_status(outcome) == EXIT_DIFFERENCE:
                    say_verdict(outcome)
    except (SystemExit, KeyboardInterrupt):
        if not is_single:
            if not is_verbose:
                say_in_few_lines(done)
            say("error", f"interrupted: {len(done):,} of {counted(len(sources), 'file')} done; rerun to continue")
            try:
                write_report(arguments.report, map(json_line, done))
            except OutputError as error:
                fail(error, "")
        raise
    if not is_single:
        if not is_verbose:
            say_in_few_lines(outcomes)
        say("info", sums(outcomes, removes=removes, seconds=time.monotonic() - started))
    write_report(arguments.report, map(json_line, outcomes))
    return worst(map(exit_status, outcomes))
