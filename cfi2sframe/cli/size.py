# SPDX-License-Identifier: Apache-2.0
"""The verb `size`: measure what SFrame costs, for files and trees."""

import argparse
from functools import partial
from itertools import chain
from typing import Final

from cfi2sframe.api import convert_for
from cfi2sframe.cli.messages import EXIT_INCOMPLETE, PROGRAM, say, worst
from cfi2sframe.cli.options import (
    add_conversion_options,
    add_inputs,
    add_option,
    compared_sources,
    conversion_options,
    percentage,
    sources_of,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import add_output, answers_in, collect, count_or_all, printing_of, publish
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.jobs.growth import padding_size
from cfi2sframe.report.size import FileSize, comparison_report, measure, size_report
from cfi2sframe.report.tables import FORMATS

#: Lines of a table in text and Markdown; other formats list all files.
_TEXT_LINE_COUNT: Final = 25
#: The value of `--top` if it is not given: the format decides.
_BY_FORMAT: Final = -1
#: Orders of files: by a field, descending, or by name.
ORDERS: Final = {"sframe": "sframe_size", "ratio": "ratio", "name": None}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} size FILE... [OPTION]...\n       {PROGRAM} size --compare OLD NEW [OPTION]...",
        "Measure what an SFrame section costs or would cost, as this program writes it and, estimated, as GNU as and\n"
        "ld would: in one sentence, and for each file. No file is changed.",
        f"examples:\n  {PROGRAM} size /bin/ls\n  {PROGRAM} size /usr/bin --top 10\n"
        f"  {PROGRAM} size /usr/lib -j 4 -o report.html\n"
        f"  {PROGRAM} size --compare old/ new/ --fail-over 5 --format markdown\n\n"
        "exit status: 0 success; 2 usage; 3 a file cannot be used; 4 more is added than --fail-over.\n",
    )
    add_inputs(parser, "ELF file or directory; - is standard input")
    group = parser.add_argument_group("what is measured")
    add_option(group, "--compare OLD NEW", "two files, or two trees matched by name")
    text = "fail (4) if a FILE grows by more, in percent; with --compare, if all sections do"
    add_option(group, "--fail-over PERCENT", text, type=percentage)
    add_conversion_options(parser)
    group = add_output(parser, FORMATS)
    add_option(group, "--sort COLUMN", f"{', '.join(ORDERS)} (default sframe)", choices=ORDERS, default="sframe")
    text = f"list N lines, or all (default: {_TEXT_LINE_COUNT} in text and markdown, else all); totals count all"
    add_option(group, "--top N", text, type=count_or_all, default=_BY_FORMAT)


def run(arguments: argparse.Namespace) -> int:
    """Measure and report; a file that cannot be read does not stop the others."""
    compared: list[str] = arguments.compare or []
    groups = compared_sources(arguments) if compared else [sources_of(arguments, with_archives=True)]
    printing = printing_of(arguments, chain.from_iterable(groups))
    options, top = conversion_options(arguments), arguments.top
    if top == _BY_FORMAT:
        top = _TEXT_LINE_COUNT if printing.format in ("text", "markdown") else None

    def question(image: ElfImage) -> FileSize:
        conversion = convert_for(image, options, arguments.reader)
        return measure(conversion, padding_size(conversion))

    collected = [collect(arguments, sources, question) for sources in groups]
    results, sizes = list(chain.from_iterable(collected)), [answers_in(side) for side in collected]
    if compared:
        report = partial(comparison_report, *sizes, top=top)
        before, after = (sum(file.sframe_size for file in side) for side in sizes)
        grown = [(compared[1], 100 * (after - before) / before)] if before and all(sizes) else []
        if not all(sizes):
            # There is nothing to compare; failures decide the status.
            results = [result for result in results if result.answer is None]
    else:
        report = partial(size_report, sizes[0], level=options.level, order=ORDERS[arguments.sort], top=top)
        grown = [(size.file, size.growth_percent or 0.0) for size in sizes[0]]
    status = publish(results, report, printing, "there is nothing to measure")
    limit = arguments.fail_over
    over = [(name, percent) for name, percent in grown if limit is not None and percent > limit]
    for name, percent in over:
        say("error", f".sframe adds {percent:.1f} %, more than {limit:g} %", name)
    return worst((status, EXIT_INCOMPLETE)) if over else status
