# SPDX-License-Identifier: Apache-2.0
"""Run the command line in this process, with its streams caught and the sums of each conversion checked."""

import gc
import io
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

from cfi2sframe.abi import AMD64
from cfi2sframe.cli import main
from cfi2sframe.conversion import convert
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from tests.support.conversion.sums import check_sums, may_join
from tests.support.elf.samples import TEXT_VADDR, linked_file, push_fp
from tests.support.sframe.raw_sframe import RawFunction, RawSection

ROOT = Path(__file__).resolve().parents[2]
#: A linked file of one function, and the section that it gets, by hand.
PROGRAM = linked_file(AMD64, (push_fp(AMD64),))
PUSH = RawFunction(TEXT_VADDR, 32, bytes.fromhex("00 03 08  04 05 10 f0  08 04 10 f0"), 3)
SECTION = RawSection((PUSH,))


class Result(NamedTuple):
    """What a run left: its exit status, standard output's bytes, and the lines of standard error."""

    status: int
    out: bytes
    err: tuple[str, ...]

    def failed(self, status: int, place: str | Path = "") -> bool:
        """Whether the run printed one line, an error of a file (or of none), and left this exit status."""
        head = f"cfi2sframe: {place}: error: " if place else "cfi2sframe: error: "
        return (self.status, self.out, len(self.err)) == (status, b"", 1) and self.err[0].startswith(head)


def run(*arguments: str | Path, stdin: bytes = b"") -> Result:
    """Run `cfi2sframe ARGUMENTS...`."""
    true = convert.convert_image

    def convert_image(image: ElfImage, options: Options) -> Conversion:
        conversion = true(image, options)
        check_sums(conversion, may_join=may_join(options))
        return conversion

    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True), io.StringIO()
    streams = {"stdin": io.TextIOWrapper(io.BytesIO(stdin)), "stdout": out, "stderr": err}
    try:
        with patch.object(convert, "convert_image", convert_image), patch.dict(vars(sys), streams):
            status = main([str(argument) for argument in arguments])
    finally:
        gc.enable()
    buffer = out.buffer
    assert isinstance(buffer, io.BytesIO)
    # One file's failure is a record, whatever was raised; none of these files should fail in an unforeseen way.
    assert "internal error" not in err.getvalue()
    assert b"internal error" not in buffer.getvalue()
    return Result(status, buffer.getvalue(), tuple(err.getvalue().splitlines()))


def run_process(
    *arguments: str | Path, prefix: Sequence[str] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run `python -m cfi2sframe ARGUMENTS...` as a process of its own, maybe through another program."""
    return run_python("-m", "cfi2sframe", *arguments, prefix=prefix, **environment)


def run_python(*words: str | Path, prefix: Sequence[str] = (), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python, which finds the package, as a process of its own, maybe through another program."""
    return subprocess.run(
        [*prefix, sys.executable, "-P", *map(str, words)],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
