# SPDX-License-Identifier: Apache-2.0
"""Other programs: where the real one is, running it, and what it prints."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Final

from cfi2sframe.cli.wrapper.messages import message, write
from cfi2sframe.cli.wrapper.roles import ASSEMBLER, LINKER, Role

EXIT_NOT_FOUND: Final = 127
_EXIT_NOT_STARTED: Final = 126
_SIGNALLED: Final = 128


def running_wrappers(role: Role | None = None) -> list[str]:
    """Return the paths of the wrappers that run this one: those that write the same kind of file, or all."""
    roles = (role,) if role else (Role(LINKER, ()), Role(ASSEMBLER, ()))
    found = [os.environ.get(each.running, "").split(os.pathsep) for each in roles]
    return [path for paths in found for path in paths if path]


def real_program(role: Role, wrappers: set[str]) -> str | None:
    """Return the path of the real program: from the variable, or the first in PATH that is not a wrapper."""
    chosen = os.environ.get(role.variable)
    path_folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    # GCC's own tools come first: a cross compiler's `ld` is not the one in PATH.
    own_folders = os.environ.get("COMPILER_PATH", "").split(os.pathsep) if role.kind == LINKER else []
    names = (chosen,) if chosen else (*_compiler_s_own(role), *role.names)
    for name in names:
        folders = [""] if "/" in name else [*filter(None, own_folders), *path_folders]
        for folder in folders:
            path = shutil.which(os.path.join(folder or ".", name))
            if path is not None and os.path.realpath(path) not in wrappers:
                return path
    return None


def _compiler_s_own(role: Role) -> tuple[str, ...]:
    """Return the assembler of the GCC that runs this wrapper: it passes its name on, its folders only to linkers."""
    compiler = os.environ.get("COLLECT_GCC")
    if role.kind != ASSEMBLER or not compiler:
        return ()
    path = shutil.which(compiler)
    name = printed_by([path, "-print-prog-name=as"]).strip() if path else ""
    return (name,) if name else ()


def spawn(role: Role, command: list[str], variables: dict[str, str]) -> int:
    """Run a program with this process's streams; return its exit status as a shell does."""
    sys.stdout.flush()
    try:
        process = os.posix_spawn(command[0], command, {**os.environ, **variables})
    except OSError as error:
        write(message(role, "error", f"cannot be started: {error.strerror}", command[0]))
        return _EXIT_NOT_STARTED
    return status_of(process)


def status_of(process: int) -> int:
    """Wait for a child; return its exit status as a shell does."""
    try:
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    except KeyboardInterrupt:
        # The terminal has signalled the child, too; it cleans up and ends first.
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    return code if code >= 0 else _SIGNALLED - code


def printed_by(command: list[str]) -> str:
    """Return what a program prints on standard output; nothing if it fails."""
    import subprocess

    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return os.fsdecode(done.stdout)
