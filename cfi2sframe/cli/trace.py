# SPDX-License-Identifier: Apache-2.0
"""The verb `trace`: print the stacks of a core file or of a live process."""

import argparse
import os

from cfi2sframe.cli.messages import EXIT_SUCCESS, PROGRAM, say
from cfi2sframe.cli.options import add_option, add_source, add_version, debug_file_of, positive
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import add_output, printing_of
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import RequestError, with_file_name
from cfi2sframe.files.find import read_named
from cfi2sframe.files.source import STANDARD_INPUT, named_source
from cfi2sframe.process.guard import limited
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.trace import FileStore, trace_core, trace_process
from cfi2sframe.trace.snapshot import resident_size


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
    parser.add_argument("core", metavar="CORE", nargs="?", help="the core file; - is standard input")
    add_option(parser, "--pid N", "trace a live process instead", type=positive)
    add_option(parser, "--executable FILE", "program that dumped CORE, if it is not at its own path")
    add_option(
        parser, "--sysroot DIR", "directory below which the mapped files are: those of another machine", default=""
    )
    add_option(parser, "--thread N", "id of a thread, or all (default all)", type=_thread)
    add_version(parser)
    add_source(parser, ("code",))
    text = "separate debug file, or a directory like /usr/lib/debug (default: where gdb looks)"
    add_option(parser, "--debug-file FILE", text, default="auto")
    add_output(parser, ("text", "json"))


def _thread(text: str) -> int | None:
    return None if text == "all" else positive(text)


def run(arguments: argparse.Namespace) -> int:
    """Trace a core or a process; everything that can fail is done before anything is printed."""
    core, pid = arguments.core, arguments.pid
    if core is None and pid is None:
        raise RequestError("no core file; name one, or use --pid N")
    if core is not None and pid is not None:
        raise RequestError("CORE and --pid are mutually exclusive")
    if core is not None and core.isdigit() and not os.path.lexists(core):
        raise RequestError(f"no core file {core}; for a process: {PROGRAM} trace --pid {core}")
    if pid is not None and arguments.executable is not None:
        raise RequestError("--executable is only valid with CORE; a process knows its program")
    if arguments.sysroot and not os.path.isdir(arguments.sysroot):
        raise RequestError(f"--sysroot: {arguments.sysroot} is no directory")
    printing = printing_of(arguments, () if core is None else (named_source(core),))
    store = FileStore(arguments.sframe_version or 3, arguments.source, debug_file_of(arguments) or "auto")
    name = "<stdin>" if core == STANDARD_INPUT else core
    with with_file_name(name or f"process {pid}"):
        # A pipe can be read only once.
        data = None if core is None else read_named(core)
        # Memory of a process that was never touched costs it nothing.
        with limited(resident_size(pid) if data is None else stored_size(data)):
            if data is None:
                traced = trace_process(pid, store=store, thread=arguments.thread, sysroot=arguments.sysroot)
            else:
                chosen = {"executable": arguments.executable, "thread": arguments.thread}
                traced = trace_core(data, store=store, sysroot=arguments.sysroot, **chosen)
            origin = {"file": name} if name else {"pid": pid}
            text = f"{traced}\n" if printing.format == "text" else traced.json(schema=SCHEMA_VERSION, **origin)
    if traced.space.snapshot.warning:
        say("warning", traced.space.snapshot.warning, name or "")
    with printing.open() as out:
        out.write(text)
    return EXIT_SUCCESS
