# SPDX-License-Identifier: Apache-2.0
"""The dpkg trigger: a system with a dpkg database of its own stays converted, until the sections are taken out."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.contrib.support import CONTRIB, ROOT, Result, check_section, environment, has_section, run
from tests.support.needs import need

pytestmark = pytest.mark.sampled

RECIPE = CONTRIB / "dpkg"
PACKAGE = "cfi2sframe-trigger"
#: What the system's dpkg knows at first. It would not run the trigger of a package that misses something.
PYTHON = """\
Package: python3
Status: install ok installed
Architecture: all
Version: 3.11.2-1
Maintainer: A <a@example.invalid>
Description: an interpreter

"""


class System(NamedTuple):
    """A folder with a dpkg database, and the environment of the dpkg that writes to it."""

    root: Path
    env: dict[str, str]

    def command(self, *words: str | Path) -> tuple[str | Path, ...]:
        """Return a command of dpkg on the system, with the maintainer scripts outside of it."""
        return ("dpkg", f"--root={self.root}", "--force-script-chrootless", *words)

    def dpkg(self, *words: str | Path) -> Result:
        """Run dpkg on the system."""
        return run(*self.command(*words), env=self.env)

    def deb(self, name: str, version: str, files: dict[str, Path]) -> Path:
        """Build a package of files, by their names in the system."""
        folder = self.root.parent / "packages" / f"{name}_{version}"
        (folder / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@example.invalid>\n"
        (folder / "DEBIAN" / "control").write_text(f"{control}Description: files of a test\n")
        for place, source in files.items():
            target = folder / place.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
        return build(folder, self.root.parent)

    def path(self, place: str) -> Path:
        """Return where a file of the system is."""
        return self.root / place.lstrip("/")


def build(folder: Path, target: Path) -> Path:
    deb = target / f"{folder.name}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", folder, deb)
    return deb


@pytest.fixture
def system(tmp_path: Path, programs: Path) -> System:
    """A system with one program, which dpkg does not know, and the trigger."""
    need("dpkg", "dpkg-deb", "env", "true")
    if os.geteuid() != 0:
        pytest.skip("dpkg installs for root only")
    root = tmp_path / "root"
    (root / "var" / "lib" / "dpkg" / "updates").mkdir(parents=True)
    (root / "var" / "lib" / "dpkg" / "info").mkdir()
    (root / "var" / "lib" / "dpkg" / "status").write_text(PYTHON)
    (root / "usr" / "bin").mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    shutil.copy("/usr/bin/true", root / "usr" / "bin" / "old")
    return System(root, environment(programs))


def installed(system: System) -> str:
    return system.dpkg("--install", build(RECIPE / PACKAGE, system.root.parent)).err


def state_of(system: System) -> str:
    words = ("dpkg-query", f"--admindir={system.root}/var/lib/dpkg", "-W", "-f", "${db:Status-Abbrev}", PACKAGE)
    return run(*words).out


def tools(system: System) -> Path:
    """Return a package of one program, /usr/bin/new."""
    return system.deb("tools", "1", {"/usr/bin/new": Path("/usr/bin/env")})


def test_what_is_there_is_converted(system: System) -> None:
    assert "1 file: 1 converted" in installed(system)
    check_section(system.path("/usr/bin/old"), more_functions_than=0)
    assert state_of(system).strip() == "ii"


def test_what_a_package_brings_is_converted_and_nothing_else_is_written(system: System) -> None:
    installed(system)
    before = system.path("/usr/bin/old").stat()
    deb = system.deb("tools", "1", {"/usr/bin/new": Path("/usr/bin/env"), "/usr/bin/words": ROOT / "LICENSE"})
    err = system.dpkg("--install", deb).err
    assert "2 files: 1 converted, 1 unchanged;" in err
    check_section(system.path("/usr/bin/new"), more_functions_than=0)
    err = system.dpkg("--install", system.deb("tools", "2", {"/usr/bin/new": Path("/usr/bin/true")})).err
    assert "2 files: 1 converted, 1 unchanged;" in err
    after = system.path("/usr/bin/old").stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


def test_a_converter_that_fails_does_not_stop_dpkg(system: System, tmp_path: Path) -> None:
    installed(system)
    (tmp_path / "broken").mkdir()
    broken = tmp_path / "broken" / "cfi2sframe"
    broken.write_text("#!/bin/sh\necho no python >&2\nexit 3\n")
    broken.chmod(0o755)
    sound = system.env["PATH"]
    system.env["PATH"] = f"{broken.parent}{os.pathsep}{sound}"
    err = system.dpkg("--install", tools(system)).err
    assert "no python" in err
    assert f"{PACKAGE}: warning: not every file got its SFrame section" in err
    assert state_of(system).strip() == "ii"
    assert not has_section(system.path("/usr/bin/new"))
    # The next package makes up for it.
    system.env["PATH"] = sound
    assert "2 converted" in system.dpkg("--install", system.deb("more", "1", {"/usr/bin/x": Path("/usr/bin/env")})).err


@pytest.mark.skipif(Path("/usr/local/bin/cfi2sframe").exists(), reason="this system has the converter")
def test_a_system_without_the_converter(system: System) -> None:
    folders = [entry for entry in system.env["PATH"].split(os.pathsep) if not Path(entry, "cfi2sframe").exists()]
    system.env["PATH"] = os.pathsep.join(folders)
    err = installed(system)
    assert "cfi2sframe: not found" in err
    assert f"{PACKAGE}: warning: not every file got its SFrame section" in err


def test_nothing_is_left_after_a_purge(system: System) -> None:
    installed(system)
    system.dpkg("--purge", PACKAGE)
    for place in ("/etc/cfi2sframe", "/usr/sbin/cfi2sframe-system"):
        assert not system.path(place).exists()


def test_scripts_are_sound() -> None:
    need("shellcheck")
    scripts = [path for path in (RECIPE / PACKAGE).rglob("*") if path.is_file() and path.read_bytes()[:2] == b"#!"]
    assert sorted(path.name for path in scripts) == ["cfi2sframe-system", "postinst"]
    run("shellcheck", *scripts)
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o111 for path in scripts)
