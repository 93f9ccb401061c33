# SPDX-License-Identifier: Apache-2.0
"""Programs with an embedded section: they run as before, find it mapped, and are restored by removal."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.linked import plan_embedding, self_check, write_embedding
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

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


LINKERS = ("bfd", "gold", "lld", "mold")
KINDS = ("pie", "nopie", "static", "static-pie")
VARIANTS = ("plain", "noseparate", "hash-sysv", "hash-both", "stripped", "debug")


@pytest.mark.parametrize("size", [SMALL, LARGE])
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("linker", LINKERS)
def test_runs_as_before_and_finds_the_section(
    program: Callable[..., Path], tmp_path: Path, linker: str, kind: str, variant: str, size: int
) -> None:
    original = program(linker, kind, variant)
    expected = run(original)
    assert expected.status == 0
    converted = tmp_path / "converted"
    if kind == "static" and size == LARGE and linker in FULL_LINKERS and variant != "stripped":
        with pytest.raises(EmbedError, match="strip the file first"):
            embed(original, converted, size)
        return
    embed(original, converted, size)
    assert run(converted) == expected
    assert mapped(converted) == [("main", size, checksum(sframe(size)))]
    restored = take_out(converted.read_bytes())
    write(tmp_path / "restored", restored)
    assert run(tmp_path / "restored") == expected
    assert mapped(tmp_path / "restored") == []
    assert restored == original.read_bytes()


@pytest.mark.parametrize(("first", "second"), [(LARGE, SMALL), (LARGE, LARGE), (SMALL, LARGE), (LARGE, 2 * LARGE)])
@pytest.mark.parametrize("kind", KINDS)
def test_replacing(program: Callable[..., Path], tmp_path: Path, kind: str, first: int, second: int) -> None:
    original = program("bfd", kind, "stripped" if kind == "static" else "plain")
    embed(original, tmp_path / "first", first)
    data = (tmp_path / "first").read_bytes()
    with pytest.raises(EmbedError, match="use --replace"):
        plan_embedding(data, second)
    plan = plan_embedding(data, second, replace=True)
    rewritten = b"".join(write_embedding(plan, sframe(second)))
    self_check(data, rewritten, plan, sframe(second))
    write(tmp_path / "second", rewritten)
    assert run(tmp_path / "second") == run(original)
    assert mapped(tmp_path / "second") == [("main", second, checksum(sframe(second)))]
    embed(original, tmp_path / "direct", second)
    assert rewritten == (tmp_path / "direct").read_bytes()
