# SPDX-License-Identifier: Apache-2.0
"""One file converted to another: the section's raw bytes, or a copy with the section in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli import EXIT_SUCCESS, EXIT_UNUSABLE, KEPT
from cfi2sframe.cli.common import (
    ADDRESS_BELONGS_TO_RAW,
    EXIT_OF_PROBLEM,
    conversion_options,
    fail,
    say,
    section_type_of,
)
from cfi2sframe.cli.output import open_image, write_output
from cfi2sframe.elf.load import image_of
from cfi2sframe.errors import Cfi2SFrameError, RequestError
from cfi2sframe.jobs.policy import account_if_needed, refusal_of, warnings_of

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.source import Source
    from cfi2sframe.report.coverage import Coverage


def convert_file(arguments: argparse.Namespace, source: str, output: str) -> int:
    """Convert `source` to `output`, and say what is to be said."""
    try:
        emits_raw = _emits_raw(arguments, output)
        with open_image(source) as (image, opened):
            return _convert(arguments, image, opened, output, emits_raw=emits_raw)
    except BrokenPipeError:
        raise
    except Cfi2SFrameError as error:
        return fail(error, source)
    except OSError as error:
        return fail(error, "<stdout>" if output == "-" else output)


def _convert(
    arguments: argparse.Namespace, image: ElfImage, source: Source | None, output: str, *, emits_raw: bool
) -> int:
    from cfi2sframe.conversion import convert_image

    conversion = convert_image(image, conversion_options(arguments))
    KEPT.append(conversion)
    wants_account = bool(arguments.report or arguments.verbose or arguments.min_coverage is not None)
    coverage = account_if_needed(conversion, is_wanted=wants_account)
    for warning in warnings_of(coverage):
        say("warning", warning, image.name)
    if coverage is not None and arguments.report:
        try:
            _write_report(arguments.report, coverage)
        except BrokenPipeError:
            raise
        except OSError as error:
            return fail(error, "<stdout>" if arguments.report == "-" else arguments.report)
    refusal = refusal_of(conversion, coverage, is_strict=arguments.strict, min_coverage=arguments.min_coverage)
    if refusal is not None:
        say("error", refusal.reason, image.name)
        return EXIT_OF_PROBLEM[refusal.problem]
    placement = ""
    if not emits_raw:
        conversion, placement = _write_elf(arguments, conversion, source, output)
    elif conversion.data:
        write_output(output, conversion.data, source=source)
    else:
        reason = f"SFrame version {conversion.target.version} can say none of the functions; there is no section"
        say("error", reason, image.name)
        return EXIT_UNUSABLE
    if coverage is not None and arguments.verbose:
        _say_summary(conversion, coverage, placement)
    return EXIT_SUCCESS


def _emits_raw(arguments: argparse.Namespace, output: str) -> bool:
    is_raw: bool = arguments.emit == "raw" or (
        arguments.emit is None and (output == "-" or output.endswith((".sframe", ".bin")))
    )
    if not is_raw and arguments.section_address is not None:
        raise RequestError(ADDRESS_BELONGS_TO_RAW)
    return is_raw


def _write_elf(
    arguments: argparse.Namespace, conversion: Conversion, source: Source | None, output: str
) -> tuple[Conversion, str]:
    """Write a copy of the input with the section in it; return the conversion as placed, and how that was done."""
    from cfi2sframe.emit import check, emit

    name = conversion.image.name
    if not conversion.data:
        say("warning", "nothing can be said: the copy is the input, without a section", name)
        write_output(output, conversion.image.data, source=source, is_copy=True)
        return conversion, ""
    emitted = emit(
        conversion,
        replace=arguments.replace,
        section_type=section_type_of(arguments),
        may_move_table=arguments.header_table == "end",
    )
    for warning in emitted.warnings:
        say("warning", warning, name)

    def check_content(content: FileData) -> None:
        check(emitted, image_of(content, name))

    checked = None if arguments.no_verify else check_content
    for warning in write_output(output, emitted.chunks, source=source, is_copy=True, check=checked):
        say("warning", warning, name)
    where = "" if emitted.plan is None else f" at 0x{emitted.plan.section_vaddr:x}"
    return emitted.conversion, f".sframe{where}: {emitted.placement}"


def _write_report(path: str, coverage: Coverage) -> None:
    import json

    from cfi2sframe.report.coverage import coverage_data

    write_output(path, json.dumps(coverage_data(coverage), indent=2).encode() + b"\n")


def _say_summary(conversion: Conversion, coverage: Coverage, placement: str) -> None:
    from cfi2sframe.render.text import summary

    image = conversion.image
    say("info", summary(coverage), image.name)
    if placement:
        say("info", placement, image.name)
    elif not image.is_relocatable:
        say("info", f"starts are relative to .sframe at 0x{conversion.section_vaddr:x}", image.name)
