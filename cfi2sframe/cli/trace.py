# SPDX-License-Identifier: Apache-2.0
"""The verb `trace`: print the stacks of a core file or of a live process."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.cli.messages import EXIT_SUCCESS, PROGRAM
from cfi2sframe.cli.options import (
    Printing,
    add_option,
    add_output,
    add_source,
    add_version,
    debug_file_of,
    positive,
    printing_of,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import RequestError, naming

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.elf.cfi import CfiKind


class TraceRequest(NamedTuple):
    """A core file or a process to trace; `version` and `source` are for files that have no section of their own."""

    core: str | None
    pid: int | None
    executable: str | None = None
    thread: int | None = None
    version: int = 3
    source: CfiKind | None = None
    printing: Printing = Printing()
    debug_file: str = "auto"


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
        f"  {PROGRAM} trace --pid 1234 --thread all --format json\n\n"
        "exit status: 0 the stacks are printed, wherever they end; 2 usage; 3 no core file, or no such process.\n",
    )
    parser.add_argument("core", metavar="CORE", nargs="?", help="the core file")
    add_option(parser, "--pid N", "trace a live process instead", type=positive)
    add_option(parser, "--executable FILE", "program that dumped CORE, if it is not at its own path")
    add_option(parser, "--thread N", "id of a thread, or all (default all)", type=_thread)
    add_version(parser)
    add_source(parser, ("code",))
    text = "separate debug file, or a directory like /usr/lib/debug (default: where gdb looks)"
    add_option(parser, "--debug-file FILE", text, default="auto")
    add_output(parser, ("text", "json"))


def _thread(text: str) -> int | None:
    return None if text == "all" else positive(text)


def request_of(arguments: argparse.Namespace) -> TraceRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another."""
    if arguments.core is None and arguments.pid is None:
        raise RequestError("no core file; name one, or use --pid N")
    if arguments.core is not None and arguments.pid is not None:
        raise RequestError("CORE and --pid are mutually exclusive")
    if arguments.core is not None and arguments.core.isdigit() and not os.path.lexists(arguments.core):
        raise RequestError(f"no core file {arguments.core}; for a process: {PROGRAM} trace --pid {arguments.core}")
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
        debug_file_of(arguments) or "auto",
    )


def run(request: TraceRequest) -> int:
    """Trace a core or a process; everything that can fail is done before anything is printed."""
    from cfi2sframe.elf.load import read_file, stored_size
    from cfi2sframe.process.guard import limited
    from cfi2sframe.report.tables import SCHEMA_VERSION
    from cfi2sframe.trace import FileStore, trace_core, trace_process
    from cfi2sframe.trace.snapshot import resident_size

    core, pid = request.core, request.pid or 0
    with naming(core or f"process {pid}"):
        # A pipe can be read only once.
        data = None if core is None else read_file(core)
        # Memory of a process that was never touched costs it nothing.
        with limited(resident_size(pid) if data is None else stored_size(data)):
            store = FileStore(request.version, request.source, request.debug_file)
            if data is None:
                traced = trace_process(pid, store=store, thread=request.thread)
            else:
                traced = trace_core(data, executable=request.executable, store=store, thread=request.thread)
            origin: dict[str, str | int] = {"schema": SCHEMA_VERSION, **({"file": core} if core else {"pid": pid})}
            text = f"{traced}\n" if request.printing.format == "text" else traced.json(**origin)
    with request.printing.open() as out:
        out.write(text)
    return EXIT_SUCCESS
