# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe-ld` and `cfi2sframe-cc`: link, then put the section into the linked file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.wrapper.insertion import identity_of, insert, is_elf_of_type
from cfi2sframe.cli.wrapper.programs import spawn
from cfi2sframe.cli.wrapper.words import output_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.cli.wrapper.roles import Role

_ET_EXEC, _ET_DYN = 2, 3


def link(role: Role, program: str, words: Sequence[str], variables: dict[str, str]) -> int:
    """Link; return the exit status. Objects (`ld -r`, `cc -c`) are converted when they are linked.

    A section that the linker merged from some of the objects is replaced by one that describes all code.
    """
    output = output_of(words)
    before = identity_of(output)
    status = spawn(role, [program, *words], variables)
    if status != 0 or identity_of(output) == before or not is_elf_of_type(output, _ET_EXEC, _ET_DYN):
        return status
    return insert(role, output, lambda: ("--replace",))
