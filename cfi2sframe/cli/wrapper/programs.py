# SPDX-License-Identifier: Apache-2.0
"""Find and run the program that a wrapper stands in for, and write messages about it."""

import os
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

from cfi2sframe.cli.messages import PROGRAM
from cfi2sframe.cli.wrapper.words import is_for_driver
from cfi2sframe.text import printable

LINKER: Final = "ld"
DRIVER: Final = "cc"
ASSEMBLER: Final = "as"
EXIT_NOT_FOUND: Final = 127
_EXIT_NOT_STARTED: Final = 126
_SIGNALLED: Final = 128
_STREAMS: Final = {"/dev/stdout": 1, "/dev/stderr": 2}


class Role(NamedTuple):
    """The program that a wrapper stands in for: the variable names it, or it is the first of `names` in PATH."""

    kind: str
    names: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The variable that names the real program."""
        return f"CFI2SFRAME_{self.kind.upper()}"

    @property
    def running(self) -> str:
        """The variable with the paths of the wrappers that are running, so that none runs itself or another.

        The assembler's is separate, because the driver's wrapper runs it.
        """
        return "CFI2SFRAME_RUNNING_AS" if self.kind == ASSEMBLER else "CFI2SFRAME_RUNNING"

    @property
    def program(self) -> str:
        """The wrapper's name in messages."""
        return f"{PROGRAM}-{self.kind}"


def role_of(name: str, words: Sequence[str]) -> Role:
    """Return the role of a wrapper, from its name and its arguments."""
    base = os.path.basename(name).removeprefix(f"{PROGRAM}-")
    if base == "as" or base.endswith("-as"):
        return Role(ASSEMBLER, (base,))
    is_linker = base == "ld" or base.startswith("ld.") or base.endswith("-ld") or "-ld." in base
    if is_linker and not is_for_driver(words):
        return Role(LINKER, (base,))
    if is_linker or base == "cc":
        return Role(DRIVER, ("cc", "gcc", "clang"))
    return Role(DRIVER, (base,))


def running_wrappers(role: Role | None = None) -> list[str]:
    """Return the paths of the wrappers that run this one: those of a role, or all."""
    roles = (role,) if role else (Role(LINKER, ()), Role(ASSEMBLER, ()))
    paths = os.pathsep.join(os.environ.get(each.running, "") for each in roles)
    return list(filter(None, paths.split(os.pathsep)))


def real_program(role: Role, wrappers: set[str]) -> str | None:
    """Return the path of the real program: from the variable, or the first in PATH that is not a wrapper."""
    chosen = os.environ.get(role.variable)
    path_directories = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # GCC's own tools come first: the `ld` in PATH is not a cross compiler's.
    own_directories = os.environ.get("COMPILER_PATH", "").split(os.pathsep) if role.kind == LINKER else []
    names = (chosen,) if chosen else (*_compiler_s_own(role), *role.names)
    for name in names:
        directories = [""] if "/" in name else [*filter(None, own_directories), *path_directories]
        for directory in directories:
            path = os.path.join(directory or ".", name)
            if _is_program(path) and os.path.realpath(path) not in wrappers:
                return path
    return None


def found_in_path(name: str) -> str:
    """Return the path of a program as a shell finds it; the name itself where it is nowhere."""
    directories = [""] if "/" in name else os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (os.path.join(directory, name) for directory in directories)
    return next(filter(_is_program, paths), name)


def _is_program(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)


def _compiler_s_own(role: Role) -> tuple[str, ...]:
    """Return the assembler of the GCC that runs this wrapper, which tells its directories only to linkers."""
    compiler = os.environ.get("COLLECT_GCC")
    if role.kind != ASSEMBLER or not compiler:
        return ()
    name = printed_by([found_in_path(compiler), "-print-prog-name=as"]).strip()
    return (name,) if name else ()


def spawn(role: Role, command: list[str], variables: dict[str, str]) -> int:
    """Run a program with this process's streams; return its exit status as a shell does."""
    sys.stdout.flush()
    try:
        process = os.posix_spawn(command[0], command, {**os.environ, **variables})
    except OSError as error:
        write_message(message(role, "error", f"cannot be started: {error.strerror}", command[0]))
        return _EXIT_NOT_STARTED
    return wait_for(process)


def wait_for(process: int) -> int:
    """Wait for a child; return its exit status as a shell does."""
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except KeyboardInterrupt:
        # The terminal has interrupted the child, too; wait until it has cleaned up.
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else _SIGNALLED - code


def printed_by(command: list[str]) -> str:
    """Return the standard output of a program; an empty text if it fails."""
    read_end, write_end = os.pipe()
    # `subprocess` would be a slow import for each object of a build.
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, write_end, 1),
        (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
    ]
    try:
        process = os.posix_spawn(command[0], command, os.environ, file_actions=actions)
    except OSError:
        os.close(read_end)
        return ""
    finally:
        os.close(write_end)
    with open(read_end, "rb") as output:
        text = output.read()
    return os.fsdecode(text) if wait_for(process) == 0 else ""


# Messages


def is_set(variable: str) -> bool:
    """Return whether a variable is neither empty nor 0."""
    return os.environ.get(variable, "0") not in ("", "0")


def message(role: Role, kind: str, text: str, file: str = "") -> str:
    """Return a message in the GNU style, with its line end."""
    place = f"{printable(file)}: " if file else ""
    return f"{role.program}: {place}{kind}: {printable(text)}\n"


def write_message(text: str) -> None:
    """Write to standard error. A build does not fail if nobody reads it."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        # At its exit, the interpreter would try to write the rest.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())


def log(text: str) -> None:
    """Append lines to the log, if there is one, in one write: many wrappers may run at the same time."""
    path = os.environ.get("CFI2SFRAME_LOG")
    if not path:
        return
    data = text.encode(errors="surrogateescape")
    try:
        if path in _STREAMS:
            # Opened by name, the file would have a position of its own, and lines would overwrite one another.
            os.write(_STREAMS[path], data)
            return
        with open(path, "ab", buffering=0) as file:
            file.write(data)
    except (OSError, ValueError) as error:
        write_message(f"cfi2sframe: CFI2SFRAME_LOG: {error}\n")


def without_section(role: Role, file: str, reason: str = "") -> int:
    """Report that a file gets no section although the real program succeeded; return the build step's exit status."""
    verdict = "no .sframe section was put in" + (reason and f": {reason}")
    log(message(role, "warning", verdict, from_root(file)))
    if is_set("CFI2SFRAME_STRICT"):
        write_message(message(role, "error", f"{verdict} (CFI2SFRAME_STRICT)", file))
        return 1
    return 0


def from_root(file: str) -> str:
    """Return the absolute name of a file: a log has files of many directories."""
    try:
        return os.path.abspath(file)
    except OSError:
        # The current directory has been removed.
        return file
