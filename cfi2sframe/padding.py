# SPDX-License-Identifier: Apache-2.0
"""Alignment padding after functions, told from code by its bytes.

A function that ends in a call that does not return leaves a return address in the padding after it. Unwinders of DWARF
look up the address before; the kernel and glibc look up the return address itself, and find it where the function
reaches over the padding. Padding is never executed, so no other look-up meets it.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.elf.constants import EM_X86_64
from cfi2sframe.elf.ranges import without
from cfi2sframe.elf.references import referred_addresses
from cfi2sframe.errors import ElfError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from cfi2sframe.abi import Arch
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span
    from cfi2sframe.elf.sections import CodeRange

#: Padding has fewer bytes than this, the largest alignment that compilers ask for by default.
_MAX_ALIGNMENT: Final = 64
_JMP_REL32: Final = b"\xe9"
_JMP_SIZE: Final = 5
_NOP: Final = b"\x90"
#: No instruction of any of the ABIs is longer.
_MAX_INSTRUCTION_SIZE: Final = 15
#: Bytes that are matched at one time where there may be many.
_STEP_SIZE: Final = 4096
#: Bytes of code that are read at one time.
_WINDOW_SIZE: Final = 1 << 20


class Padding(NamedTuple):
    """Ranges of padding `[start, end)`, ascending virtual addresses. A function ends at each start."""

    ranges: tuple[tuple[int, int], ...] = ()

    @property
    def sizes(self) -> dict[int, int]:
        """The sizes in bytes, by start."""
        return {start: end - start for start, end in self.ranges}


def _fill_of(arch: Arch) -> re.Pattern[bytes]:
    return re.compile(arch.fill, re.DOTALL)


def is_fill(arch: Arch, data: bytes) -> bool:
    """Whether bytes consist of whole instructions that only fill space; there has to be one at least.

    On AMD64, gold begins long padding with a jump to its end.
    """
    if arch.elf_machine == EM_X86_64 and data[:1] == _JMP_REL32:
        nops = data[_JMP_SIZE:]
        return nops == _NOP * len(nops) != b"" and int.from_bytes(data[1:_JMP_SIZE], "little") == len(nops)
    return _fill_of(arch).fullmatch(data) is not None


def fill_size(image: ElfImage, code: CodeRange, start_vaddr: int, end_vaddr: int) -> int:
    """Return how many bytes of a part of a code range, from its start on, only fill space."""
    vaddr = start_vaddr
    while vaddr < end_vaddr:
        data = image.code_bytes(code, vaddr, min(end_vaddr, vaddr + _STEP_SIZE))
        match = _fill_of(image.arch).match(data)
        if match is None:
            break
        vaddr += match.end()
        if match.end() < len(data) - _MAX_INSTRUCTION_SIZE:
            break
    return vaddr - start_vaddr


def code_outside(image: ElfImage, held: Sequence[Span]) -> Iterator[tuple[CodeRange, Span]]:
    """Yield the executable code outside of ascending ranges that do not overlap, without gaps of padding."""
    for code, gap in gaps_outside(image, held):
        if fill_size(image, code, gap.start, gap.end) < gap.end - gap.start:
            yield code, gap


def gaps_outside(image: ElfImage, held: Sequence[Span]) -> Iterator[tuple[CodeRange, Span]]:
    """Yield all executable bytes outside of ascending ranges that do not overlap."""
    starts, ends = [span.start for span in held], [span.end for span in held]
    for code in image.code_ranges:
        # There may be thousands of ranges, and of sections.
        first, last = bisect_right(ends, code.start_vaddr), bisect_left(starts, code.end_vaddr)
        for gap in without([(code.start_vaddr, code.end_vaddr)], held[first:last]):
            yield code, gap


def find_padding(image: ElfImage, starts: Sequence[int], ends: Sequence[int]) -> Padding:
    """Return the padding after functions, whose addresses `[start, end)` are columns: ascending, without overlap.

    Padding fills the space up to the next function or, in a linked file, to the end of the executable section (segment,
    where there are no sections): after a section of an object, the linker may place anything. It consists of
    instructions that do nothing, has fewer than 64 bytes, and no symbol, entry point or relocation refers to it.
    """
    found: list[tuple[int, int]] = []
    try:
        for code in image.code_ranges:
            first, last = bisect_left(starts, code.start_vaddr), bisect_left(starts, code.end_vaddr)
            limits = [*starts[first + 1 : last], 0 if image.is_relocatable else code.end_vaddr]
            gaps = zip(ends[first:last], limits, strict=False)
            found += _filled(image, code, [(start, end) for start, end in gaps if 0 < end - start < _MAX_ALIGNMENT])
        return _without_referred(found, referred_addresses(image).difference(starts)) if found else Padding()
    except ElfError:
        # Where a table is damaged, no one can say what refers to padding.
        return Padding()


def _filled(image: ElfImage, code: CodeRange, gaps: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield the gaps of a code range that are filled. Most have the bytes of another one, so each text is read once."""
    first = 0
    while first < len(gaps):
        base = gaps[first][0]
        last = bisect_right(gaps, (base + _WINDOW_SIZE, 0))
        near, first = gaps[first:last], last
        end = near[-1][1]
        window = image.code_bytes(code, base, end)
        if len(window) == end - base:
            texts = [window[start - base : end - base] for start, end in near]
            fills = {text for text in set(texts) if is_fill(image.arch, text)}
            yield from [gap for gap, text in zip(near, texts, strict=True) if text in fills]


def _without_referred(gaps: Sequence[tuple[int, int]], vaddrs: Iterable[int]) -> Padding:
    """Return the gaps that hold none of some addresses."""
    starts = [start for start, _ in gaps]
    referred = set[int]()
    for vaddr in vaddrs:
        index = bisect_right(starts, vaddr) - 1
        if index >= 0 and vaddr < gaps[index][1]:
            referred.add(starts[index])
    return Padding(tuple([gap for gap in gaps if gap[0] not in referred]))
