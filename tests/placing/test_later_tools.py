# SPDX-License-Identifier: Apache-2.0
"""What pipelines do to a file afterwards: it runs, and `.sframe` is mapped with the same bytes."""

from __future__ import annotations

import shutil
from itertools import product
from typing import TYPE_CHECKING, Literal, NamedTuple

import pytest

from cfi2sframe.errors import EmbedError
from tests.placing.conftest import FULL_LINKERS
from tests.support.embedded import (
    LARGE,
    SMALL,
    checksum,
    embed,
    mapped,
    run,
    sframe,
    take_out,
    write,
)
from tests.support.needs import need
from tests.support.oracle.tools import ToolMissingError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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
#: patchelf puts a growing .dynamic of a program at fixed addresses into room after the program headers, and that is
#: read-only: the program crashes. Where .dynsym moved away there is such room.
PATCHELF_WRONG = "patchelf writes .dynamic into a read-only segment when there is room after the program headers"


def run_command(command: Command, source: Path, target: Path, binutils: Callable[[BinutilsVersion], Binutils]) -> bool:
    """Apply a tool; return whether it succeeded. Skips when it is not here."""
    if command.version == "machine":
        need(command.words[0])
        tool = command.words[0]
    else:
        try:
            tool = binutils(command.version).tool(command.words[0])
        except ToolMissingError as error:
            pytest.skip(str(error))
    places = {"IN": str(source), "OUT": str(target), "OUT.debug": f"{target}.debug"}
    return run(tool, *(places.get(word, word) for word in command.words[1:])).status == 0


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
@pytest.mark.parametrize("link", [*product(["bfd", "gold", "lld", "mold"], ["pie", "nopie", "static", "static-pie"])])
@pytest.mark.parametrize("variant", ["plain", "noseparate"])
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_survives(
    program: Callable[..., Path],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    request: pytest.FixtureRequest,
    link: tuple[str, str],
    variant: str,
    size: int,
    command: Command,
) -> None:
    linker, kind = link
    original = program(linker, kind, variant)
    expected = run(original)
    plain = tmp_path / "plain"
    if not run_command(command, original, plain, binutils) or run(plain) != expected:
        pytest.skip("the unmodified program does not survive this either")
    converted, changed = tmp_path / "converted", tmp_path / "changed"
    if kind == "static" and size == LARGE and linker in FULL_LINKERS:
        with pytest.raises(EmbedError, match="strip the file first"):
            embed(original, converted, size)
        return
    plan = embed(original, converted, size)
    dynsym_moved = ".dynsym" in plan.moved and linker != "mold"
    if command.words[:2] == ("patchelf", "--set-rpath") and kind == "nopie" and dynsym_moved:
        request.applymarker(pytest.mark.xfail(reason=PATCHELF_WRONG, strict=True))
    assert run_command(command, converted, changed, binutils)
    assert run(changed) == expected
    assert mapped(changed) == [("main", size, checksum(sframe(size)))]
    write(tmp_path / "removed", take_out(changed.read_bytes()))
    assert run(tmp_path / "removed") == expected


def _can_unstrip(objcopy: str, original: Path, folder: Path) -> bool:
    """Whether eu-unstrip joins the unmodified program with its debug file."""
    debug, stripped = folder / "original.debug", folder / "original.stripped"
    if not debug.exists():
        run(objcopy, "--only-keep-debug", original, debug)
        run(objcopy, "--strip-debug", original, stripped)
    return run("eu-unstrip", "-o", folder / "original.joined", stripped, debug).status == 0


@pytest.mark.sampled
@pytest.mark.parametrize(("version", "size"), [("2.40", LARGE), ("newest", SMALL), ("newest", LARGE)])
@pytest.mark.parametrize("kind", ["pie", "nopie", "static-pie"])
def test_separate_debug_file(
    program: Callable[..., Path],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
    kind: str,
    size: int,
    version: BinutilsVersion,
) -> None:
    """Debug files made before and after the conversion are found, and gdb sees through them."""
    need("gdb", "eu-unstrip", "objcopy")
    objcopy = binutils(version).tool("objcopy") if version == "newest" else "objcopy"
    original = program("bfd", kind, "debug")
    converted = tmp_path / "converted"
    plan = embed(original, converted, size)
    for source in (original, converted):
        debug, linked = tmp_path / "linked.debug", tmp_path / "linked"
        debug.unlink(missing_ok=True)
        assert run(objcopy, "--only-keep-debug", source, debug).status == 0
        stripped = tmp_path / "stripped"
        assert run(objcopy, "--strip-debug", f"--add-gnu-debuglink={debug}", converted, stripped).status == 0
        shutil.move(stripped, linked)
        assert run(linked) == run(original)
        assert mapped(linked) == [("main", size, checksum(sframe(size)))]
        commands = ["-ex", "break thrower", "-ex", "run", "-ex", "bt 3"]
        session = run("gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off", *commands, linked)
        assert "#0  thrower (depth=" in session.output
        assert "program.cpp" in session.output
        # eu-unstrip matches sections by address: what moved, it finds in a debug file of the rewritten file only.
        if (source == converted or not plan.moved) and _can_unstrip(objcopy, original, tmp_path):
            joined = run("eu-unstrip", "-o", tmp_path / "joined", linked, debug)
            assert joined.status == 0, joined
            assert mapped(tmp_path / "joined") == [("main", size, checksum(sframe(size)))]


@pytest.mark.parametrize("kind", ["pie", "nopie", "static-pie"])
def test_no_growth_after_strip_and_removal(program: Callable[..., Path], tmp_path: Path, kind: str) -> None:
    """Strip takes the record for removal away, so zeros are left; the next section goes there."""
    need("strip")
    expected, path = run(program("bfd", kind)), tmp_path / "program"
    write(path, program("bfd", kind).read_bytes())
    sizes = set()
    for _ in range(3):
        embed(path, path, LARGE)
        assert run("strip", path).status == 0
        write(path, take_out(path.read_bytes()))
        assert run(path) == expected
        sizes.add(path.stat().st_size)
    assert len(sizes) == 1
