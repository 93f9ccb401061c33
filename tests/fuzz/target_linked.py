# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a linked file that a section is put into, replaced in, and taken out of again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe import Conversion, convert, load
from cfi2sframe.emit import check, emit, remove
from cfi2sframe.errors import Cfi2SFrameError, InputError, RequestError, VerificationError
from tests.fuzz import seeds as make
from tests.fuzz.harness import FindingError, expect
from tests.support.linked_by_hand import static_file

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage


def run(data: bytes) -> None:
    """Rewrite a linked file; what is refused is refused with an error of the project's own."""
    rewrite(data, are_objects=False)


def rewrite(data: bytes, *, are_objects: bool) -> None:
    """Put a section into a file, read it back, replace it by another version's, and take it out again."""
    try:
        image = load(data)
        if image.is_relocatable is not are_objects:
            return
        conversion = convert(image, version=3)
        if not conversion.data:
            return
    except Cfi2SFrameError:
        return
    once = _put_in(conversion)
    if once is None:
        return
    rewritten = load(once)
    again = None
    try:
        again = _put_in(convert(rewritten, version=2))
    except RequestError:
        # Sections may be too far apart for 32 bits.
        pass
    except InputError as error:
        raise FindingError(f"a rewritten file cannot be converted again: {error}") from error
    for file in filter(None, (once, again)):
        _take_out(load(file), image)


def _put_in(conversion: Conversion) -> bytes | None:
    """Return a checked copy of the file with the section; None where the file is refused."""
    if not conversion.data:
        return None
    try:
        emitted = emit(conversion)
        out = b"".join(emitted.chunks)
        check(emitted, load(out))
    except VerificationError as error:
        # The check prevents the file from being written, but no rewrite may need that.
        raise FindingError(f"written wrongly: {error}") from error
    except Cfi2SFrameError:
        return None
    return out


def _take_out(rewritten: ElfImage, original: ElfImage) -> None:
    try:
        bare = load(b"".join(remove(rewritten)))
    except Cfi2SFrameError:
        return
    names = {s.name for s in bare.sections}
    if ".sframe" not in {s.name for s in original.sections}:
        expect(".sframe" not in names, "the section is still there")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield linked files of every ABI, and one that gets a page in front."""
    for arch in make.ARCHES[:3]:
        yield f"{arch.name.lower()}", make.linked_file(arch)
    yield "static", static_file()
