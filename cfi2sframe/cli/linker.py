# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe-ld` and `cfi2sframe-cc`: run the real linker, or a compiler that links, then put the section in.

The name of the program decides which: `ld`, `ld.lld`, `cfi2sframe-ld` stand for a linker, `cc`, `gcc-12`,
`cfi2sframe-cc` for a compiler driver; words that only a driver knows (`-Wl,`) also make it a driver.

A build must never break because of a section that only stack tracers read: if no section can be put into the linked
file, it stays as it is, with a warning. `CFI2SFRAME_STRICT=1` makes that an error.

| variable | meaning |
|---|---|
| `CFI2SFRAME_LD`, `CFI2SFRAME_CC` | the real linker, the real driver: a path, or a name to be found in PATH |
| `CFI2SFRAME_FLAGS` | options for `cfi2sframe convert`, quoted as for a shell |
| `CFI2SFRAME_STRICT` | not empty and not 0: a link whose file cannot be given a section fails |
| `CFI2SFRAME_QUIET` | not empty and not 0: no warnings about functions that are left out |
"""

from __future__ import annotations

import os
import shutil
import stat
import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli import open_missing_streams
from cfi2sframe.cli.exit_status import EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.linker_words import is_for_driver, output_of
from cfi2sframe.interrupts import keep_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import TextIO

#: The paths of the wrappers that are running: each looks for another program, and the first one converts.
_RUNNING: Final = "CFI2SFRAME_RUNNING"
_LINKER: Final = "CFI2SFRAME_LD"
_EXIT_NOT_FOUND: Final = 127
_EXIT_NOT_STARTED: Final = 126
_SIGNALLED: Final = 128
#: The magic number of e_ident, and the offset of the end of e_type.
_ELF_MAGIC: Final = b"\x7fELF"
_E_TYPE_END: Final = 18
_ELFDATA2MSB: Final = 2
_ET_EXEC, _ET_DYN = 2, 3


class Role(NamedTuple):
    """What a wrapper stands in for: the variable that names it, and the names to look for in PATH."""

    variable: str
    names: tuple[str, ...]


def run() -> int:
    """Run as the program that was called; return the exit status."""
    keep_interrupts()
    open_missing_streams()
    return main(sys.argv)


def main(words: Sequence[str]) -> int:
    """Run the real program with the words after the first, then convert what it has linked."""
    role = role_of(words[0], words[1:])
    own = os.path.realpath(shutil.which(words[0]) or words[0])
    running = [path for path in os.environ.get(_RUNNING, "").split(os.pathsep) if path]
    program = _real_program(role, {own, *running})
    if program is None:
        names = " or ".join(role.names)
        return _say("error", f"no {names} in PATH but this wrapper; name one in {role.variable}", _EXIT_NOT_FOUND)
    output = output_of(words[1:])
    before = _identity(output)
    status = _spawn([program, *words[1:]], {_RUNNING: os.pathsep.join([*running, own])})
    if status != 0 or running or _identity(output) == before or not _is_linked_file(output):
        return status
    return _convert(output)


def role_of(name: str, words: Sequence[str]) -> Role:
    """Return what a wrapper stands in for, from its name and its arguments."""
    base = os.path.basename(name).removeprefix(f"{PROGRAM}-")
    is_linker = base == "ld" or base.startswith("ld.") or base.endswith("-ld") or "-ld." in base
    if is_linker and not is_for_driver(words):
        return Role(_LINKER, (base,))
    if is_linker or base == "cc":
        return Role("CFI2SFRAME_CC", ("cc", "gcc", "clang"))
    return Role("CFI2SFRAME_CC", (base,))


def _real_program(role: Role, wrappers: set[str]) -> str | None:
    """Return the path of the real program: from the variable, or the first in PATH that is not a wrapper."""
    chosen = os.environ.get(role.variable)
    path_folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # GCC's own tools come first: a cross compiler's `ld` is not the one in PATH.
    own_folders = os.environ.get("COMPILER_PATH", "").split(os.pathsep) if role.variable == _LINKER else []
    for name in (chosen,) if chosen else role.names:
        folders = [""] if "/" in name else [*filter(None, own_folders), *path_folders]
        for folder in folders:
            path = shutil.which(os.path.join(folder or ".", name))
            if path is not None and os.path.realpath(path) not in wrappers:
                return path
    return None


def _identity(path: str) -> tuple[int, ...] | None:
    """Return what distinguishes a file from an earlier one of its name; None if it is not a regular file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _is_linked_file(path: str) -> bool:
    """Whether a file is an ELF executable or library; objects (`ld -r`, `cc -c`) are converted when they are linked."""
    try:
        with open(path, "rb") as file:
            head = file.read(_E_TYPE_END)
    except OSError:
        return False
    if len(head) < _E_TYPE_END or not head.startswith(_ELF_MAGIC):
        return False
    return int.from_bytes(head[16:18], "big" if head[5] == _ELFDATA2MSB else "little") in (_ET_EXEC, _ET_DYN)


