# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/stacks.py tells gdb's stacks that are those of the walk by SFrame from others, and fails where it has to."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

TOOLS: Final = Path(__file__).resolve().parents[2] / "tools"
START: Final = 0x1000
#: Of the only file, the program.
WITHOUT_CFI: Final = (0x3000, 0x4000)
INSIDE, ELSEWHERE = [0, 0x3010, 0x7000], [0, 0x2010, 0x7000]
#: With CFI, called from code without.
INSIDE_TOO: Final = [0, 0x2010, 0x6FF8]
CALLERS: Final = [[0, 0x2020, 0x7040], [0, START + 4, 0x7080]]
WORD: Final = [-1, 0xFFFF_0000, 0x7008]
OTHER_CODE: Final = [0, 0x2030, 0x7008]
COUNTS: Final = ("stops", "whole", "same", "words", "all", "different", "cut")


@pytest.fixture(name="script", scope="module")
def _script() -> Iterator[Any]:
    sys.path.insert(0, str(TOOLS))
    spec = importlib.util.spec_from_file_location("stacks_tool", TOOLS / "stacks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["stacks_tool"] = module
    spec.loader.exec_module(module)
    yield module
    sys.path.remove(str(TOOLS))
    for name in ("stacks_tool", "step_programs"):
        del sys.modules[name]


@pytest.mark.parametrize(
    ("after", "gdb", "counted", "is_right"),
    [
        ([INSIDE, *CALLERS], [INSIDE, *CALLERS], {"whole", "same"}, True),
        ([INSIDE, *CALLERS], [INSIDE, WORD, *CALLERS], {"whole", "words", "all"}, True),
        ([INSIDE, *CALLERS], [INSIDE, WORD, OTHER_CODE, CALLERS[-1]], {"whole", "words"}, True),
        ([INSIDE, *CALLERS], [INSIDE, WORD], {"whole", "cut"}, True),
        ([INSIDE, *CALLERS], [INSIDE, OTHER_CODE, *CALLERS], {"whole", "different"}, False),
        ([INSIDE, *CALLERS], [INSIDE, CALLERS[-1]], {"whole", "different"}, False),
        ([INSIDE, *CALLERS], [INSIDE, [0, 0x2020, 0x7048], CALLERS[-1]], {"whole", "different"}, False),
        ([INSIDE], [INSIDE, WORD, *CALLERS], {"words"}, True),
        ([INSIDE], [INSIDE, *CALLERS], {"different"}, False),
        ([ELSEWHERE, *CALLERS], [ELSEWHERE, *CALLERS], {"whole", "same"}, True),
        ([ELSEWHERE, *CALLERS], [ELSEWHERE, WORD, *CALLERS], {"whole", "words", "all"}, False),
        ([ELSEWHERE, *CALLERS], [ELSEWHERE], {"whole", "cut"}, True),
        ([INSIDE_TOO, INSIDE, *CALLERS], [INSIDE_TOO, WORD, *CALLERS], {"whole", "words"}, True),
    ],
)
def test_a_stop_is_counted(
    script: Any,
    capsys: pytest.CaptureFixture[str],
    after: list[list[int]],
    gdb: list[list[int]],
    counted: set[str],
    is_right: bool,  # noqa: FBT001  # a case's expectation
) -> None:
    files = script.Files((), (), (script.Ranges((WITHOUT_CFI,)),), START)
    assert script.account_beside_gdb([{"after": after, "gdb": gdb}], files) is is_right
    lines = capsys.readouterr().out.splitlines()
    counts = [dict(zip(COUNTS, map(int, re.findall(r"\d+", line)), strict=True)) for line in lines[:2]]
    here, there = counts if INSIDE in after else counts[::-1]
    assert {name for name, count in here.items() if count} == {"stops", *counted}
    assert not any(there.values())
    assert len(lines) == (2 if is_right else 3)
