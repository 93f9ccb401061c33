# SPDX-License-Identifier: Apache-2.0
"""The options of the verb `convert`: their grammar, which of them exclude one another, and what they ask of a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.batch import check_target
from cfi2sframe.cli.exit_status import PROGRAM
from cfi2sframe.cli.inputs import add_inputs, check_folders_options
from cfi2sframe.cli.options import (
    ADDRESS_BELONGS_TO_RAW,
    add_conversion_options,
    conversion_options,
    percentage,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import RequestError
from cfi2sframe.jobs.records import Job, Output, Settings

if TYPE_CHECKING:
    import argparse

#: Options that have no meaning for a single output, by their names in the namespace.
_BATCH_OPTIONS = ("recursive", "files_from", "skip_non_elf")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} [convert] IN -o OUT [OPTION]...\n"
        f"       {PROGRAM} [convert] (--in-place | --check) FILE... [OPTION]...",
        "Convert the DWARF CFI of IN to an SFrame section: write it as raw bytes or in a copy of IN, or put it into\n"
        "each FILE that does not have it already.",
        "examples:\n"
        f"  {PROGRAM} in.o -o out.o                      an object for the linker\n"
        f"  {PROGRAM} --in-place program                 a program that carries its section\n"
        f"  {PROGRAM} in.o -o out.sframe                 the section's raw bytes\n"
        f"  {PROGRAM} -v --sframe-version 2 /bin/ls -o ls.sframe\n"
        f"  {PROGRAM} --strict --report report.json lib.so -o - | wc -c\n"
        f"  {PROGRAM} --in-place -r -j 4 -v debian/tmp   all ELF files of a tree\n"
        f"  {PROGRAM} --check -r debian/tmp              what that would do\n"
        f"  find . -name '*.so' -print0 | {PROGRAM} --in-place --files-from - --report report.jsonl\n",
    )
    add_inputs(parser, "an ELF object, executable or library; with -o, - is standard input", is_writing=True)
    _add_output(parser)
    add_conversion_options(parser)
    _add_form(parser)
    _add_demands(parser)
    _add_batch(parser)


def _add_output(parser: argparse.ArgumentParser) -> None:
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
    group.add_argument(
        "--emit",
        choices=("raw", "elf"),
        help="raw bytes of the section, or a copy of IN with the section in it (default: raw when OUT is - or "
        "ends in .sframe or .bin, else elf)",
    )
    group.add_argument(
        "--replace", action="store_true", help="replace a different .sframe section that the file already has"
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print a summary on standard error")


def _add_form(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("its place in the file")
    group.add_argument(
        "--section-type",
        choices=("gnu", "progbits"),
        default="gnu",
        help="SHT_GNU_SFRAME, or SHT_PROGBITS for linkers before binutils 2.45 (default gnu)",
    )
    group.add_argument(
        "--no-verify", action="store_true", help="do not read the written file back and check it before renaming it"
    )


def _add_demands(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("demands and reports")
    group.add_argument(
        "--strict",
        action="store_true",
        help="fail (4) when a function is left out or described in part, (3) when an FDE is damaged",
    )
    group.add_argument(
        "--min-coverage",
        type=percentage,
        metavar="PERCENT",
        help="fail (4) when fewer of the functions with CFI are described in full",
    )
    group.add_argument(
        "--min-bytes",
        type=percentage,
        metavar="PERCENT",
        help="fail (4) when fewer of the bytes of code are described; code without CFI counts, padding does not",
    )
    group.add_argument(
        "--report",
        metavar="FILE",
        help="write the account of the conversion: with -o as coverage --json prints it, else a line of JSON per file",
    )


def _add_batch(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("many files")
    group.add_argument(
        "--skip-non-elf",
        action="store_true",
        help="skip files with nothing to convert: no ELF file, another type or machine, no CFI",
    )


def check(arguments: argparse.Namespace) -> None:
    """Raise `RequestError` when the options contradict one another."""
    check_target(arguments, _BATCH_OPTIONS)
    if arguments.output is None:
        if arguments.emit == "raw":
            raise RequestError("--in-place writes an ELF file; --emit raw needs -o")
        if arguments.section_address is not None:
            raise RequestError(ADDRESS_BELONGS_TO_RAW)
    check_folders_options(arguments)


def settings_of(arguments: argparse.Namespace, *, wants_account: bool) -> Settings:
    """Return the settings of all jobs. Raises `RequestError` when the options of the conversion contradict."""
    from cfi2sframe.elf.constants import SHT_GNU_SFRAME, SHT_PROGBITS

    return Settings(
        options=conversion_options(arguments),
        section_type=SHT_GNU_SFRAME if arguments.section_type == "gnu" else SHT_PROGBITS,
        replaces=arguments.replace,
        verifies=not arguments.no_verify,
        is_strict=arguments.strict,
        min_coverage=arguments.min_coverage,
        min_bytes=arguments.min_bytes,
        skips_unfit=arguments.skip_non_elf,
        only_checks=arguments.check,
        wants_account=wants_account,
        takes_objects=arguments.objects,
    )


def output_job(arguments: argparse.Namespace, settings: Settings) -> Job:
    """Return the job of `IN -o OUT`. Raises `RequestError` for an address that an ELF file determines itself."""
    path = arguments.output
    is_raw = arguments.emit == "raw" or (arguments.emit is None and (path == "-" or path.endswith((".sframe", ".bin"))))
    if not is_raw and arguments.section_address is not None:
        raise RequestError(ADDRESS_BELONGS_TO_RAW)
    source = arguments.inputs[0]
    return Job("<stdin>" if source == "-" else source, (source,), (), None, settings, Output(path, is_raw))
