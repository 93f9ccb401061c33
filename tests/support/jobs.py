# SPDX-License-Identifier: Apache-2.0
"""Small files to convert in place, and their state afterwards."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from cfi2sframe.abi import AMD64, S390X
from cfi2sframe.files.find import find_sources
from cfi2sframe.files.source import Source
from cfi2sframe.jobs.job import Job, run_job
from cfi2sframe.jobs.products import conversion_job, removal_job
from cfi2sframe.jobs.records import Outcome, Request
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import cie_of, object_file, push_fp

#: An object with one function, and what it becomes is not the same for each size.
OBJECT = object_file(AMD64, {".text": (push_fp(AMD64, 0),)})
BIG_ENDIAN_OBJECT = object_file(S390X, {".text": (push_fp(S390X, 0),)})
WITHOUT_CFI = asm.elf_file(62, (asm.Section(".text", b"\xc3", 1, 6),))
OF_32_BITS = b"\x7fELF\x01\x01\x01" + bytes(100)
TRUNCATED = OBJECT[:40]


def object_of(number: int) -> bytes:
    """Return an object that is different for each number."""
    return object_file(AMD64, {".text": tuple(push_fp(AMD64, 32 * n) for n in range(number + 1))}, code_size=0x4000)


def object_with_gap() -> bytes:
    """Return an object with a function that no SFrame row can describe."""
    unsayable = asm.Fde(cie_of(AMD64, asm.def_cfa_expression(b"\x30")), 64, 4)
    return object_file(AMD64, {".text": (push_fp(AMD64, 0), unsayable)})


class Snapshot(NamedTuple):
    """All that may be seen of a file."""

    data: bytes
    mtime_ns: int
    ctime_ns: int
    inode: int
    mode: int


def snapshot(path: Path) -> Snapshot:
    """Look at a file."""
    status = path.stat()
    return Snapshot(path.read_bytes(), status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_mode)


def tree(root: Path) -> dict[str, Snapshot]:
    """Look at all files under a folder."""
    return {str(path.relative_to(root)): snapshot(path) for path in sorted(root.rglob("*")) if path.is_file()}


def jobs_for(paths: Iterable[str | Path], request: Request = Request(), excluded: Sequence[str] = ()) -> list[Job]:
    """Return a job for each file that paths name."""
    job = conversion_job(request)
    return [job._replace(source=source) for source in find_sources(map(str, paths), excluded)]


def convert_one(path: Path, request: Request = Request(), *, is_found: bool = False) -> Outcome:
    """Convert a file, as a run does that names it, or finds it in a directory."""
    return _run(conversion_job(request), path, is_found=is_found)


def remove_one(path: Path) -> Outcome:
    """Remove the section of a file, as a run does that names it."""
    return _run(removal_job(), path)


def _run(job: Job, path: Path, *, is_found: bool = False) -> Outcome:
    return run_job(job._replace(source=Source(str(path), str(path), targets=(str(path.resolve()),), is_found=is_found)))


def has_section(data: bytes) -> bool:
    """Whether the name of the section is in a file; these files have it only with the section."""
    return b".rela.sframe\0" in data
