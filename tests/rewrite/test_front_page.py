# SPDX-License-Identifier: Apache-2.0
"""A page of program headers in front of static programs, above all those of the newest GNU ld."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.elf.constants import PT_LOAD
from cfi2sframe.elf.headers import parse_headers
from cfi2sframe.errors import ElfError, EmbedError
from cfi2sframe.rewrite.edits import apply
from cfi2sframe.rewrite.front_page import front_page
from cfi2sframe.rewrite.gate import open_linked
from cfi2sframe.rewrite.linked import remove_section
from cfi2sframe.rewrite.reread.front import check_front_page
from tests.rewrite.test_later_tools import COMMANDS, Command, run_command
from tests.support.embedded import LARGE, SMALL, checksum, compile_program, embed, mapped, run, sframe, take_out, write
from tests.support.oracle.tools import ToolMissingError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = pytest.mark.oracle

FIRST_PAGE_SIZE: Final = 4096
STATIC: Final = ("-static", "-DNO_DLOPEN", "-fuse-ld=bfd")
VARIANTS: Final = {
    "plain": (),
    "noseparate": ("-Wl,-z,noseparate-code",),
    "no-build-id": ("-Wl,--build-id=none",),
    "stripped": ("-s",),
    "debug": ("-g",),
    "large-pages": ("-Wl,-z,max-page-size=65536",),
}


@pytest.fixture(scope="session")
def static(
    binutils: Callable[[BinutilsVersion], Binutils], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """`static(variant="plain")`: a static program of the newest GNU ld."""
    folder = tmp_path_factory.mktemp("static")
    built: dict[str, Path] = {}

    def build(variant: str = "plain") -> Path:
        if variant not in built:
            try:
                directory = binutils("newest").directory
            except ToolMissingError as error:
                pytest.skip(str(error))
            compile_program(folder / variant, "program.cpp", [*STATIC, f"-B{directory}", *VARIANTS[variant]])
            built[variant] = folder / variant
        return built[variant]

    return build


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("variant", VARIANTS)
def test_runs_as_before(static: Callable[..., Path], variant: str, size: int, tmp_path: Path) -> None:
    original, converted = static(variant), tmp_path / "converted"
    expected = run(original)
    plan = embed(original, converted, size)
    assert ("front-page" in plan.headers) == (size == LARGE)
    assert run(converted) == expected
    assert mapped(converted) == [("main", size, checksum(sframe(size)))]
    assert take_out(converted.read_bytes()) == original.read_bytes()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.name)
def test_survives(
    static: Callable[..., Path],
    binutils: Callable[[BinutilsVersion], Binutils],
    command: Command,
    tmp_path: Path,
) -> None:
    plain, converted, changed = (tmp_path / name for name in ("plain", "converted", "changed"))
    expected = run(static())
    if not run_command(command, static(), plain, binutils) or run(plain) != expected:
        pytest.skip("the unmodified program does not survive this either")
    embed(static(), converted, LARGE)
    assert run_command(command, converted, changed, binutils)
    assert run(changed) == expected
    assert mapped(changed) == [("main", LARGE, checksum(sframe(LARGE)))]
    write(tmp_path / "removed", take_out(changed.read_bytes()))
    assert run(tmp_path / "removed") == expected
    assert mapped(tmp_path / "removed") == []


def _page_is_possible(tmp_path: Path, name: str, flags: Sequence[str]) -> bool:
    compile_program(tmp_path / name, "plain.c", flags)
    return front_page(open_linked((tmp_path / name).read_bytes())) is not None


def test_programs_that_get_none(tmp_path: Path) -> None:
    """Those that a loader reads, those without room at lower addresses, and those that the page would inflate."""
    assert _page_is_possible(tmp_path, "static", STATIC)
    assert not _page_is_possible(tmp_path, "fixed", ["-no-pie"])
    assert not _page_is_possible(tmp_path, "pie", ["-static-pie"])
    for vaddr, is_possible in ((0x11000, True), (0x10000, False)):
        flags = [*STATIC, f"-Wl,-Ttext-segment={vaddr:#x}"]
        assert _page_is_possible(tmp_path, f"at{vaddr:x}", flags) == is_possible
    assert not _page_is_possible(tmp_path, "pages", [*STATIC, "-Wl,-z,max-page-size=2097152", "-s"])


@pytest.fixture(scope="module")
def pair(static: Callable[..., Path]) -> tuple[bytes, bytes]:
    """A program, and the same with a page in front."""
    data = static("debug").read_bytes()
    page = front_page(open_linked(data))
    assert page is not None
    grown = b"".join(apply(data, page.splices))
    check_front_page(data, grown)
    return data, grown


def _is_refused(original: bytes, grown: bytes) -> bool:
    try:
        check_front_page(original, grown)
    except (EmbedError, ElfError):
        return True
    return False


def test_the_re_read_knows_every_byte_of_the_page(pair: tuple[bytes, bytes]) -> None:
    original, grown = pair
    used = 64 + 56 * (len(parse_headers(grown).segments) + 3)
    # The ninth to the sixteenth byte of the file header are padding, or mean what they meant.
    for at in (*range(used), *range(used, FIRST_PAGE_SIZE, 61), FIRST_PAGE_SIZE - 1):
        changed = bytearray(grown)
        changed[at] ^= 1
        assert _is_refused(original, bytes(changed)), hex(at)


def test_a_removed_page_is_checked(static: Callable[..., Path], tmp_path: Path) -> None:
    from cfi2sframe.rewrite.linked import check_removal

    embed(static(), tmp_path / "converted", LARGE)
    data = (tmp_path / "converted").read_bytes()
    bare = bytearray(b"".join(remove_section(data)))
    check_removal(data, bytes(bare))
    code = next(s for s in parse_headers(bytes(bare)).segments if s.type == PT_LOAD and s.flags & 1)
    for at in (24, 64 + 16, code.file_offset + 100):
        changed = bytearray(bare)
        struct.pack_into("<B", changed, at, changed[at] ^ 1)
        with pytest.raises(EmbedError, match="re-read"):
            check_removal(data, bytes(changed))
