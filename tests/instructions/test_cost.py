# SPDX-License-Identifier: Apache-2.0
"""Small files of code that could make the analysis of instructions expensive: whole runs within the bound."""

import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from tests.support.instructions.handmade import code_file
from tests.support.process import run_within_bound

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

#: Bytes of code in most of these files.
SIZE: Final = 60_000
RET: Final = b"\xc3"
#: `je` to the next instruction.
BRANCH_ON = b"\x74\x00"


def rel32(distance: int) -> bytes:
    return struct.pack("<i", distance)


def branch_to(distance: int) -> bytes:
    """`je`, counted from its start."""
    return b"\x0f\x84" + rel32(distance - 6)


def call_to(distance: int) -> bytes:
    return b"\xe8" + rel32(distance - 5)


def lea(register: int, distance: int) -> bytes:
    """`lea register, [rip + ...]`, counted from its start."""
    return bytes((0x48 | (register >> 3) << 2, 0x8D, 5 | (register & 7) << 3)) + rel32(distance - 7)


def file(code: bytes, functions: Iterable[int] = (0,)) -> bytes:
    return code_file(AMD64, code, functions=functions)


def many_targets(rest: Callable[[int], bytes]) -> bytes:
    """All registers have one of 32 addresses each; then comes `rest(start)`, over and over."""
    registers = [number for number in range(16) if number not in (4, 5)]
    piece = 6 + 7 * len(registers) + 5
    code, end = bytearray(), 32 * piece
    for number in range(32):
        code += branch_to(piece)
        for register in registers:
            code += lea(register, end + number - len(code))
        code += b"\xe9" + rel32(end - len(code) - 5)
    code += BRANCH_ON
    while len(code) < SIZE:
        code += rest(end - len(code))
    return file(bytes(code) + RET)


def at_random(opcodes: tuple[bytes, ...], jump: bytes, functions: Iterable[int]) -> bytes:
    """Instructions, each with a jump or call to anywhere after it."""
    numbers = random.Random(1)  # noqa: S311 - the same each time
    size = 1 + len(jump) + 4
    count = SIZE // size
    pieces = (
        numbers.choice(opcodes) + jump + rel32(size * numbers.randrange(-n, count - n) - size) for n in range(count)
    )
    return file(b"".join(pieces) + RET, functions)


FILES: Final[dict[str, Callable[[], bytes]]] = {
    "jumps to the one before": lambda: file(RET + b"\x90" + b"\xeb\xfc" * (SIZE // 2), (SIZE,)),
    "calls of the next function": lambda: file((call_to(6) + RET) * (SIZE // 6) + RET),
    "jumps into other instructions": lambda: file(b"\x74\x01" * (SIZE // 2) + RET),
    "loops that grow, of each size": lambda: file(
        b"".join(b"\x55" + branch_to(-7 * n - 1) for n in range(SIZE // 7)) + RET
    ),
    "loops with many targets": lambda: many_targets(lambda start: lea(5, 0) + branch_to(start - 7)),
    "calls of anything": lambda: at_random((b"\x50", b"\x58", RET, b"\x90"), b"\xe8", (0,)),
    "calls between instructions, that nothing leads to": lambda: file(
        b"\xcc" + b"".join(b"\xe8" + rel32(random.Random(n).randrange(-1000, 1000)) for n in range(SIZE // 5))  # noqa: S311
    ),
    "entries everywhere": lambda: file(random.Random(1).randbytes(SIZE // 10), range(SIZE // 10)),  # noqa: S311
}


@pytest.mark.parametrize("name", FILES)
def test_code(name: str, tmp_path: Path) -> None:
    data = FILES[name]()
    path = tmp_path / "input.elf"
    path.write_bytes(data)
    run_within_bound("convert", "--from", "code", path, "-o", tmp_path / "out.sframe", input_size=len(data))
