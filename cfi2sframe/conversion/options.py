# SPDX-License-Identifier: Apache-2.0
"""The options of a conversion, in a module of their own: a run that finds files up to date does not load the stages."""

from typing import Final, Literal, NamedTuple

from cfi2sframe.constants.sframe import ERRATA, SFRAME_VERSION_2, SFRAME_VERSION_3, VERSIONS
from cfi2sframe.elf.cfi import CFI_KINDS, CfiKind
from cfi2sframe.errors import RequestError

Level = Literal[0, 1, 2]


class Options(NamedTuple):
    """The options of a conversion.

    `version` is that of SFrame, 1 to 3. `errata`, of version 2 only, is the newest errata level that the section's
    readers know; None is `DEFAULT_ERRATA`. `source` is the only CFI to read; None reads all, and where several sources
    describe an address, the first of `elf.cfi.CFI_KINDS` counts; "code" adds rows from instructions for code without
    CFI. `section_vaddr` is the section's virtual address; None is the first 64 KiB boundary past the last PT_LOAD
    (objects: 0). `level` 0 gives each function rows of its own, 1 shares equal rows, 2 (None) also cuts and joins
    functions where that saves bytes. Objects always get level 0, because GNU ld cannot merge shared rows.
    """

    version: int = SFRAME_VERSION_3
    errata: int | None = None
    source: CfiKind | None = None
    section_vaddr: int | None = None
    level: Level | None = None


#: The values that each field may have, except `section_vaddr`.
_CHOICES: Final[dict[str, tuple[object, ...]]] = {
    "version": VERSIONS,
    "errata": (*ERRATA, None),
    "source": (*CFI_KINDS, None),
    "level": (0, 1, 2, None),
}
_MAX_VADDR: Final = (1 << 64) - 1


def check_options(options: Options) -> None:
    """Raise `RequestError` when a field has a value or a type that it may not have."""
    for name, choices in _CHOICES.items():
        value = getattr(options, name)
        # Types are compared too: True equals 1, and 2.0 equals 2.
        if not any(type(value) is type(choice) and value == choice for choice in choices):
            *first, last = map(repr, choices)
            raise RequestError(f"{name} is {value!r}; it has to be {', '.join(first)} or {last}")
    if options.errata is not None and options.version != SFRAME_VERSION_2:
        raise RequestError(f"version {options.version} has no errata; they belong to version 2")
    vaddr = options.section_vaddr
    if vaddr is not None and not (type(vaddr) is int and 0 <= vaddr <= _MAX_VADDR):
        raise RequestError(f"section_vaddr is {vaddr!r}; it has to be an address from 0 to 0x{_MAX_VADDR:x} or None")
