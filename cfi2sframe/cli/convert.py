# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`, and the request that it shares with `remove`: one file to an output, or files in place."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli.batch import run
from cfi2sframe.cli.exit_status import PROGRAM
from cfi2sframe.cli.options import (
    add_conversion_options,
    add_inputs,
    add_option,
    conversion_options,
    listed_names,
    percentage,
    process_count,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import FileError, RequestError
from cfi2sframe.jobs.records import Settings
from cfi2sframe.readers import READERS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["WriteRequest", "add_write_options", "configure", "request_of", "run", "write_request"]

_IN_PLACE: Final = "with --in-place or --check"


class WriteRequest(NamedTuple):
    """Files to convert, or to take the section out of (`settings.removes`).

    `named` are the files and folders named as words, `listed` those of `--files-from`, which are skipped where they
    have nothing to convert. `output` is where the only input goes; None: each file is rewritten, or only looked at
    (`settings.only_checks`). `report` is a file to write lines of JSON to, or for an output the account.
    """

    named: tuple[str, ...]
    settings: Settings
    output: str | None = None
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
    add_write_options(parser, "ELF output, or raw bytes if OUT is - or ends in .sframe")
    group = add_conversion_options(parser)
    add_option(group, "--replace", "replace a different .sframe section of the file")
    group = parser.add_argument_group("failure conditions")
    add_option(group, "--strict", "fail (4) if a function is left out, even in part, (3) if an FDE is damaged")
    text = "fail (4) if less of the code is described, counted in bytes without padding"
    add_option(group, "--fail-under PERCENT", text, type=percentage)


def add_write_options(parser: argparse.ArgumentParser, text: str) -> None:
    """Add the options of both verbs that write ELF files. `text` says what `-o` writes."""
    group = add_inputs(parser, "ELF object, executable or library; with -o, - is standard input")
    add_option(group, "-r, --recursive", "process the ELF files in folders; objects only with --for ld or kernel-arm64")
    group = parser.add_argument_group("output")
    add_option(group, "-o, --output OUT", text)
    add_option(group, "--in-place", "rewrite each FILE, keeping mode, owner and times where permitted")
    add_option(group, "--check", "write nothing; print what --in-place would do; exit with 1 if anything")
    add_option(group, "--keep-rights", "refuse a file if its owner, set-ID bits or attributes are not kept")
    add_option(group, "--no-verify", "do not read back and check what was written")
    add_option(group, "--report FILE", "write a line of JSON per file; with -o, one account")
    add_option(group, "-v, --verbose", "print a summary on standard error")


def request_of(arguments: argparse.Namespace) -> WriteRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    options = conversion_options(arguments)
    settings = Settings(
        options, replaces=arguments.replace, is_strict=arguments.strict, fail_under=arguments.fail_under
    )
    if arguments.reader is not None:
        name, reader = arguments.reader, READERS[arguments.reader]
        settings = settings._replace(reader=name, section_type=reader.section_type, takes_objects=reader.reads_objects)
    request = write_request(arguments, settings)
    is_raw = request.settings.is_raw
    if options.section_vaddr is not None and not is_raw:
        raise RequestError("--section-address is only valid for raw output; an ELF file determines the address itself")
    if is_raw:
        _refuse(arguments, ("replace", "no-verify", "keep-rights"), "for ELF output")
    wants_account = bool(request.report or (request.is_verbose and request.is_single))
    return request._replace(settings=request.settings._replace(wants_account=wants_account))


def write_request(arguments: argparse.Namespace, settings: Settings) -> WriteRequest:
    """Return what the arguments of either verb ask for. Raises as `request_of` does."""
    _check_target(arguments)
    if settings.removes and arguments.output is not None:
        _refuse(arguments, ("report",), _IN_PLACE)
    listed = listed_names(arguments)
    _check_folder(arguments.report)
    output = arguments.output
    is_raw = output is not None and not settings.removes and (output == "-" or output.endswith(".sframe"))
    return WriteRequest(
        tuple(arguments.inputs),
        settings._replace(
            verifies=not arguments.no_verify,
            keeps_rights=arguments.keep_rights,
            only_checks=arguments.check,
            is_raw=is_raw,
        ),
        output,
        listed,
        arguments.recursive,
        tuple(arguments.exclude),
        process_count(arguments.jobs),
        arguments.report,
        arguments.verbose,
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
        if arguments.exclude and not arguments.recursive:
            raise RequestError("--exclude is only valid with -r")
        return
    if arguments.output is None:
        raise RequestError("no output specified; use -o OUT or --in-place")
    if len(arguments.inputs) > 1:
        raise RequestError("-o takes a single input; use --in-place to rewrite several files")
    _refuse(arguments, ("recursive", "exclude", "files-from", "jobs"), _IN_PLACE)
    if _is_same_file(arguments.inputs[0], arguments.output):
        raise RequestError(f"-o {arguments.output} is the input file; use --in-place to rewrite it")


def _refuse(arguments: argparse.Namespace, options: Sequence[str], where: str) -> None:
    """Raise `RequestError` for any of these options, which are only valid elsewhere."""
    for option in options:
        if getattr(arguments, option.replace("-", "_")):
            raise RequestError(f"--{option} is only valid {where}")


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
