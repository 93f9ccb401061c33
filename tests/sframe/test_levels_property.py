# SPDX-License-Identifier: Apache-2.0
"""Every level gives the same answer at every PC, and what it writes verifies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given

from cfi2sframe import Lookup, verify
from cfi2sframe.sframe.decode import decode_section
from tests.support.sums import convert_checked
from tests.test_conversion_property import Drawn, files

if TYPE_CHECKING:
    from cfi2sframe.conversion import Options
    from cfi2sframe.sframe.model import FrameState


def answers(drawn: Drawn, options: Options) -> dict[int, tuple[FrameState | None, bool, bool]]:
    """Return what a section has at every address that it describes: the row's state, and the function's attributes."""
    conversion = convert_checked(drawn.image, options)
    if not conversion.data:
        return {}
    section = decode_section(conversion.data, conversion.section_vaddr)
    result = verify(drawn.image, section, options)
    assert result.differences == ()
    lookup = Lookup(section)
    said = {}
    for start, size, _ in conversion.section.functions:
        for pc in range(start, start + size):
            found = lookup.find(pc)
            assert found is not None
            state = None if found.row is None else found.row.row.state
            said[pc] = state, found.function.is_signal_frame, found.function.uses_b_key
    return said


@given(files(max_steps=6))
def test_every_level_has_the_same_rows(drawn: Drawn) -> None:
    alone, shared, joined = (answers(drawn, drawn.options._replace(level=level)) for level in (0, 1, 2))
    assert alone == shared == joined
