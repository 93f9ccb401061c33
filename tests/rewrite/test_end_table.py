# SPDX-License-Identifier: Apache-2.0
"""The program headers at the end of the file: what runs, what survives which tool, and how it is undone.

Most programs have a better way, so the tests close those ways.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.elf.constants import PT_PHDR
from cfi2sframe.elf.headers import parse_file_header, parse_program_headers
from cfi2sframe.errors import EmbedError
from cfi2sframe.rewrite import choose, linked
from cfi2sframe.rewrite.linked import plan_embedding, remove_section, self_check, write_embedding
from tests.rewrite.test_later_tools import COMMANDS, Command, run_command
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
    for name in ("_with_moving", "_without_moving"):
        monkeypatch.setattr(choose, name, lambda *_words, **_options: None)
    monkeypatch.setattr(linked, "front_page", lambda _file: None)


def _has_table_entry(data: bytes) -> bool:
    return any(segment.type == PT_PHDR for segment in parse_program_headers(data, parse_file_header(data)))


@pytest.mark.usefixtures("no_other_way")
@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linker", LINKERS)
def test_runs_and_is_undone(program: Callable[..., Path], tmp_path: Path, linker: str, kind: str, size: int) -> None:
    original, converted = program(linker, kind, "debug"), tmp_path / "converted"
    plan = embed(original, converted, size, may_move_table=True)
    assert (plan.headers, len(plan.warnings)) == (("table-at-end",), 1)
    assert run(converted) == run(original)
    assert mapped(converted) == [("main", size, checksum(sframe(size)))]
    assert take_out(converted.read_bytes()) == original.read_bytes()


def test_a_program_without_other_room(tmp_path: Path) -> None:
    """A static program of GNU gold at so low an address that no page fits in front of it."""
    need("ld.gold")
    original, converted = tmp_path / "original", tmp_path / "converted"
    flags = ["-fuse-ld=gold", "-static", "-DNO_DLOPEN", "-Wl,-Ttext-segment=0x10000"]
    compile_program(original, "program.cpp", flags)
    with pytest.raises(EmbedError, match="--header-table end"):
        plan_embedding(original.read_bytes(), LARGE)
    plan = embed(original, converted, LARGE, may_move_table=True)
    assert plan.headers == ("table-at-end",)
    assert "strip must have run before" in plan.warnings[0]
    assert run(converted) == run(original)
    assert mapped(converted) == [("main", LARGE, checksum(sframe(LARGE)))]


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
        compile_program(original, "library.cpp", ["-shared", "-fPIC"])
        main: tuple[Path, ...] = (program(),)
    else:
        shutil.copy2(program("bfd", kind), original)
        main = ()
    expected = run(*main, original)
    if not run_command(command, original, plain, binutils) or run(*main, plain) != expected:
        pytest.skip("the unmodified file does not survive this either")
    embed(original, converted, LARGE, may_move_table=True)
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
    original = program("bfd", "pie")
    embed(original, tmp_path / "first", LARGE, may_move_table=True)
    data = (tmp_path / "first").read_bytes()
    plan = plan_embedding(data, second, replace=True, may_move_table=True)
    assert (plan.strategy == "existing-section") == (second <= LARGE)
    rewritten = b"".join(write_embedding(data, plan, sframe(second)))
    self_check(data, rewritten, plan, sframe(second))
    write(tmp_path / "second", rewritten)
    assert run(tmp_path / "second") == run(original)
    assert mapped(tmp_path / "second") == [("main", second, checksum(sframe(second)))]
