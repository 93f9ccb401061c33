# SPDX-License-Identifier: Apache-2.0
"""What pipelines do to a file afterwards: it runs, and `.sframe` is mapped with the same bytes."""

from __future__ import annotations

import shutil
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.elf.constants import PT_PHDR
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing import head
from tests.support.embedded import (
    KINDS,
    LARGE,
    LINKERS,
    SMALL,
    checksum,
    compiled,
    embed,
    linked_program,
    mapped,
    sframe,
    take_out,
    write,
)
from tests.support.needs import attempt, need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.placing.place import Placement
    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = pytest.mark.oracle


class Command(NamedTuple):
    """A tool and its arguments; IN and OUT stand for the files. GNU tools come in several versions."""

    words: tuple[str, ...]
    version: BinutilsVersion | Literal["machine"] = "machine"

    @property
    def name(self) -> str:
        return "-".join([self.version, *self.words[:2]]).replace("/", "_")


_GNU = (
    ("strip", "-o", "OUT", "IN"),
    ("strip", "-g", "-o", "OUT", "IN"),
    ("objcopy", "IN", "OUT"),
)
COMMANDS = (
    *(Command(words, version) for version in ("2.40", "2.44", "newest") for words in _GNU),
    Command(("eu-strip", "-o", "OUT", "IN")),
    Command(("eu-strip", "-g", "-o", "OUT", "IN")),
    Command(("eu-strip", "-f", "OUT.debug", "-o", "OUT", "IN")),
    Command(("llvm-strip", "-o", "OUT", "IN")),
    Command(("llvm-objcopy", "IN", "OUT")),
    Command(("llvm-objcopy", "--strip-all", "IN", "OUT")),
    Command(("patchelf", "--set-rpath", "/opt/some/rather/long/directory/of/libraries", "--output", "OUT", "IN")),
    Command(("patchelf", "--set-interpreter", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "--output", "OUT", "IN")),
)
each_command = pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
#: patchelf puts a growing .dynamic of a program at fixed addresses into room after the program headers, and that is
#: read-only: the program crashes. Where .dynsym moved away there is such room.
PATCHELF_WRONG = "patchelf writes .dynamic into a read-only segment when there is room after the program headers"
EU_STRIP_WRONG = "eu-strip writes zeros or section headers over program headers that do not follow the ELF header"
GNU_WRONG = "GNU strip and objcopy 2.40 put the program headers at the start of their segment, and .sframe elsewhere"


class Case(NamedTuple):
    """What a command is applied to: a program, or a library that a program loads."""

    original: Path
    command: Command
    folder: Path
    binutils: Callable[[BinutilsVersion], Binutils]
    main: tuple[Path, ...] = ()

    def changed(self, source: Path) -> Path | None:
        """Apply the tool; return what it makes, None where it fails. Skips when it is not here."""
        tool, *words = self.command.words
        if self.command.version == "machine":
            need(tool)
        else:
            tool = self.binutils(self.command.version).tool(tool)
        target = self.folder / f"changed-{source.name}"
        places = {"IN": str(source), "OUT": str(target), "OUT.debug": f"{target}.debug"}
        return target if attempt(tool, *(places.get(word, word) for word in words)).status == 0 else None

    def embed(self, size: int) -> Placement:
        """Put a section in; skips where the unmodified file does not survive the tool either."""
        plain = self.changed(self.original)
        if not plain or attempt(*self.main, plain) != attempt(*self.main, self.original):
            pytest.skip("the unmodified file does not survive this either")
        return embed(self.original, self.folder / "converted.so", size)

    def check(self, size: int) -> Path:
        """Check that the converted file survives the tool; return it."""
        changed = self.changed(self.folder / "converted.so")
        assert changed
        assert attempt(*self.main, changed) == attempt(*self.main, self.original)
        name = changed.name if self.main else "main"
        assert mapped(*self.main, changed) == [(name, size, checksum(sframe(size)))]
        return changed

    def check_removal(self, changed: Path) -> None:
        """Check that a file works without its section, too."""
        removed = write(self.folder / "removed.so", take_out(changed.read_bytes()))
        assert attempt(*self.main, removed) == attempt(*self.main, self.original)


