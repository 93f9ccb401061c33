# SPDX-License-Identifier: Apache-2.0
"""The section into a file that another program has just written. Whatever happens there, that program has succeeded."""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.wrapper.messages import is_logging, is_set, is_verbose, log, message, say, write
from cfi2sframe.cli.wrapper.programs import status_of
from cfi2sframe.cli.wrapper.roles import ASSEMBLER

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.cli.wrapper.roles import Role

#: The magic number of e_ident, and the offset of the end of e_type.
_ELF_MAGIC: Final = b"\x7fELF"
_E_TYPE_END: Final = 18
_ELFDATA2MSB: Final = 2
_NOTHING_PUT_IN: Final = "no .sframe section was put in"


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


def insert(role: Role, path: str, options: Sequence[str]) -> int:
    """Put the section into a file; return the status that the build step ends with."""
    if _insert_apart(role, path, options) == EXIT_SUCCESS:
        return EXIT_SUCCESS
    return left_without(role, path, _NOTHING_PUT_IN)


def left_without(role: Role, path: str, reason: str) -> int:
    """Say that a file has no section of this program's, where somebody wants to know; return the step's status."""
    verb = "assembled" if role.kind == ASSEMBLER else "linked"
    log(message(role, "warning", f"{verb}, but {reason}", _from_root(path)))
    if is_set("CFI2SFRAME_STRICT"):
        return say(role, "error", f"{reason}, and CFI2SFRAME_STRICT forbids that", 1, path)
    if is_verbose():
        say(role, "warning", f"{verb}, but {reason}", 0, path)
    return EXIT_SUCCESS


def _insert_apart(role: Role, path: str, options: Sequence[str]) -> int:
    """Convert in a child process; return its status."""
    import shlex

    try:
        chosen = shlex.split(os.environ.get("CFI2SFRAME_FLAGS", ""))
    except ValueError as error:
        if is_verbose() or is_set("CFI2SFRAME_STRICT"):
            say(role, "error", f"CFI2SFRAME_FLAGS: {error}", EXIT_UNUSABLE)
        log(message(role, "error", f"CFI2SFRAME_FLAGS: {error}"))
        return EXIT_UNUSABLE
    if is_verbose() or is_logging():
        chosen.append("--verbose")
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        status = EXIT_UNUSABLE
        try:
            status = _convert_here(path, [*chosen, *options])
        finally:
            os._exit(status)
    return status_of(process)


def _convert_here(path: str, options: Sequence[str]) -> int:
    """Convert, in the child; pass on what was said to those who want to know it."""
    import contextlib
    import io

    from cfi2sframe.cli import main as convert

    name = os.path.join(".", path)
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="surrogateescape", write_through=True)
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        # Nothing is wrong with a file that has nothing to convert: of another machine, or without CFI.
        status = convert(["convert", "--skip-non-elf", *options, "--in-place", name])
    said.seek(0)
    text = said.read()
    if is_verbose() or (status != EXIT_SUCCESS and is_set("CFI2SFRAME_STRICT")):
        write(text)
    log(_with_whole_names(text, name))
    return status


def _with_whole_names(text: str, name: str) -> str:
    """Return messages about a file with its path from the root: a log has files of many folders."""
    from cfi2sframe.printable import printable

    short = f"{PROGRAM}: {printable(name)}: "
    whole = f"{PROGRAM}: {printable(_from_root(name))}: "
    lines = text.splitlines(keepends=True)
    return "".join(whole + line.removeprefix(short) if line.startswith(short) else line for line in lines)


def _from_root(path: str) -> str:
    try:
        return os.path.abspath(path)
    except OSError:
        # Somebody has removed the current folder.
        return path
