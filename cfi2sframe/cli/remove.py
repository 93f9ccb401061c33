# SPDX-License-Identifier: Apache-2.0
"""The verb `remove`: take the SFrame section out of a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.common import fail, say
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import Cfi2SFrameError, RequestError

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.elf.contents import FileData


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} remove IN (-o OUT | --in-place) [--no-verify]",
        "Write a copy of IN without its .sframe section; what was moved to make room for it is moved back.",
        f"examples:\n  {PROGRAM} remove --in-place program\n  {PROGRAM} remove lib.so -o plain.so\n",
    )
    parser.add_argument("input", metavar="IN", help="an ELF object, executable or library")
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write; - is standard output")
    parser.add_argument("--in-place", action="store_true", help="rewrite IN itself")
    parser.add_argument("--no-verify", action="store_true", help="do not read the file back and compare it with IN")


def execute(arguments: argparse.Namespace) -> int:
    """Take the section out of one file."""
    from cfi2sframe.elf.load import image_of
    from cfi2sframe.emit import check_removal, remove
    from cfi2sframe.files.descriptors import open_named
    from cfi2sframe.files.write import write_output

    try:
        output = _output_of(arguments)
        name = "<stdin>" if arguments.input == "-" else arguments.input
        with open_named(arguments.input) as (data, source):
            image = image_of(data, name)

            def check_content(content: FileData) -> None:
                check_removal(image, image_of(content, name))

            warnings = write_output(
                output,
                remove(image),
                source=source,
                is_copy=True,
                in_place=arguments.in_place,
                check=None if arguments.no_verify else check_content,
            )
            for warning in warnings:
                say("warning", warning, name)
    except BrokenPipeError:
        raise
    except (Cfi2SFrameError, OSError) as error:
        return fail(error, arguments.input)
    return EXIT_SUCCESS


def _output_of(arguments: argparse.Namespace) -> str:
    """Return the file to write. Raises `RequestError` unless it is given by one of `-o` and `--in-place`."""
    if arguments.in_place:
        if arguments.output is not None:
            raise RequestError("-o and --in-place exclude one another")
        if arguments.input == "-":
            raise RequestError("standard input cannot be rewritten in place")
        return str(arguments.input)
    if arguments.output is None:
        raise RequestError("no output: -o OUT or --in-place is needed")
    return str(arguments.output)
