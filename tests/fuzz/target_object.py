# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as an object that a section and its relocations are put into, and taken out of again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.fuzz import seeds as make
from tests.fuzz.target_linked import rewrite

if TYPE_CHECKING:
    from collections.abc import Iterator


def run(data: bytes) -> None:
    """Rewrite an object; what is refused is refused with an error of the project's own."""
    rewrite(data, are_objects=True)


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield objects of every ABI."""
    for arch in make.ARCHES[:3]:
        yield f"{arch.name.lower()}", make.small_object(arch)
