# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a core file, whose threads are traced and printed."""

import os
from collections.abc import Iterator
from functools import cache
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple, get_args

from cfi2sframe.abi import AARCH64_LE, AMD64, S390X
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.trace import FileStore, trace_core
from cfi2sframe.trace.frames import EndingKind
from cfi2sframe.trace.store import ModuleFile
from tests.fuzz.harness import expect
from tests.support.trace.core_files import MODELS, plain_core, program
from tests.support.trace.stacks import make_stack

ARCHES: Final = {"amd64": AMD64, "aarch64": AARCH64_LE, "s390x": S390X}


class InsideStore(FileStore):
    """Opens all paths below a folder: whatever paths a core names, no file of this machine is opened."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder

    def open(self, path: str, root: str = "") -> ModuleFile | str:
        """Open a path below the folder."""
        return super().open(os.path.normpath(f"/{path}"), root or self._folder)


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
            file.write(program(arch, make_stack(arch, 3, MODELS).section))
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
        expect(thread.ending.kind in {*get_args(EndingKind)} - {"internal-error"}, f"{thread.ending}")
    for line in str(traced).splitlines():
        expect(line.isprintable(), f"{line!r}")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield a core of every ABI."""
    for name, arch in ARCHES.items():
        yield name, plain_core(arch, "/" + name).assemble()
