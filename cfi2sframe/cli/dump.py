# SPDX-License-Identifier: Apache-2.0
"""The verb `dump`: print a decoded section."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cfi2sframe.cli.common import fail, read_image, read_section
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.options import address
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import Cfi2SFrameError, RequestError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedSection


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} dump FILE [--raw [--section-address ADDR]] [--json]",
        "Print the .sframe section of an ELF file, or raw section bytes, in the form of readelf --sframe.\n"
        "Any version, either byte order. FP and RA: u unchanged, f at the ABI's fixed offset, c+N saved at CFA+N,\n"
        "(base+N) loaded from there; [s] after RA: signed.",
        f"examples:\n  {PROGRAM} dump lib.so\n  {PROGRAM} dump --raw out.sframe --section-address 0x30000 --json\n",
    )
    parser.add_argument("file", metavar="FILE", help="the file; - is standard input")
    parser.add_argument("--raw", action="store_true", help="FILE holds a section's bytes, not an ELF file")
    parser.add_argument(
        "--section-address", type=address, metavar="ADDR", help="the address of the raw section (default 0)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def execute(arguments: argparse.Namespace) -> int:
    """Dump one section."""
    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.dump import check_size, dump_json, dump_text

    try:
        if arguments.section_address is not None and not arguments.raw:
            raise RequestError("--section-address belongs to --raw; an ELF file has its section's address")
        decoded, image = _decode(arguments)
        check_size(decoded, Budget(decoded.section_size) if image is None else image.budget)
    except (Cfi2SFrameError, OSError) as error:
        return fail(error, arguments.file)

    def show_address(vaddr: int) -> int:
        return vaddr if image is None else image.place(vaddr).offset

    if arguments.json:
        sys.stdout.writelines(dump_json(decoded, show_address, _padding_counter(image)))
        print()
    else:
        for line in dump_text(decoded, show_address=show_address):
            print(line)
    return EXIT_SUCCESS


def _decode(arguments: argparse.Namespace) -> tuple[DecodedSection, ElfImage | None]:
    """Return the section, and the image of the file that it is in; None for a raw section."""
    from cfi2sframe.api import decode_existing
    from cfi2sframe.sframe.decode import decode_section

    if arguments.raw:
        if arguments.file == "-":
            data = read_section(sys.stdin.buffer)
        else:
            with open(arguments.file, "rb") as file:
                data = read_section(file)
        return decode_section(data, arguments.section_address or 0), None
    image = read_image(arguments.file)
    return decode_existing(image), image


def _padding_counter(image: ElfImage | None) -> Callable[[int, int], int] | None:
    """Return what counts the padding in a range; None without CFI, which says where functions end."""
    from cfi2sframe.api import padding_in

    if image is None:
        return None
    try:
        return padding_in(image).between
    except Cfi2SFrameError:
        return None
