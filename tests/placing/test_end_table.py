# SPDX-License-Identifier: Apache-2.0
"""The program headers of stripped files at the end: what runs, what survives which tool, and how it is undone.

Most programs have a better way, so the tests close it: nothing may move.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.elf.constants import PT_PHDR
from cfi2sframe.elf.headers import parse_file_header, parse_program_headers
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing import head
from cfi2sframe.placing.linked import plan_embedding, self_check, write_embedding
from cfi2sframe.placing.remove import remove_section
from tests.placing.test_later_tools import COMMANDS, Command, run_command
from tests.support.embedded import (
    LARGE,
    SMALL,
    checksum,
    compile_program,
    embed,
    mapped,
    run,
    sframe,
    take_out,
    write,
)
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = pytest.mark.oracle

LINKERS = ("bfd", "gold", "lld", "mold")
KINDS = ("pie", "nopie", "static", "static-pie")
EU_STRIP_WRONG = "eu-strip writes zeros or section headers over program headers that do not follow the ELF header"
GNU_WRONG = "GNU strip and objcopy 2.40 put the program headers at the start of their segment, and .sframe elsewhere"


@pytest.fixture
def no_other_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(head, "movable_sections", lambda *_words: frozenset())


def _has_table_entry(data: bytes) -> bool:
    return any(segment.type == PT_PHDR for segment in parse_program_headers(data, parse_file_header(data)))


@pytest.mark.usefixtures("no_other_way")
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linker", LINKERS)
def test_runs_and_is_undone(program: Callable[..., Path], tmp_path: Path, linker: str, kind: str, size: int) -> None:
    original, converted = program(linker, kind, "stripped"), tmp_path / "converted"
    plan = embed(original, converted, size)
    assert len(plan.warnings) == ("program headers moved" in plan.description)
    assert plan.warnings or size == SMALL or linker != "bfd"
    assert run(converted) == run(original)
    assert mapped(converted) == [("main", size, checksum(sframe(size)))]
    assert take_out(converted.read_bytes()) == original.read_bytes()


@pytest.mark.parametrize("kind", ["plain", "stripped"])
def test_a_program_without_other_room(tmp_path: Path, kind: str) -> None:
    """A static program of GNU gold has nothing that may move; it has to be stripped first."""
    need("ld.gold")
    original, converted = tmp_path / "original", tmp_path / "converted"
    flags = ["-fuse-ld=gold", "-static", "-DNO_DLOPEN"]
    compile_program(original, "program.cpp", [*flags, *(["-s"] if kind == "stripped" else [])])
    if kind == "plain":
        with pytest.raises(EmbedError, match="strip the file first"):
            plan_embedding(original.read_bytes(), LARGE)
        return
    plan = embed(original, converted, LARGE)
    assert "strip must have run before" in plan.warnings[0]
    assert run(converted) == run(original)
    assert mapped(converted) == [("main", LARGE, checksum(sframe(LARGE)))]


def test_the_segment_of_the_program_headers_grows_over_zeros(tmp_path: Path) -> None:
    """As of valgrind's tools, which have notes only after their program headers, and megabytes of .bss."""
    need("gcc")
    source, original, converted = tmp_path / "program.c", tmp_path / "original", tmp_path / "converted"
    code = 'static char zeroed[64 << 20];\nvoid _start(void) { __asm__("syscall" :: "a"(231), "D"(zeroed[9])); }\n'
    source.write_text(code)
    flags = ("-static", "-nostdlib", "-Wl,-z,separate-code", "-Wl,--build-id=sha1", "-s")
    assert run("gcc", *flags, "-o", original, source).status == 0
    plan = embed(original, converted, LARGE)
    assert not plan.warnings
    assert converted.stat().st_size < original.stat().st_size + LARGE + 4096
    assert (run(original).status, run(converted).status) == (0, 0)
    assert take_out(converted.read_bytes()) == original.read_bytes()


@pytest.mark.usefixtures("no_other_way")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
@pytest.mark.parametrize(
    "kind",
    ["pie", "static", "library", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("nopie", "static-pie"))],
)
def test_survives(
    program: Callable[..., Path],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    command: Command,
) -> None:
    """The program runs after all of them but eu-strip, and has its section after all but GNU strip 2.40."""
    original, plain, converted, changed = (tmp_path / f"{n}.so" for n in ("original", "plain", "converted", "changed"))
    if kind == "library":
        compile_program(original, "library.cpp", ["-shared", "-fPIC", "-s"])
        main: tuple[Path, ...] = (program(),)
    else:
        shutil.copy2(program("bfd", kind, "stripped"), original)
        main = ()
    expected = run(*main, original)
    if not run_command(command, original, plain, binutils) or run(*main, plain) != expected:
        pytest.skip("the unmodified file does not survive this either")
    embed(original, converted, LARGE)
    if command.words[0] == "eu-strip":
        request.applymarker(pytest.mark.xfail(reason=EU_STRIP_WRONG, strict=True))
    elif command.version in ("2.40", "machine") and command.words[0] in ("strip", "objcopy"):
        wrong = _has_table_entry(original.read_bytes())
        request.applymarker(pytest.mark.xfail(wrong, reason=GNU_WRONG, strict=True))
    assert run_command(command, converted, changed, binutils)
    assert run(*main, changed) == expected
    name = "changed.so" if main else "main"
    assert mapped(*main, changed) == [(name, LARGE, checksum(sframe(LARGE)))]
    if command.version == "2.40":
        # It gives the new segment a physical address of its own, as kernels have them.
        with pytest.raises(EmbedError, match="physical addresses"):
            remove_section(changed.read_bytes())
        return
    write(tmp_path / "removed.so", take_out(changed.read_bytes()))
    assert run(*main, tmp_path / "removed.so") == expected


@pytest.mark.usefixtures("no_other_way")
@pytest.mark.parametrize("second", [SMALL, LARGE, 2 * LARGE])
def test_replacing(program: Callable[..., Path], tmp_path: Path, second: int) -> None:
    original = program("bfd", "pie", "stripped")
    embed(original, tmp_path / "first", LARGE)
    data = (tmp_path / "first").read_bytes()
    plan = plan_embedding(data, second, replace=True)
    rewritten = b"".join(write_embedding(plan, sframe(second)))
    self_check(data, rewritten, plan, sframe(second))
    write(tmp_path / "second", rewritten)
    assert run(tmp_path / "second") == run(original)
    assert mapped(tmp_path / "second") == [("main", second, checksum(sframe(second)))]
