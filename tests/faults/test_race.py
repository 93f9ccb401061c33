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
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.listing import work_list
from cfi2sframe.jobs.records import Settings
from tests.support import cli
from tests.support.jobs import object_of
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.fuzz

#: Any user without rights.
USER = 65534
USERS, ROOTS = object_of(2), object_of(5)
SOURCE = Path(__file__).with_name("exchange.c")


class Scene(NamedTuple):
    """`tree` is the user's, `system` is root's; nothing else is in `base`."""

    base: Path
    program: Path

    @property
    def tree(self) -> Path:
        """The user's tree."""
        return self.base / "tree"

    @property
    def system(self) -> Path:
        """A folder that is not the user's."""
        return self.base / "system"


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    if os.geteuid() != 0:
        pytest.skip("only root has rights to lose")
    compiler = shutil.which("gcc") or need("cc")
    # The folders of pytest are closed to other users.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        place.chmod(0o755)
        command = [compiler, "-O1", "-Wall", "-Werror", "-o", str(place / "exchange"), str(SOURCE)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        (place / "base").mkdir()
        yield Scene(place / "base", place / "exchange")


def set_up(scene: Scene) -> None:
    shutil.rmtree(scene.tree, ignore_errors=True)
    shutil.rmtree(scene.system, ignore_errors=True)
    folder = scene.tree / "d"
    folder.mkdir(parents=True)
    scene.system.mkdir()
    (folder / "f").write_bytes(USERS)
    (folder / "f").chmod(0o755)
    (scene.system / "f").write_bytes(ROOTS)
    (scene.system / "f").chmod(0o6755)
    (scene.tree / "x").symlink_to(scene.system)
    (folder / "link").symlink_to(scene.system / "f")
    # What the user could do himself where fs.protected_hardlinks is off.
    os.link(scene.system / "f", folder / "hard")
    for path in (scene.tree, folder, folder / "f"):
        os.chown(path, USER, USER)


@contextmanager
def exchanging(scene: Scene, seed: int, opens: int) -> Iterator[None]:
    """Run the user's program, which starts to exchange names when its file has been opened `opens` times."""
    command = [str(scene.program), str(seed), str(opens)]
    with subprocess.Popen(
        command, cwd=scene.tree, user=USER, group=USER, extra_groups=[], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(1) == b"r"
        try:
            yield
        finally:
            assert process.poll() is None
            process.kill()


def converted(data: bytes) -> bytes:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name, "f")
        path.write_bytes(data)
        assert run_job(work_list([str(path)])[0]).status == "converted"
        return path.read_bytes()


def look(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Return all that matters of root's files."""
    found = {}
    for path in folder.iterdir():
        status = path.lstat()
        found[path.name] = (path.read_bytes(), status.st_mode, status.st_uid, status.st_ino)
    return found


def with_stolen_rights(scene: Scene) -> list[str]:
    """Return the files that are set-user-ID or set-group-ID for root, and have other bytes than root's."""
    rightful = (ROOTS, converted(ROOTS))
    found = []
    for folder, _, names in os.walk(scene.base):
        for path in (Path(folder, name) for name in names):
            status = path.lstat()
            is_root = (status.st_mode & stat.S_ISUID and status.st_uid == 0) or (
                status.st_mode & stat.S_ISGID and status.st_gid == 0
            )
            if stat.S_ISREG(status.st_mode) and is_root and path.read_bytes() not in rightful:
                found.append(str(path.relative_to(scene.base)))
    return found


def convert_tree(scene: Scene) -> None:
    for job in work_list([str(scene.tree)], Settings(reader="ld"), recurse=True):
        run_job(job)


def convert_file(scene: Scene) -> None:
    for job in work_list([str(scene.tree / "d" / "f")], Settings()):
        run_job(job)


def copy(scene: Scene) -> None:
    cli.run(scene.tree / "d" / "f", "-o", scene.tree / "d" / "out")


def race(scene: Scene, act: Callable[[Scene], None], rounds: int) -> tuple[list[int], list[int]]:
    """Return the rounds after which something of root's is changed, and those that gave the user root's rights."""
    changed, stolen = [], []
    for number in range(rounds):
        set_up(scene)
        before = look(scene.system)
        # The walk looks at the first bytes of each file.
        with exchanging(scene, number, 1 if act is convert_tree else 0):
            act(scene)
        if look(scene.system) != before:
            changed.append(number)
        if with_stolen_rights(scene):
            stolen.append(number)
    return changed, stolen


@pytest.mark.slow
@pytest.mark.parametrize("act", [convert_tree, convert_file, copy])
def test_a_user_who_exchanges_names(scene: Scene, act: Callable[[Scene], None]) -> None:
    changed, stolen = race(scene, act, 20)
    assert stolen == []
    # A link that root names is followed, because root has asked for its target.
    assert changed == [] or act is not convert_tree
