# SPDX-License-Identifier: Apache-2.0
"""The command line.

In: what a user typed, and standard input. Out: files, standard output, messages in the GNU style on standard error, and
an exit status. Each verb is a module with two functions: `configure` adds its options to a parser, and `run` does what
they ask for, with the packages below, which know no options.

- `verbs` runs a verb, `parsers` lists them, `options` has what they share; `messages` and `progress` print.
- `outcomes` prints the results of convert and remove; `answers` is for the verbs that only read.
- `wrapper` runs a linker, a driver or an assembler first.
"""

import gc
import os
import sys
from collections.abc import Callable
from typing import Final, NoReturn

from cfi2sframe import __version__
from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.process.interrupts import keep_interrupts

#: Values of `signal.SIGINT` and `signal.SIGPIPE`. This module loads little, since nothing can be caught before it.
_SIGINT: Final = 2
_SIGPIPE: Final = 13


def run() -> NoReturn:
    """Run the command line as a process."""
    run_process(main)


def run_process(program: Callable[[], int]) -> NoReturn:
    """Run a program that returns its exit status, and exit without freeing millions of records one by one."""
    status = EXIT_UNUSABLE
    try:
        keep_interrupts()
        # A run makes millions of small tuples and no cycles: the collector would only cost time, in imports, too.
        gc.disable()
        open_missing_streams()
        status = program()
        sys.stdout.flush()
        sys.stderr.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as it may.
        status = 128 + _SIGPIPE
    except KeyboardInterrupt:
        # It came before the program could catch it, for example in an import.
        os._exit(128 + _SIGINT)
    except Exception as error:  # noqa: BLE001 - a user never sees a traceback; tests call `main`, which raises
        from cfi2sframe.errors import reason_of

        status = status or EXIT_UNUSABLE
        try:
            sys.stderr.write(f"{PROGRAM}: {reason_of(error)}\n")
            sys.stderr.flush()
        except OSError:
            pass
    os._exit(status)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--version"]:
        sys.stdout.write(f"{PROGRAM} {__version__}\n")
        return EXIT_SUCCESS
    from cfi2sframe.cli.verbs import run_words

    return run_words(words)


def open_missing_streams() -> None:
    """Replace standard streams that the caller has closed, before a file gets one of their descriptors."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open("/dev/null", mode, encoding="utf-8"))  # noqa: SIM115 - open as long as the process
