# SPDX-License-Identifier: Apache-2.0
"""The verb `coverage`: which functions of each file SFrame can describe."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from cfi2sframe.cli.common import fail, read_image
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.options import add_conversion_options, conversion_options
from cfi2sframe.cli.parsers import describe

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} coverage IN... [OPTION]...",
        "List per file which functions and executable bytes the SFrame section describes, which FDEs are left out and\n"
        "why, which are dropped, and which bytes no CFI covers. No file is changed.",
        f"examples:\n  {PROGRAM} coverage /bin/ls\n  {PROGRAM} coverage --json --sframe-version 2 *.so\n",
    )
    parser.add_argument("inputs", metavar="IN", nargs="+", help="ELF objects, executables or libraries")
    add_conversion_options(parser)
    parser.add_argument(
        "--return-addresses",
        action="store_true",
        help="look up the return address of every call, too, as readers do that do not look up the call itself; takes "
        "about a second for 2 MB of code",
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one account, or a list of them")


def execute(arguments: argparse.Namespace) -> int:
    """Account for every file; one that cannot be read does not stop the others."""
    from cfi2sframe.conversion import convert_image
    from cfi2sframe.render.text import coverage_lines
    from cfi2sframe.report.coverage import account, coverage_data

    status = EXIT_SUCCESS
    accounts: list[dict[str, Any]] = []
    for path in arguments.inputs:
        try:
            conversion = convert_image(read_image(path), conversion_options(arguments))
            coverage = account(conversion)
            if arguments.return_addresses:
                from cfi2sframe.report.return_addresses import count_return_addresses

                coverage = coverage._replace(return_addresses=count_return_addresses(conversion))
            data = coverage_data(coverage) if arguments.json else {}
        except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
            status = max(status, fail(error, path))
            continue
        if arguments.json:
            accounts.append(data)
        else:
            # Line by line: the text may be many times the size of the account.
            sys.stdout.writelines(f"{line}\n" for line in coverage_lines(coverage))
            sys.stdout.write("\n")
    if arguments.json:
        import json

        json.dump(accounts[0] if len(arguments.inputs) == 1 and accounts else accounts, sys.stdout, indent=2)
        sys.stdout.write("\n")
    return status
