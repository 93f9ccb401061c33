# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a core file, whose threads are traced and printed."""

from __future__ import annotations

import os
from functools import cache
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.trace import FileStore, trace_core
from cfi2sframe.trace.frames import ENDINGS
from tests.fuzz.harness import expect
from tests.support.trace import core_files
from tests.support.trace.core_files import BIAS, TEXT_VADDR, CoreFile, Load, moved, program_mappings, stack_load
from tests.support.trace.stacks import SECTION_VADDR, Model, make_stack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.abi import Arch
    from cfi2sframe.trace.files import ModuleFile

ARCHES: Final = {"amd64": AMD64, "aarch64": AARCH64_LE, "s390x": S390X}
MODELS: Final = (Model(64, saves_fp=True), Model(0x200, saves_fp=False), Model(96, saves_fp=True, base_is_fp=False))


class InsideStore(FileStore):
    """Opens all paths below a folder: whatever paths a core names, no file of this machine is opened."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def open(self, path: str, root: str = "") -> ModuleFile | str:
        """Open a path below the folder."""
        return super().open(path, root or self._folder)


class Place(NamedTuple):
    """A folder that stands for the traced system, and holds the programs; and where the core is written."""

    folder: TemporaryDirectory[str]
    root: str
    core: str


@cache
def place() -> Place:
    """Make the traced system."""
    folder = TemporaryDirectory(prefix="cfi2sframe-fuzz-")
    root = os.path.join(folder.name, "root")
    os.mkdir(root)
    for name, arch in ARCHES.items():
        with open(os.path.join(root, name), "wb") as file:
            file.write(core_files.program(arch, make_stack(arch, 3, list(MODELS)).section))
    return Place(folder, root, os.path.join(folder.name, "core"))


def run(data: bytes) -> None:
    """Trace a core: an error of the project's own, or traces that end in a named way."""
    where = place()
    with open(where.core, "wb") as file:
        file.write(data)
    try:
        traced = trace_core(where.core, store=InsideStore(where.root))
    except Cfi2SFrameError:
        return
    for thread in traced.threads:
        expect(thread.ending.kind in ENDINGS, f"{thread.ending}")
    for line in str(traced).splitlines():
        expect(line.isprintable(), f"{line!r}")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield cores of every ABI: with a list of files, and with a file in memory only."""
    for name, arch in ARCHES.items():
        core = _core(arch, "/" + name)
        yield name, core.assemble()
        yield f"{name}-in-memory", _in_memory(arch, core).assemble()


def _core(arch: Arch, path: str) -> CoreFile:
    stack = make_stack(arch, 3, list(MODELS))
    frames = ((77, moved(stack.frames[0])), (78, moved(stack.frames[0])))
    auxv = ((3, BIAS + 64), (9, BIAS + TEXT_VADDR), (0, 0))
    return CoreFile(arch, frames, (stack_load(stack),), program_mappings(path), auxv=auxv)


def _in_memory(arch: Arch, core: CoreFile) -> CoreFile:
    """Return the core of a program whose file is gone; memory has its headers and its section."""
    from tests.trace.test_hostile_cores import in_memory_headers

    section = make_stack(arch, 3, list(MODELS)).section
    headers = in_memory_headers(core_files.program(arch, section), len(section))[:0x200]
    loads = (*core.loads, Load(BIAS, headers), Load(BIAS + SECTION_VADDR, section))
    return core._replace(loads=loads, mapped=program_mappings("/gone"))
