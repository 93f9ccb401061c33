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
from typing import Final, NamedTuple

from cfi2sframe.cli.messages import EXIT_DIFFERENCE, EXIT_SUCCESS, PROGRAM, fail, say, worst
from cfi2sframe.cli.options import (
    add_conversion_options,
    add_inputs,
    add_option,
    check_apart,
    conversion_options,
    debug_file_of,
    listed_names,
    percentage,
    process_count,
    write_text,
)
from cfi2sframe.cli.outcomes import exit_status, json_line, say_in_few_lines, say_outcome, say_verdict, sums
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.progress import watched
from cfi2sframe.errors import ErrorKind, OutputError, RequestError, naming_path
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Job, Outcome, Settings
from cfi2sframe.text import counted

#: Runs with fewer bytes of input use one process.
POOL_SIZE: Final = 1 << 20
_IN_PLACE: Final = "with --in-place or --check"


class WriteRequest(NamedTuple):
    """Files to convert, or to take the section out of (`settings.removes`).

    `named` are files and directories of the command line; `listed` are those of `--files-from`, skipped if they have
    nothing to convert. `output` is for a single input; None: rewrite each file, or only check it
    (`settings.only_checks`). `report` is a file for lines of JSON.
    """

    named: tuple[str, ...]
    settings: Settings
    output: str | None = None
    listed: tuple[str, ...] = ()
    has_directories: bool = False
    excluded: tuple[str, ...] = ()
    process_count: int = 1
    report: str | None = None
    is_verbose: bool = False

    @property
    def is_single(self) -> bool:
        """Whether there is one file; its messages are longer."""
        return self.output is not None or (len(self.named) == 1 and not self.listed and not self.has_directories)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} [convert] IN -o OUT [OPTION]...\n"
        f"       {PROGRAM} [convert] (--in-place | --check) FILE... [OPTION]...",
        "Convert the DWARF CFI of IN to an SFrame section, as raw bytes or in a copy of IN, or put it into each FILE.",
        "examples:\n"
        f"  {PROGRAM} in.o -o out.o                      an object for the linker\n"
        f"  {PROGRAM} --in-place program                 a program that carries its section\n"
        f"  {PROGRAM} in.o -o out.sframe                 the section's raw bytes\n"
        f"  {PROGRAM} --in-place -v debian/tmp           a tree; its objects only with --for ld or kernel-arm64\n"
        f"  {PROGRAM} --check debian/tmp                 what that would do\n\n"
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
    return run_request(request_of(arguments))


def request_of(arguments: argparse.Namespace) -> WriteRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    options = conversion_options(arguments)
    settings = Settings(
        options,
        arguments.reader,
        replaces=arguments.replace,
        is_strict=arguments.strict,
        fail_under=arguments.fail_under,
        debug_file=debug_file_of(arguments),
    )
    request = write_request(arguments, settings)
    if request.settings.is_raw:
        refuse(arguments, ("replace", "keep-rights"), "for ELF output")
    elif options.section_vaddr is not None:
        raise RequestError("--section-address is only valid for raw output; an ELF file determines the address itself")
    return request


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


def write_request(arguments: argparse.Namespace, settings: Settings) -> WriteRequest:
    """Return what the arguments of either verb ask for. Raises `RequestError` when they contradict, and `OSError`."""
    _check_target(arguments)
    listed = listed_names(arguments)
    report, output = arguments.report, arguments.output
    if report == output == "-":
        raise RequestError("-o - and --report - would both write to standard output")
    if report is not None and report != "-":
        # Fail before a long run, not after it.
        with naming_path(report):
            os.stat(os.path.dirname(os.path.realpath(report)))
    is_raw = output is not None and not settings.removes and (output == "-" or output.endswith(".sframe"))
    settings = settings._replace(
        verifies=not arguments.no_verify,
        keeps_rights=arguments.keep_rights,
        only_checks=arguments.check,
        is_raw=is_raw,
    )
    request = WriteRequest(
        tuple(arguments.inputs),
        settings,
        output,
        listed,
        any(map(os.path.isdir, arguments.inputs)),
        tuple(arguments.exclude),
        process_count(arguments.jobs),
        report,
        arguments.verbose,
    )
    wants_account = not settings.removes and bool(report or (request.is_verbose and request.is_single))
    return request._replace(settings=settings._replace(wants_account=wants_account))


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
    path, output = arguments.inputs[0], arguments.output
    # Also through symbolic links; a hard link is another file.
    if os.path.isfile(path) and os.path.isfile(output) and os.path.realpath(path) == os.path.realpath(output):
        raise RequestError(f"-o {output} is the input file; use --in-place to rewrite it")


