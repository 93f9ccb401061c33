# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as code with symbols, or as a whole file: records of what is derived, and their conversion."""

from collections.abc import Iterator, Sequence
from typing import Final

from cfi2sframe import convert, load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.instructions.derive import derive
from cfi2sframe.range_map import Span, united
from tests.fuzz import seeds as make
from tests.fuzz.checks import LEVELS, check_conversion
from tests.fuzz.harness import FindingError, expect
from tests.support.instructions.handmade import code_file, problems_of

_ARCHES: Final = (AMD64, AARCH64_LE, S390X)
_ELF: Final = b"\x7fELF"
#: In the first byte, besides the ABI: the whole is converted; there is a range that other sources cover; the process
#: starts at the first symbol.
_IS_CONVERTED, _HAS_COVERED, _HAS_ENTRY = 0x10, 0x20, 0x40
#: Bytes of the numbers in front of the code, of two bytes each: how many symbols, and where they are.
_MAX_SYMBOLS: Final = 15


def run(data: bytes) -> None:
    """Derive rows for a file, or for code.

    Code has in front of it a byte of choices, a byte whose low half counts symbols of functions and its high half
    symbols without type, and two bytes for the offset of each. The code is its own table of jumps.
    """
    if data.startswith(_ELF):
        _convert(data, data[-1])
        return
    if len(data) < 2:
        return
    choices, counts = data[0], data[1]
    function_count, label_count = counts & _MAX_SYMBOLS, counts >> 4
    code = data[2 + 2 * (function_count + label_count) :]
    if not code:
        return
    places = [
        int.from_bytes(data[2 + 2 * n : 4 + 2 * n], "little") % len(code) for n in range(function_count + label_count)
    ]
    arch = _ARCHES[(choices & 15) % len(_ARCHES)]
    step = 1 if arch is AMD64 else 4 if arch is AARCH64_LE else 2
    places = [place - place % step for place in places]
    file = code_file(
        arch,
        code,
        functions=sorted(set(places[:function_count])),
        labels=sorted(set(places[function_count:])),
        entry=places[0] if choices & _HAS_ENTRY and places else None,
    )
    if choices & _IS_CONVERTED:
        _convert(file, choices)
        return
    image = load(file)
    start = image.code_ranges[0].start_vaddr
    covered = [Span(start + len(code) // 4, start + len(code) // 2)] if choices & _HAS_COVERED else []
    covered = [span for span in covered if span.start < span.end]
    try:
        derived = derive(image, covered)
    except Cfi2SFrameError:
        return
    problems = problems_of(image, covered, derived)
    expect(not problems, "; ".join(problems[:3]))
    again = derive(load(file), covered)
    expect(derived == again, "another result for the same code")


def _convert(data: bytes, choice: int) -> None:
    """Convert a file with rows from instructions: what is written agrees with them when it is read."""
    options = Options(version=2 + (choice >> 2 & 1), source="code", level=LEVELS[choice & 3])
    try:
        conversion = convert(load(data), **options._asdict())
    except Cfi2SFrameError:
        return
    check_conversion(conversion, options)
    numbers = conversion.cfi.entries.sources.get("code", range(0))
    entries = [conversion.cfi.entries[number] for number in numbers]
    others = [entry for number, entry in enumerate(conversion.cfi.entries) if number not in set(numbers)]
    held = united([(fde.start_vaddr, fde.start_vaddr + fde.size) for fde in others])
    for fde in entries:
        inside = [span for span in held if span.start < fde.start_vaddr + fde.size and fde.start_vaddr < span.end]
        if inside:
            raise FindingError(f"0x{fde.start_vaddr:x} has CFI, and rows from instructions")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield code of every ABI with frames, calls and a table of jumps, alone and as files."""
    for arch, (code, functions) in _CODES.items():
        name = arch.name.lower()
        for choice, suffix in (
            (0, ""),
            (_IS_CONVERTED, "-converted"),
            (_HAS_COVERED, "-covered"),
            (_HAS_ENTRY, "-entry"),
        ):
            places = b"".join(offset.to_bytes(2, "little") for offset in functions)
            yield f"{name}{suffix}", bytes((choice | _ARCHES.index(arch), len(functions))) + places + code
        yield f"{name}-file", code_file(arch, code, functions=functions)
    for arch in make.ARCHES[:3]:
        yield f"{arch.name.lower()}-linked", make.linked_file(arch)


#: Code of each ABI, and where its functions begin. A function with a frame and a table of jumps calls another, which
#: realigns the stack and probes it (AMD64), changes SP by a page (AArch64), or returns on a condition (s390x).
_CODES: Final[dict[Arch, tuple[bytes, Sequence[int]]]] = {
    AMD64: (
        bytes.fromhex("554889e5534883ec1883ff037715488d1543000000486304ba4801d0ffe0e807000000488d65f85bc9c3")
        + bytes.fromhex("4c8d5424084883e4e041ff72f8554889e541524881ec0010000048830c24004839c475ef4c8b55f8c9498d62f8c3")
        + bytes.fromhex("cbffffffc6ffffffcbffffffc6ffffff"),
        (0, 0x2A),
    ),
    AARCH64_LE: (
        bytes.fromhex("3f2303d5fd7bbda9fd030091f30b00f91f0c0071080100540102001020486038620000104088208b00001fd6")
        + bytes.fromhex("07000094ff8300d1bf030091f30b40f9fd7bc3a8bf2303d5c0035fd6")
        + bytes.fromhex("ff0740d1ff0300f9ff074091c0035fd600020002"),
        (0, 0x48),
    ),
    S390X: (
        bytes.fromhex("eb6ff0300024b904001fa7fbff50e310f0000024b90400bfc22e00000003a724000fc0100000001beb220003000d")
        + bytes.fromhex("e3321000000407f3c0e500000007eb6ff0e0000407fe")
        + bytes.fromhex("b9020022078ec6100000000407fed70020002000000000000002003c0000000000020036"),
        (0, 0x44),
    ),
}
