# SPDX-License-Identifier: Apache-2.0
"""Each way to write a file: rewritten under its names, copied, new."""

import os
import re
from pathlib import Path

import pytest

from cfi2sframe.errors import ChangedError
from cfi2sframe.files.write import open_input, rewrite_file, write_output


def test_rewritten_under_its_names(tmp_path: Path) -> None:
    """They become links of one new file, with the old one's mode and times."""
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_bytes(b"old")
    paths[0].chmod(0o751)
    os.utime(paths[0], ns=(1_000_000_007, 2_000_000_009))
    os.link(*paths)
    with open_input(str(paths[0]), in_place=True) as (_, source):
        assert rewrite_file(list(map(str, paths)), b"new", source) == ()
    status = paths[0].stat()
    assert os.path.samefile(*paths)
    assert (status.st_nlink, status.st_mode & 0o7777, status.st_mtime_ns) == (2, 0o751, 2_000_000_009)
    assert paths[1].read_bytes() == b"new"


@pytest.mark.parametrize("which", [0, 1])
def test_not_rewritten_under_a_name_of_another_file(which: int, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_bytes(b"old")
    os.link(*paths)
    with open_input(str(paths[0]), in_place=True) as (_, source):
        paths[which].rename(tmp_path / "away")
        paths[which].write_bytes(b"another")
        with pytest.raises(ChangedError, match="changed while it was being converted"):
            rewrite_file(list(map(str, paths)), b"new", source)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "away": b"old",
        paths[which].name: b"another",
        paths[1 - which].name: b"old",
    }


@pytest.mark.parametrize(("is_copy", "mode"), [(True, 0o711), (False, 0o644)])
def test_a_copy_has_the_mode_and_a_new_file_has_not(is_copy: bool, mode: int, tmp_path: Path) -> None:  # noqa: FBT001
    path, output = tmp_path / "input", tmp_path / "output"
    path.write_bytes(b"old")
    path.chmod(0o711)
    umask = os.umask(0o022)
    try:
        with open_input(str(path), in_place=False) as (_, source):
            assert write_output(str(output), b"new", source=source, is_copy=is_copy) == ()
    finally:
        os.umask(umask)
    assert (output.read_bytes(), output.stat().st_mode & 0o7777) == (b"new", mode)
    assert path.read_bytes() == b"old"


@pytest.mark.parametrize("name", ["link/file", "linked"])
def test_no_link_is_followed_to_a_file_in_place(name: str, tmp_path: Path) -> None:
    """The path was resolved before: whoever has put a link into it since leads the program elsewhere."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_bytes(b"data")
    (tmp_path / "link").symlink_to("folder")
    (tmp_path / "linked").symlink_to("folder/file")
    path = str(tmp_path / name)
    with open_input(path, in_place=False) as (data, _):
        assert bytes(data) == b"data"
    with pytest.raises(OSError, match=re.escape(path)), open_input(path, in_place=True):
        pass
