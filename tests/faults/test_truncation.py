# SPDX-License-Identifier: Apache-2.0
"""Large files that are truncated while they are read: an error, at every moment, and nothing else."""

import os
from collections.abc import Iterator
from functools import cache, partial
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.elf import load
from tests.support.cli import Result
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, linked_file, push_fp
from tests.support.faults import OLD, contents, run_until
from tests.support.jobs import object_of
from tests.support.placing.embedded import converted
from tests.support.trace.core_files import MODELS, plain_core, program
from tests.support.trace.stacks import make_stack

pytestmark = pytest.mark.fuzz

WHILE_READ = "the file was changed while it was being read"
CHANGED = ("the file was changed while it was being converted", WHILE_READ)


@cache
def file_of(name: str) -> bytes:
    """Return the bytes of a file that the forms below name."""
    if name.startswith("old"):
        return converted(file_of(name.replace("old", "big")), version=1)
    if name == "big.o":
        return object_of(3)
    if name == "big.so":
        free = (asm.Segment(0, 0, (".text",)),) * 2
        functions = [push_fp(AMD64, TEXT_VADDR + 32 * n) for n in range(4)]
        return linked_file(AMD64, functions, codes=(Code(data=bytes(0x1000)),), segments=free)
    if name == "core":
        return plain_core(AMD64, "program").assemble()
    assert name == "program"
    return program(AMD64, make_stack(AMD64, 3, MODELS).section)


class Form(NamedTuple):
    """A way to call the program: its arguments, and the file that changes."""

    arguments: tuple[str, ...]
    file: str


FORMS = {
    "raw": Form(("big.o", "-o", "out.sframe"), "big.o"),
    "raw of a library": Form(("big.so", "-o", "out.sframe"), "big.so"),
    "object": Form(("big.o", "-o", "out.o"), "big.o"),
    "library": Form(("big.so", "-o", "out.so"), "big.so"),
    "object in place": Form(("--in-place", "big.o"), "big.o"),
    "library in place": Form(("--in-place", "big.so"), "big.so"),
    "object again": Form(("--in-place", "--replace", "old.o"), "old.o"),
    "library again": Form(("--in-place", "--replace", "old.so"), "old.so"),
    "remove from an object": Form(("remove", "--in-place", "old.o"), "old.o"),
    "remove from a library": Form(("remove", "--in-place", "old.so"), "old.so"),
    "verify": Form(("verify", "--would-be", "big.so"), "big.so"),
    "verify existing": Form(("verify", "old.o"), "old.o"),
    "dump": Form(("dump", "old.so"), "old.so"),
    "coverage": Form(("coverage", "big.o"), "big.o"),
    "trace": Form(("trace", "core"), "core"),
}


def fill(folder: Path, form: Form) -> dict[str, bytes]:
    """Put the form's files into a folder; return them."""
    files = {form.file: file_of(form.file)}
    if "-o" in form.arguments:
        files[form.arguments[-1]] = OLD
    if form.file == "core":
        files["program"] = file_of("program")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


def _numbers() -> Iterator[int]:
    """Yield the first numbers, and every fifth of the following ones: those are mostly the self-check's."""
    yield from range(1, 15)
    yield from count(15, 5)


@pytest.mark.sampled
@pytest.mark.parametrize("name", FORMS)
def test_truncated_before_any_read(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The truncation comes before each of the reads: of small files, which are read here like large ones."""
    # Of files that are large indeed, blocks of zeros would be most of what is read.
    monkeypatch.setattr(load, "_LARGE_SIZE", 0)
    monkeypatch.chdir(folder)
    form = FORMS[name]
    files = fill(folder, form)
    ends: list[Result] = []
    for number in _numbers():
        result, has_come = run_until(frozenset({os.pread}), number, partial(os.truncate, form.file, 0), *form.arguments)
        ends.append(result)
        if not has_come:
            break
        # When all of a core has been read, the files that it names are left to be read.
        if result.status or name != "trace":
            assert result.failed(3, form.file), result
        if result.status and "--in-place" not in form.arguments:
            # Conversion in place starts over, and finds an empty file.
            assert result.err[0].endswith(CHANGED)
        assert contents(folder) == {**files, form.file: b""}
        (folder / form.file).write_bytes(files[form.file])
    assert ends[-1].status == 0
    assert {result.out for result in ends if not result.status} == {ends[-1].out}
    assert len(ends) > 3
