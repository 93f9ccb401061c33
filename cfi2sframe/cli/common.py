# SPDX-License-Identifier: Apache-2.0
"""What the verbs share: how they are run, messages, exit statuses, reading files."""

from __future__ import annotations

import gc
import os
import signal
import stat
import sys
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, NoReturn

from cfi2sframe.cli.exit_status import (
    EXIT_DIFFERENCE,
    EXIT_INCOMPLETE,
    EXIT_SUCCESS,
    EXIT_UNCOMPARED,
    EXIT_UNUSABLE,
    EXIT_USAGE,
    PROGRAM,
)
from cfi2sframe.cli.parsers import DEFAULT_VERB, VERBS, make_parser, verb_parser
from cfi2sframe.cli.progress import ticking
from cfi2sframe.elf.constants import ELF_MAGIC
from cfi2sframe.errors import Cfi2SFrameError, ErrorKind, OutputError, kind_of, reason_of
from cfi2sframe.printable import printable

#: The exit status of several files is that of the worst; from good to bad.
_EXIT_ORDER: Final = (EXIT_SUCCESS, EXIT_UNCOMPARED, EXIT_DIFFERENCE, EXIT_INCOMPLETE, EXIT_USAGE, EXIT_UNUSABLE)
#: The first two bytes of a section in either byte order; what does not begin so is not read to its end.
_SECTION_MAGICS: Final = (b"\xe2\xde", b"\xde\xe2")
#: Enough of a file (bytes) to tell what it is.
_HEAD_SIZE: Final = 64

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator
    from types import FrameType
    from typing import BinaryIO

    from cfi2sframe.cli.convert import WriteRequest


def run_words(words: list[str]) -> int:
    """Run a command line; its first word is a verb, or the verb is convert. Return the exit status."""
    if not words or words[0] in ("-h", "--help", "--version"):
        return _answer(words)
    if words[0] in VERBS:
        return run_verb(words[0], words[1:])
    return _refused(words[0]) or run_verb(DEFAULT_VERB, words, may_be_verb=True)


def _answer(words: list[str]) -> int:
    """Answer what is asked of the program and not of a verb."""
    parser = make_parser(verbs=())
    if not words:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    try:
        parser.parse_args(words)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    parser.print_help()
    return EXIT_SUCCESS


def _refused(word: str, *, is_first: bool = True) -> int:
    """Report a first word that is no verb, no option and no file; return 0 if it is one of those.

    Otherwise it would be convert's input, and the mistake be found after the files that follow it were rewritten. Of a
    list of files after an option, a missing one is convert's to report.
    """
    if word.startswith("-") or os.path.lexists(word):
        return EXIT_SUCCESS
    if word in VERBS:
        say("error", f"the command comes first: {PROGRAM} {word} ...")
        return EXIT_USAGE
    from difflib import get_close_matches

    near = get_close_matches(word.lower(), (*VERBS, "help"), 1)
    if near:
        meant = near[0] if near[0] in VERBS else "--help"
        say("error", f"'{word}' is neither a command nor a file; did you mean '{meant}'?")
        return EXIT_USAGE
    if not is_first:
        return EXIT_SUCCESS
    if os.sep in word:
        say("error", "No such file or directory", word)
    else:
        say("error", f"'{word}' is neither a command nor a file")
    return EXIT_UNUSABLE


def _refused_among(words: list[str]) -> int:
    """Report a verb, or what may have been meant as one, among the files of a line without one; return 0 without."""
    refused = _refused(words[0], is_first=False) if words else EXIT_SUCCESS
    named = [word for word in words[1:] if word in VERBS and not os.path.lexists(word)]
    return refused or (_refused(named[0]) if named else EXIT_SUCCESS)


def run_verb(
    verb: str,
    arguments: list[str],
    *,
    may_be_verb: bool = False,
    change: Callable[[WriteRequest], WriteRequest] | None = None,
) -> int:
    """Run a verb; turn every expected failure into one line and an exit status.

    `may_be_verb`: no verb was named, and the first file may be one that was misspelled, or stands after an option.
    `change` is for a caller of convert that asks for more than options can.
    """
    # A run makes millions of small tuples and no cycles: the collector would only cost time.
    gc.disable()
    _write_any_text()
    module = import_module(f"cfi2sframe.cli.{verb}")
    try:
        try:
            options = _parse(verb_parser(verb), arguments)
            if may_be_verb and (refused := _refused_among(options.inputs)):
                return refused
            with _ended_by_signals(), ticking(verb):
                request = module.request_of(options)
                status: int = module.run(request if change is None else change(request))
            sys.stdout.flush()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else EXIT_USAGE
        except (Cfi2SFrameError, MemoryError) as error:
            return fail(error, error.file if isinstance(error, Cfi2SFrameError) else "")
    except BrokenPipeError:
        # The reader has closed the pipe, as it may.
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is not None:
            return fail(error, os.fsdecode(error.filename))
        # Verbs report errors of their own files; this is standard output, for example on a full disk.
        return fail(error, "<stdout>")
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


def _parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse options and files in any order; the usual case, with all files together, has a cheaper way."""
    options, rest = parser.parse_known_args(words)
    return parser.parse_intermixed_args(words) if rest else options


def _write_any_text() -> None:
    """Have standard output escape characters outside its encoding, instead of raising an error."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


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


def read_section(stream: BinaryIO) -> bytes:
    """Return the bytes of a section or an ELF file; only the first of anything else, since some devices never end."""
    head = stream.read(_HEAD_SIZE)
    return head + stream.read() if starts_section(head) or head.startswith(ELF_MAGIC) else head


def is_section(path: str) -> bool:
    """Whether a regular file holds the raw bytes of a section."""
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return False
        with open(path, "rb") as file:
            return starts_section(file.read(2))
    except OSError:
        return False


def starts_section(head: bytes) -> bool:
    """Whether bytes are the first ones of a section."""
    return head[:2] in _SECTION_MAGICS


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
