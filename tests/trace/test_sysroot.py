# SPDX-License-Identifier: Apache-2.0
"""Paths of other root directories: those of `--sysroot`, and those of processes that have changed theirs."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.trace import FileStore
from cfi2sframe.trace.modules import ModuleFile
from cfi2sframe.trace.sysroot import open_inside
from tests.support.trace.core_files import program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory in which every name outside of it would be there too, with other contents."""
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/x").write_text("inside")
    (root / "lib").symlink_to("/usr/lib")
    (tmp_path / "secret").write_text("outside")
    return root


def contents(root: Path, path: str) -> str:
    descriptor = open_inside(str(root), path)
    try:
        with open(f"/proc/self/fd/{descriptor}", encoding="utf-8") as file:
            return file.read()
    finally:
        os.close(descriptor)


def refusal(root: Path, path: str) -> int | None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError) as caught:
        open_inside(str(root), path)
    assert len(os.listdir("/proc/self/fd")) == before
    return caught.value.errno


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x",
        "usr/lib/x",
        "/lib/x",
        "/lib//./x",
        "/../../usr/lib/x",
        "/usr/lib/../../../usr/lib/x",
        "/lib/../lib/x",
    ],
)
def test_paths_inside(root: Path, path: str) -> None:
    assert contents(root, path) == "inside"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/secret", "/a"),
        ("../secret", "/a"),
        ("usr/lib/../../../../secret", "/a"),
        ("/..", "/a/secret"),
        ("./" * 1000 + "../secret", "/a"),
        ("./" * 2000 + "..", "/a/secret"),
    ],
)
def test_links_do_not_lead_out(root: Path, target: str, path: str) -> None:
    (root / "a").symlink_to(target)
    assert refusal(root, path) == errno.ENOENT


def test_a_store_with_a_sysroot(root: Path) -> None:
    (root / "usr/lib/p").write_bytes(program(AMD64, b""))
    store = FileStore(str(root))
    file = store.open("/lib/p")
    assert isinstance(file, ModuleFile)
    assert file.image.name == "/lib/p"
    os.mkfifo(root / "usr/lib/pipe")
    assert store.open("/lib/pipe") == "not a regular file, or empty"
