# SPDX-License-Identifier: Apache-2.0
"""Capstone, which is imported here only, when code is read."""

from functools import cache
from typing import Any, Final

from cfi2sframe.errors import InputError

#: Capstone's names for AMD64 (since version 6, and before it) and for its mode.
AMD64_DISASSEMBLER: Final = ("CS_ARCH_X86", "CS_ARCH_X86", "CS_MODE_64")
#: Bytes of address space that loading it takes at most: 16.2 MiB (5.0.9).
_LIBRARY_SIZE: Final = 18 << 20


def open_disassembler(names: tuple[str, str, str], what: str, otherwise: str = "") -> Any:  # noqa: ANN401 - no types
    """Return a disassembler without details. `names`: of the machine, since version 6 and before it, and of the mode.

    Raises `InputError` where capstone cannot be loaded: the message says `what` is done with it, and what to do
    `otherwise`.
    """
    try:
        capstone = _load_capstone()
    except ImportError:
        reason = f"{what} with the Python package capstone, which cannot be loaded (Debian: python3-capstone)"
        raise InputError(f"{reason}; {otherwise}" if otherwise else reason) from None
    name, old_name, mode = names
    return capstone.Cs(getattr(capstone, name, None) or getattr(capstone, old_name), getattr(capstone, mode))


@cache
def _load_capstone() -> Any:  # noqa: ANN401 - no types
    # Ask for the memory first: without it, capstone fails in many ways, and some print. The zeros take 1.7 ms.
    bytes(_LIBRARY_SIZE)
    import capstone

    return capstone
