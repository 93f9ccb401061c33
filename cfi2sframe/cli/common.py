# SPDX-License-Identifier: Apache-2.0
"""What the verbs share: options, messages, reading and writing files."""

from __future__ import annotations

import argparse
import gc
import os
import signal
import sys
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, NoReturn

from cfi2sframe.cli.exit_status import (
    EXIT_DIFFERENCE,
    EXIT_INCOMPLETE,
    EXIT_SUCCESS,
    EXIT_UNUSABLE,
    EXIT_USAGE,
    PROGRAM,
)
from cfi2sframe.errors import ErrorKind, OutputError, RequestError, kind_of, reason_of
from cfi2sframe.printable import printable

#: The exit status of several files is that of the worst; from good to bad.
_EXIT_ORDER: Final = (EXIT_SUCCESS, EXIT_DIFFERENCE, EXIT_INCOMPLETE, EXIT_USAGE, EXIT_UNUSABLE)
#: The error where the address of a section cannot be chosen.
ADDRESS_BELONGS_TO_RAW: Final = (
    "--section-address belongs to raw bytes; in a file the address follows from the section's place"
)

#: The first two bytes of a section in either byte order; what does not begin so is not read to its end.
_SECTION_MAGICS: Final = (b"\xe2\xde", b"\xde\xe2")
_SECTION_HEAD_SIZE: Final = 64

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from types import FrameType
    from typing import BinaryIO

    from cfi2sframe.conversion import Options
    from cfi2sframe.elf.image import ElfImage


def run_verb(verb: str, arguments: list[str]) -> int:
    """Run a verb; turn every expected failure into one line and an exit status."""
    # A run makes millions of small tuples and no cycles: the collector would only cost time.
    gc.disable()
    _write_any_text()
    module = import_module(f"cfi2sframe.cli.{verb}")
    parser: argparse.ArgumentParser = module.make_parser()
    options = argparse.Namespace()
    try:
        try:
            options = _parse(parser, _expand(arguments))
            with _ended_by_signals():
                status: int = module.execute(options)
            sys.stdout.flush()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else EXIT_USAGE
        except RequestError as error:
            # Verbs report errors of their own requests; this one is about an argument file.
            return fail(error, "")
        except MemoryError as error:
            return fail(error, _only_file(options))
    except BrokenPipeError:
        # The reader has closed the pipe, as it may.
        _discard_output()
        return 128 + signal.SIGPIPE
    except OSError as error:
        # Verbs report errors of their own files; this is standard output, for example on a full disk.
        _discard_output()
        return fail(error, "<stdout>")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


def _only_file(options: argparse.Namespace) -> str:
    """Return the file that a verb works on; an empty string if there are several."""
    for name in ("input", "file", "core", "inputs", "paths"):
        files = getattr(options, name, None)
        if isinstance(files, list):
            files = files[0] if len(files) == 1 else None
        if isinstance(files, str):
            return files
    return ""


def _expand(words: list[str]) -> list[str]:
    """Read the argument files, if there are any."""
    if not any(word.startswith("@") for word in words):
        return words
    from cfi2sframe.files.words import expand

    return expand(words)


def _parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse options and files in any order; the usual case, with all files together, has a cheaper way."""
    options, rest = parser.parse_known_args(words)
    return parser.parse_intermixed_args(words) if rest else options


def _write_any_text() -> None:
    """Have standard output escape characters outside its encoding, instead of raising an error."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _discard_output() -> None:
    """Keep the interpreter from writing to standard output again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn a request to end into an exception, so that temporary files and processes are removed; ignore further ones.

    Signals that the caller has chosen to ignore stay ignored.
    """
    previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def end(number: int, _frame: FrameType | None) -> NoReturn:
        for other in previous:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + number)

    try:
        for ending in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            handler = signal.getsignal(ending)
            if handler in (signal.SIG_DFL, signal.default_int_handler):
                previous[ending] = handler
                signal.signal(ending, end)
    except ValueError:
        # Only the main thread may install handlers; in another one there are none.
        previous.clear()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Keeps examples as they are. A fixed width saves the import that determines the terminal's."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=100)


class _Parser(argparse.ArgumentParser):
    """Escapes control characters in its messages: a shell pattern may have produced the arguments."""

    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


def parser_of(verb: str, usage: str, description: str, epilog: str) -> argparse.ArgumentParser:
    """Return a verb's parser, with the options that every verb has."""
    return _Parser(
        prog=PROGRAM if verb == "convert" else f"{PROGRAM} {verb}",
        usage=usage,
        description=description,
        epilog=epilog,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )


