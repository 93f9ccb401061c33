# SPDX-License-Identifier: Apache-2.0
"""Root converts a user's tree, and the user exchanges its folders and files for root's before any look at them.

The user has a file with bytes of his own, and can lead its name to a file that is root's and set-user-ID. Nothing of
root's may change, and no file may have the user's bytes and root's rights.
"""

import os
import stat
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import pytest

from tests.support import cli
from tests.support.faults import run_until
from tests.support.jobs import object_of

pytestmark = [
    pytest.mark.fuzz,
    pytest.mark.sampled,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has rights to lose"),
]

#: Any user without rights.
USER: Final = 65534
USERS, ROOTS = object_of(2), object_of(5)


def converted_by_the_program(data: bytes, *options: str) -> bytes:
    """Return a file as `--in-place` leaves it, with a stamp that names the options."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        cli.run("--in-place", *options, path)
        return path.read_bytes()


#: What root may make of its own file.
CONVERTED: Final = [converted_by_the_program(ROOTS, *options) for options in ((), ("--for", "ld"))]
#: The system calls that look a name up.
LOOK_UPS: Final = frozenset(
    getattr(os, name) for name in ("open", "stat", "lstat", "scandir", "readlink", "link", "replace", "unlink")
)
#: What the user exchanges: a name of his, and one that leads to root's.
EXCHANGES: Final = {
    "a folder": ("d", "x"),
    "a file and a link": ("d/f", "d/link"),
    # What the user could do himself where fs.protected_hardlinks is off.
    "a file and a hard link": ("d/f", "d/hard"),
}


def set_up(base: Path) -> tuple[Path, Path]:
    """Make the folders `tree`, which is the user's, and `system`, which is root's."""
    tree, system = base / "tree", base / "system"
    (tree / "d").mkdir(parents=True)
    system.mkdir()
    (tree / "d/f").write_bytes(USERS)
    (tree / "d/f").chmod(0o755)
    (system / "f").write_bytes(ROOTS)
    (system / "f").chmod(0o6755)
    (tree / "x").symlink_to(system)
    (tree / "d/link").symlink_to(system / "f")
    os.link(system / "f", tree / "d/hard")
    for path in (tree, tree / "d", tree / "d/f"):
        os.chown(path, USER, USER)
    return tree, system


def exchange(tree: Path, names: tuple[str, str]) -> None:
    first, second = (tree / name for name in names)
    first.rename(tree / "aside")
    second.rename(first)
    (tree / "aside").rename(second)


def look(folder: Path) -> list[tuple[object, ...]]:
    """Return all that matters of root's files."""
    found: list[tuple[object, ...]] = []
    for path in folder.iterdir():
        data, status = path.read_bytes(), path.lstat()
        found.append((path.name, data, status.st_mode, status.st_uid, status.st_ino))
    return found


def with_stolen_rights(base: Path) -> list[Path]:
    """Return the files that are set-user-ID or set-group-ID for root, and have other bytes than root's."""
    found = []
    for path in filter(Path.is_file, base.rglob("*")):
        status = path.lstat()
        is_roots_user = status.st_mode & stat.S_ISUID and status.st_uid == 0
        is_roots_group = status.st_mode & stat.S_ISGID and status.st_gid == 0
        if stat.S_ISREG(status.st_mode) and (is_roots_user or is_roots_group):
            found += [path] if path.read_bytes() not in (ROOTS, *CONVERTED) else []
    return found


def words_of(verb: str, tree: Path) -> tuple[str | Path, ...]:
    return {
        "tree": ("--in-place", "-r", "--for", "ld", tree),
        "file": ("--in-place", tree / "d/f"),
        "copy": (tree / "d/f", "-o", tree / "d/out"),
    }[verb]


@pytest.mark.parametrize("names", EXCHANGES.values(), ids=EXCHANGES)
@pytest.mark.parametrize("verb", ["tree", "file", "copy"])
def test_a_user_who_exchanges_names(tmp_path: Path, verb: str, names: tuple[str, str]) -> None:
    cli.run("--version")
    for number in count(1):
        base = tmp_path / str(number)
        tree, system = set_up(base)
        before = look(system)
        _, has_come = run_until(LOOK_UPS, number, partial(exchange, tree, names), *words_of(verb, tree))
        assert with_stolen_rights(base) == [], number
        # A link that root names is followed, because root has asked for its target.
        assert look(system) == before or verb != "tree", number
        if not has_come:
            break
    assert number > 10
