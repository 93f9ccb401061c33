# SPDX-License-Identifier: Apache-2.0
"""Program interpreters are told apart from libraries that need no other library."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from cfi2sframe.rewrite.gate import open_linked
from cfi2sframe.rewrite.interpreter import reason_against_tail
from tests.support.embedded import LARGE, embed, run
from tests.support.needs import need

E_ENTRY = 24
INTERPRETERS = {
    "amd64": ("/lib64/ld-linux-x86-64.so.2", "/lib/ld-musl-x86_64.so.1"),
    "arm64": ("/usr/aarch64-linux-gnu/lib/ld-linux-aarch64.so.1", "/lib/ld-musl-aarch64.so.1"),
    "s390x": ("/usr/s390x-linux-gnu/lib/ld64.so.1", "/lib/ld-musl-s390x.so.1"),
}
CORPUS = Path(__file__).parents[2] / "build/corpus"
LIBRARY = """\
static int zeroed[9000];
int *{name}(void) {{ return zeroed; }}
"""
CALLER = """\
#include <dlfcn.h>
#include <stdio.h>
int main(int count, char **words)
{
  void *library = dlopen(words[count - 1], RTLD_NOW);
  int *(*function)(void) = library ? (int *(*)(void))dlsym(library, "zeroed_cells") : 0;
  return function ? puts(function()[8999] ? "damaged" : "zeroed") < 0 : 1;
}
"""


def _library(folder: Path, *flags: str, name: str = "zeroed_cells") -> Path:
    """A library with .bss that needs no other."""
    need("gcc")
    (folder / "library.c").write_text(LIBRARY.format(name=name))
    result = run("gcc", "-shared", "-fPIC", "-nostdlib", *flags, "-o", folder / "library.so", folder / "library.c")
    assert result.status == 0, result.errors
    return folder / "library.so"


def _reason(path: Path) -> str:
    return reason_against_tail(open_linked(path.read_bytes())) or ""


@pytest.mark.parametrize("architecture", INTERPRETERS)
def test_those_of_this_machine(architecture: str) -> None:
    names = [Path(path) for path in INTERPRETERS[architecture]]
    names += [path for path in (CORPUS / architecture).glob("usr/lib/*/ld*.so.*") if path.is_file()]
    found = [path for path in names if path.exists()]
    if not found:
        pytest.skip("no program interpreter of this architecture is here")
    for path in found:
        assert "program interpreter" in _reason(path), path


@pytest.mark.parametrize("linker", ["bfd", "gold", "lld", "mold"])
def test_a_library_that_needs_no_other_gets_a_segment(linker: str, tmp_path: Path) -> None:
    """Also one of mold's, whose e_entry is not 0; and it works as before."""
    need("mold" if linker == "mold" else f"ld.{linker}")
    library = _library(tmp_path, f"-fuse-ld={linker}")
    entry = struct.unpack_from("<Q", library.read_bytes(), E_ENTRY)[0]
    assert bool(entry) == (linker == "mold")
    plan = embed(library, tmp_path / "converted.so", LARGE)
    assert plan.strategy == "new-segment"
    (tmp_path / "caller.c").write_text(CALLER)
    assert run("gcc", "-o", tmp_path / "caller", tmp_path / "caller.c").status == 0
    result = run(tmp_path / "caller", tmp_path / "converted.so")
    assert (result.status, result.output) == (0, "zeroed\n"), result.errors


@pytest.mark.parametrize("linker", ["bfd", "mold"])
@pytest.mark.parametrize("name", ["_start", "_dlstart", "_dl_debug_state", "__tls_get_addr", "my_dl_debug_state"])
def test_symbols_of_an_interpreter(linker: str, name: str, tmp_path: Path) -> None:
    """The entry alone is no sign where it is the start of .text."""
    need("mold" if linker == "mold" else "ld.bfd")
    library = _library(tmp_path, f"-fuse-ld={linker}", f"-Wl,-e,{name}", name=name)
    assert ("program interpreter" in _reason(library)) == (name != "my_dl_debug_state")
