# SPDX-License-Identifier: Apache-2.0
"""The rpm trigger: the files of packages that are installed into a folder, with an rpm database of their own."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.contrib.support import CONTRIB, Result, attempt, check_section, environment, has_section, run
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

SPEC = CONTRIB / "rpm" / "cfi2sframe-trigger.spec"
PROGRAM = """\
Name: {name}
Version: 1
Release: 1
Summary: A program
License: Apache-2.0
BuildArch: noarch
%description
A program.
%install
install -D /usr/bin/env %{{buildroot}}{target}
%files
{target}
"""


class System(NamedTuple):
    """A folder that packages install into, and the environment of rpm."""

    folder: Path
    env: dict[str, str]

    @property
    def programs(self) -> Path:
        """The folder of programs."""
        return self.folder / "usr" / "bin"

    def build(self, spec: Path) -> Path:
        """Build a package."""
        top = self.folder / "build" / spec.stem
        defines = {
            "_topdir": top,
            "_dbpath": self.folder / "database",
            "_binaries_in_noarch_packages_terminate_build": 0,
            "__os_install_post": "%{nil}",
            "sframe_folders": self.programs,
        }
        words = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
        run("rpmbuild", "-bb", *words, spec, env=self.env)
        (package,) = (top / "RPMS").rglob("*.rpm")
        return package

    def program(self, name: str) -> Path:
        """Build a package of one program."""
        spec = self.folder / f"{name}.spec"
        spec.write_text(PROGRAM.format(name=name, target=self.programs / name))
        return self.build(spec)

    def rpm(self, *words: str | Path) -> Result:
        """Run rpm, which runs scripts here and not in another root."""
        path = f"_install_script_path {self.env['PATH']}"
        database = self.folder / "database"
        return run("rpm", "--dbpath", database, "--define", path, "--nodeps", *words, env=self.env)


@pytest.fixture
def system(tmp_path: Path, programs: Path) -> System:
    """A system with one program, which rpm knows."""
    need("rpm", "rpmbuild", "env")
    if os.geteuid() != 0:
        pytest.skip("rpm installs for root only")
    made = System(tmp_path / "system", environment(programs))
    (made.folder / "database").mkdir(parents=True)
    made.rpm("--install", made.program("old"))
    return made


def test_what_is_there_and_what_comes_is_converted(system: System) -> None:
    result = system.rpm("--install", system.build(SPEC))
    assert "1 file: 1 converted" in result.out + result.err
    check_section(system.programs / "old", more_functions_than=0)
    result = system.rpm("--install", system.program("new"))
    assert "2 files: 1 converted, 1 unchanged;" in result.out + result.err
    check_section(system.programs / "new", more_functions_than=0)


def test_a_failure_is_a_warning(system: System, tmp_path: Path) -> None:
    shutil.copy("/bin/false", tmp_path / "cfi2sframe")
    system.env["PATH"] = f"{tmp_path}{os.pathsep}{system.env['PATH']}"
    result = system.rpm("--install", system.build(SPEC))
    assert "cfi2sframe-trigger: warning: not every file got its SFrame section" in result.out + result.err
    assert not has_section(system.programs / "old")
    query = attempt("rpm", "--dbpath", system.folder / "database", "--query", "cfi2sframe-trigger", env=system.env)
    assert query.status == 0
