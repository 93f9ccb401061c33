# SPDX-License-Identifier: Apache-2.0
"""The command line.

In: arguments, and standard input. Out: files, standard output, messages in the GNU style on standard error, and an exit
status. Each verb is a module with two functions: `configure` adds its options to a parser, and `run` carries them out,
with the packages below, which know no options.

- `verbs` runs a verb, `parsers` lists them, `options` has what they share; `messages` and `progress` print.
- `outcomes` prints the results of convert and remove; `results` is for the verbs that only read.
- `wrapper` runs a linker, a driver or an assembler first.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import NoReturn

#: Values of `messages.PROGRAM` and `messages.EXIT_UNUSABLE`, of `signal.SIGINT` and `signal.SIGPIPE`. This module
#: imports little, since nothing catches what an import raises before it.
_PROGRAM = "cfi2sframe"
_UNUSABLE = 3
_SIGINT = 2
_SIGPIPE = 13
#: The most bytes of address space that the modules of a verb take.
_MODULES_SIZE = 10 << 20


def run() -> "NoReturn":
    """Run the command line as a process."""
    run_process(main)


def run_process(program: "Callable[[], int]") -> "NoReturn":
    """Run a program that returns its exit status, and exit without freeing millions of records one by one."""
    status = _UNUSABLE
    try:
        from cfi2sframe.process.interrupts import keep_interrupts

        keep_interrupts()
        import gc

        # A run makes millions of small tuples and no cycles: the collector would only cost time, also in imports.
        gc.disable()
        # Fail here, not in many ways, where modules have no room.
        bytes(_MODULES_SIZE)
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
        status = status or _UNUSABLE
        _report(error)
    os._exit(status)


def _report(error: Exception) -> None:
    try:
        try:
            from cfi2sframe.errors import reason_of

            reason = reason_of(error)
        except Exception:  # noqa: BLE001 - there is no memory for the reason
            reason = "out of memory"
        sys.stderr.write(f"{_PROGRAM}: error: {reason}\n")
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 - nobody can be told
        pass


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["--version"]:
        from cfi2sframe import __version__

        sys.stdout.write(f"{_PROGRAM} {__version__}\n")
        return 0
    from cfi2sframe.cli.verbs import run_words

    return run_words(words)


def open_missing_streams() -> None:
    """Replace standard streams that the caller has closed, before a file gets one of their descriptors.

    Writing to a closed standard output fails, since nobody gets it. Messages get lost: the status tells enough.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            descriptor = os.open("/dev/null", os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            stream = open(descriptor, mode, encoding="utf-8")  # noqa: SIM115 - open as long as the process
            setattr(sys, name, stream)
            # Keeps it alive where a verb replaces it: Python 3.13 reports a stream that it frees and cannot flush.
            setattr(sys, f"__{name}__", stream)
