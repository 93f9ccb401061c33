# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as the separate debug file of a small program."""

import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cfi2sframe import load
from cfi2sframe.elf.debug_file import build_id_of, find_debug_file
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import Cfi2SFrameError
from tests.fuzz import seeds as make
from tests.fuzz.checks import LEVELS, check_conversions
from tests.fuzz.harness import expect

#: Without CFI of their own.
_PROGRAMS = {
    arch.elf_machine: make.linked_file(arch, debug_frame=True).replace(b".debug_frame", b".other_frame")
    for arch in make.ARCHES
}


def run(data: bytes) -> None:
    """Name a debug file as a user would, and convert the program with its CFI, whether it belongs to it or not."""
    program = _PROGRAMS.get(int.from_bytes(data[18:20], "big" if data[5:6] == b"\2" else "little"))
    if program is None:
        return
    image = load(program)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "debug")
        path.write_bytes(data)
        with suppress(Cfi2SFrameError):
            expect(find_debug_file(image, str(path)) is None, "nothing shows that it belongs to the program")
        expect(find_debug_file(image, folder) is None, "it is not linked to")
    with suppress(Cfi2SFrameError):
        image.debug_file = ElfImage(data, "debug")
        build_id_of(image.debug_file)
    check_conversions(image, LEVELS[len(data) % len(LEVELS)])


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield files with a `.debug_frame` of every ABI."""
    for arch in make.ARCHES:
        yield arch.name.lower().replace(" ", "-"), make.linked_file(arch, debug_frame=True)
    yield "object", make.small_object(make.ARCHES[0])
