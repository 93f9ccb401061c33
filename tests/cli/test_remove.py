# SPDX-License-Identifier: Apache-2.0
"""The verb `remove`: the file is the original again, and is compared with what was there before it is written."""

from pathlib import Path

import pytest

from cfi2sframe import emit as emitting
from cfi2sframe import load
from cfi2sframe.elf.contents import Joined
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.placing.removal import remove
from cfi2sframe.placing.undo import Removal
from tests.support.cli import run
from tests.support.jobs import OBJECT
from tests.support.placing.embedded import LARGE, SMALL, embedded, linked_program, write


def test_the_original_comes_back(tmp_path: Path) -> None:
    """To a file, whatever its name, to standard output and in place; a second time nothing is to do."""
    file = tmp_path / "in.o"
    file.write_bytes(OBJECT)
    assert run("--in-place", file) == (0, b"", ())
    assert file.read_bytes() != OBJECT
    assert run("remove", "--check", file).status == 1
    file.chmod(0o750)
    out = tmp_path / "out.sframe"
    assert run("remove", file, "-o", out) == (0, b"", ())
    assert out.stat().st_mode & 0o777 == 0o750
    assert out.read_bytes() == run("remove", file, "-o", "-").out == OBJECT
    for _ in range(2):
        assert run("remove", "--in-place", file) == (0, b"", ())
        assert file.read_bytes() == OBJECT
    assert run("remove", "--check", file).status == 0


@pytest.mark.parametrize("size", [SMALL, LARGE], ids=["slack", "new segment"])
@pytest.mark.parametrize("verifies", [True, False])
def test_the_command_compares_before_it_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int, *, verifies: bool
) -> None:
    def remove_wrongly(image: ElfImage) -> Removal:
        bare = bytearray(b"".join(remove(image.data).content))
        text = next(s for s in load(bytes(bare)).sections if s.name == ".text")
        bare[text.file_offset] ^= 0x40
        return Removal(Joined([bytes(bare)]))

    monkeypatch.setattr(emitting, "remove", remove_wrongly)
    full = embedded(linked_program().read_bytes(), size)[1]
    path = write(tmp_path / "program", full)
    assert run("remove", "--in-place", path, *([] if verifies else ["--no-verify"])).status == (3 if verifies else 0)
    assert (path.read_bytes() == full) == verifies
