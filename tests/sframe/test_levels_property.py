# SPDX-License-Identifier: Apache-2.0
"""Every level gives the same answer at every PC, and what it writes verifies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hypothesis import given

from cfi2sframe import verify
from cfi2sframe.sframe.read import read_section
from tests.support.sums import convert_checked
from tests.test_conversion_property import Drawn, files

if TYPE_CHECKING:
    from cfi2sframe.conversion import Level, Options
    from cfi2sframe.sframe.model import FrameState, Section


LEVELS: Final[tuple[Level, ...]] = (0, 1, 2)


def made(drawn: Drawn, options: Options) -> Section | None:
    """Return a section that verifies; None where nothing can be described."""
    conversion = convert_checked(drawn.image, options)
    if not conversion.data:
        return None
    section = read_section(conversion.data, conversion.section_vaddr)
    assert verify(drawn.image, section, source=options.source).differences == ()
    return section


def points_of(section: Section) -> set[int]:
    """Return every address at which the answer may change, and those beside it."""
    edges = set[int]()
    for function in section.functions:
        edges |= {function.start_vaddr, function.start_vaddr + function.size}
        edges |= {function.start_vaddr + row.start_delta for row in function.rows}
    return {edge + distance for edge in edges for distance in (-1, 0, 1)}


def answers(section: Section, points: set[int]) -> dict[int, tuple[FrameState | None, bool, bool] | None]:
    """Return what a section has at each address: the row's state, and the function's attributes; None: nothing."""
    lookup = section
    said: dict[int, tuple[FrameState | None, bool, bool] | None] = {}
    for pc in points:
        found = lookup.find(pc)
        if found is None:
            said[pc] = None
        else:
            state = None if found.row is None else found.row.state
            said[pc] = state, found.function.body.is_signal_frame, found.function.body.uses_b_key
    return said


@given(files(max_steps=6))
def test_every_level_has_the_same_rows(drawn: Drawn) -> None:
    sections = [made(drawn, drawn.options._replace(level=level)) for level in LEVELS]
    described = [section for section in sections if section is not None]
    assert len(described) in (0, len(LEVELS))
    points = set[int]().union(*map(points_of, described))
    alone, *others = [answers(section, points) for section in described] or [{}]
    assert all(other == alone for other in others)
