# SPDX-License-Identifier: Apache-2.0
"""Run a command line: find its verb, and turn its end, or any failure, into an exit status."""

import argparse
import errno
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from io import TextIOWrapper
from types import FrameType
from typing import Final, NoReturn

from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE, EXIT_USAGE, PROGRAM, MessageStyle, fail, say
from cfi2sframe.cli.parsers import DEFAULT_VERB, VERBS, make_parser, verb_parser
from cfi2sframe.cli.progress import ticking
from cfi2sframe.errors import Cfi2SFrameError

#: Options of every verb, which may also stand before it.
_SHARED_OPTIONS: Final = ("-q", "--quiet", "--color", "-r", "--recursive")


def run_words(words: list[str]) -> int:
    """Run a command line; its first word is a verb, or the verb is convert. Return the exit status."""
    words = _with_verb_first(words)
    if words[:1] == ["help"]:
        words = [*(word for word in words[1:2] if word != "help"), "--help"]
    if not words or words[0] in ("-h", "--help", "--version"):
        return status_of(lambda: _answer(words))
    if words[0] in VERBS:
        return status_of(lambda: _run_verb(words[0], words[1:]))
    # As an input of convert, a misspelled verb would be found missing only after other files were rewritten.
    refused = _refused(words[:1], is_start=True)
    return refused or status_of(lambda: _run_verb(DEFAULT_VERB, words, is_named=False))


def _with_verb_first(words: list[str]) -> list[str]:
    """Move the options that all verbs share after the verb that follows them, if one does."""
    start = 0
    while start < len(words) and words[start].partition("=")[0] in _SHARED_OPTIONS:
        start += 2 if words[start] == "--color" else 1
    is_verb = start < len(words) and words[start] in VERBS
    return [words[start], *words[:start], *words[start + 1 :]] if is_verb else words


def _answer(words: list[str]) -> int:
    """Answer --help and --version of the program."""
    parser = make_parser(verbs=())
    if not words:
        parser.print_help(sys.stderr)
        return EXIT_USAGE
    parser.parse_args(words)
    parser.print_help()
    return EXIT_SUCCESS


def _run_verb(verb: str, words: list[str], *, is_named: bool = True) -> int:
    """Run a verb; where none was named first, one may stand after an option."""
    module = import_module(f"cfi2sframe.cli.{verb}")
    options = parse(verb_parser(verb), words)
    MessageStyle.is_quiet, MessageStyle.color = options.quiet, options.color
    if not is_named and (refused := _refused(options.inputs, is_start=False)):
        return refused
    status: int = module.run(options)
    return status


def _refused(files: Sequence[str], *, is_start: bool) -> int:
    """Report a verb among the files, or a first file that looks like a misspelled verb; return 0 if there is none.

    Convert reports missing files, except at the start of the line, where a verb may have been meant.
    """
    for position, word in enumerate(files):
        if word.startswith("-") or os.path.lexists(word):
            continue
        if word in VERBS:
            say("error", f"the verb comes first: {PROGRAM} {word} ...")
            return EXIT_USAGE
        if position > 0 or not is_start:
            continue
        from difflib import get_close_matches

        for near in get_close_matches(word.lower(), (*VERBS, "help"), 1):
            say("error", f"'{word}' is neither a verb nor a file; did you mean '{near}'?")
            return EXIT_USAGE
        if os.sep in word:
            say("error", "No such file or directory", word)
        else:
            say("error", f"'{word}' is neither a verb nor a file")
        return EXIT_UNUSABLE
    return EXIT_SUCCESS


def parse(parser: argparse.ArgumentParser, words: list[str]) -> argparse.Namespace:
    """Parse options and files in any order. The usual order, with all files together, is cheaper to parse."""
    options, rest = parser.parse_known_args(words)
    return parser.parse_intermixed_args(words) if rest else options


def status_of(run: Callable[[], int]) -> int:
    """Run a verb; turn every expected failure into one line and an exit status."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Characters outside its encoding are escaped, instead of raising an error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            with _ended_by_signals(), ticking():
                status = run()
            sys.stdout.flush()
        except SystemExit as stop:
            return stop.code if isinstance(stop.code, int) else EXIT_USAGE
        except (Cfi2SFrameError, MemoryError) as error:
            return fail(error, error.file if isinstance(error, Cfi2SFrameError) else "")
    except BrokenPipeError:
        # The reader has closed the pipe, as it may.
        return 128 + signal.SIGPIPE
    except OSError as error:
        # Verbs report errors of their own files; without a name, this is standard output, for example on a full disk,
        # or the current directory, which was deleted.
        if error.filename is None and error.errno == errno.ENOENT:
            error.filename = os.curdir
        if error.filename is None:
            # Messages flush standard output, which still holds what cannot be written.
            sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
        return fail(error, "<stdout>" if error.filename is None else os.fsdecode(error.filename))
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    return status


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Turn signals that ask the program to end into an exception, so that it cleans up; ignore further ones.

    Signals that the caller ignores stay ignored.
    """
    previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def end(signal_number: int, _frame: FrameType | None) -> NoReturn:
        for other in previous:
            signal.signal(other, signal.SIG_IGN)
        raise SystemExit(128 + signal_number)

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
        for signal_number, handler in previous.items():
            signal.signal(signal_number, handler)