def _spawn(command: list[str], variables: dict[str, str]) -> int:
    """Run a program with this process's streams; return its exit status as a shell does."""
    sys.stdout.flush()
    try:
        process = os.posix_spawn(command[0], command, {**os.environ, **variables})
    except OSError as error:
        return _say("error", f"cannot be started: {error.strerror}", _EXIT_NOT_STARTED, command[0])
    return _status_of(process)


def _status_of(process: int) -> int:
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except KeyboardInterrupt:
        # The terminal has signalled the child, too; it cleans up and ends first.
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else _SIGNALLED - code


def _convert(path: str) -> int:
    """Put the section into a file; return the status that the link ends with."""
    status = _convert_apart(path)
    if status == 0:
        return 0
    if _is_set("CFI2SFRAME_STRICT"):
        return _say("error", "no .sframe section was put in, and CFI2SFRAME_STRICT forbids that", 1, path)
    return _say("warning", "linked, but no .sframe section was put in", 0, path)


def _convert_apart(path: str) -> int:
    """Convert in a child process: whatever happens there, the link has succeeded.

    A section that the linker merged from some of the objects is replaced by one that describes all code.
    """
    import shlex

    try:
        options = shlex.split(os.environ.get("CFI2SFRAME_FLAGS", ""))
    except ValueError as error:
        return _say("error", f"CFI2SFRAME_FLAGS: {error}", EXIT_UNUSABLE)
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        status = EXIT_UNUSABLE
        try:
            status = _convert_here([*options, "--replace", "--in-place", os.path.join(".", path)])
        finally:
            os._exit(status)
    return _status_of(process)


def _convert_here(words: list[str]) -> int:
    """Convert, in the child; with CFI2SFRAME_QUIET, messages are printed only if that fails."""
    from cfi2sframe.cli import main as convert

    if not _is_set("CFI2SFRAME_QUIET"):
        return convert(["convert", *words])
    import contextlib
    import io

    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        status = convert(["convert", *words])
    if status != 0:
        sys.stderr.write(said.getvalue())
        sys.stderr.flush()
    return status


def _is_set(variable: str) -> bool:
    return os.environ.get(variable, "0") not in ("", "0")


def _say(kind: str, text: str, status: int, file: str = "") -> int:
    """Print a message in the GNU style and return `status`."""
    from cfi2sframe.printable import printable

    place = f"{printable(file)}: " if file else ""
    try:
        sys.stderr.write(f"{PROGRAM}-ld: {place}{kind}: {printable(text)}\n")
        sys.stderr.flush()
    except OSError:
        # The reader is gone; that does not change the result of the link.
        _discard(sys.stderr)
    return status


def _discard(stream: TextIO) -> None:
    """Keep the interpreter from writing to a stream again when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
