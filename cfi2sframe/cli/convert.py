# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`: make a section from a file's CFI, as raw bytes, in a copy of the file or in place.

`remove` has the same options for files and output, and the same run.
"""

import argparse
import os
import sys
import time
from collections.abc import Generator, Sequence
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
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Job, Outcome
from cfi2sframe.text import counted

#: Runs with fewer bytes of input use one process.
POOL_SIZE: Final = 1 << 20
_IN_PLACE: Final = "with --in-place or --check"


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
    return run_jobs(arguments, job_of(arguments))


def job_of(arguments: argparse.Namespace) -> Job:
    """Return what to do with each file. Raises `RequestError` when arguments contradict one another, and `OSError`."""
    options = conversion_options(arguments)
    job = Job(
        options,
        arguments.reader,
        debug_file=debug_file_of(arguments),
        replaces=arguments.replace,
        is_strict=arguments.strict,
        fail_under=arguments.fail_under,
    )
    job = with_output(arguments, job)
    if job.is_raw:
        refuse(arguments, ("replace", "keep-rights"), "for ELF output")
    elif options.section_vaddr is not None:
        raise RequestError("--section-address is only valid for raw output; an ELF file determines the address itself")
    return job


# What remove shares


def add_write_options(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the options of both verbs: `text` says what `-o` writes."""
    add_inputs(parser, "ELF file; with --in-place or --check, also directory; with -o, - is stdin")
    group = parser.add_argument_group("output")
    add_option(group, "-o, --output OUT", text)
    add_option(group, "--in-place", "rewrite each FILE, keeping mode, owner and times where permitted")
    add_option(group, "--check", "print what --in-place would do, and exit with 1 if it would change a file")
    add_option(group, "--keep-rights", "refuse a file whose owner, set-ID bits or attributes cannot be kept")
    add_option(group, "--no-verify", "do not read back and check what was written")
    add_option(group, "--report FILE", "write a line of JSON for each file")
    add_option(group, "-v, --verbose", "print a summary on standard error")


def with_output(arguments: argparse.Namespace, job: Job) -> Job:
    """Return a job of either verb with its output. Raises `RequestError` when arguments contradict, and `OSError`."""
    _check_target(arguments)
    output = arguments.output
    if arguments.report == output == "-":
        raise RequestError("-o - and --report - would both write to standard output")
    return job._replace(
        output=output,
        is_raw=output is not None and (output == "-" or output.endswith(".sframe")),
        verifies=not arguments.no_verify,
        keeps_rights=arguments.keep_rights,
        only_checks=arguments.check,
    )


def _check_target(arguments: argparse.Namespace) -> None:
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
    refuse(arguments, ("exclude", "files-from", "jobs"), _IN_PLACE)


def refuse(arguments: argparse.Namespace, options: Sequence[str], where: str) -> None:
    """Raise `RequestError` if any of these options is given: they are only valid elsewhere."""
    for option in options:
        if getattr(arguments, option.replace("-", "_")):
            raise RequestError(f"--{option} is only valid {where}")


# The run


def run_jobs(arguments: argparse.Namespace, job: Job) -> int:
    """Do a job with each file that the arguments name, and print the outcomes; return the worst exit status."""
    output, only_checks = arguments.output, arguments.check
    sources = sources_of(arguments, cleans=not only_checks) if output is None else [named_source(arguments.inputs[0])]
    check_report(arguments, [] if output is None else [output], sources)
    is_single, is_verbose = is_one_file(sources), arguments.verbose
    job = job._replace(wants_account=bool(arguments.report or (is_verbose and is_single)))
    started = time.monotonic()
    outcomes: list[Outcome] = []
    done: list[Outcome] = []
    try:
        with closing(_outcomes_of(job, sources, arguments.jobs, done)) as results:
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
        say("info", sums(outcomes, removes=job.removes, seconds=time.monotonic() - started))
    write_report(arguments.report, map(json_line, outcomes))
    return worst(map(exit_status, outcomes))


def _outcomes_of(
    job: Job, sources: Sequence[Source], process_limit: int | None, done: list[Outcome]
) -> Generator[Outcome, None, None]:
    """Yield the outcome of each file, in their order; add it to `done` at once."""

    def work(source: Source) -> Outcome:
        return run_job(job._replace(source=source))

    def lost(source: Source, reason: str) -> Outcome:
        detail = "" if job.only_checks else "; the file may or may not have been converted"
        return job._replace(source=source).outcome("failed", f"{reason}{detail}", kind=ErrorKind.SYSTEM)

    count = 1 if sum(source.size for source in sources) < POOL_SIZE else process_count(process_limit)
    return watched(work, sources, lost, count=count, on_done=done.append)
