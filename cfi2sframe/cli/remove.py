# SPDX-License-Identifier: Apache-2.0
"""The verb `remove`: remove the SFrame section from a copy of one file, or from files in place."""

import argparse

from cfi2sframe.cli.convert import add_write_options, check_outputs, run_jobs, sources_to_write
from cfi2sframe.cli.messages import PROGRAM
from cfi2sframe.cli.parsers import describe
from cfi2sframe.jobs.products import removal_job


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} remove IN -o OUT [OPTION]...\n       {PROGRAM} remove (--in-place | --check) FILE... [OPTION]...",
        "Remove the .sframe section, from a copy of IN or from each FILE. What was moved to make room for it is moved\n"
        "back.",
        "examples:\n"
        f"  {PROGRAM} remove --in-place program\n"
        f"  {PROGRAM} remove lib.so -o plain.so\n"
        f"  {PROGRAM} remove --in-place -v debian/tmp   all ELF files of a tree\n"
        f"  {PROGRAM} remove --check debian/tmp         what that would do\n\n"
        "exit status: 0 success; 1 --check would change a file; 2 usage; 3 a file cannot be used.\n",
    )
    add_write_options(parser, "the file to write; - is standard output")


def run(arguments: argparse.Namespace) -> int:
    """Remove the sections of what the arguments name; return the worst file's exit status."""
    check_outputs(arguments)
    job = removal_job(verifies=not arguments.no_verify, only_checks=arguments.check)
    return run_jobs(arguments, job, sources_to_write(arguments), removes=True)
