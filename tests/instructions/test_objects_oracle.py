# SPDX-License-Identifier: Apache-2.0
"""Objects of a compiler without their CFI: no row from instructions contradicts the CFI that the compiler would write.

An object's calls, tables of jumps and addresses are the linker's to fill in. They must not lead the analysis astray.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load
from cfi2sframe.api import decode_made
from cfi2sframe.conversion import Options
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

    from cfi2sframe.elf.image import ElfImage

pytestmark = pytest.mark.oracle

#: Calls of what is elsewhere, calls that do not come back, a table of jumps, a jump to another function.
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
int g(int);
static __attribute__((noinline)) int printed(int x)
{
    char text[100];
    snprintf(text, sizeof text, "%d", x);
    return text[0] + g(x);
}
int sum(int n)
{
    int s = 0;
    for (int i = 0; i < n; i++)
        s += printed(i) * g(i);
    if (s == 77)
        abort();
    return s;
}
int chosen(int n)
{
    if (n < 0) {
        puts("negative");
        exit(3);
    }
    switch (n) {
    case 0: return g(1);
    case 1: return g(5) + 1;
    case 2: return printed(2);
    case 3: return g(9) * 3;
    case 4: return g(7);
    case 5: return g(11) + g(3);
    default: return 0;
    }
}
int next(int n) { return g(n + 1); }
"""
WITHOUT_CFI = ("-fno-asynchronous-unwind-tables", "-fno-exceptions")


def compiled(compiler: str, folder: Path, *options: str) -> ElfImage:
    (folder / "source.c").write_text(SOURCE)
    path = folder / "object.o"
    # The line table refers to the code, so that it has a symbol of its own.
    command = [compiler, "-c", "-gline-tables-only" if "clang" in compiler else "-g1", "-fomit-frame-pointer", *options]
    subprocess.run([*command, "-o", path, folder / "source.c"], check=True)
    strip = compiler.replace("gcc", "objcopy")
    removed = [f"--remove-section={name}" for name in (".debug_frame", ".rela.debug_frame")]
    subprocess.run([strip, *removed, path], check=True)
    return load(str(path))


@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc", "s390x-linux-gnu-gcc"])
@pytest.mark.parametrize("level", ["-O1", "-O2", "-Os"])
def test_no_row_contradicts_the_cfi(compiler: str, level: str, tmp_path: Path) -> None:
    need(compiler)
    expected_image = compiled(compiler, tmp_path, level)
    expected = decode_made(expected_image)
    image = compiled(compiler, tmp_path, level, *WITHOUT_CFI)
    found = decode_made(image, Options(source="code"))
    sections = {code.name: code for code in image.code_ranges}
    same = 0
    for code in expected_image.code_ranges:
        start = sections[code.name].start_vaddr
        size = code.end_vaddr - code.start_vaddr
        assert sections[code.name].end_vaddr - start == size
        for delta in range(0, size, 1 if image.arch.prologue_step == 2 else 2):
            right, row = expected.find(code.start_vaddr + delta), found.find(start + delta)
            if right is None or row is None or right.state is None or row.state is None:
                continue
            assert row.state.cfa == right.state.cfa, hex(delta)
            # Near a function's end, a value may be in its register again and still in its slot.
            assert None in (row.state.ra, right.state.ra) or row.state.ra == right.state.ra, hex(delta)
            assert None in (row.state.fp, right.state.fp) or row.state.fp == right.state.fp, hex(delta)
            same += 1
    assert same > 60
