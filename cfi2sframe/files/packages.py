# SPDX-License-Identifier: Apache-2.0
"""Which package has a file: the databases of dpkg and rpm, of this machine or of the root folder that holds the file.

dpkg's lists are read here; rpm's database is read by rpm, with its queries only.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.elf.load import open_unfollowed
from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_DPKG: Final = "var/lib/dpkg"
_RPM: Final = ("usr/lib/sysimage/rpm", "var/lib/rpm", "usr/share/rpm")
#: The largest list or table of dpkg that is read, in bytes; the largest of Debian have 5 MB.
_MAX_LIST_SIZE: Final = 64 << 20
#: rpm lists a large installation (3,000 packages) in 5 seconds.
_RPM_SECONDS: Final = 120
_RPM_FORMAT: Final = r"[%{=NAME}\t%{FILENAMES}\n]"


class Database(NamedTuple):
    """The packages of a root folder (a resolved path)."""

    root: str
    kind: Literal["dpkg", "rpm"]
    folder: str


class PackageFinder:
    """Finds the databases of folders, and the packages of their files.

    `may_ask_rpm`: also the packages of databases that rpm has to read.
    """

    def __init__(self, *, may_ask_rpm: bool = True) -> None:
        self._may_ask_rpm = may_ask_rpm
        self._known: dict[str, Database | None] = {}

    def database_of(self, path: str) -> Database | None:
        """Return the database of the innermost folder that holds a path, or is it; None when no folder has one."""
        folder = os.path.realpath(path)
        if folder not in self._known:
            parent = os.path.dirname(folder)
            found = _database_in(folder)
            self._known[folder] = found or (self.database_of(parent) if parent != folder else None)
        return self._known[folder]

    def owners(self, paths: Iterable[str]) -> dict[str, str]:
        """Return the packages of files by their paths, without those that no package has.

        Raises `RequestError` when rpm cannot list what it has installed.
        """
        wanted: defaultdict[Database, dict[str, list[str]]] = defaultdict(dict)
        for path in paths:
            folder = os.path.realpath(os.path.dirname(path) or ".")
            # What a link leads to is the file that was measured.
            real = os.path.realpath(path) if os.path.islink(path) else os.path.join(folder, os.path.basename(path))
            database = self.database_of(folder)
            if database is not None and (self._may_ask_rpm or database.kind != "rpm"):
                inside = os.path.join("/", os.path.relpath(real, database.root))
                wanted[database].setdefault(inside, []).append(path)
        result: dict[str, str] = {}
        for database, files in wanted.items():
            listed = _dpkg_owners if database.kind == "dpkg" else _rpm_owners
            for inside, package in listed(database, files.keys()):
                for path in files[inside]:
                    result.setdefault(path, package)
        return result


def _database_in(root: str) -> Database | None:
    folder = os.path.join(root, _DPKG, "info")
    try:
        if any(name.endswith(".list") for name in os.listdir(folder)):
            return Database(root, "dpkg", os.path.join(root, _DPKG))
    except OSError:
        pass
    for name in _RPM:
        folder = os.path.join(root, name)
        try:
            if any(file.startswith(("rpmdb.sqlite", "Packages")) for file in os.listdir(folder)):
                return Database(root, "rpm", folder)
        except OSError:
            continue
    return None


def _aliases(root: str) -> list[tuple[str, str]]:
    """Return the links at the root with the folders that they lead to: `/lib` and `/usr/lib` of a merged /usr."""
    found = []
    with os.scandir(root) as entries:
        for entry in entries:
            if entry.is_symlink():
                target = os.path.normpath(os.path.join("/", os.readlink(entry.path)))
                found.append((f"/{entry.name}/", f"{target}/"))
    return found


def _by_spelling(root: str, wanted: Iterable[str]) -> dict[str, str]:
    """Return the wanted paths by every path that a database may have for them: with and without a merged /usr."""
    aliases = _aliases(root)
    spellings = {path: path for path in wanted}
    for path in list(spellings):
        for alias, target in aliases:
            if path.startswith(target):
                spellings.setdefault(alias + path[len(target) :], path)
    return spellings


# dpkg


def _dpkg_owners(database: Database, wanted: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield wanted paths with the packages that list them; a package's name has its architecture as dpkg writes it."""
    spellings = _by_spelling(database.root, wanted)
    diversions = _diversions(database)
    interesting = {os.fsencode(path) for path in (*spellings, *(path for path, _, _ in diversions))}
    info = os.path.join(database.folder, "info")
    for file in sorted(name for name in os.listdir(info) if name.endswith(".list")):
        package = file.removesuffix(".list")
        names = {os.fsdecode(line) for line in interesting.intersection(_lines(os.path.join(info, file)))}
        for path, diverted, by in diversions:
            if path in names and package.partition(":")[0] != by:
                # The package's own file was moved out of the way.
                names = (names - {path}) | {diverted}
        yield from ((spellings[name], package) for name in sorted(names) if name in spellings)


def _diversions(database: Database) -> list[tuple[str, str, str]]:
    """Return what dpkg-divert has moved: a path, where its file is now, and the package that has the path instead."""
    lines = list(map(os.fsdecode, _lines(os.path.join(database.folder, "diversions"))))
    return list(zip(lines[::3], lines[1::3], lines[2::3], strict=False))


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a regular file; none of anything else, and of what cannot be read."""
    try:
        descriptor = open_unfollowed(path)
    except OSError:
        return
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _MAX_LIST_SIZE:
            return
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            for line in file:
                yield line.rstrip(b"\n")
    except OSError:
        return
    finally:
        os.close(descriptor)


# rpm


def _rpm_owners(database: Database, wanted: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield wanted paths with the packages that list them."""
    import subprocess

    spellings = _by_spelling(database.root, wanted)
    command = ["rpm", "--dbpath", database.folder, "--query", "--all", "--queryformat", _RPM_FORMAT]
    try:
        # By a locale of its own, since messages and sizes depend on it.
        listing = subprocess.run(
            command,
            check=True,
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_RPM_SECONDS,
            env={**os.environ, "LC_ALL": "C"},
        ).stdout
    except OSError as error:
        raise _cannot_list(database, error.strerror or str(error)) from None
    except subprocess.TimeoutExpired:
        raise _cannot_list(database, f"it takes more than {_RPM_SECONDS} seconds") from None
    except subprocess.CalledProcessError as error:
        raise _cannot_list(database, f"it ends with status {error.returncode}") from None
    for line in sorted(os.fsdecode(listing).splitlines()):
        package, _, path = line.partition("\t")
        if path in spellings:
            yield spellings[path], package


def _cannot_list(database: Database, reason: str) -> RequestError:
    return RequestError(f"rpm cannot list the packages of {database.folder}: {reason}; use --by folder")
