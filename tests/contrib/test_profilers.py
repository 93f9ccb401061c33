# SPDX-License-Identifier: Apache-2.0
"""docs/writing-a-reader.md: its C code is that of the walker that the tests compile and run."""

from __future__ import annotations

import re

import pytest

from tests.contrib.support import ROOT

pytestmark = pytest.mark.sampled

PAGE = ROOT / "docs" / "writing-a-reader.md"
#: A line that names a file, and the block under it.
EXCERPT = re.compile(r"^`(tests/support/consumer/[\w.]+)`:\n\n```c\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_each_block_stands_in_the_file_above_it() -> None:
    text = PAGE.read_text()
    found = EXCERPT.findall(text)
    assert len(found) > 10
    # No block that this test does not look at.
    assert text.count("\n```") == 2 * len(found)
    for path, code in found:
        lines = code.splitlines()
        stands = (ROOT / path).read_text().splitlines()
        assert any(stands[at : at + len(lines)] == lines for at in range(len(stands))), (path, code)
        assert code.strip(), path
