# SPDX-License-Identifier: Apache-2.0
"""The verb `trace`: print the stacks of a core file or of a live process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.cli.exit_status import EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.options import Printing, add_option, add_output, add_source, add_version, positive, printing_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import RequestError, naming

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.elf.cfi import CfiKind

#: The unit of st_blocks, in bytes.
_BLOCK_UNIT: Final = 512


class TraceRequest(NamedTuple):
    """A core file or a process to trace; `version` and `source` are for files that have no section of their own."""

    core: str | None
    pid: int | None
    executable: str | None = None
    threads: int | Literal["all"] = "all"
    version: int = 3
    source: CfiKind | None = None
    printing: Printing = Printing()


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
        f"  {PROGRAM} trace --pid 1234 --thread all --format json\n",
    )
    parser.add_argument("core", metavar="CORE", nargs="?", help="the core file")
    add_option(parser, "--pid N", "trace a live process instead", type=positive)
    add_option(parser, "--executable FILE", "program that dumped CORE, if it is not at its own path")
    add_option(parser, "--thread N", "id of a thread, or all (default all)", type=_thread, default="all")
    add_version(parser)
    add_source(parser, ("code",))
    add_output(parser, ("text", "json"))


def _thread(text: str) -> int | Literal["all"]:
    return "all" if text == "all" else positive(text)


def request_of(arguments: argparse.Namespace) -> TraceRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another."""
    if arguments.core is None and arguments.pid is None:
        raise RequestError("no core file; name one, or use --pid N")
    if arguments.core is not None and arguments.pid is not None:
        raise RequestError("CORE and --pid are mutually exclusive")
    if arguments.pid is not None and arguments.executable is not None:
        raise RequestError("--executable is only valid with CORE; a process knows its program")
    return TraceRequest(
        arguments.core,
        arguments.pid,
        arguments.executable,
        arguments.thread,
        arguments.sframe_version or 3,
        arguments.source,
        printing_of(arguments, () if arguments.core is None else (arguments.core,)),
    )


def run(request: TraceRequest) -> int:
    """Trace a core or a process; everything that can fail is done before anything is printed."""
    from cfi2sframe.guard import limited
    from cfi2sframe.trace.files import FileStore
    from cfi2sframe.trace.formatting import json_lines, trace_data, trace_lines
    from cfi2sframe.trace.run import trace_core, trace_process

    pid, core, threads = request.pid or 0, request.core, request.threads
    with naming(core or f"process {pid}"), limited(_input_size(request)):
        store = FileStore(request.version, request.source)
        if core is None:
            traced = trace_process(pid, store=store, threads=threads)
        else:
            traced = trace_core(core, executable=request.executable, store=store, threads=threads)
        if request.printing.format == "text":
            lines = [line + "\n" for line in trace_lines(traced)]
        else:
            lines = list(json_lines(trace_data(traced, file=core, pid=request.pid)))
    with request.printing.open() as out:
        out.writelines(lines)
    return EXIT_SUCCESS


def _input_size(request: TraceRequest) -> int:
    """Return the stored bytes of the core, or the resident bytes of the process: untouched memory costs it nothing."""
    if request.core is None:
        from cfi2sframe.trace.processes import resident_size

        return resident_size(request.pid or 0)
    status = os.stat(request.core)
    return min(status.st_size, status.st_blocks * _BLOCK_UNIT)
