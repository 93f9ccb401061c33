# SPDX-License-Identifier: Apache-2.0
"""The reader in C that docs/writing-a-reader.md is enough for: its answer is the library's, at every PC."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import Section, convert, load
from cfi2sframe.api import decode
from cfi2sframe.conversion.options import Level
from cfi2sframe.sframe.model import Found, Rule
from tests.support.contrib import ROOT, run
from tests.support.needs import need

pytestmark = pytest.mark.sampled

SOURCE: Final = ROOT / "tests" / "support" / "consumer" / "reader_main.c"
#: A function with a realigned stack (a flexible FDE), PLT stubs (PCMASK), a return from a handler (a signal frame).
REALIGNED: Final = """
#include <stdio.h>
#include <string.h>
void realigned(int n) { char big[n]; char a[64] __attribute__((aligned(64))); memset(a, n, 64); memset(big, n, n);
  printf("%p %p", (void *)a, (void *)big); puts(big); }
"""
HANDLER: Final = """
.globl back
.type back, @function
.cfi_startproc
.cfi_signal_frame
.cfi_escape 0x0f, 4, 0x77, 0xa0, 0x01, 0x06
.cfi_escape 0x10, 16, 3, 0x77, 0xa8, 0x01
.cfi_escape 0x10, 6, 3, 0x77, 0xf8, 0x00
nop
back: mov $15, %eax
syscall
.cfi_endproc
.size back, .-back
.section .note.GNU-stack,"",@progbits
"""


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("cc")
    path = tmp_path_factory.mktemp("reader") / "reader"
    run("cc", "-Wall", "-Wextra", "-Werror", "-Wno-sign-compare", "-O1", "-o", path, SOURCE)
    return path


def _library(folder: Path, compiler: str) -> Path:
    need(compiler)
    (folder / "a.c").write_text(REALIGNED)
    (folder / "b.s").write_text(HANDLER if compiler == "gcc" else "")
    path = folder / "a.so"
    more = ["-mbranch-protection=standard"] if compiler.startswith("aarch64") else []
    run(compiler, "-O2", "-shared", "-fPIC", *more, "-o", path, folder / "a.c", folder / "b.s")
    return path


def _text(found: Found | None) -> str:
    state = None if found is None else found.state
    if found is None or state is None:
        return "none"
    signal = " signal" if found.function.body.is_signal_frame else ""
    if state.cfa is None:
        return f"outermost{signal}"
    return f"row{signal}{' signed' if state.mangled_ra else ''} " + " ".join(
        map(_rule, (state.cfa, state.ra, state.fp))
    )


def _rule(rule: Rule | None) -> str:
    if rule is None:
        return "-"
    return f"{int(rule.register is not None)}:{rule.register or 0}:{rule.offset}:{int(rule.deref)}"


def _said(reader: Path, folder: Path, data: bytes, vaddr: int, section: Section, pcs: range) -> list[str]:
    (folder / "section").write_bytes(data)
    arch = section.arch
    words = [str(reader), str(folder / "section"), str(vaddr), str(arch.sp_register), str(arch.fp_register)]
    text = "".join(f"{pc}\n" for pc in pcs)
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize("compiler", ["gcc", "aarch64-linux-gnu-gcc"])
def test_its_answers_are_the_library_s(reader: Path, tmp_path: Path, compiler: str, level: Level) -> None:
    conversion = convert(load(str(_library(tmp_path, compiler))), level=level)
    section = decode(conversion.data, conversion.section_vaddr)
    bodies = section.bodies
    # -O2 may unroll stubs of a few blocks.
    assert level or any(body.is_pcmask for body in bodies)
    assert any(body.is_flexible for body in bodies) == (compiler == "gcc")
    assert any(body.is_signal_frame for body in bodies) == (compiler == "gcc")
    pcs = range(min(section.starts) - 2, max(map(sum, zip(section.starts, section.sizes, strict=True))) + 2)
    wanted = [_text(section.find(pc)) for pc in pcs]
    assert any("signed" in text for text in wanted) == (compiler != "gcc")
    assert "none" in wanted
    assert _said(reader, tmp_path, conversion.data, conversion.section_vaddr, section, pcs) == wanted


def test_of_the_c_library(reader: Path, tmp_path: Path) -> None:
    libraries = [path for path in map(Path, ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6")) if path.exists()]
    if not libraries:
        pytest.skip("no C library of AMD64")
    conversion = convert(load(str(libraries[0])))
    section = decode(conversion.data, conversion.section_vaddr)
    pcs = range(min(section.starts), section.starts[-1] + 1, 13)
    said = _said(reader, tmp_path, conversion.data, conversion.section_vaddr, section, pcs)
    assert said == [_text(section.find(pc)) for pc in pcs]
