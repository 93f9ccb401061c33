# SPDX-License-Identifier: Apache-2.0
"""A run of all tests is green only if what skipped was allowed to (tests/support/skips.py)."""

import pytest

from tests.support.skips import ALLOWED, Allowed, Skip, by_reason, judge

OLD = Skip("tests/cli/test_old.py::test_old[a]", "no gdb: make packages")
ENTRY = Allowed("tests/cli/test_old.py::test_old*", "no gdb: *", "first", "gdb")


@pytest.mark.parametrize(
    ("skips", "allowed", "tier", "absent", "expected"),
    [
        ([OLD], [ENTRY], "first", [], ([], 0)),
        ([OLD], [ENTRY], "all", [], ([], 0)),
        ([OLD], [ENTRY], "second", [], (["not allow"], 0)),
        ([OLD], [], "first", [], (["not allow"], 0)),
        ([OLD._replace(reason="no as: make packages")], [ENTRY], "first", [], (["not allow", "no test skips"], 0)),
        ([OLD], [ENTRY._replace(is_lacking=lambda: False)], "first", [], (["not allow"], 0)),
        ([], [ENTRY], "first", [], (["no test skips"], 0)),
        ([], [ENTRY._replace(is_lacking=lambda: False)], "first", [], ([], 0)),
        ([], [ENTRY], "second", [], ([], 0)),
        ([OLD], [], "first", ["packages"], ([], 1)),
        ([OLD], [], "first", ["oracles"], (["not allow"], 0)),
    ],
)
def test_what_a_run_may_skip(
    skips: list[Skip], allowed: list[Allowed], tier: str, absent: list[str], expected: tuple[list[str], int]
) -> None:
    wrong, excused = judge(skips, allowed, tier, absent)
    assert len(wrong) == len(expected[0])
    assert all(words in sentence for words, sentence in zip(expected[0], wrong, strict=True))
    assert excused == expected[1]


def test_one_line_for_each_missing_tool() -> None:
    others = [Skip("tests/test_b.py::test_b", "no mold: make oracles")] * 2
    assert by_reason([OLD, *others]) == ["    2 no mold: make oracles", "    1 no gdb: make packages"]


def test_each_entry_says_what_the_machine_lacks() -> None:
    assert all(entry.lacks and entry.reason.strip("*") for entry in ALLOWED)
