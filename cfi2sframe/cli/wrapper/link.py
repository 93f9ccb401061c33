# SPDX-License-Identifier: Apache-2.0
"""Run the real program, and have the section put into its output."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from cfi2sframe.cli.messages import EXIT_USAGE
from cfi2sframe.cli.wrapper.assembler import assemble
from cfi2sframe.cli.wrapper.insertion import fault_of_flags, identity_of, insert_section, is_elf_of_type
from cfi2sframe.cli.wrapper.programs import (
    ASSEMBLER,
    DRIVER,
    EXIT_NOT_FOUND,
    Role,
    found_in_path,
    message,
    real_program,
    role_of,
    running_wrappers,
    spawn,
    without_section,
    write_message,
)
from cfi2sframe.cli.wrapper.words import must_write, output_of, output_of_driver

_HELP: Final = """\
usage: cfi2sframe-cc ARGUMENT...   run cc, gcc or clang, then put an .sframe section into the linked file
       cfi2sframe-ld ARGUMENT...   the same for ld
       cfi2sframe-as ARGUMENT...   the same for as and its object

The name of a link to a wrapper says which program to run: ld.lld, aarch64-linux-gnu-ld, gcc-12, cfi2sframe-g++.
The wrappers print nothing and never fail a build step, unless a variable is wrong (2) or asks for that:

  CFI2SFRAME_CC, CFI2SFRAME_LD, CFI2SFRAME_AS   the real program: a path, or a name in PATH
  CFI2SFRAME_FLAGS='--sframe-version 2'         options of cfi2sframe convert
  CFI2SFRAME_LOG=/FILE                          append a line for each file; /dev/stderr prints them
  CFI2SFRAME_STRICT=1                           fail (1) if a linked file or an object gets no section

Files without CFI and files for which SFrame is not defined do not count as failures. See also cfi2sframe-cc(1).
"""
_ET_EXEC, _ET_DYN = 2, 3
#: Linkers for Windows add it to a name.
_WINDOWS_SUFFIX: Final = ".exe"


def main(words: Sequence[str]) -> int:
    """Run the real program with the words after the first, then convert what it has written."""
    if words[1:] == ["--cfi2sframe-help"]:
        sys.stdout.write(_HELP)
        return 0
    role = role_of(words[0], words[1:])
    own = os.path.realpath(found_in_path(words[0]))
    program = real_program(role, {own, *running_wrappers()})
    if program is None:
        names = " or ".join(role.names)
        write_message(message(role, "error", f"no {names} in PATH but this wrapper; name one in {role.variable}"))
        return EXIT_NOT_FOUND
    # Of nested wrappers the outermost converts: it has seen all options.
    outer = running_wrappers(role)
    variables = {role.running: os.pathsep.join([*outer, own])}
    if outer:
        return spawn(role, [program, *words[1:]], variables)
    # A driver that only compiles converts nothing, and should be fast.
    fault = "" if role.kind == DRIVER and "-c" in words else fault_of_flags()
    if fault:
        write_message(message(role, "error", fault))
        return EXIT_USAGE
    if role.kind == ASSEMBLER:
        return assemble(role, program, words[1:], variables)
    return link(role, program, words[1:], variables)


def link(role: Role, program: str, words: Sequence[str], variables: dict[str, str]) -> int:
    """Link, and convert a linked file; return the exit status. Objects are converted when they are linked.

    A section that the linker has merged from some of its inputs is replaced by one that describes all code.
    """
    output = output_of_driver(words) if role.kind == DRIVER else output_of(words)
    before = identity_of(output)
    status = spawn(role, [program, *words], variables)
    if status != 0:
        return status
    if identity_of(output) != before:
        return (
            insert_section(role, output, lambda: ("--replace",))
            if is_elf_of_type(output, _ET_EXEC, _ET_DYN)
            else status
        )
    # A driver may only have compiled, and a device, such as /dev/null, keeps nothing.
    is_device = os.path.exists(output) and before is None
    if role.kind == DRIVER or is_device or os.path.exists(output + _WINDOWS_SUFFIX) or not must_write(words):
        return status
    return without_section(role, output, "the linker has not written this file, and no argument names another")
