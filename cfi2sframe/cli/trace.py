# SPDX-License-Identifier: Apache-2.0
"""The verb `trace`: print the stacks of a core file or of a live process, or an account of those in a recording."""

import argparse
import math
import os
from typing import Final

from cfi2sframe.cli.messages import EXIT_SUCCESS, PROGRAM, say
from cfi2sframe.cli.options import add_option, add_source, add_version, debug_file_of, positive
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import Printing, add_output, printing_of
from cfi2sframe.elf.load import is_recording, stored_size
from cfi2sframe.errors import RequestError, with_file_name
from cfi2sframe.files.find import read_named
from cfi2sframe.files.source import STANDARD_INPUT, named_source
from cfi2sframe.process.guard import limited
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.trace import FileStore, Profile, Recording, Wanted, trace_core, trace_process
from cfi2sframe.trace.live import resident_size
from cfi2sframe.trace.profile import perf_text

#: A range without ends.
_EVERY: Final = (None, None)


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} trace CORE [--executable FILE] [OPTION]...\n       {PROGRAM} trace --pid N [OPTION]...\n"
        f"       {PROGRAM} trace PERF.DATA [OPTION]...",
        "Print the stacks of a core file, or of a live process, unwound by SFrame rows: those of each mapped file's\n"
        ".sframe section, or, if it has none, of its CFI converted in memory. A process is stopped only while its\n"
        "registers and stacks are copied.\n\n"
        "Of a recording by perf record --call-graph dwarf, print how many of its stacks are whole, by rows and by\n"
        "frame pointers, where the others end, and which files have a section.",
        "Every trace ends with the reason why it ends: outermost is the true end of the stack.\n\n"
        f"examples:\n  {PROGRAM} trace core.1234\n  {PROGRAM} trace qemu.core --executable a.out\n"
        f"  {PROGRAM} trace --pid 1234 --thread all --format json\n"
        f"  {PROGRAM} trace perf.data --only-sections\n"
        f"  {PROGRAM} trace perf.data --format folded | flamegraph.pl > stacks.svg\n\n"
        "exit status: 0 the stacks are printed, wherever they end; 2 usage; 3 no core file or recording, or no such\n"
        "process.\n",
    )
    parser.add_argument("core", metavar="CORE", nargs="?", help="core file, or recording of perf; - is standard input")
    add_option(parser, "--pid N", "trace a live process instead; of a recording, only this process", type=positive)
    add_option(parser, "--executable FILE", "program that dumped CORE, if it is not at its own path")
    add_option(
        parser, "--sysroot DIR", "directory below which the mapped files are: those of another machine", default=""
    )
    add_option(parser, "--thread N", "id of a thread, or all (default all)", type=_thread)
    text = "of a recording, only samples by number, from 1 on; either end may be missing"
    add_option(parser, "--samples A..B", text, type=_range, default=_EVERY)
    text = "of a recording, only samples by perf's time in seconds; either end may be missing"
    add_option(parser, "--time A..B", text, type=_range, default=_EVERY)
    add_option(parser, "--only-sections", "convert no CFI: files without a section have no rows")
    add_version(parser)
    add_source(parser, ("code",))
    text = "separate debug file, or a directory like /usr/lib/debug (default: where gdb looks)"
    add_option(parser, "--debug-file FILE", text, default="auto")
    add_output(parser, ("text", "json", "folded", "perf"))


def _thread(text: str) -> int | None:
    return None if text == "all" else positive(text)


def _range(text: str) -> tuple[float | None, float | None]:
    low, dots, high = text.partition("..")
    try:
        ends = tuple(float(end) if end else None for end in (low, high if dots else low))
    except ValueError:
        ends = ()
    if len(ends) != 2 or any(end is not None and not 0 <= end < math.inf for end in ends):
        raise argparse.ArgumentTypeError(f"not a range A..B: {text!r}")
    return ends


def run(arguments: argparse.Namespace) -> int:
    """Trace a core, a process or a recording. Only `--format perf` prints samples before all of them are walked."""
    core, pid = arguments.core, arguments.pid
    if core is None and pid is None:
        raise RequestError("no core file; name one, or use --pid N")
    if core is not None and core.isdigit() and not os.path.lexists(core):
        raise RequestError(f"no core file {core}; for a process: {PROGRAM} trace --pid {core}")
    if core is None and arguments.executable is not None:
        raise RequestError("--executable is only valid with CORE; a process knows its program")
    if arguments.sysroot and not os.path.isdir(arguments.sysroot):
        raise RequestError(f"--sysroot: {arguments.sysroot} is no directory")
    printing = printing_of(arguments, () if core is None else (named_source(core),))
    debug_file, only_sections = debug_file_of(arguments) or "auto", arguments.only_sections
    store = FileStore(arguments.sframe_version or 3, arguments.source, debug_file, only_sections=only_sections)
    name = "<stdin>" if core == STANDARD_INPUT else core
    # A pipe can be read only once.
    data = None if core is None else read_named(core)
    with with_file_name(name or ""):
        is_recorded = data is not None and is_recording(data)
    if is_recorded and arguments.executable is not None:
        raise RequestError("--executable is only valid with a core file; a recording names its programs")
    if core is not None and pid is not None and not is_recorded:
        raise RequestError("CORE and --pid are mutually exclusive")
    for option, is_given in (
        ("--samples", arguments.samples != _EVERY),
        ("--time", arguments.time != _EVERY),
        (f"--format {printing.format}", printing.format in ("folded", "perf")),
    ):
        if is_given and not is_recorded:
            raise RequestError(f"{option} is only valid with a recording of perf")
    # A process pays nothing for memory that it has never touched.
    with with_file_name(name or f"process {pid}"), limited(resident_size(pid) if data is None else stored_size(data)):
        if is_recorded and data is not None:
            wanted = Wanted(pid, arguments.thread, arguments.samples, arguments.time)
            _print_recording(Recording(data, store, arguments.sysroot, wanted), printing, name)
            return EXIT_SUCCESS
        chosen = {"thread": arguments.thread, "store": store, "sysroot": arguments.sysroot}
        if data is None:
            traced = trace_process(pid, **chosen)
        else:
            traced = trace_core(data, executable=arguments.executable, **chosen)
        origin = {"file": name} if name else {"pid": pid}
        text = f"{traced}\n" if printing.format == "text" else traced.json(schema=SCHEMA_VERSION, **origin)
    if traced.space.snapshot.warning:
        say("warning", traced.space.snapshot.warning, name or "")
    with printing.open() as out:
        out.write(text)
    return EXIT_SUCCESS


def _print_recording(recording: Recording, printing: Printing, name: str) -> None:
    """Print samples one by one, their stacks, or their account, as the format asks."""
    if printing.format == "perf":
        with printing.open() as out:
            out.writelines(map(perf_text, recording))
        return
    profile = Profile(recording, keeps_stacks=printing.format != "text")
    for walked in recording:
        profile.add(walked)
    with printing.open() as out:
        if printing.format == "folded":
            out.writelines(profile.folded())
        else:
            out.write(f"{profile}\n" if printing.format == "text" else profile.json(schema=SCHEMA_VERSION, file=name))