def refuse(arguments: argparse.Namespace, options: Sequence[str], where: str) -> None:
    """Raise `RequestError` if any of these options is given: they are only valid elsewhere."""
    for option in options:
        if getattr(arguments, option.replace("-", "_")):
            raise RequestError(f"--{option} is only valid {where}")


# The run


def run_request(request: WriteRequest) -> int:
    """Rewrite the files; return the worst file's exit status."""
    settings, output = request.settings, request.output
    if output is None:
        from cfi2sframe.jobs.listing import work_list

        jobs = work_list(
            request.named, settings, recurse=request.has_directories, excluded=request.excluded, listed=request.listed
        )
    else:
        source = request.named[0]
        jobs = [Job("<stdin>" if source == "-" else source, (source,), settings, output=output)]
    outputs = [] if output is None else [output]
    check_apart("report", request.report, [*(target for job in jobs for target in job.targets), *outputs])
    outcomes = _run_jobs(request, jobs)
    return worst((*map(exit_status, outcomes), _write_report(request, outcomes)))


def _run_jobs(request: WriteRequest, jobs: Sequence[Job]) -> list[Outcome]:
    """Run the jobs and print their outcomes; return these, in order."""
    started = time.monotonic()
    count = 1 if sum(job.size for job in jobs) < POOL_SIZE else request.process_count
    outcomes: list[Outcome] = []
    done: list[Outcome] = []

    def note(_job: Job, outcome: Outcome) -> None:
        done.append(outcome)

    try:
        with closing(watched(run_job, jobs, _lost, count=count, on_done=note)) as results:
            for outcome in results:
                outcomes.append(outcome)
                only_checks = request.settings.only_checks
                if request.is_single or request.is_verbose:
                    say_outcome(
                        outcome, is_single=request.is_single, is_verbose=request.is_verbose, only_checks=only_checks
                    )
                elif only_checks and exit_status(outcome) == EXIT_DIFFERENCE:
                    say_verdict(outcome)
    except (SystemExit, KeyboardInterrupt):
        if not request.is_single:
            if not request.is_verbose:
                say_in_few_lines(done)
            say("error", f"interrupted: {len(done):,} of {counted(len(jobs), 'file')} done; rerun to continue")
            _write_report(request, done)
        raise
    if not request.is_single:
        if not request.is_verbose:
            say_in_few_lines(outcomes)
        say("info", sums(outcomes, removes=request.settings.removes, seconds=time.monotonic() - started))
    return outcomes


def _lost(job: Job, reason: str) -> Outcome:
    detail = "" if job.settings.only_checks else "; the file may or may not have been converted"
    return Outcome(job.name, job.other_names, "failed", ErrorKind.SYSTEM, f"{reason}{detail}")


def _write_report(request: WriteRequest, outcomes: Sequence[Outcome]) -> int:
    """Write the report, if there is to be one; return an exit status."""
    if request.report is None:
        return EXIT_SUCCESS
    try:
        write_text(request.report, "".join(f"{json_line(outcome)}\n" for outcome in outcomes))
    except OutputError as error:
        return fail(error, "")
    return EXIT_SUCCESS
