# SPDX-License-Identifier: Apache-2.0
"""The verb `size`: what SFrame costs, for files and trees."""

from __future__ import annotations

from functools import partial
from operator import add
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli.answers import Collected, collect, publish
from cfi2sframe.cli.messages import PROGRAM
from cfi2sframe.cli.options import (
    Inputs,
    Printing,
    add_inputs,
    add_level,
    add_option,
    add_output,
    add_source,
    add_version,
    count_or_all,
    inputs_of,
    printing_of,
    process_count,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import RequestError
from cfi2sframe.report.tables import FORMATS

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.files.find import Source, Unusable
    from cfi2sframe.report.size import FileSize

#: The lines of a table for people; files for programs, and pages, list all.
_TEXT_LINE_COUNT: Final = 25
#: `--top` where nothing is said.
_BY_FORMAT: Final = -1
#: What files can be sorted by: fields in descending order, or the name.
ORDERS: Final = {"sframe": "sframe_size", "ratio": "ratio", "name": None}
_NOTHING: Final = "there is nothing to measure"


class SizeRequest(NamedTuple):
    """Files to measure with these options, or two trees to compare.

    `order` is the field that lines are sorted by (None: the name), and `top` their number (None: all).
    """

    inputs: Inputs
    printing: Printing
    options: Options
    compared: tuple[str, ...] = ()
    order: str | None = "sframe_size"
    top: int | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} size FILE... [OPTION]...\n       {PROGRAM} size --compare OLD NEW [OPTION]...",
        "Measure what an SFrame section costs or would cost, as this program writes it and, estimated, as GNU as and\n"
        "ld would: in one sentence, and for each file. No file is changed.",
        f"examples:\n  {PROGRAM} size /bin/ls\n  {PROGRAM} size /usr/bin --top 10\n"
        f"  {PROGRAM} size /usr/lib -j 4 -o report.html\n"
        f"  {PROGRAM} size --compare old/ new/ --format markdown\n",
    )
    add_inputs(parser, "ELF file or directory; - is standard input")
    group = parser.add_argument_group("what is measured")
    add_option(group, "--compare OLD NEW", "two files, or two trees matched by name")
    add_version(group)
    add_level(group)
    add_source(group, ("code",))
    group = add_output(parser, FORMATS)
    add_option(group, "--sort COLUMN", f"{', '.join(ORDERS)} (default sframe)", choices=ORDERS, default="sframe")
    text = f"list N lines, or all (default: {_TEXT_LINE_COUNT} in text and markdown, else all); totals count all"
    add_option(group, "--top N", text, type=count_or_all, default=_BY_FORMAT)


def request_of(arguments: argparse.Namespace) -> SizeRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    from cfi2sframe.conversion import Options

    compared = tuple(arguments.compare or ())
    if compared:
        if arguments.inputs or arguments.files_from:
            raise RequestError("--compare OLD NEW takes no other files")
        inputs = Inputs((), tuple(arguments.exclude), process_count(arguments.jobs))
    else:
        inputs = inputs_of(arguments)
    printing = printing_of(arguments, compared or inputs.names)
    options = Options(arguments.sframe_version or 3, source=arguments.source, level=arguments.level)
    top = arguments.top
    if top == _BY_FORMAT:
        top = _TEXT_LINE_COUNT if printing.format in ("text", "markdown") else None
    return SizeRequest(inputs, printing, options, compared, ORDERS[arguments.sort], top)


def run(request: SizeRequest) -> int:
    """Measure and report; a file that cannot be read does not stop the others."""
    from cfi2sframe.report.size_report import size_report

    if request.compared:
        return _compare(request)
    collected = _collect(request.inputs.find(), request)
    report = partial(size_report, collected.answers, level=request.options.level, order=request.order, top=request.top)
    return publish(collected, report, request.printing, _NOTHING)


def _compare(request: SizeRequest) -> int:
    from cfi2sframe.files.find import find_sources
    from cfi2sframe.report.size_report import comparison_report

    found = (find_sources([root], request.inputs.excluded, is_relative=True) for root in request.compared)
    old, new = (_collect(list(sources), request) for sources in found)
    both = Collected(*map(add, old, new))
    if not (old.answers and new.answers):
        both.answers.clear()
    report = partial(comparison_report, old.answers, new.answers, top=request.top)
    return publish(both, report, request.printing, _NOTHING)


def _collect(found: Sequence[Source | Unusable], request: SizeRequest) -> Collected[FileSize]:
    return collect(found, partial(_size_of, options=request.options), request.inputs.process_count)


def _size_of(image: ElfImage, options: Options) -> FileSize:
    from cfi2sframe.conversion import convert_image
    from cfi2sframe.report.size import measure

    return measure(convert_image(image, options))
