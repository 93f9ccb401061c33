# SPDX-License-Identifier: Apache-2.0
"""The C library of capstone 5, called as its header capstone/capstone.h declares it.

The Python package around the library first loads modules for 17 machines: with it, a file like ls takes 113 ms, not 96.
"""

import ctypes
from collections.abc import Iterator
from importlib.util import find_spec
from typing import ClassVar, Final

#: `cs_arch` and `cs_mode`, which release 6 numbers otherwise.
NUMBERS: Final = {
    "CS_ARCH_ARM64": 1,
    "CS_ARCH_X86": 3,
    "CS_ARCH_SYSZ": 6,
    "CS_MODE_LITTLE_ENDIAN": 0,
    "CS_MODE_64": 1 << 3,
    "CS_MODE_BIG_ENDIAN": 1 << 31,
}


class CsInsn(ctypes.Structure):
    """`cs_insn`."""

    _fields_: ClassVar = [
        ("id", ctypes.c_uint),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint16),
        ("bytes", ctypes.c_ubyte * 24),
        ("mnemonic", ctypes.c_char * 32),
        ("op_str", ctypes.c_char * 160),
        ("detail", ctypes.c_void_p),
    ]


class Capstone5:
    """A disassembler without details. Raises `MemoryError` where capstone gets no memory."""

    def __init__(self, library: ctypes.CDLL, arch: str, mode: str) -> None:
        self._library = library
        self._handle = ctypes.c_size_t()
        self._check(library.cs_open(NUMBERS[arch], ctypes.c_uint(NUMBERS[mode]), ctypes.byref(self._handle)))

    def __del__(self) -> None:
        if self._handle.value:
            self._library.cs_close(ctypes.byref(self._handle))

    def disasm_lite(self, code: bytes, vaddr: int, count: int = 0) -> Iterator[tuple[int, int, str, str]]:
        """Yield address, size, mnemonic and operands of `count` instructions (0: all), up to bytes that are none."""
        array = ctypes.POINTER(CsInsn)()
        size, start, limit = ctypes.c_size_t(len(code)), ctypes.c_uint64(vaddr), ctypes.c_size_t(count)
        number = self._library.cs_disasm(self._handle, code, size, start, limit, ctypes.byref(array))
        if not number:
            self._check(self._library.cs_errno(self._handle))
            return
        try:
            for index in range(number):
                instruction = array[index]
                yield instruction.address, instruction.size, instruction.mnemonic.decode(), instruction.op_str.decode()
        finally:
            self._library.cs_free(array, ctypes.c_size_t(number))

    @staticmethod
    def _check(error: int) -> None:
        """`cs_err`: with these arguments only memory can lack."""
        if error:
            raise MemoryError


def find_library() -> ctypes.CDLL | None:
    """Return the library inside the Python package capstone; None if there is none, or one of another release."""
    package = find_spec("capstone")
    for folder in (package and package.submodule_search_locations) or ():
        try:
            library = ctypes.CDLL(f"{folder}/lib/libcapstone.so")
        except OSError:
            continue
        library.cs_disasm.restype = ctypes.c_size_t
        return library if library.cs_version(None, None) >> 8 == 5 else None
    return None
