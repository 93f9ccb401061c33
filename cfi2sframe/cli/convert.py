# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`: make a section from a file's CFI, as raw bytes, in a copy of the file or in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.messages import PROGRAM
from cfi2sframe.cli.options import add_conversion_options, add_option, conversion_options, debug_file_of, percentage
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.rewriting import add_write_options, refuse, run, write_request
from cfi2sframe.errors import RequestError
from cfi2sframe.jobs.records import Settings

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.cli.rewriting import WriteRequest

__all__ = ["configure", "request_of", "run"]


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
    add_write_options(
        parser,
        "ELF output, or raw bytes if OUT is - or ends in .sframe",
        of_report="; with -o, one object",
    )
    group = add_conversion_options(parser)
    add_option(group, "--replace", "also replace a damaged section, or one with rows that the new one lacks")
    group = parser.add_argument_group("failure conditions")
    add_option(group, "--strict", "fail (4) if a function is left out, even in part, (3) if an FDE is damaged")
    text = "fail (4) if less of the code is described, counted in bytes without padding"
    add_option(group, "--fail-under PERCENT", text, type=percentage)


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
        refuse(arguments, ("replace", "no-verify", "keep-rights"), "for ELF output")
    elif options.section_vaddr is not None:
        raise RequestError("--section-address is only valid for raw output; an ELF file determines the address itself")
    return request
