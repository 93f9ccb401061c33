# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as the section that somebody claims for a file: decoded, dumped, looked up in, verified."""

from collections.abc import Iterator
from typing import Final

from cfi2sframe import convert, load, verify
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.api import decode_raw
from cfi2sframe.errors import Cfi2SFrameError, SFrameError
from cfi2sframe.sframe.read import read_section
from tests.fuzz import seeds as make
from tests.fuzz.checks import LEVELS, check_decoded
from tests.fuzz.harness import expect

_VADDR: Final = 0x30000
#: The files by the ABI that a section names in its header; others are verified against the first.
_ARCHES: Final[tuple[Arch, ...]] = (AMD64, AARCH64_LE, S390X)
_ABI_OFFSET: Final = 4


def run(data: bytes) -> None:
    """Decode a section as that of a linked file and as that of an object, and verify it against one of either kind."""
    for is_object in (False, True):
        try:
            decoded = read_section(data, _VADDR, is_object=is_object)
        except SFrameError:
            continue
        check_decoded(decoded)
    arch = next((arch for arch in _ARCHES if data[_ABI_OFFSET : _ABI_OFFSET + 1] == bytes([arch.abi_id])), AMD64)
    for file in (make.linked_file(arch), make.small_object(arch)):
        image = load(file)
        try:
            found = verify(image, decode_raw(image, data, None))
        except Cfi2SFrameError:
            continue
        expect(found.is_clean is not bool(found.differences), "clean, and yet differences")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield the sections that belong to the files, in the versions that their ABI has, and others of all kinds."""
    for arch in _ARCHES:
        image = load(make.linked_file(arch))
        for version in range(arch.first_version, 4):
            for level in sorted(set(LEVELS)):
                made = convert(image, version=version, level=level).data
                yield f"{arch.name.lower()}-v{version}-O{level}", made
    yield from make.sframe_sections()
