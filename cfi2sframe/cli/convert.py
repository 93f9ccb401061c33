# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`: write the section, report what is not in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.cli import EXIT_INCOMPLETE, EXIT_SUCCESS, EXIT_UNUSABLE, KEPT, PROGRAM
from cfi2sframe.cli.common import (
    add_conversion_options,
    conversion_options,
    fail,
    output_of,
    parser_of,
    percentage,
    read_image,
    say,
)
from cfi2sframe.cli.output import write_output
from cfi2sframe.elf.load import load
from cfi2sframe.errors import Cfi2SFrameError, RequestError

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.pipeline import Conversion
    from cfi2sframe.report.coverage import Coverage

_MAX_WARNINGS: Final = 10


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the verb's arguments."""
    parser = parser_of(
        "convert",
        f"{PROGRAM} [convert] IN (-o OUT | --in-place) [OPTION]...",
        "Write the SFrame section that says what the DWARF CFI of IN says: as raw bytes, or in a copy of IN.",
        "examples:\n"
        f"  {PROGRAM} in.o -o out.o                      an object for the linker\n"
        f"  {PROGRAM} --in-place program                 a program that carries its section\n"
        f"  {PROGRAM} in.o -o out.sframe                 the section's raw bytes\n"
        f"  {PROGRAM} -v --sframe-version 2 /bin/ls -o ls.sframe\n"
        f"  {PROGRAM} --strict --report report.json lib.so -o - | wc -c\n",
    )
    parser.add_argument("input", metavar="IN", help="an ELF object, executable or library; - is standard input")
    parser.add_argument("-o", "--output", metavar="OUT", help="the file to write; - is standard output")
    parser.add_argument(
        "--in-place", action="store_true", help="rewrite IN itself, keeping mode, owner and times where permitted"
    )
    parser.add_argument(
        "--emit",
        choices=("raw", "elf"),
        help="raw bytes of the section, or a copy of IN with the section in it (default: raw when OUT is - or "
        "ends in .sframe or .bin, else elf)",
    )
    parser.add_argument("--replace", action="store_true", help="an .sframe section that IN holds already gives way")
    parser.add_argument(
        "--section-type",
        choices=("gnu", "progbits"),
        default="gnu",
        help="SHT_GNU_SFRAME, or SHT_PROGBITS for linkers before binutils 2.45 (default gnu)",
    )
    parser.add_argument(
        "--no-verify", action="store_true", help="do not read the written file back and check it before the rename"
    )
    add_conversion_options(parser)
    parser.add_argument(
        "--frame-pointer",
        action="store_true",
        help="set SFRAME_F_FRAME_POINTER: you know that every function keeps one (versions 1 and 2)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="fail (4) when a function is left out, (3) when an FDE is damaged"
    )
    parser.add_argument(
        "--min-coverage",
        type=percentage,
        metavar="PERCENT",
        help="fail (4) when fewer of the functions are described",
    )
    parser.add_argument(
        "--report", metavar="FILE", help="write the account of the conversion, as coverage --json prints it"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print a summary on standard error")
    return parser


def execute(arguments: argparse.Namespace) -> int:
    """Convert one file."""
    from cfi2sframe.pipeline import convert_image

    written = arguments.output or arguments.input
    try:
        output = output_of(arguments)
        emits_raw = _emits_raw(arguments, output)
        image = read_image(arguments.input)
        conversion = convert_image(image, conversion_options(arguments))
        KEPT.append(conversion)
        wants_account = arguments.report or arguments.verbose or arguments.min_coverage is not None
        coverage = None if conversion.is_whole and not wants_account else _account(conversion)
        if coverage is not None:
            _warn(coverage)
            if arguments.report:
                written = arguments.report
                _write_report(arguments.report, coverage)
                written = output
        status = _status(arguments, conversion, coverage)
        if status != EXIT_SUCCESS:
            return status
        placement = ""
        if emits_raw:
            if not conversion.data:
                reason = f"SFrame version {conversion.target.version} can say none of the functions"
                return _refuse(f"{reason}; there is no section", conversion, EXIT_UNUSABLE)
            write_output(output, [conversion.data])
        else:
            conversion, placement = _write_elf(arguments, conversion, output)
    except BrokenPipeError:
        raise
    except Cfi2SFrameError as error:
        return fail(error, arguments.input)
    except OSError as error:
        return fail(error, "<stdout>" if written == "-" else written)
    if coverage is not None and arguments.verbose:
        from cfi2sframe.report.text import summary

        say("info", summary(coverage), image.name)
        if placement:
            say("info", placement, image.name)
        elif not image.is_relocatable:
            say("info", f"starts are relative to .sframe at 0x{conversion.section_vaddr:x}", image.name)
    return status


def _emits_raw(arguments: argparse.Namespace, output: str) -> bool:
    if arguments.in_place and arguments.emit == "raw":
        raise RequestError("--in-place writes an ELF file; --emit raw needs -o")
    is_raw = arguments.emit == "raw" or (
        arguments.emit is None and not arguments.in_place and (output == "-" or output.endswith((".sframe", ".bin")))
    )
    if not is_raw and arguments.section_address is not None:
        raise RequestError("--section-address belongs to raw bytes; in a file the section's place decides")
    return is_raw


def _write_elf(arguments: argparse.Namespace, conversion: Conversion, output: str) -> tuple[Conversion, str]:
    """Write a copy of the input with the section in it; return the conversion as placed, and how that was done."""
    from cfi2sframe.elf.constants import SHT_GNU_SFRAME, SHT_PROGBITS
    from cfi2sframe.emit import check, emit

    like = None if arguments.input == "-" else arguments.input
    if not conversion.data:
        say("warning", "nothing can be said: the copy is the input, without a section", conversion.image.name)
        if not arguments.in_place:
            write_output(output, [conversion.image.data], like=like)
        return conversion, ""
    section_type = SHT_GNU_SFRAME if arguments.section_type == "gnu" else SHT_PROGBITS
    emitted = emit(conversion, replace=arguments.replace, section_type=section_type)
    for warning in emitted.warnings:
        say("warning", warning, conversion.image.name)

    def check_file(path: str) -> None:
        check(emitted, load(path))

    write_output(
        output,
        emitted.chunks,
        like=like,
        keep_times=arguments.in_place,
        check=None if arguments.no_verify else check_file,
    )
    where = "" if emitted.plan is None else f" at 0x{emitted.plan.section_vaddr:x}"
    return emitted.conversion, f".sframe{where}: {emitted.placement}"


def _account(conversion: Conversion) -> Coverage:
    # A whole conversion needs no account, and should not pay for loading it.
    from cfi2sframe.report.coverage import account

    return account(conversion)


def _write_report(path: str, coverage: Coverage) -> None:
    import json

    from cfi2sframe.report.coverage import coverage_data

    write_output(path, [json.dumps(coverage_data(coverage), indent=2).encode() + b"\n"])


def _warn(coverage: Coverage) -> None:
    from cfi2sframe.report.text import describe_left_out, describe_stub

    messages = [f"{d.where}+0x{d.offset:x}: {d.reason}; the FDE is skipped" for d in coverage.damaged]
    messages += [describe_left_out(item, coverage) for item in coverage.left_out]
    messages += [f"{describe_stub(item)}: no SFrame FDE" for item in coverage.stubs_left_out]
    for message in messages[:_MAX_WARNINGS]:
        say("warning", message, coverage.file)
    if len(messages) > _MAX_WARNINGS:
        say(
            "warning",
            f"{len(messages) - _MAX_WARNINGS:,} more functions without an SFrame FDE",
            coverage.file,
        )


def _status(arguments: argparse.Namespace, conversion: Conversion, coverage: Coverage | None) -> int:
    """Decide whether the section is to be written: only with status 0."""
    if arguments.strict and conversion.cfi.failures:
        return _refuse("a damaged FDE, and --strict forbids it", conversion, EXIT_UNUSABLE)
    if arguments.strict and not conversion.is_whole:
        return _refuse("functions are left out, and --strict forbids it", conversion, EXIT_INCOMPLETE)
    if coverage is not None and arguments.min_coverage is not None:
        percent = coverage.functions.percent
        if percent < arguments.min_coverage:
            reason = f"{percent:.2f} % of the functions are described, less than {arguments.min_coverage:g} %"
            return _refuse(reason, conversion, EXIT_INCOMPLETE)
    return EXIT_SUCCESS


def _refuse(reason: str, conversion: Conversion, status: int) -> int:
    say("error", reason, conversion.image.name)
    return status
