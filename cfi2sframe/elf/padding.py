# SPDX-License-Identifier: Apache-2.0
"""Alignment padding after functions, recognized by its bytes.

A function that ends in a call that does not return leaves a return address in the padding after it. Unwinders of DWARF
look up the address before; the kernel and glibc look up the return address itself, and find it where the function
reaches over the padding. Padding is never executed, so no other look-up meets it.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cfi2sframe.abi import Arch
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.references import referred_addresses
from cfi2sframe.elf.sections import CodeRange
from cfi2sframe.errors import ElfError
from cfi2sframe.range_map import RangeMap, Span, bytes_of, holder_of, walk_both

#: Padding has fewer bytes than this, the largest alignment that compilers ask for by default.
_MAX_ALIGNMENT: Final = 64


def is_fill(arch: Arch, data: bytes) -> bool:
    """Return whether bytes are whole instructions that only fill space, or a jump over such ones that follow it."""
    if arch.skip is not None and data.startswith(arch.skip[0]):
        opcode, nop = arch.skip
        end = len(opcode) + 4
        distance, rest = int.from_bytes(data[len(opcode) : end], "little"), data[end:]
        return distance == len(rest) > 0 and not rest.strip(nop)
    return re.compile(arch.fill, re.DOTALL).fullmatch(data) is not None


def fill_size(image: ElfImage, code: CodeRange, start_vaddr: int, end_vaddr: int) -> int:
    """Return the number of bytes at the start of a part of a code range that only fill space."""
    match = re.compile(image.arch.fill, re.DOTALL).match(image.code_bytes(code, start_vaddr, end_vaddr))
    return 0 if match is None else match.end()


def code_outside(image: ElfImage, held: Iterable[tuple[int, int]]) -> Iterator[tuple[CodeRange, Span]]:
    """Yield the gaps between ranges of code, except gaps of padding."""
    for code, gap in gaps_outside(image, held):
        if fill_size(image, code, gap.start, gap.end) < gap.end - gap.start:
            yield code, gap


def gaps_outside(image: ElfImage, held: Iterable[tuple[int, int]]) -> Iterator[tuple[CodeRange, Span]]:
    """Yield the code outside of some ranges, ascending, with the code range that holds it."""
    for start, end, code, is_held in walk_both(code_of(image), bytes_of(held)):
        if code is not None and not is_held:
            yield code, Span(start, end)


def code_of(image: ElfImage) -> RangeMap[CodeRange | None]:
    """Return the map from addresses to the code range that holds them."""
    return RangeMap(None, ((code.start_vaddr, code.end_vaddr, code) for code in image.code_ranges))


def find_padding(image: ElfImage, functions: Sequence[tuple[int, int]]) -> tuple[Span, ...]:
    """Return the padding after functions, whose addresses `[start, end)` ascend without overlap.

    Padding fills the space up to the next function or, in a linked file, to the end of the executable section (segment,
    where there are no sections): after a section of an object, the linker may place anything. It consists of
    instructions that do nothing, has fewer than 64 bytes, and no symbol, entry point or relocation refers to it.
    """
    # Most gaps have the same bytes as another one.
    verdicts: dict[bytes, bool] = {}
    padding: list[Span] = []
    starts = [start for start, _ in functions]
    try:
        for code in image.code_ranges:
            first, last = bisect_left(starts, code.start_vaddr), bisect_left(starts, code.end_vaddr)
            limits = [*starts[first + 1 : last], 0 if image.is_relocatable else code.end_vaddr]
            content = image.code_bytes(code, code.start_vaddr, code.end_vaddr) if first < last else b""
            for (_, start), end in zip(functions[first:last], limits, strict=False):
                if 0 < end - start < _MAX_ALIGNMENT:
                    data = content[start - code.start_vaddr : end - code.start_vaddr]
                    if data not in verdicts:
                        verdicts[data] = len(data) == end - start and is_fill(image.arch, data)
                    if verdicts[data]:
                        padding.append(Span(start, end))
        if not padding:
            return ()
        # Most references are to data, and to functions.
        first, last = padding[0].start, padding[-1].end
        inside = [vaddr for vaddr in referred_addresses(image).difference(starts) if first <= vaddr < last]
        referred = {holder_of(padding, Span(vaddr, vaddr + 1)) for vaddr in inside}
        return tuple([gap for gap in padding if gap not in referred])
    except ElfError:
        # With a damaged table, it is not known what refers to padding.
        return ()
