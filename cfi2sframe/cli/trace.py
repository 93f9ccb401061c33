# SPDX-License-Identifier: Apache-2.0
"""The verb `trace`: print the stacks of a core file or of a live process."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Final, Literal

from cfi2sframe.cli.common import fail
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.outputs import add_output, check_output, format_of, output_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import Cfi2SFrameError, OutputError, RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cfi2sframe.trace.run import Traced

#: The unit of st_blocks, in bytes.
_BLOCK_UNIT: Final = 512


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} trace CORE [--executable FILE] [OPTION]...\n       {PROGRAM} trace --pid N [OPTION]...",
        "Print the stacks of a core file, or of a live process, unwound by SFrame rows: those of each mapped file's\n"
        ".sframe section, or, if it has none, of its CFI converted in memory. A process is stopped only while its\n"
        "registers and stacks are copied.",
        "Every trace ends with the reason why it ends: outermost is the true end of the stack.\n\n"
        f"examples:\n  {PROGRAM} trace core.1234\n  {PROGRAM} trace qemu.core --executable a.out\n"
        f"  {PROGRAM} trace --pid 1234 --thread all --json\n",
    )
    parser.add_argument("core", metavar="CORE", nargs="?", help="the core file")
    parser.add_argument("--pid", type=_number, metavar="N", help="trace a live process instead")
    parser.add_argument(
        "--executable", metavar="FILE", help="the program that dumped CORE, if it is not at its own path"
    )
    parser.add_argument(
        "--thread", type=_thread, default="all", metavar="N", help="one thread, by its id, or all (the default)"
    )
    parser.add_argument(
        "--limit", type=_number, default=100_000, metavar="N", help="the most frames of a thread (default 100000)"
    )
    parser.add_argument(
        "--sframe-version",
        type=int,
        choices=(1, 2, 3),
        default=3,
        metavar="{1,2,3}",
        help="the version that CFI is converted to (default 3)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=("code",),
        help="code: where a file has no .sframe section, also find rows in the instructions of code that no CFI covers",
    )
    add_output(parser, ("text", "json"))


def _number(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value <= 0:
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return value


def _thread(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else _number(text)


def execute(arguments: argparse.Namespace) -> int:
    """Trace a core or a process."""
    try:
        check_output(arguments)
        lines = _lines(arguments)
    except (Cfi2SFrameError, OSError) as error:
        return fail(error, arguments.core or ("" if arguments.pid is None else f"process {arguments.pid}"))
    try:
        with output_of(arguments) as out:
            out.writelines(lines)
    except OutputError as error:
        return fail(error, "")
    return EXIT_SUCCESS


def _lines(arguments: argparse.Namespace) -> Iterable[str]:
    """Return the text to print, in pieces; everything that can fail is done before the first."""
    from cfi2sframe.guard import limited
    from cfi2sframe.trace.formatting import json_lines, trace_data, trace_lines

    with limited(_input_size(arguments)):
        traced = _trace(arguments)
        if format_of(arguments) == "text":
            return [line + "\n" for line in trace_lines(traced)]
        return list(json_lines(trace_data(traced, file=arguments.core, pid=arguments.pid)))


def _input_size(arguments: argparse.Namespace) -> int:
    """Return the stored bytes of the core, or the resident bytes of the process: untouched memory costs it nothing."""
    if arguments.pid is not None:
        from cfi2sframe.trace.processes import resident_size

        return resident_size(arguments.pid)
    if arguments.core is None:
        return 0
    status = os.stat(arguments.core)
    return min(status.st_size, status.st_blocks * _BLOCK_UNIT)


def _trace(arguments: argparse.Namespace) -> Traced:
    from cfi2sframe.trace.files import FileStore
    from cfi2sframe.trace.run import trace_core, trace_process

    if arguments.core is None and arguments.pid is None:
        raise RequestError("no core file; name one, or use --pid N")
    if arguments.core is not None and arguments.pid is not None:
        raise RequestError("CORE and --pid are mutually exclusive")
    store = FileStore(arguments.sframe_version, arguments.source)
    options = {"threads": arguments.thread, "limit": arguments.limit}
    if arguments.pid is not None:
        if arguments.executable is not None:
            raise RequestError("--executable belongs to CORE; a process knows its program")
        return trace_process(arguments.pid, store=store, **options)
    return trace_core(arguments.core, executable=arguments.executable, store=store, **options)
