# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`, and the request that it shares with `remove`: one file to an output, or files in place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.cli.common import fail
from cfi2sframe.cli.exit_status import PROGRAM
from cfi2sframe.cli.inputs import add_inputs
from cfi2sframe.cli.options import add_conversion_options, conversion_options, percentage, process_count
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import FileError, RequestError
from cfi2sframe.jobs.records import Output, Settings

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

#: Options without a meaning for a single output, by their names in the namespace.
_BATCH_OPTIONS = ("recursive", "exclude", "files_from", "jobs")


class WriteRequest(NamedTuple):
    """Files to convert, or to take the section out of (`settings.removes`).

    `named` are the files and folders named as words, `listed` those of `--files-from`, which are skipped where they
    have nothing to convert. `output` is where the only input goes; None: each file is rewritten, or only looked at
    (`settings.only_checks`). `report` is a file to write lines of JSON to, or for an output the account.
    """

    named: tuple[str, ...]
    settings: Settings
    output: Output | None = None
    listed: tuple[str, ...] = ()
    is_recursive: bool = False
    excluded: tuple[str, ...] = ()
    process_count: int = 1
    report: str | None = None
    is_verbose: bool = False

    @property
    def is_single(self) -> bool:
        """Whether this is about one file, of which more is told than of many."""
        return len(self.named) == 1 and not self.listed and not self.is_recursive


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
        f"  {PROGRAM} --in-place -r -j 4 -v debian/tmp   all ELF files of a tree\n"
        f"  {PROGRAM} --check -r debian/tmp              what that would do\n",
    )
    add_write_options(parser, "with -o: raw bytes if OUT is - or ends in .sframe, else a copy of IN with the section")
    group = parser.add_argument_group("conversion")
    group.add_argument(
        "--replace", action="store_true", help="replace a different .sframe section that the file already has"
    )
    group.add_argument("--emit", choices=("raw", "elf"), help="what -o writes, whatever OUT is called")
    group.add_argument(
        "--section-type", choices=("gnu", "progbits"), default="gnu", help="SHT_GNU_SFRAME or SHT_PROGBITS"
    )
    group.add_argument("--skip-non-elf", action="store_true", help="skip files with nothing to convert")
    add_conversion_options(parser)
    group = parser.add_argument_group("failure conditions")
    group.add_argument(
        "--strict",
        action="store_true",
        help="fail (4) if a function is left out or described in part, (3) if an FDE is damaged",
    )
    group.add_argument(
        "--fail-under",
        type=percentage,
        metavar="PERCENT",
        help="fail (4) if fewer bytes of code are described; code without CFI counts, padding does not",
    )


