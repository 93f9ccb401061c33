# SPDX-License-Identifier: Apache-2.0
"""Objects of one idea each, and what every version makes of them, byte by byte; and the words of every verb.

After a wanted change: `make golden`, and read the difference.
"""

from pathlib import Path

import pytest

from tests.golden.expected import MESSAGES, expected_path, objects, text_of
from tests.golden.messages import FOLDER, text_of_messages
from tests.support.oracle.gas import assembled


@pytest.mark.parametrize("path", objects(), ids=lambda path: path.stem)
def test_golden(path: Path) -> None:
    assert text_of(path).splitlines() == expected_path(path).read_text().splitlines()


@pytest.mark.parametrize("path", objects(), ids=lambda path: path.stem)
def test_an_assembler_makes_the_object_of_its_source(path: Path, tmp_path: Path) -> None:
    arch, name = path.stem.split("-", 1)
    source = FOLDER.parent / "src" / arch / f"{name}.s"
    again = assembled(source.read_text(), tmp_path, "as" if arch == "amd64" else f"{arch}-linux-gnu-as")
    assert again.read_bytes() == path.read_bytes()


def test_every_expectation_has_its_object() -> None:
    assert len(objects()) > 10
    assert sorted(FOLDER.glob("*.expected")) == [expected_path(path) for path in objects()]


def test_what_command_lines_print_and_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert text_of_messages().splitlines() == MESSAGES.read_text().splitlines()
