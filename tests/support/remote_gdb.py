# SPDX-License-Identifier: Apache-2.0
"""The few words of gdb's remote protocol that stepping under qemu's user emulation needs."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

_CHUNK: Final = 1 << 16
#: gdb's number of s390x's f0: PSW mask and address, 16 general and 16 access registers and FPC come before it.
_S390X_FLOATS: Final = 35


class Registers(NamedTuple):
    """The registers of a stop: `values` by DWARF number, as far as the protocol's first packet has them."""

    pc: int
    values: tuple[int, ...]


class ExitedError(Exception):
    """The program is over; the argument is its exit status, or what ended it."""


class RemoteGdb:
    """A program that waits at a socket."""

    def __init__(self, path: Path, machine: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(str(path))
        self._rest = b""
        self._machine = machine
        self.ask("qSupported")
        # Without having been asked for this, qemu tells no single registers.
        self.ask("qXfer:features:read:target.xml:0,ffb")
        self.ask("?")

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def ask(self, words: str) -> str:
        """Send a packet and return the answer's text."""
        data = words.encode()
        self._socket.sendall(b"$%s#%02x" % (data, sum(data) & 0xFF))
        while True:
            start = self._rest.find(b"$")
            end = self._rest.find(b"#", start)
            if start >= 0 and 0 <= end <= len(self._rest) - 3:
                answer, self._rest = self._rest[start + 1 : end], self._rest[end + 3 :]
                self._socket.sendall(b"+")
                return answer.decode("latin-1")
            more = self._socket.recv(_CHUNK)
            if not more:
                raise ExitedError("the connection ended")
            self._rest += more

    def _run(self, word: str) -> None:
        answer = self.ask(word)
        if answer[0] in "WX":
            raise ExitedError(int(answer[1:3], 16) if answer[0] == "W" else f"signal {int(answer[1:3], 16)}")
        if int(answer[1:3], 16) != 5:
            raise ExitedError(f"signal {int(answer[1:3], 16)}")

    def step(self) -> None:
        """Execute one instruction. Raises `ExitedError` when the program ends, or gets a signal."""
        self._run("s")

    def go_on(self) -> None:
        """Run to a breakpoint; raises as `step` does."""
        self._run("c")

    def set_breakpoint(self, address: int) -> None:
        """Stop before the instruction at an address."""
        self.ask(f"Z0,{address:x},4")

    def clear_breakpoint(self, address: int) -> None:
        """No more stop there."""
        self.ask(f"z0,{address:x},4")

    def registers(self) -> Registers:
        """Return the registers."""
        data = bytes.fromhex(self.ask("g")[: 2 * 8 * 33])
        if self._machine == "aarch64":
            words = struct.unpack("<33Q", data)
            return Registers(words[32], words[:32])
        words = struct.unpack(">18Q", data[: 8 * 18])
        return Registers(words[1], words[2:])

    def s390x_float(self, number: int) -> int:
        """Return a floating point register of s390x as a word."""
        return int(self.ask(f"p{_S390X_FLOATS + number:x}"), 16)

    def word(self, address: int) -> int | None:
        """Return the eight bytes at an address, or None where they cannot be read."""
        answer = self.ask(f"m{address:x},8")
        if len(answer) != 16:
            return None
        return int.from_bytes(bytes.fromhex(answer), "little" if self._machine == "aarch64" else "big")
