# SPDX-License-Identifier: Apache-2.0
"""Programs with an embedded section: they run as before, find it mapped, and are restored by removal."""

from pathlib import Path

import pytest

from cfi2sframe.errors import EmbedError
from cfi2sframe.placing import place
from tests.support.needs import attempt, need
from tests.support.placing.embedded import (
    KINDS,
    LARGE,
    LINKERS,
    SMALL,
    VARIANTS,
    check_program,
    checksum,
    embed,
    linked_program,
    mapped,
    round_trip,
    sframe,
)

#: Only the table of a stripped program may move to the end of the file, and most programs have a better way.
AT_END = "table at end"


def made(linker: str, kind: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a program of a variant, or a stripped one of which nothing may move."""
    if variant == AT_END:
        monkeypatch.setattr(place, "movable_sections", lambda *_words: {})
    return linked_program(linker, kind, "stripped" if variant == AT_END else variant)


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("variant", [*VARIANTS, AT_END])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linker", LINKERS)
def test_runs_as_before_and_finds_the_section(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, linker: str, kind: str, variant: str, size: int
) -> None:
    original = made(linker, kind, variant, monkeypatch)
    if variant == AT_END and linker in ("lld", "mold") and kind.startswith("static"):
        # They have PT_PHDR, and may look for the ELF header before it, as Zig's do.
        with pytest.raises(EmbedError, match="may look for its ELF header"):
            check_program(original, tmp_path, size)
        return
    plan = check_program(original, tmp_path, size)
    if kind == "static" and size == LARGE and linker == "gold" and variant not in ("stripped", AT_END):
        # Before they are stripped, these have room for one program header, and not for two.
        assert plan.description.startswith("into the last segment, on the page after .bss")
    assert plan.warnings or (linker, variant, size) != ("bfd", AT_END, LARGE)


SIZES = [(LARGE, SMALL), (LARGE, LARGE), (SMALL, LARGE), (LARGE, 2 * LARGE)]


@pytest.mark.parametrize(("first", "second"), SIZES)
@pytest.mark.parametrize(("kind", "variant"), [(kind, "stripped") for kind in KINDS] + [("pie", AT_END)])
def test_replacing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str, variant: str, first: int, second: int
) -> None:
    original, replaced = made("bfd", kind, variant, monkeypatch), tmp_path / "replaced"
    embed(original, replaced, first)
    embed(replaced, replaced, second)
    assert attempt(replaced) == attempt(original)
    assert mapped(replaced) == [("main", second, checksum(sframe(second)))]
    embed(original, tmp_path / "direct", second)
    assert replaced.read_bytes() == (tmp_path / "direct").read_bytes()


def test_a_symbol_table_right_after_what_is_loaded(tmp_path: Path) -> None:
    """Sections move, so symbols change; and the new segment is inserted where the symbol table starts."""
    need("objcopy")
    bare = tmp_path / "bare"
    assert attempt("objcopy", "-R", ".comment", linked_program(), bare).status == 0
    plan = round_trip(bare, tmp_path, LARGE)
    assert plan.moved
    assert next(s for s in plan.file.sections if s.name == ".symtab").file_offset == plan.file.loaded_end
