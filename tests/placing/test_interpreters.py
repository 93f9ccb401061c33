# SPDX-License-Identifier: Apache-2.0
"""Program interpreters and libraries like them get no new last segment, and work as before."""

import shutil
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import load
from cfi2sframe.cli import main
from cfi2sframe.constants.elf import PF_W, PT_GNU_SFRAME, PT_LOAD
from cfi2sframe.placing.place import Placement
from tests.support.elf.edit import File
from tests.support.needs import attempt, need, run
from tests.support.oracle.targets import TARGETS, Target, label
from tests.support.oracle.tools import tool_version
from tests.support.placing.embedded import (
    LARGE,
    LINKERS,
    SMALL,
    embed,
    embedded,
    linked_of,
    round_trip,
    take_out,
    without_section_headers,
    write,
)
from tests.support.placing.rewriting import rewrite

pytestmark = pytest.mark.oracle

NATIVE = Path("/lib64/ld-linux-x86-64.so.2")
INTERPRETERS = {"aarch64": "ld-linux-aarch64.so.1", "s390x": "ld64.so.1"}
TOOLS = (
    "machine cp IN OUT",
    "machine strip -o OUT IN",
    "machine objcopy IN OUT",
    "machine eu-strip -o OUT IN",
    "machine llvm-strip -o OUT IN",
    "machine llvm-objcopy IN OUT",
)
PROGRAM = """\
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(void)
{
  char *blocks[1000];
  for (int i = 0; i < 1000; i++)
    memset(blocks[i] = malloc(37 * i + 1), i, 37 * i + 1);
  for (int i = 0; i < 1000; i++)
    free(blocks[i]);
  return puts(dlopen("libm.so.6", RTLD_NOW) ? "loaded" : dlerror()) < 0;
}
"""
LIBRARY = """\
static int zeroed[9000];
int *zeroed_cells(void) { return zeroed; }
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


def _check_place(path: Path, before: Path) -> None:
    """The section is in the last segment; in a writable one, on a page that has nothing of .bss."""
    image = load(str(path))
    loads = [segment for segment in image.segments if segment.type == PT_LOAD]
    (section,) = (segment for segment in image.segments if segment.type == PT_GNU_SFRAME)
    (holder,) = (load for load in loads if load.vaddr <= section.vaddr < load.end_vaddr)
    assert len(loads) == sum(segment.type == PT_LOAD for segment in load(str(before)).segments)
    if holder.flags & PF_W:
        page = max(segment.alignment for segment in loads)
        bss_end = max(s.vaddr + s.size for s in image.sections if s.name == ".bss")
        assert holder == loads[-1]
        assert holder.file_size == holder.memory_size
        assert section.vaddr >= -(-bss_end // page) * page


@pytest.mark.parametrize("command", TOOLS)
def test_it_starts_programs(command: str, tmp_path: Path) -> None:
    if not NATIVE.exists():
        pytest.skip(f"no {NATIVE}")
    original, converted, changed = (tmp_path / name for name in ("original.so", "converted.so", "changed.so"))
    # The machine's own may have a section.
    data = NATIVE.read_bytes()
    original.write_bytes(take_out(data) if load(data).has_sframe else data)
    assert main([str(original), "-o", str(converted)]) == 0
    assert rewrite(command, converted, changed)
    changed.chmod(0o755)
    assert run(linked_of(tmp_path, PROGRAM, "-ldl", f"-Wl,-dynamic-linker,{changed}")) == "loaded\n"
    assert main(["verify", str(changed)]) == 0
    _check_place(changed, original)
    assert take_out(converted.read_bytes()) == original.read_bytes()


@pytest.mark.parametrize("target", TARGETS, ids=label)
def test_it_starts_programs_of_other_machines(target: Target, tmp_path: Path) -> None:
    original = target.sysroot / "lib" / INTERPRETERS[target.name]
    converted = tmp_path / "lib" / original.name
    (tmp_path / "lib").mkdir()
    for library in ("libc.so.6", "libm.so.6"):
        shutil.copy(target.sysroot / "lib" / library, tmp_path / "lib")
    assert main([str(original), "-o", str(converted)]) == 0
    program = linked_of(tmp_path, PROGRAM, "-ldl", compiler=target.compiler)
    assert run(target.emulator, "-L", tmp_path, program) == "loaded\n"
    _check_place(converted, original)


def _library(folder: Path, *flags: str) -> Path:
    """A library with .bss."""
    return linked_of(folder, LIBRARY, "-shared", "-fPIC", *flags).rename(folder / "library.so")


def _check_library(library: Path, folder: Path, size: int) -> Placement:
    """Put a section into a library, which works as before, and comes back."""
    plan = embed(library, folder / "converted.so", size)
    assert run(linked_of(folder, CALLER), folder / "converted.so") == "zeroed\n"
    assert take_out((folder / "converted.so").read_bytes()) == library.read_bytes()
    return plan


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("linker", LINKERS)
def test_a_library_that_needs_no_other(linker: str, size: int, tmp_path: Path) -> None:
    """One of mold before version 2 looks like an interpreter, since its e_entry is not 0; all work as before."""
    need(f"ld.{linker}")
    library = _library(tmp_path, "-nostdlib", f"-fuse-ld={linker}")
    has_entry = load(str(library)).header.entry_vaddr != 0
    assert has_entry == (linker == "mold" and tool_version("mold").startswith("1."))
    plan = _check_library(library, tmp_path, size)
    if size == LARGE:
        where = "into the last segment, on the page after .bss" if has_entry else "into a new read-only segment"
        assert plan.description.startswith(where)


def test_a_library_that_needs_others_is_no_interpreter_without_section_headers(tmp_path: Path) -> None:
    """Its dynamic section is found as the dynamic loader finds it; older GNU ld and mold set e_entry of libraries."""
    library = _library(tmp_path, "-Wl,--no-as-needed,--entry=_init", "-lm")
    assert load(str(library)).header.entry_vaddr
    bare = write(tmp_path / "bare.so", without_section_headers(library.read_bytes()))
    assert _check_library(bare, tmp_path, LARGE).description.startswith("into a new read-only segment")


#: It prints nothing, and ends with 0 if its .bss has zeros.
FIXED: Final = """\
#ifdef THREAD
__thread volatile int of_thread = 7;
#else
static volatile int of_thread = 7;
#endif
static char zeroed[9000];
__attribute__((noinline)) static int sum(const char *at) { return at[9] + at[8999]; }
void _start(void)
{
  __asm__ volatile("syscall" :: "a"(231L), "D"((long)sum(zeroed)));
  for (;;) of_thread++;
}
"""
#: Where klibc's interpreter is.
AWAY: Final = ("-static", "-no-pie", "-Wl,-Ttext-segment=0x200000")


@pytest.mark.parametrize(
    ("flags", "may_be_one"),
    [
        (AWAY, True),
        ((*AWAY, "-s"), True),
        ((*AWAY, "-DTHREAD"), False),
        (("-static", "-no-pie"), False),
        (("-static", "-no-pie", "-Wl,-Ttext-segment=0x3ff000"), True),
        (("-static-pie", "-fpie"), True),
        (("-static-pie", "-fpie", "-DTHREAD"), False),
    ],
)
def test_programs_that_a_kernel_may_load_as_interpreters(
    flags: tuple[str, ...], tmp_path: Path, *, may_be_one: bool
) -> None:
    """As klibc's: at a fixed address, or position-independent, without a program interpreter of their own."""
    program = linked_of(tmp_path, FIXED, "-nostdlib", *flags, compiler="x86_64-linux-gnu-gcc")
    plan = round_trip(program, tmp_path, LARGE)
    where = "into the last segment, on the page after .bss" if may_be_one else "into a new read-only segment"
    assert plan.description.startswith(where)
    assert attempt(program).status == 0
    if may_be_one:
        _check_place(tmp_path / "converted", program)


@pytest.mark.parametrize(("size", "may_be_one"), [(1 << 20, True), ((1 << 20) + 1, False)])
def test_the_most_bss_of_an_interpreter(size: int, tmp_path: Path, *, may_be_one: bool) -> None:
    file = File(linked_of(tmp_path, FIXED, "-nostdlib", *AWAY, compiler="x86_64-linux-gnu-gcc").read_bytes())
    last = file.segment(PT_LOAD, -1)
    last.memsz = last.filesz + size
    assert ("on the page after .bss" in embedded(bytes(file), LARGE)[0].description) == may_be_one