def add_write_options(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the options of both verbs that write ELF files. `text` says what `-o` writes."""
    add_inputs(parser, "an ELF object, executable or library; with -o, - is standard input", is_writing=True)
    group = parser.add_argument_group("output")
    group.add_argument("-o", "--output", metavar="OUT", help=text)
    group.add_argument(
        "--in-place", action="store_true", help="rewrite each FILE, keeping mode, owner and times where permitted"
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="write nothing; print what --in-place would do, and exit with 1 if it would change any FILE",
    )
    group.add_argument(
        "--no-verify", action="store_true", help="do not read the written file back and check it before renaming it"
    )
    group.add_argument(
        "--keep-rights", action="store_true", help="refuse a file if its owner, set-ID bits or attributes are not kept"
    )
    group.add_argument(
        "--report", metavar="FILE", help="write a line of JSON per file; with -o what coverage --format json prints"
    )
    group.add_argument("-v", "--verbose", action="store_true", help="print a summary on standard error")


def request_of(arguments: argparse.Namespace) -> WriteRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    from cfi2sframe.elf.constants import SHT_GNU_SFRAME, SHT_PROGBITS

    request = write_request(
        arguments,
        Settings(
            options=conversion_options(arguments),
            section_type=SHT_GNU_SFRAME if arguments.section_type == "gnu" else SHT_PROGBITS,
            replaces=arguments.replace,
            is_strict=arguments.strict,
            fail_under=arguments.fail_under,
            skips_unfit=arguments.skip_non_elf,
            takes_objects=arguments.objects,
        ),
    )
    if arguments.emit is not None and request.output is not None:
        request = request._replace(output=request.output._replace(is_raw=arguments.emit == "raw"))
    is_raw = request.output is not None and request.output.is_raw
    if arguments.section_address is not None and not is_raw:
        raise RequestError("--section-address is only valid for raw output; an ELF file determines the address itself")
    for option in ("replace", "no_verify", "keep_rights"):
        if is_raw and getattr(arguments, option):
            raise RequestError(f"--{option.replace('_', '-')} is only valid for ELF output")
    wants_account = bool(request.report or (request.is_verbose and request.is_single))
    return request._replace(settings=request.settings._replace(wants_account=wants_account))


def write_request(arguments: argparse.Namespace, settings: Settings) -> WriteRequest:
    """Return what the arguments of either verb ask for. Raises as `request_of` does."""
    _check_target(arguments)
    listed: Sequence[str] = ()
    if arguments.files_from is not None:
        from cfi2sframe.files.words import names_from

        listed = names_from(arguments.files_from)
    _check_folder(arguments.report)
    if settings.removes and arguments.report is not None and arguments.output is not None:
        raise RequestError("--report is only valid with --in-place or --check")
    return WriteRequest(
        tuple(arguments.inputs),
        settings._replace(
            verifies=not arguments.no_verify, keeps_rights=arguments.keep_rights, only_checks=arguments.check
        ),
        None if arguments.output is None else Output(arguments.output, _is_raw(arguments.output, settings)),
        tuple(listed),
        arguments.recursive,
        tuple(arguments.exclude),
        process_count(arguments),
        arguments.report,
        arguments.verbose,
    )


def _is_raw(path: str, settings: Settings) -> bool:
    return not settings.removes and (path == "-" or path.endswith((".sframe", ".bin")))


def _check_target(arguments: argparse.Namespace) -> None:
    """Raise `RequestError` unless the options name files to rewrite, or one input and its output."""
    if not arguments.inputs and arguments.files_from is None:
        raise RequestError("no input file")
    if arguments.in_place or arguments.check:
        if arguments.output is not None:
            mode = "in-place" if arguments.in_place else "check"
            raise RequestError(f"-o and --{mode} are mutually exclusive")
        if "-" in arguments.inputs:
            raise RequestError("standard input cannot be rewritten in place")
        if arguments.exclude and not arguments.recursive:
            raise RequestError("--exclude is only valid with -r")
        return
    if arguments.output is None:
        raise RequestError("no output specified; use -o OUT or --in-place")
    if len(arguments.inputs) > 1:
        raise RequestError("-o takes a single input; use --in-place to rewrite several files")
    for name in _BATCH_OPTIONS:
        if getattr(arguments, name):
            raise RequestError(f"--{name.replace('_', '-')} is only valid with --in-place or --check")
    if _is_same_file(arguments.inputs[0], arguments.output):
        raise RequestError(f"-o {arguments.output} is the input file; use --in-place to rewrite it")


def _check_folder(path: str | None) -> None:
    """Raise `InputError` when a file to be written after a long run has no folder."""
    if path is not None and path != "-":
        try:
            os.stat(os.path.dirname(os.path.realpath(path)))
        except OSError as error:
            raise FileError.of(error, path) from None


def _is_same_file(path: str, other: str) -> bool:
    """Whether two paths lead to one regular file, by links or not; a hard link to it is another file to write."""
    return os.path.isfile(path) and os.path.isfile(other) and os.path.realpath(path) == os.path.realpath(other)


def run(request: WriteRequest) -> int:
    """Convert what is asked for; return the worst file's exit status."""
    from cfi2sframe.cli.batch import run_request

    return run_request(request)


def execute(arguments: argparse.Namespace) -> int:
    """Convert what the arguments name; return the worst file's exit status."""
    try:
        request = request_of(arguments)
    except FileError as error:
        return fail(error, error.file)
    except RequestError as error:
        return fail(error, "")
    except OSError as error:
        return fail(error, error.filename)
    try:
        return run(request)
    except RequestError as error:
        return fail(error, "")
