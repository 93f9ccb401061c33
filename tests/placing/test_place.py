# SPDX-License-Identifier: Apache-2.0
"""Programs that rely on the address of their heap, which Linux starts after the highest segment."""

from pathlib import Path

import pytest

from cfi2sframe.errors import EmbedError
from cfi2sframe.placing import place
from tests.support.needs import attempt
from tests.support.placing.embedded import KINDS, LARGE, SMALL, compiled, embed, linked_program

FIXED = ("nopie", "static")


def heap_program(kind: str) -> Path:
    """Return heap.c linked to a kind; it checks where its heap is."""
    flags = [flag for flag in KINDS[kind] if not flag.startswith("-D")]
    program = compiled("heap.c", "-Wl,-z,separate-code", *flags)
    if attempt(program).status == 2:
        pytest.skip("address randomization cannot be turned off here (a container's seccomp filter)")
    assert attempt(program).status == 0
    return program


@pytest.mark.parametrize("kind", FIXED)
def test_the_heap_stays_where_it_was(tmp_path: Path, kind: str) -> None:
    plan = embed(heap_program(kind), tmp_path / "converted", SMALL)
    assert "unused bytes" in plan.description
    assert attempt(tmp_path / "converted").status == 0


@pytest.mark.parametrize("kind", FIXED)
def test_refused_where_the_heap_would_move(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    program = heap_program(kind)
    with pytest.raises(EmbedError, match="may need its heap right after its data"):
        embed(program, tmp_path / "converted", LARGE)
    monkeypatch.setattr(place, "_is_end_fixed", lambda _file: False)
    embed(program, tmp_path / "converted", LARGE)
    assert attempt(tmp_path / "converted").status == 1


def test_other_programs_get_a_new_segment(tmp_path: Path) -> None:
    """Position-independent programs cannot rely on an address, and most others do not."""
    for program in (heap_program("pie"), linked_program("bfd", "nopie")):
        assert "new read-only segment" in embed(program, tmp_path / "converted", LARGE).description
