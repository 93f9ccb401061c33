# SPDX-License-Identifier: Apache-2.0
"""Root converts a user's tree, and the user exchanges its folders and files for root's at every moment of it.

The user has a file with bytes of his own, and can lead its name to a file that is root's and set-user-ID. Nothing of
root's may change, and no file may have the user's bytes and root's rights.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import convert, load
from cfi2sframe.emit import emit
from tests.support import cli
from tests.support.jobs import object_of
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.fuzz

#: Any user without rights.
USER = 65534
USERS, ROOTS = object_of(2), object_of(5)
#: What root may make of its own file.
CONVERTED = b"".join(emit(convert(load(ROOTS))).chunks)
SOURCE = Path(__file__).with_name("exchange.c")


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A folder with `tree`, which is the user's, and `system`, which is root's; the user's program is beside it."""
    if os.geteuid() != 0:
        pytest.skip("only root has rights to lose")
    compiler = shutil.which("gcc") or need("cc")
    # The folders of pytest are closed to other users.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        subprocess.run([compiler, "-O1", "-Wall", "-Werror", "-o", place / "exchange", SOURCE], check=True)
        (place / "base").mkdir()
        yield place / "base"


def set_up(base: Path) -> None:
    shutil.rmtree(base / "tree", ignore_errors=True)
    shutil.rmtree(base / "system", ignore_errors=True)
    folder = base / "tree" / "d"
    folder.mkdir(parents=True)
    (base / "system").mkdir()
    (folder / "f").write_bytes(USERS)
    (folder / "f").chmod(0o755)
    (base / "system" / "f").write_bytes(ROOTS)
    (base / "system" / "f").chmod(0o6755)
    (base / "tree" / "x").symlink_to(base / "system")
    (folder / "link").symlink_to(base / "system" / "f")
    # What the user could do himself where fs.protected_hardlinks is off.
    os.link(base / "system" / "f", folder / "hard")
    for path in (base / "tree", folder, folder / "f"):
        os.chown(path, USER, USER)


@contextmanager
def exchanging(base: Path, seed: int, opens: int) -> Iterator[None]:
    """Run the user's program, which starts to exchange names when its file has been opened `opens` times."""
    command = [str(base.parent / "exchange"), str(seed), str(opens)]
    with subprocess.Popen(
        command, cwd=base / "tree", user=USER, group=USER, extra_groups=[], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"r"
        try:
            yield
        finally:
            assert process.poll() is None
            process.kill()


def look(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Return all that matters of root's files."""
    found = {}
    for path in folder.iterdir():
        status = path.lstat()
        found[path.name] = (path.read_bytes(), status.st_mode, status.st_uid, status.st_ino)
    return found


def with_stolen_rights(base: Path) -> list[str]:
    """Return the files that are set-user-ID or set-group-ID for root, and have other bytes than root's."""
    rightful = (ROOTS, CONVERTED)
    found = []
    for folder, _, names in os.walk(base):
        for path in (Path(folder, name) for name in names):
            status = path.lstat()
            is_root = (status.st_mode & stat.S_ISUID and status.st_uid == 0) or (
                status.st_mode & stat.S_ISGID and status.st_gid == 0
            )
            if stat.S_ISREG(status.st_mode) and is_root and path.read_bytes() not in rightful:
                found.append(str(path.relative_to(base)))
    return found


def convert_tree(base: Path) -> None:
    cli.run("--in-place", "-r", "--for", "ld", base / "tree")


def convert_file(base: Path) -> None:
    cli.run("--in-place", base / "tree/d/f")


def copy(base: Path) -> None:
    cli.run(base / "tree/d/f", "-o", base / "tree/d/out")


@pytest.mark.slow
@pytest.mark.parametrize("act", [convert_tree, convert_file, copy])
def test_a_user_who_exchanges_names(base: Path, act: Callable[[Path], None]) -> None:
    for number in range(20):
        set_up(base)
        before = look(base / "system")
        # The walk looks at the first bytes of each file.
        with exchanging(base, number, 1 if act is convert_tree else 0):
            act(base)
        assert with_stolen_rights(base) == [], number
        # A link that root names is followed, because root has asked for its target.
        assert look(base / "system") == before or act is not convert_tree, number