def add_conversion_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that determine the section."""
    parser.add_argument(
        "--sframe-version",
        type=int,
        choices=(1, 2, 3),
        default=3,
        metavar="{1,2,3}",
        help="the version to write (default 3: GNU ld 2.46 and later; 2: GNU ld 2.41-2.45, glibc built with "
        "--enable-sframe; 1: GNU ld 2.40)",
    )
    parser.add_argument(
        "--errata",
        type=int,
        choices=(0, 1, 2),
        metavar="{0,1,2}",
        help="the errata of version 2 that readers know (default 1: PC-relative starts; 0: for GNU ld before 2.45; "
        "2: rows with an undefined RA, at which glibc gives up the whole trace)",
    )
    parser.add_argument(
        "--from",
        dest="source",
        choices=("eh_frame", "debug_frame", "gopclntab"),
        help="the only CFI to read (default: all that a file has; where several describe an address, the first of "
        "these holds)",
    )
    parser.add_argument(
        "-O",
        dest="level",
        type=_level,
        choices=(0, 1, 2, "s"),
        metavar="{0,1,2,s}",
        help="-O0: every function has its own rows; -O1: functions with equal rows share them; -O2: functions are "
        "also cut and joined, as far as a look-up stays as quick as at -O1; -Os: as -O2, but the smallest section, "
        "whatever a look-up costs (default 2; objects are always at 0, because linkers do not support shared rows)",
    )
    parser.add_argument(
        "--no-share",
        dest="level",
        action="store_const",
        const=0,
        help="the same as -O0; a readelf or objdump that is no native one cannot read shared rows of big-endian files",
    )
    parser.add_argument(
        "--no-plt",
        dest="with_stubs",
        action="store_false",
        help="describe PLT stubs by the CFI instead of by their instructions",
    )
    parser.add_argument(
        "--no-padding",
        dest="with_padding",
        action="store_false",
        help="end every function where its FDE ends (default: it reaches over the alignment padding after it, where "
        "some readers look up the return address of a call that does not return)",
    )
    parser.add_argument(
        "--whole-functions",
        action="store_true",
        help="leave a function out when the version cannot express one of its rows (default: describe the rest of it)",
    )
    parser.add_argument(
        "--section-address",
        type=address,
        metavar="ADDR",
        help="the address that the section will have (default: the first 64 KiB boundary past the last "
        "PT_LOAD; 0 for an object)",
    )


def _level(text: str) -> int | str:
    """Parse a level: a number, or a letter. The parser's choices say which there are."""
    return int(text) if text.isdecimal() else text


def address(text: str) -> int:
    """Parse an address in C notation."""
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"not a 64-bit address: {text!r}")
    return value


def percentage(text: str) -> float:
    """Parse a number from 0 to 100."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"not a percentage: {text!r}")
    return value


def count_from_one(text: str) -> int:
    """Parse a count of at least one."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"not a count from 1: {text!r}")
    return value


def conversion_options(arguments: argparse.Namespace) -> Options:
    """Return the library's options for the command line's. Raises `RequestError` when they contradict."""
    from cfi2sframe.conversion import Options

    if arguments.errata is not None and arguments.sframe_version != 2:
        raise RequestError(f"version {arguments.sframe_version} has no errata; --errata belongs to version 2")
    return Options(
        version=arguments.sframe_version,
        errata=Options().errata if arguments.errata is None else arguments.errata,
        source=arguments.source,
        section_vaddr=arguments.section_address,
        with_stubs=arguments.with_stubs,
        with_padding=arguments.with_padding,
        whole_functions=arguments.whole_functions,
        level=arguments.level,
        all_keep_frame_pointer=getattr(arguments, "frame_pointer", False),
    )


def process_count(arguments: argparse.Namespace) -> int:
    """Return the number of processes: that of `-j`, or one per processor that may be used."""
    return arguments.jobs or len(os.sched_getaffinity(0))


def read_image(path: str) -> ElfImage:
    """Load a file, or standard input for `-`."""
    from cfi2sframe.elf.load import load, read_stream

    if path == "-":
        return load(read_stream(sys.stdin.buffer), "<stdin>")
    return load(path)


def read_section(stream: BinaryIO) -> bytes:
    """Return the bytes of a section; only the first of anything else, since some devices never end."""
    head = stream.read(_SECTION_HEAD_SIZE)
    return head + stream.read() if head[:2] in _SECTION_MAGICS else head


def say(kind: str, text: str, file: str = "") -> None:
    """Print a message on standard error: `cfi2sframe: FILE: error: TEXT`."""
    prefix = f"{PROGRAM}: " + (f"{printable(file)}: " if file else "")
    sys.stdout.flush()
    print(f"{prefix}{kind}: {printable(text)}", file=sys.stderr)


def exit_status_of(kind: ErrorKind) -> int:
    """Return the exit status of a failure."""
    if kind is ErrorKind.REQUEST:
        return EXIT_USAGE
    return EXIT_INCOMPLETE if kind is ErrorKind.INCOMPLETE else EXIT_UNUSABLE


def worst(statuses: Iterable[int]) -> int:
    """Return the worst of some exit statuses; success of none."""
    return max(statuses, key=_EXIT_ORDER.index, default=EXIT_SUCCESS)


def fail(error: Exception, file: str) -> int:
    """Report an error of a file, or of the output that it names itself; return its exit status."""
    if isinstance(error, OutputError):
        say("error", error.reason, error.where)
    else:
        say("error", reason_of(error), "<stdin>" if file == "-" else file)
    return exit_status_of(kind_of(error))


def fail_early(error: Exception, files: Sequence[str]) -> int:
    """Report an error found before any file is opened; name the file if there is only one."""
    return fail(error, files[0] if len(files) == 1 else "")
