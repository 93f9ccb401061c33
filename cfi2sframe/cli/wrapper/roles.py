# SPDX-License-Identifier: Apache-2.0
"""What a wrapper stands in for, by the name that it was called by."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli.exit_status import PROGRAM
from cfi2sframe.cli.wrapper.words import is_for_driver

if TYPE_CHECKING:
    from collections.abc import Sequence

LINKER: Final = "ld"
DRIVER: Final = "cc"
ASSEMBLER: Final = "as"


class Role(NamedTuple):
    """What a wrapper stands in for: `names` are looked for in PATH, unless the variable names a program."""

    kind: str
    names: tuple[str, ...]

    @property
    def variable(self) -> str:
        """The variable that names the real program."""
        return f"CFI2SFRAME_{self.kind.upper()}"

    @property
    def running(self) -> str:
        """The variable with the paths of the wrappers that are running: each looks for another program.

        Objects have another one than linked files, since a driver's wrapper runs the assembler's.
        """
        return "CFI2SFRAME_RUNNING_AS" if self.kind == ASSEMBLER else "CFI2SFRAME_RUNNING"

    @property
    def program(self) -> str:
        """The wrapper's name in messages."""
        return f"{PROGRAM}-{self.kind}"


def role_of(name: str, words: Sequence[str]) -> Role:
    """Return what a wrapper stands in for, from its name and its arguments."""
    base = os.path.basename(name).removeprefix(f"{PROGRAM}-")
    if base == "as" or base.endswith("-as"):
        return Role(ASSEMBLER, (base,))
    is_linker = base == "ld" or base.startswith("ld.") or base.endswith("-ld") or "-ld." in base
    if is_linker and not is_for_driver(words):
        return Role(LINKER, (base,))
    if is_linker or base == "cc":
        return Role(DRIVER, ("cc", "gcc", "clang"))
    return Role(DRIVER, (base,))
