# SPDX-License-Identifier: Apache-2.0
"""Edits are applied at their places: at one place, what is inserted comes before what is replaced."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.elf.contents import Splice, spliced
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.gate import open_linked
from tests.support.embedded import LARGE, compile_program, embed, run, take_out
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path


def test_two_replacements_of_one_byte_are_refused() -> None:
    for splices in ([Splice(2, 2, b""), Splice(3, 1, b"")], [Splice(2, 1, b"x"), Splice(2, 1, b"y")]):
        with pytest.raises(EmbedError, match=r"0x[23]"):
            spliced(bytes(4), splices)
    with pytest.raises(EmbedError, match="0x3"):
        spliced(bytes(4), [Splice(2, 2, b""), Splice(3, 0, b"x")])


@pytest.mark.property
@given(st.lists(st.tuples(st.binary(max_size=2), st.one_of(st.none(), st.binary(max_size=3))), max_size=12), st.data())
def test_any_order_gives_the_same(cells: list[tuple[bytes, bytes | None]], data: st.DataObject) -> None:
    """Of each byte: what is inserted before it, and what replaces it."""
    original = bytes(range(len(cells)))
    splices = [Splice(at, 0, added) for at, (added, _) in enumerate(cells) if added]
    splices += [Splice(at, 1, replacement) for at, (_, replacement) in enumerate(cells) if replacement is not None]
    shuffled = data.draw(st.permutations(splices))
    expected = b"".join(
        added + (original[at : at + 1] if replacement is None else replacement)
        for at, (added, replacement) in enumerate(cells)
    )
    assert b"".join(spliced(original, shuffled)) == expected


def test_a_symbol_table_right_after_what_is_loaded(tmp_path: Path) -> None:
    """Sections move, so symbols change; and the new segment is inserted where the symbol table starts."""
    need("objcopy")
    compile_program(tmp_path / "program", "program.cpp", ["-fuse-ld=bfd"])
    assert run("objcopy", "-R", ".comment", tmp_path / "program", tmp_path / "bare").status == 0
    original = (tmp_path / "bare").read_bytes()
    file = open_linked(original)
    assert next(s for s in file.sections if s.name == ".symtab").file_offset == file.loaded_end
    plan = embed(tmp_path / "bare", tmp_path / "converted", LARGE)
    assert plan.moved
    assert run(tmp_path / "converted").status == run(tmp_path / "bare").status
    assert take_out((tmp_path / "converted").read_bytes()) == original
