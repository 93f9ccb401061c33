# SPDX-License-Identifier: Apache-2.0
"""Capstone, which is loaded here only, when code is read."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import Final, Protocol

from cfi2sframe.errors import InputError

#: Capstone's names for AMD64 (since version 6, and before it) and for its mode.
AMD64_DISASSEMBLER: Final = ("CS_ARCH_X86", "CS_ARCH_X86", "CS_MODE_64")
#: Bytes of address space that loading it takes at most: 16.2 MiB (5.0.9).
_LIBRARY_SIZE: Final = 18 << 20


class Disassembler(Protocol):
    """The part of `capstone.Cs` that is used."""

    def disasm_lite(self, code: bytes, vaddr: int, count: int = 0, /) -> Iterator[tuple[int, int, str, str]]:
        """Yield address, size, mnemonic and operands of `count` instructions (0: all), up to bytes that are none."""


def open_disassembler(names: tuple[str, str, str], what: str, otherwise: str = "") -> Disassembler:
    """Return a disassembler without details. `names`: of the machine, since version 6 and before it, and of the mode.

    Raises `InputError` where capstone cannot be loaded: the message says `what` is done with it, and what to do
    `otherwise`.
    """
    try:
        opener = _load_capstone()
    except ImportError:
        reason = f"{what} with the Python package capstone, which cannot be loaded (Debian: python3-capstone)"
        raise InputError(f"{reason}; {otherwise}" if otherwise else reason) from None
    return opener(*names)


@cache
def _load_capstone() -> Callable[[str, str, str], Disassembler]:
    # Ask for the memory first: without it, capstone fails in many ways, and some print. The zeros take 1.7 ms.
    bytes(_LIBRARY_SIZE)
    from cfi2sframe.elf.capstone5 import Capstone5, find_library

    library = find_library()
    if library is not None:
        return lambda _name, name, mode: Capstone5(library, name, mode)
    import capstone

    def open_any(name: str, old_name: str, mode: str) -> Disassembler:
        machine = getattr(capstone, name, None) or getattr(capstone, old_name)
        disassembler: Disassembler = capstone.Cs(machine, getattr(capstone, mode))
        return disassembler

    return open_any
