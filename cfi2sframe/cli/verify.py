# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`: compare a section with the CFI."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from cfi2sframe.cli.common import (
    add_conversion_options,
    conversion_options,
    fail,
    parser_of,
    read_image,
    read_section,
    say,
)
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, PROGRAM
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.errors import Cfi2SFrameError, RequestError, SFrameError
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.verification import Verification


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = parser_of(
        "verify",
        f"{PROGRAM} verify IN [SECTION | --existing] [OPTION]...",
        "Compare an SFrame section with the CFI of IN at every row boundary of either side: CFA, RA, FP, RA signing,\n"
        "outermost frames; and check what readers require. The section is the one that convert would make, a raw\n"
        "file SECTION, or the one that IN already has (--existing). The exit status is 1 if anything differs.",
        "examples:\n"
        f"  {PROGRAM} verify -v /bin/ls\n"
        f"  {PROGRAM} verify --existing program\n"
        f"  {PROGRAM} verify lib.so lib.sframe --section-address 0x40000\n",
    )
    parser.add_argument("input", metavar="IN", help="an ELF object, executable or library")
    parser.add_argument("section", metavar="SECTION", nargs="?", help="a file with the raw bytes of a section")
    parser.add_argument("--existing", action="store_true", help="check the .sframe section of IN")
    add_conversion_options(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print how much was compared")
    return parser


def execute(arguments: argparse.Namespace) -> int:
    """Verify one section."""
    try:
        options = conversion_options(arguments)
        if arguments.section is not None and arguments.existing:
            raise RequestError("--existing and SECTION exclude one another")
        image = read_image(arguments.input)
        data = None if arguments.section is None else _read(arguments.section)
        result = _verify(image, data, options, is_existing=arguments.existing)
    except SFrameError as error:
        return fail(error, arguments.section or arguments.input)
    except Cfi2SFrameError as error:
        return fail(error, arguments.input)
    except OSError as error:
        return fail(error, arguments.section or arguments.input)
    for difference in result.differences:
        place = image.place(difference.vaddr)
        where = (
            f"{shown_name(place.section_name)}+0x{place.offset:x}" if image.is_relocatable else f"0x{place.offset:x}"
        )
        sys.stdout.write(f"{printable(arguments.input)}: {printable(where)}: {difference.kind}: {difference.message}\n")
    if arguments.verbose:
        say(
            "info",
            f"{result.function_count:,} functions, {result.point_count:,} rows compared, "
            f"{result.left_out_count:,} rightly left out, {len(result.differences):,} differences",
            arguments.input,
        )
    return EXIT_SUCCESS if result.is_clean else EXIT_DIFFERENCE


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return read_section(file)


def _verify(image: ElfImage, data: bytes | None, options: Options, *, is_existing: bool) -> Verification:
    from cfi2sframe.api import decode_existing, decode_raw, verify

    if is_existing:
        return verify(image, decode_existing(image), options)
    if data is None:
        return verify(image, None, options)
    return verify(image, decode_raw(image, data, options.section_vaddr, options), options)
