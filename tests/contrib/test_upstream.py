# SPDX-License-Identifier: Apache-2.0
"""docs/upstream.md: the faults of other tools that it shows are still there, in the words that it prints.

A block `console TOOLS VERSION` is a session with the tools of that release, as `sessions.py` explains. A tool that was
mended, or a page that has grown old, turns the run red.
"""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.contrib.sessions import Block, blocks_of, commands_of, play, release_of, variables_of
from tests.contrib.support import ROOT
from tests.support.needs import need
from tests.support.oracle.tools import ToolMissingError

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the page's programs are for AMD64"),
    pytest.mark.sampled,
]

PAGE = ROOT / "docs" / "upstream.md"
#: GNU ld names itself by the path that it was started with.
LINKER_NAME = re.compile(r"^/\S*/\S*ld\S*:", re.MULTILINE)


class Fault(NamedTuple):
    """A section of the page: its heading and its blocks."""

    title: str
    blocks: list[Block]

    @property
    def sessions(self) -> list[Block]:
        return [block for block in self.blocks if block.language == "console"]


def faults(text: str) -> list[Fault]:
    """Return the sections of a page that have blocks, each with the files of the page's beginning."""
    beginning, *parts = re.split(r"^#{2,3} (.+)$", text, flags=re.MULTILINE)
    found = [(title, blocks_of(body)) for title, body in zip(parts[::2], parts[1::2], strict=True)]
    return [Fault(title, [*blocks_of(beginning), *blocks]) for title, blocks in found if blocks]


SHOWN = [(fault, session) for fault in faults(PAGE.read_text()) for session in fault.sessions]


@pytest.mark.parametrize(
    ("fault", "session"), SHOWN, ids=[f"{fault.title}-{session.label}".replace(" ", "-") for fault, session in SHOWN]
)
def test_the_fault_is_still_there(fault: Fault, session: Block, programs: Path, tmp_path: Path) -> None:
    try:
        release = release_of(session.label)
    except ToolMissingError as error:
        pytest.skip(str(error))
    wanted = session.label.split()[1]
    assert (release.version + ".").startswith(wanted + "."), f"the page shows {wanted}; here is {release.version}"
    for program in re.findall(r"(?:^\$|\|) (g?cc|gcc|objdump|ld\.mold)\b", session.text, re.MULTILINE):
        need(program)
    for block in fault.blocks:
        if block.language != "console":
            (tmp_path / block.label).write_text(block.text)
    variables = variables_of(release, programs, tmp_path)
    commands = list(commands_of(session.text))
    heard = play([command for command, _ in commands], tmp_path, variables)
    for (command, shown), printed in zip(commands, heard, strict=True):
        assert [LINKER_NAME.sub("ld:", line) for line in printed] == shown, command
