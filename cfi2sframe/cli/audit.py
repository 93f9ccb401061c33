# SPDX-License-Identifier: Apache-2.0
"""The verb `audit`: list where the CFI of a file contradicts its instructions."""

import argparse
from functools import partial

from cfi2sframe.audit.compare import Audit, audit
from cfi2sframe.cli.messages import EXIT_DIFFERENCE, EXIT_SUCCESS, PROGRAM, worst
from cfi2sframe.cli.options import (
    add_debug_file,
    add_inputs,
    add_option,
    add_source,
    sources_of,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import add_output, answers_in, collect, printing_of, publish
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.report.audit import audit_report
from cfi2sframe.report.tables import FORMATS


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} audit FILE... [OPTION]...",
        "Follow what the instructions of each FILE do to the stack, and compare it with the CFI: CFA, RA and FP.\n"
        "Print each place where the two contradict each other, with the directive that would be right there. What\n"
        "the instructions do not tell is not compared. Exit 1 on any mismatch.",
        f"examples:\n  {PROGRAM} audit memcpy.o\n  {PROGRAM} audit -v /usr/lib/x86_64-linux-gnu/libc.so.6\n"
        f"  {PROGRAM} audit -j 4 build -o audit.json\n\n"
        "exit status: 0 no mismatch; 1 a mismatch; 2 usage; 3 a file cannot be used.\n",
    )
    add_inputs(parser, "ELF file or directory; - is standard input")
    group = parser.add_argument_group("what to compare")
    add_source(group, ("eh_frame", "debug_frame", "gopclntab"))
    add_debug_file(group)
    group = add_output(parser, FORMATS)
    add_option(group, "-v, --verbose", "name functions that could not be compared, and why")


def run(arguments: argparse.Namespace) -> int:
    """Audit all files; return the worst file's exit status."""
    sources = sources_of(arguments, with_archives=True)
    printing = printing_of(arguments, sources)

    def question(image: ElfImage) -> Audit:
        return audit(image, arguments.source)

    results = collect(arguments, sources, question)
    audits = answers_in(results)
    has_findings = any(audited.findings for audited in audits)
    # A contradiction is an error, and printed with --quiet, too.
    printing = printing._replace(is_unasked=printing.is_unasked and not has_findings)
    report = partial(audit_report, audits, with_undecided=arguments.verbose)
    status = publish(results, report, printing, "none of these files has CFI")
    return worst((status, EXIT_DIFFERENCE if has_findings else EXIT_SUCCESS))
