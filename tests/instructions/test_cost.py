# SPDX-License-Identifier: Apache-2.0
"""Small files of code that could make the analysis of instructions expensive: whole runs within the bound."""

import random
import struct
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.abi import AMD64
from tests.support.elf import elf_asm
from tests.support.elf.samples import CODE, SHT_NOBITS, TEXT_VADDR
from tests.support.instructions.handmade import DATA_VADDR, code_file
from tests.support.process import run_within_bound

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

#: Bytes of code in most of these files.
SIZE: Final = 60_000
RET: Final = b"\xc3"
PUSH_RBP: Final = b"\x55"
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


def file(code: bytes, functions: Iterable[int] = (0,), **more: object) -> bytes:
    return code_file(AMD64, code, functions=functions, **more)  # type: ignore[arg-type]


def calls(step: int, count: int, rest: bytes) -> bytes:
    """Functions that each call the one `step` functions further, and then go on with `rest`."""
    size = 5 + len(rest)
    return file((call_to(step * size) + rest) * count + RET, (0 if step > 0 else (count - 1) * size,))


def tables(count: int) -> bytes:
    """Jumps with 4096 targets each, by tables that overlap."""
    code = bytearray()
    for number in range(count):
        code += b"\x81\xe7\xff\x0f\0\0" + lea(2, DATA_VADDR + 4 * number - TEXT_VADDR - len(code) - 6)
        code += b"\x48\x63\x04\xba\x48\x01\xd0\x74\x02\xff\xe0"
    words = range(TEXT_VADDR + len(code), TEXT_VADDR + len(code) + 4096 + count)
    return file(bytes(code) + RET * 8192, data=b"".join(rel32(word - DATA_VADDR) for word in words))


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


def sparse() -> bytes:
    """A section of code that is far larger than what the file has of it."""
    more = elf_asm.Section(".more", b"", SHT_NOBITS, CODE, TEXT_VADDR + 0x100000, align=16, nobits_size=90 << 20)
    return file(RET * 64, more=(more,))


def sections(count: int) -> bytes:
    """An object with thousands of sections of code, each with a symbol and a relocation."""
    names = [f".t{number}" for number in range(count)]
    return elf_asm.elf_file(
        AMD64.elf_machine,
        tuple(elf_asm.Section(name, b"\x90" * 4 + RET, 1, CODE) for name in names),
        symbols=tuple(elf_asm.Symbol(f"f{name}", 0, 0, 0x12, name) for name in names),
        relocations=tuple(elf_asm.Relocation(name, 0, f"f{name}", 2) for name in names[:100]),
    )


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
    "calls of the next function": lambda: calls(1, SIZE // 6, RET),
    "jumps into other instructions": lambda: file(b"\x74\x01" * (SIZE // 2) + RET),
    "jumps with all slots taken": lambda: file(PUSH_RBP * 64 + b"\xeb\x00" * (SIZE // 2) + RET),
    "pushes and branches": lambda: file((PUSH_RBP + BRANCH_ON) * (SIZE // 3) + RET),
    "loops that grow, of each size": lambda: file(
        b"".join(PUSH_RBP + branch_to(-7 * n - 1) for n in range(SIZE // 7)) + RET
    ),
    "entries into one function": lambda: file(b"\x90" * (SIZE // 8) + RET, range(SIZE // 8)),
    "functions that each load the next": lambda: file((lea(0, 16) + RET + b"\x90" * 8) * (SIZE // 16) + RET),
    "tables of jumps": lambda: tables(200),
    "loops with many targets": lambda: many_targets(lambda start: lea(5, 0) + branch_to(start - 7)),
    "code without bytes": sparse,
    "sections": lambda: sections(4000),
    "calls of anything": lambda: at_random((b"\x50", b"\x58", RET, b"\x90"), b"\xe8", (0,)),
    "calls between instructions, that nothing leads to": lambda: file(
        b"\xcc" + b"".join(b"\xe8" + rel32(random.Random(n).randrange(-1000, 1000)) for n in range(SIZE // 5))  # noqa: S311
    ),
    "branches to anything": lambda: at_random((b"\x50", b"\x58", b"\x55", b"\x90"), b"\x0f\x84", (0,)),
    "entries everywhere": lambda: file(random.Random(1).randbytes(SIZE // 10), range(SIZE // 10)),  # noqa: S311
}


@pytest.mark.parametrize("name", FILES)
def test_code(name: str, tmp_path: Path) -> None:
    data = FILES[name]()
    path = tmp_path / "input.elf"
    path.write_bytes(data)
    run_within_bound("convert", "--from", "code", path, "-o", tmp_path / "out.sframe", input_size=len(data))
