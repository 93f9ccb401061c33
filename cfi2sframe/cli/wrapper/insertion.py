# SPDX-License-Identifier: Apache-2.0
"""The section into a file that another program has just written. Whatever happens there, that program has succeeded."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE
from cfi2sframe.cli.wrapper.messages import is_logging, is_set, is_verbose, log, message, say, write
from cfi2sframe.cli.wrapper.programs import status_of
from cfi2sframe.cli.wrapper.roles import ASSEMBLER
from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cfi2sframe.cli.wrapper.roles import Role

#: The magic number of e_ident, and the offset of the end of e_type.
_ELF_MAGIC: Final = b"\x7fELF"
_E_TYPE_END: Final = 18
_ELFDATA2MSB: Final = 2


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
    """Put the section into a file; return the status that the build step ends with.

    `plan` is called in a child process; it returns options for `convert`, or None for a file that is to stay as it is.
    """
    if _insert_apart(role, path, plan) == EXIT_SUCCESS:
        return EXIT_SUCCESS
    verdict = f"{'assembled' if role.kind == ASSEMBLER else 'linked'}, but no .sframe section was put in"
    log(message(role, "warning", verdict, _from_root(path)))
    if is_set("CFI2SFRAME_STRICT"):
        return say(role, "error", "no .sframe section was put in, and CFI2SFRAME_STRICT forbids that", 1, path)
    if is_verbose():
        say(role, "warning", verdict, 0, path)
    return EXIT_SUCCESS


def _insert_apart(role: Role, path: str, plan: Callable[[], Sequence[str] | None]) -> int:
    """Convert in a child process; return its status."""
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        status = EXIT_UNUSABLE
        try:
            status = _insert_here(role, path, plan)
        finally:
            os._exit(status)
    return status_of(process)


def _insert_here(role: Role, path: str, plan: Callable[[], Sequence[str] | None]) -> int:
    """Convert, in the child; pass on what was said to those who want to know it."""
    name = os.path.join(".", path)
    try:
        chosen, options = _flags(), plan()
    except RequestError as error:
        status, text = EXIT_UNUSABLE, message(role, "error", str(error), name)
    else:
        if options is None:
            return EXIT_SUCCESS
        status, text = _convert([*chosen, *options, "--in-place", name])
    if is_verbose() or (status != EXIT_SUCCESS and is_set("CFI2SFRAME_STRICT")):
        write(text)
    log(_with_whole_names(text, name))
    return status


def _flags() -> list[str]:
    """Return the options that the user has chosen. Raises `RequestError`."""
    import shlex

    try:
        return shlex.split(os.environ.get("CFI2SFRAME_FLAGS", ""))
    except ValueError as error:
        raise RequestError(f"CFI2SFRAME_FLAGS: {error}") from None


def _convert(words: list[str]) -> tuple[int, str]:
    """Convert; return the exit status and what was printed."""
    import contextlib
    import io

    from cfi2sframe.cli import main as convert

    # Nothing is wrong with a file that has nothing to convert: of another machine, or without CFI.
    options = ["--skip-non-elf", *(["--verbose"] if is_verbose() or is_logging() else [])]
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape", write_through=True)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        status = convert(["convert", *options, *words])
    said.seek(0)
    return status, said.read()


def _with_whole_names(text: str, name: str) -> str:
    """Return messages about a file with its path from the root: a log has files of many folders."""
    from cfi2sframe.printable import printable

    short, whole = f": {printable(name)}: ", f": {printable(_from_root(name))}: "
    return "".join(line.replace(short, whole, 1) for line in text.splitlines(keepends=True))


def _from_root(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:
        # Somebody has removed the current folder.
        return path
