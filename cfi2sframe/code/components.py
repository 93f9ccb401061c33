# SPDX-License-Identifier: Apache-2.0
"""Blocks that belong together, and whether their exits confirm the stack depths that were found."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.code.code_reasons import CodeReason

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.code.exits import BlockEnd


def components_of(endings: dict[int, BlockEnd]) -> Iterator[list[int]]:
    """Yield the blocks that belong together: those that control leads to within a function, or in several at once."""
    neighbours: dict[int, list[int]] = {start: [] for start in endings}
    for start, ending in endings.items():
        for follower in ending.followers:
            if follower in neighbours:
                neighbours[start].append(follower)
                neighbours[follower].append(start)
    seen: set[int] = set()
    for start in endings:
        if start in seen:
            continue
        seen.add(start)
        component = [start]
        for block_start in component:
            for other in neighbours[block_start]:
                if other not in seen:
                    seen.add(other)
                    component.append(other)
        yield component


def reason_against(component: Iterable[int], endings: dict[int, BlockEnd]) -> CodeReason | None:
    """Return why blocks that belong together are not kept by themselves; None when their exits confirm them."""
    confirms, stops = False, False
    for start in component:
        ending = endings[start]
        if ending.verdict.contradicts:
            return CodeReason.CONTRADICTED
        stops |= ending.stop is not None
        confirms |= ending.verdict.confirms
    if stops:
        return CodeReason.UNKNOWN_INSTRUCTION
    return None if confirms else CodeReason.NOT_CONFIRMED
