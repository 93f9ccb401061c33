# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`: compare a section with the CFI, or hold it to what a reader insists on."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.common import fail, read_image, read_section, say
from cfi2sframe.cli.exit_status import EXIT_DIFFERENCE, EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.options import add_conversion_options, conversion_options
from cfi2sframe.cli.parsers import describe
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.errors import Cfi2SFrameError, RequestError, SFrameError
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedSection
    from cfi2sframe.verification import Verification
    from cfi2sframe.verification.readers import Verdict


#: The readers that `api.judge` knows; not asked for here, so that `--help` loads no more than it needs.
READER_NAMES: Final = ("kernel", "glibc", "libsframe", "gnu-ld")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} verify IN [SECTION | --existing] [--reader NAME]... [OPTION]...",
        "Compare an SFrame section with the CFI of IN at every row boundary of either side: CFA, RA, FP, RA signing,\n"
        "outermost frames; and check what readers require. The section is the one that convert would make, a raw\n"
        "file SECTION, or the one that IN already has (--existing). The exit status is 1 if anything differs.\n\n"
        "With --reader, hold the section to what this reader insists on instead, and print what it would do with it.\n"
        "The exit status is 1 if no known release of a named reader would read it.",
        "examples:\n"
        f"  {PROGRAM} verify -v /bin/ls\n"
        f"  {PROGRAM} verify --existing program\n"
        f"  {PROGRAM} verify --existing program --reader kernel --reader glibc\n"
        f"  {PROGRAM} verify lib.so lib.sframe --section-address 0x40000\n",
    )
    parser.add_argument("input", metavar="IN", help="an ELF object, executable or library")
    parser.add_argument("section", metavar="SECTION", nargs="?", help="a file with the raw bytes of a section")
    parser.add_argument("--existing", action="store_true", help="check the .sframe section of IN")
    parser.add_argument(
        "--reader",
        choices=READER_NAMES,
        action="append",
        default=[],
        help="what would this reader do with the section? kernel: Linux, in no release yet; glibc: backtrace() of "
        "2.42 to 2.44; libsframe: readelf, gdb; gnu-ld (objects); may be repeated",
    )
    add_conversion_options(parser)
    parser.add_argument("-v", "--verbose", action="store_true", help="print how much was compared")


def execute(arguments: argparse.Namespace) -> int:
    """Verify one section."""
    try:
        options = conversion_options(arguments)
        if arguments.section is not None and arguments.existing:
            raise RequestError("--existing and SECTION exclude one another")
        image = read_image(arguments.input)
        data = None if arguments.section is None else _read(arguments.section)
        if arguments.reader:
            return _judge(arguments, image, _section(image, data, options, is_existing=arguments.existing))
        result = _verify(image, data, options, is_existing=arguments.existing)
    except SFrameError as error:
        return fail(error, arguments.section or arguments.input)
    except Cfi2SFrameError as error:
        return fail(error, arguments.input)
    except OSError as error:
        return fail(error, arguments.section or arguments.input)
    for difference in result.differences:
        where = _place(image, difference.vaddr)
        sys.stdout.write(f"{printable(arguments.input)}: {printable(where)}: {difference.kind}: {difference.message}\n")
    if arguments.verbose:
        say(
            "info",
            f"{result.function_count:,} functions, {result.point_count:,} rows compared, "
            f"{result.left_out_count:,} rightly left out, {len(result.differences):,} differences",
            arguments.input,
        )
    return EXIT_SUCCESS if result.is_clean else EXIT_DIFFERENCE


def _place(image: ElfImage, vaddr: int) -> str:
    place = image.place(vaddr)
    return f"{shown_name(place.section_name)}+0x{place.offset:x}" if image.is_relocatable else f"0x{place.offset:x}"


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return read_section(file)


def _verify(image: ElfImage, data: bytes | None, options: Options, *, is_existing: bool) -> Verification:
    from cfi2sframe.api import verify

    if data is None and not is_existing:
        return verify(image, None, options)
    return verify(image, _section(image, data, options, is_existing=is_existing), options)


def _section(image: ElfImage, data: bytes | None, options: Options, *, is_existing: bool) -> DecodedSection:
    """Return the section that is to be judged: of the file, of raw bytes, or the one that would be made."""
    from cfi2sframe.api import decode_existing, decode_made, decode_raw

    if is_existing:
        return decode_existing(image)
    return decode_made(image, options) if data is None else decode_raw(image, data, options.section_vaddr, options)


def _judge(arguments: argparse.Namespace, image: ElfImage, section: DecodedSection) -> int:
    """Print what each reader would do with the section; return 1 if one would not read it in any release."""
    from cfi2sframe.api import judge

    status = EXIT_SUCCESS
    for name in dict.fromkeys(arguments.reader):
        verdicts = judge(image, section, name, is_in_file=arguments.existing)
        for verdict in verdicts:
            prefix = f"{arguments.input}: {verdict.reader} ({verdict.releases})"
            for line in _lines(verdict, image):
                sys.stdout.write(printable(f"{prefix}: {line}") + "\n")
        if not any(verdict.reads_it for verdict in verdicts):
            status = EXIT_DIFFERENCE
    return status


def _lines(verdict: Verdict, image: ElfImage) -> Iterator[str]:
    for broken in verdict.broken:
        where = "" if broken.vaddr is None else f"{_place(image, broken.vaddr)}: "
        more = f" ({broken.place_count:,} such places)" if broken.place_count > 1 else ""
        yield f"{broken.consequence}: {broken.rule}: {where}{broken.message}{more}"
    if verdict.reads_it:
        yield "reads it"
    for habit in verdict.habits:
        yield f"{habit.amount:,} {habit.message}"
