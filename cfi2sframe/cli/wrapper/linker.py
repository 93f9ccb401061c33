# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe-ld` and `cfi2sframe-cc`: link, then put the section into the linked file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cfi2sframe.cli.wrapper.insertion import identity_of, insert, is_elf_of_type
from cfi2sframe.cli.wrapper.messages import without_section
from cfi2sframe.cli.wrapper.programs import spawn
from cfi2sframe.cli.wrapper.roles import DRIVER
from cfi2sframe.cli.wrapper.words import link_request

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.cli.wrapper.roles import Role

_ET_EXEC, _ET_DYN = 2, 3
#: Linkers for Windows add it to a name.
_WINDOWS_SUFFIX: Final = ".exe"


def link(role: Role, program: str, words: Sequence[str], variables: dict[str, str]) -> int:
    """Link; return the exit status. Objects (`ld -r`, `cc -c`) are converted when they are linked.

    A section that the linker merged from some of the objects is replaced by one that describes all code.
    """
    output, is_link = link_request(words, is_driver=role.kind == DRIVER)
    before = identity_of(output)
    status = spawn(role, [program, *words], variables)
    if status != 0:
        return status
    if identity_of(output) != before:
        return insert(role, output, lambda: ("--replace",)) if is_elf_of_type(output, _ET_EXEC, _ET_DYN) else status
    # Nobody keeps /dev/null.
    is_device = os.path.exists(output) and before is None
    if is_device or not is_link or os.path.exists(output + _WINDOWS_SUFFIX):
        return status
    return without_section(role, output, "the linker has not written this file, and no argument names another")
