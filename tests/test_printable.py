# SPDX-License-Identifier: Apache-2.0
"""Names that come from files do nothing to a terminal."""

from __future__ import annotations

import pytest

from cfi2sframe.printable import printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [("plain", "plain"), ("a\nb\tc", "a\\nb\\tc"), ("\x1b[2J", "\\x1b[2J"), ("\u202e", "\\u202e"), ("ä", "ä")],
)
def test_printable(text: str, shown: str) -> None:
    assert printable(text) == shown
