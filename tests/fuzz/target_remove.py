# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a file that has a section, which is taken out; what is not refused passes the check.

A linked file without one gets one first. What removal leaves is read by the same check again, whose verdict on a
changed copy of it is seen, too: a byte that is mapped and differs may not pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe import convert, load
from cfi2sframe.elf.constants import SHT_NOBITS
from cfi2sframe.emit import check, check_removal, emit, remove
from cfi2sframe.errors import Cfi2SFrameError
from tests.fuzz import seeds as make
from tests.fuzz.harness import FindingError, expect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage


def run(data: bytes) -> None:
    """Take the section out of a file; what is refused is refused with an error of the project's own."""
    try:
        image = load(data)
        full = image if any(s.is_sframe for s in image.sections) else _converted(image)
        out = b"".join(remove(full))
        bare = load(out)
        check_removal(full, bare)
    except Cfi2SFrameError:
        return
    expect(not any(s.is_sframe for s in bare.sections), "the section is still there")
    _check_mapping(full, bare)
    _check_the_check(full, out)


def _converted(image: ElfImage) -> ElfImage:
    emitted = emit(convert(image))
    rewritten = load(b"".join(emitted.chunks))
    check(emitted, rewritten)
    return rewritten


def _check_mapping(full: ElfImage, bare: ElfImage) -> None:
    """Each section of code is where it was, with the same bytes, by addresses alone."""
    for code in full.sections:
        if code.is_code and code.size and not code.is_sframe and not full.is_relocatable:
            expect(full.bytes_at(code.vaddr, code.size) == bare.bytes_at(code.vaddr, code.size), f"{code.name} differs")


def _check_the_check(full: ElfImage, out: bytes) -> None:
    """A changed byte in the middle of a section of code is noticed."""
    for code in load(out).sections:
        place, end = code.file_offset + code.size // 2, code.file_offset + code.size
        if code.is_code and code.size and code.type != SHT_NOBITS and end <= len(out):
            changed = out[:place] + bytes([out[place] ^ 1]) + out[place + 1 :]
            try:
                check_removal(full, load(changed))
            except Cfi2SFrameError:
                return
            raise FindingError(f"a changed byte of {code.name} is not noticed")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield linked files and objects with a section."""
    for arch in make.ARCHES[:3]:
        for name, data in (("linked", make.linked_file(arch)), ("object", make.small_object(arch))):
            yield f"{name}-{arch.name.lower()}", b"".join(emit(convert(load(data))).chunks)
