# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe-ld`, `cfi2sframe-cc`, `cfi2sframe-as`: run the real program, then put the section into what it wrote.

A build must never break because of a section that only stack tracers read: a file that cannot be given one stays as it
is. Configure scripts take what a test link prints for a failure: the wrappers print nothing of their own, unless the
real program cannot be run. The man page, cfi2sframe-ld(1), has the variables that change that.

- `roles`: what a wrapper stands in for, by the name that it was called by.
- `programs`: finds the real program, and runs it.
- `words`: what the command lines of linkers and drivers say; `assembler`: those of assemblers.
- `insertion`: the section into the file, in a child process; `messages`: to standard error, and to a log.
"""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli import open_missing_streams
from cfi2sframe.cli.wrapper.messages import message, write
from cfi2sframe.cli.wrapper.programs import EXIT_NOT_FOUND, real_program, running_wrappers, spawn
from cfi2sframe.cli.wrapper.roles import ASSEMBLER, role_of
from cfi2sframe.interrupts import keep_interrupts

if TYPE_CHECKING:
    from collections.abc import Sequence

_HELP: Final = """\
usage: cfi2sframe-cc ARGUMENT...   run cc, gcc or clang, then put an .sframe section into the linked file
       cfi2sframe-ld ARGUMENT...   the same for ld
       cfi2sframe-as ARGUMENT...   the same for as and its object

A link to a wrapper stands for the program whose name it has: ld.lld, aarch64-linux-gnu-ld, gcc-12, cfi2sframe-g++.
The wrappers print nothing and never fail a build step, unless a variable asks for that:

  CFI2SFRAME_CC, CFI2SFRAME_LD, CFI2SFRAME_AS   the real program: a path, or a name in PATH
  CFI2SFRAME_FLAGS='--sframe-version 2'         options of cfi2sframe convert
  CFI2SFRAME_LOG=/FILE                          append what became of each file
  CFI2SFRAME_VERBOSE=1                          print the same on standard error
  CFI2SFRAME_STRICT=1                           fail (1) if a linked file or an object gets no section

Files that SFrame is not defined for and files without CFI are no failures. See also cfi2sframe-cc(1).
"""
#: 128 and the value of `signal.SIGINT`.
_INTERRUPTED: Final = 130


def run() -> int:
    """Run as the program that was called; return the exit status."""
    try:
        keep_interrupts()
        open_missing_streams()
        return main(sys.argv)
    except KeyboardInterrupt:
        return _INTERRUPTED


def main(words: Sequence[str]) -> int:
    """Run the real program with the words after the first, then convert what it has written."""
    if words[1:] == ["--cfi2sframe-help"]:
        sys.stdout.write(_HELP)
        return 0
    role = role_of(words[0], words[1:])
    own = os.path.realpath(shutil.which(words[0]) or words[0])
    program = real_program(role, {own, *running_wrappers()})
    if program is None:
        names = " or ".join(role.names)
        write(message(role, "error", f"no {names} in PATH but this wrapper; name one in {role.variable}"))
        return EXIT_NOT_FOUND
    # The first of several converts: it has seen all options.
    outer = running_wrappers(role)
    variables = {role.running: os.pathsep.join([*outer, own])}
    if outer:
        return spawn(role, [program, *words[1:]], variables)
    if role.kind == ASSEMBLER:
        from cfi2sframe.cli.wrapper.assembler import assemble

        return assemble(role, program, words[1:], variables)
    from cfi2sframe.cli.wrapper.linker import link

    return link(role, program, words[1:], variables)
