# SPDX-License-Identifier: Apache-2.0
"""The section into a file that another program has just written. Whatever happens there, that program has succeeded."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE
from cfi2sframe.cli.wrapper.programs import from_root, is_set, log, message, status_of, without_section, write
from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.cli.wrapper.programs import Role

#: The magic number of e_ident, and the offset of the end of e_type.
_ELF_MAGIC: Final = b"\x7fELF"
_E_TYPE_END: Final = 18
_ELFDATA2MSB: Final = 2
#: What convert is asked besides options: by their names in its namespace. A wrapper decides these itself.
_NOT_OPTIONS: Final = ("inputs", "files_from", "recursive", "output", "check", "report")


def identity_of(path: str) -> tuple[int, ...] | None:
    """Return what distinguishes a file from an earlier one of its name; None if it is not a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_elf_of_type(path: str, *types: int) -> bool:
    """Whether a file is an ELF file with one of these values of e_type."""
    try:
        with open(path, "rb") as file:
            head = file.read(_E_TYPE_END)
    except OSError:
        return False
    if len(head) < _E_TYPE_END or not head.startswith(_ELF_MAGIC):
        return False
    return int.from_bytes(head[16:18], "big" if head[5] == _ELFDATA2MSB else "little") in types


def insert(role: Role, path: str, plan: Callable[[], Sequence[str] | None]) -> int:
    """Put the section into a file, in a child process; return the status that the build step ends with.

    `plan` is called by the child; it returns options for `convert`, or None for a file that is to stay as it is.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        status = EXIT_UNUSABLE
        try:
            status = _insert_here(role, from_root(path), plan)
        finally:
            os._exit(status)
    if status_of(process) == EXIT_SUCCESS:
        return EXIT_SUCCESS
    return without_section(role, path)


def _insert_here(role: Role, path: str, plan: Callable[[], Sequence[str] | None]) -> int:
    """Convert; pass on what was said to those who want to know it; return the exit status."""
    import contextlib
    import io

    from cfi2sframe.cli.verbs import status_of

    is_verbose = is_set("CFI2SFRAME_VERBOSE")
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        try:
            flags, options = _flags(), plan()
            if options is None:
                return EXIT_SUCCESS
            own = ["--verbose"] if is_verbose or os.environ.get("CFI2SFRAME_LOG") else []
            words = [*own, *flags, *options, "--in-place", path]
            status = status_of("convert", lambda: _convert(words))
        except RequestError as error:
            status = EXIT_UNUSABLE
            said.write(message(role, "error", str(error), path))
    text = said.getvalue()
    if is_verbose or (status != EXIT_SUCCESS and is_set("CFI2SFRAME_STRICT")):
        write(text)
    log(text)
    return status


def _convert(words: list[str]) -> int:
    from cfi2sframe.cli import convert
    from cfi2sframe.cli.parsers import verb_parser
    from cfi2sframe.cli.verbs import parse

    request = convert.request_of(parse(verb_parser("convert"), words))
    # Nothing is wrong with a file of another machine.
    return convert.run(request._replace(settings=request.settings._replace(skips_unfit=True)))


def _flags() -> list[str]:
    """Return the options that the user has chosen. Raises `RequestError` for anything but an option."""
    import shlex

    from cfi2sframe.cli.parsers import verb_parser

    variable = "CFI2SFRAME_FLAGS"
    text = os.environ.get("CFI2SFRAME_FLAGS", "")
    try:
        words = shlex.split(text)
        parser = verb_parser("convert")
        found = vars(parser.parse_args(words)) if words else {}
    except ValueError as error:
        raise RequestError(f"{variable}: {error}") from None
    except SystemExit:
        # The parser has printed why; or its help, which was asked for.
        raise RequestError(f"{variable} has no options of convert: {text}") from None
    for name, value in found.items():
        if name in _NOT_OPTIONS and value != parser.get_default(name) and value != []:
            what = f"--{name.replace('_', '-')}" if name != "inputs" else " ".join(value)
            raise RequestError(f"{variable}: {what}: only options that determine the section are possible")
    return words
