# SPDX-License-Identifier: Apache-2.0
"""The packages of files: by dpkg's lists and diversions, by rpm, and as dpkg itself names them."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cfi2sframe.errors import RequestError
from cfi2sframe.files.packages import PackageFinder


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    """A root with a merged /usr, two packages and a file of neither."""
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    for name in ("tool", "other", "other.distrib", "local"):
        (root / "usr/bin" / name).write_bytes(b"")
    _lists(root, {"tools:amd64": ["/.", "/bin", "/bin/tool", "/usr/bin/other"], "second": ["/usr/share/none"]})
    return root


def _lists(root: Path, packages: dict[str, list[str]]) -> None:
    info = root / "var/lib/dpkg/info"
    info.mkdir(parents=True, exist_ok=True)
    for name, paths in packages.items():
        (info / f"{name}.list").write_text("\n".join(paths) + "\n")


def _owners(root: Path) -> dict[str, str]:
    paths = [str(path) for path in sorted((root / "usr/bin").iterdir())]
    return {os.path.basename(path): package for path, package in PackageFinder().owners(paths).items()}


def test_lists_of_dpkg(root: Path) -> None:
    """A list may have the paths of before /usr was merged."""
    assert _owners(root) == {"tool": "tools:amd64", "other": "tools:amd64"}
    link = root / "usr/link"
    link.symlink_to("bin/tool")
    assert PackageFinder().owners([str(link)]) == {str(link): "tools:amd64"}


def test_diversions_of_dpkg(root: Path) -> None:
    _lists(root, {"second": ["/usr/bin/other"]})
    (root / "var/lib/dpkg/diversions").write_text("/usr/bin/other\n/usr/bin/other.distrib\nsecond\n")
    assert _owners(root) == {"tool": "tools:amd64", "other": "second", "other.distrib": "tools:amd64"}


@pytest.mark.parametrize("path", [".", "usr/bin", "usr/bin/tool"])
def test_the_innermost_root_is_that_of_a_file(path: str, root: Path) -> None:
    found = PackageFinder().database_of(str(root / path))
    assert found is not None
    assert (found.root, found.kind) == (str(root), "dpkg")


def test_no_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cfi2sframe.files.packages._database_in", lambda _: None)
    assert PackageFinder().database_of(str(tmp_path)) is None
    assert PackageFinder().owners([str(tmp_path / "file")]) == {}


def test_lists_that_are_no_files(root: Path) -> None:
    """The root may be anyone's: what is no regular file is not read, and a FIFO does not block."""
    info = root / "var/lib/dpkg/info"
    (info / "a.list").symlink_to("/dev/zero")
    os.mkfifo(info / "b.list")
    (info / "c.list").mkdir()
    with (info / "d.list").open("wb") as file:
        file.truncate(1 << 40)
    assert _owners(root) == {"tool": "tools:amd64", "other": "tools:amd64"}


def test_rpm_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    (root / "usr/bin").mkdir(parents=True)
    (root / "var/lib/rpm").mkdir(parents=True)
    (root / "var/lib/rpm/rpmdb.sqlite").write_bytes(b"")
    program = tmp_path / "rpm"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert PackageFinder(may_ask_rpm=False).owners([str(root / "usr/bin/x")]) == {}
    with pytest.raises(RequestError, match=r"rpm cannot list the packages of .*: No such file .*; use --by folder"):
        PackageFinder().owners([str(root / "usr/bin/x")])
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(RequestError, match="it ends with status 1; use --by folder"):
        PackageFinder().owners([str(root / "usr/bin/x")])


@pytest.mark.oracle
def test_rpm_lists_what_it_has(tmp_path: Path) -> None:
    """Rpm reads its own database, that of a root that is not this machine's."""
    for name in ("rpm", "rpmbuild"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed")
    root = tmp_path / "root"
    database = root / "usr/lib/sysimage/rpm"
    database.mkdir(parents=True)
    spec = tmp_path / "thing.spec"
    spec.write_text(
        "Name: thing\nVersion: 1\nRelease: 1\nSummary: s\nLicense: l\nBuildArch: noarch\n%description\nd\n"
        "%install\nmkdir -p %{buildroot}/usr/bin\ntouch %{buildroot}/usr/bin/thing\n%files\n/usr/bin/thing\n"
    )
    build = ["rpmbuild", "-bb", "--quiet", "--define", f"_topdir {tmp_path}/top", str(spec)]
    made = subprocess.run(build, capture_output=True, check=False)
    packages = list((tmp_path / "top/RPMS").rglob("*.rpm"))
    assert len(packages) == 1, made.stderr.decode()
    install = ["rpm", "--dbpath", str(database), "--install", "--justdb", "--nodeps", "--ignorearch", "--ignoreos"]
    subprocess.run([*install, str(packages[0])], check=True, capture_output=True)
    found = PackageFinder().database_of(str(root))
    assert found is not None
    assert (found.root, found.kind) == (str(root), "rpm")
    thing, other = (str(root / "usr/bin" / name) for name in ("thing", "other"))
    assert PackageFinder().owners([thing, other]) == {thing: "thing"}


@pytest.mark.oracle
def test_dpkg_names_the_same_packages() -> None:
    if shutil.which("dpkg-query") is None:
        pytest.skip("dpkg-query is not installed")
    paths = [str(path) for path in sorted(Path("/usr/bin").iterdir()) if not path.is_symlink()][::7]
    owners = PackageFinder().owners(paths)
    answer = subprocess.run(["dpkg-query", "--search", *paths], capture_output=True, text=True, check=False).stdout
    listed = {}
    for line in answer.splitlines():
        names, _, path = line.rpartition(": ")
        if not names.startswith("diversion by "):
            listed[path] = names.split(", ")
    assert len(listed) > 20
    for path, packages in listed.items():
        # dpkg-query leaves the architecture out where there is only one.
        assert owners[path].partition(":")[0] in [name.partition(":")[0] for name in packages]