@each_command
@pytest.mark.parametrize("link", [*product(LINKERS, KINDS)])
@pytest.mark.parametrize("variant", ["plain", "noseparate"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_survives(
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    link: tuple[str, str],
    variant: str,
    size: int,
    command: Command,
) -> None:
    linker, kind = link
    if kind == "static" and size == LARGE and linker in ("bfd", "gold"):
        pytest.skip("refused: it has to be stripped first")
    case = Case(linked_program(linker, kind, variant), command, tmp_path, binutils)
    plan = case.embed(size)
    dynsym_moved = ".dynsym" in plan.moved and linker != "mold"
    if command.words[:2] == ("patchelf", "--set-rpath") and kind == "nopie" and dynsym_moved:
        request.applymarker(pytest.mark.xfail(reason=PATCHELF_WRONG, strict=True))
    case.check_removal(case.check(size))


@each_command
@pytest.mark.parametrize(
    "kind",
    ["pie", "static", "library", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("nopie", "static-pie"))],
)
def test_a_table_at_the_end_survives(
    monkeypatch: pytest.MonkeyPatch,
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    kind: str,
    command: Command,
) -> None:
    """The file runs after all of them but eu-strip, and has its section after all but GNU strip 2.40."""
    monkeypatch.setattr(head, "movable_sections", lambda *_words: frozenset())
    if kind == "library":
        library = compiled("library.cpp", "-shared", "-fPIC", "-s")
        case = Case(library, command, tmp_path, binutils, (linked_program(),))
    else:
        case = Case(linked_program("bfd", kind, "stripped"), command, tmp_path, binutils)
    case.embed(LARGE)
    if command.words[0] == "eu-strip":
        request.applymarker(pytest.mark.xfail(reason=EU_STRIP_WRONG, strict=True))
    elif command.version in ("2.40", "machine") and command.words[0] in ("strip", "objcopy"):
        wrong = any(segment.type == PT_PHDR for segment in load(str(case.original)).segments)
        request.applymarker(pytest.mark.xfail(wrong, reason=GNU_WRONG, strict=True))
    changed = case.check(LARGE)
    if command.version == "2.40":
        # It gives the new segment a physical address of its own, as kernels have them.
        with pytest.raises(EmbedError, match="physical addresses"):
            take_out(changed.read_bytes())
    else:
        case.check_removal(changed)


@pytest.mark.parametrize("kind", ["pie", "nopie", "static-pie"])
def test_no_growth_after_strip_and_removal(tmp_path: Path, kind: str) -> None:
    """Strip takes the record for removal away, so zeros are left; the next section goes there."""
    need("strip")
    original = linked_program("bfd", kind)
    path = write(tmp_path / "program", original.read_bytes())
    sizes = set()
    for _ in range(3):
        embed(path, path, LARGE)
        assert attempt("strip", path).status == 0
        write(path, take_out(path.read_bytes()))
        assert attempt(path) == attempt(original)
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pie", "nopie"])
def test_separate_debug_files(tmp_path: Path, kind: str) -> None:
    """With debug files from before and after the conversion, gdb works; eu-unstrip joins those from after it."""
    need("gdb", "eu-unstrip", "objcopy")
    original = linked_program("bfd", kind, "debug")
    converted, stripped, linked, debug = (tmp_path / n for n in ("converted", "stripped", "linked", "linked.debug"))
    embed(original, converted, LARGE)
    for source in (original, converted):
        debug.unlink(missing_ok=True)
        assert attempt("objcopy", "--only-keep-debug", source, debug).status == 0
        assert attempt("objcopy", "--strip-debug", f"--add-gnu-debuglink={debug}", converted, stripped).status == 0
        shutil.move(stripped, linked)
        assert attempt(linked) == attempt(original)
        commands = ["-ex", "break thrower", "-ex", "run", "-ex", "bt 3"]
        session = attempt("gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *commands, linked)
        assert "#0  thrower (depth=" in session.out
        assert "program.cpp" in session.out
    joined = attempt("eu-unstrip", "-o", tmp_path / "joined", linked, debug)
    assert joined.status == 0, joined
    assert mapped(tmp_path / "joined") == [("main", LARGE, checksum(sframe(LARGE)))]
