# SPDX-License-Identifier: Apache-2.0
"""The verb `remove`: take the SFrame section out of one file, to an output, or of files in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.batch import check_folder, check_target, exit_status, run_batch, run_here, say_end
from cfi2sframe.cli.common import fail, fail_early
from cfi2sframe.cli.exit_status import PROGRAM
from cfi2sframe.cli.inputs import add_inputs, check_folders_options, names_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import InputError, RequestError
from cfi2sframe.jobs.records import Job, Output, Settings

if TYPE_CHECKING:
    import argparse

#: Options that have no meaning for a single output, by their names in the namespace.
_BATCH_OPTIONS = ("recursive", "files_from", "report")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} remove IN -o OUT [OPTION]...\n       {PROGRAM} remove (--in-place | --check) FILE... [OPTION]...",
        "Write a copy of IN without its .sframe section, or take the section out of each FILE; what was moved to make\n"
        "room for it is moved back.",
        "examples:\n"
        f"  {PROGRAM} remove --in-place program\n"
        f"  {PROGRAM} remove lib.so -o plain.so\n"
        f"  {PROGRAM} remove --in-place -r -v debian/tmp   all ELF files of a tree\n"
        f"  {PROGRAM} remove --check -r debian/tmp         what that would do\n",
    )
    add_inputs(parser, "an ELF object, executable or library; with -o, - is standard input", is_writing=True)
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="OUT", help="the file to write; - is standard output")
    group.add_argument(
        "--in-place",
        action="store_true",
        help="rewrite each FILE itself, keeping mode, owner and times where permitted",
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="write nothing; print what --in-place would do to each FILE, and exit with 1 if it would change any",
    )
    group.add_argument("--no-verify", action="store_true", help="do not read the file back and compare it with IN")
    group.add_argument("--report", metavar="FILE", help="with --in-place or --check: write a line of JSON per file")
    group.add_argument("-v", "--verbose", action="store_true", help="print a summary on standard error")


def execute(arguments: argparse.Namespace) -> int:
    """Take the section out of what the arguments name; return the worst file's exit status."""
    settings = Settings(
        removes=True,
        verifies=not arguments.no_verify,
        only_checks=arguments.check,
        takes_objects=arguments.objects,
    )
    read = arguments.files_from
    try:
        check_target(arguments, _BATCH_OPTIONS)
        check_folders_options(arguments)
        names = names_of(arguments)
        read = arguments.report
        check_folder(read)
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except (InputError, OSError) as error:
        return fail(error, read)
    if arguments.output is None:
        return run_batch(arguments, names, settings)
    source = names[0]
    name = "<stdin>" if source == "-" else source
    outcome = run_here(Job(name, (source,), (), None, settings, Output(arguments.output)))
    say_end(arguments, outcome)
    return exit_status(outcome)
