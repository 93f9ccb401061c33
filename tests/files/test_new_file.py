# SPDX-License-Identifier: Apache-2.0
"""What is left by a kill is removed; what is not known to be that, stays."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cfi2sframe.files.new_file import remove_leftover, temporary_name

NAME = f".cfi2sframe-{'5e' * 12}.new"


def linked(path: Path) -> None:
    path.symlink_to(path.parent / "other")


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (Path.touch, f".cfi2sframe-{'0' * 24}"),
        (Path.touch, f"{NAME}.o"),
        (Path.touch, f"a{NAME}"),
        (Path.mkdir, NAME),
        (os.mkfifo, NAME),
        (linked, NAME),
    ],
)
def test_what_is_no_file_of_this_program_stays(make: Callable[[Path], None], name: str, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_bytes(b"data")
    make(tmp_path / name)
    remove_leftover(str(tmp_path / name))
    assert {path.name for path in tmp_path.iterdir()} == {"other", name}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_file_stays(tmp_path: Path) -> None:
    path = tmp_path / NAME
    path.touch()
    os.chown(path, 12345, 12345)
    remove_leftover(str(path))
    assert path.exists()


def test_a_file_stays_as_long_as_somebody_has_it_locked(tmp_path: Path) -> None:
    path = tmp_path / NAME
    with path.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_leftover(str(path))
        assert path.exists()
    remove_leftover(str(path))
    assert not path.exists()
    path = tmp_path / temporary_name()
    path.touch()
    remove_leftover(str(path))
    assert not path.exists()


def test_no_link_is_followed_to_it(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    path = tmp_path / "folder" / NAME
    path.touch()
    (tmp_path / "link").symlink_to("folder")
    remove_leftover(str(tmp_path / "link" / NAME))
    assert path.exists()
