# SPDX-License-Identifier: Apache-2.0
"""Put the section into a file that another program has written. That program has succeeded, whatever fails here."""

import contextlib
import io
import os
import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.wrapper.programs import (
    Role,
    from_root,
    is_set,
    log,
    message,
    wait_for,
    without_section,
    write_message,
)
from cfi2sframe.errors import Cfi2SFrameError, RequestError, reason_of

if TYPE_CHECKING:
    import argparse

    from cfi2sframe.jobs.records import Request

#: The variable with options of convert.
FLAGS: Final = "CFI2SFRAME_FLAGS"


def identity_of(path: str) -> tuple[int, ...] | None:
    """Return numbers that change when a file is written again; None for anything but a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_elf_of_type(path: str, *types: int) -> bool:
    """Return whether a file is an ELF file with one of these values of e_type."""
    from cfi2sframe.elf.headers import FILE_HEADER_SIZE, file_type_of

    try:
        with open(path, "rb") as file:
            return file_type_of(file.read(FILE_HEADER_SIZE)) in types
    except OSError:
        return False


def insert_section(role: Role, path: str, plan: Callable[[], Sequence[str] | None]) -> int:
    """Put the section into a file, in a child process; return the exit status of the build step.

    The child calls `plan`, which returns options for `convert`, or None if the file is to stay as it is.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        process = os.fork()
    except OSError as error:
        return without_section(role, path, reason_of(error))
    if process == 0:
        status = EXIT_UNUSABLE
        try:
            status = _insert_here(role, from_root(path), plan)
        finally:
            os._exit(status)
    if wait_for(process) == EXIT_SUCCESS:
        return EXIT_SUCCESS
    return without_section(role, path)


def _insert_here(role: Role, path: str, plan: Callable[[], Sequence[str] | None]) -> int:
    """Convert, and pass messages on as variables ask; return the exit status."""
    from cfi2sframe.cli.outcomes import exit_status, say_outcome
    from cfi2sframe.cli.verbs import status_of
    from cfi2sframe.files.source import named_source
    from cfi2sframe.jobs.job import run_job
    from cfi2sframe.jobs.products import conversion_job

    def convert(arguments: "argparse.Namespace", request: "Request") -> int:
        # As a listed file, one of another machine is no failure.
        source = named_source(path)._replace(is_listed=True)
        job = conversion_job(request._replace(wants_account=arguments.verbose))
        outcome = run_job(job._replace(source=source, keeps_rights=arguments.keep_rights))
        say_outcome(outcome, is_single=True, is_verbose=arguments.verbose, only_checks=False)
        return exit_status(outcome)

    messages = io.StringIO()
    with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(messages):
        try:
            options = plan()
            if options is None:
                return EXIT_SUCCESS
            has_log = bool(os.environ.get("CFI2SFRAME_LOG"))
            asked = _asked(path, [*["--verbose"] * has_log, *options])
            status = status_of(lambda: convert(*asked))
        except (Cfi2SFrameError, OSError) as error:
            status = EXIT_UNUSABLE
            messages.write(message(role, "error", reason_of(error), path))
    text = messages.getvalue()
    if status != EXIT_SUCCESS and is_set("CFI2SFRAME_STRICT"):
        write_message(text)
    log(text)
    return status


def _asked(path: str, options: Sequence[str]) -> "tuple[argparse.Namespace, Request]":
    """Return the arguments of `convert` with the user's flags, and their request.

    Raises `RequestError` where the user's flags ask for more than a section.
    """
    from cfi2sframe.cli.convert import request_of
    from cfi2sframe.cli.parsers import verb_parser
    from cfi2sframe.cli.verbs import parse

    flags = os.environ.get(FLAGS, "")
    messages = io.StringIO()
    try:
        words = [*shlex.split(flags), *options, "--in-place", path]
        with contextlib.redirect_stderr(messages), contextlib.redirect_stdout(io.StringIO()):
            arguments = parse(verb_parser("convert"), words)
            request = request_of(arguments)
    except (ValueError, Cfi2SFrameError, OSError) as error:
        raise RequestError(f"{FLAGS}: {error}") from None
    except SystemExit:
        # The parser has printed why; or its help, which was asked for.
        why = messages.getvalue().strip().removeprefix(f"{PROGRAM}: error: ")
        raise RequestError(f"{FLAGS}: not valid convert options: {why or flags}") from None
    if arguments.inputs != [path] or arguments.files_from or arguments.report or arguments.check:
        raise RequestError(f"{FLAGS}: {flags}: only options that determine the section are possible")
    return arguments, request


def fault_of_flags() -> str:
    """Return the fault of the user's flags; an empty text if they are options of convert, or there are none."""
    try:
        if os.environ.get(FLAGS):
            _asked("", ())
    except RequestError as error:
        return error.reason
    return ""
