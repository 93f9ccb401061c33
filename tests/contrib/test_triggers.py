# SPDX-License-Identifier: Apache-2.0
"""The triggers of dpkg and rpm: a system with a database of its own is converted, and stays so."""

import os
import shutil
import stat
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.contrib import CONTRIB, ROOT, check_section, environment, has_section, run, shell_script
from tests.support.needs import attempt, need, need_plain
from tests.support.placing.embedded import as_linked, write

pytestmark = pytest.mark.sampled

PACKAGE = "cfi2sframe-trigger"
WARNING = f"{PACKAGE}: warning: not every file got its SFrame section"
ENV, TRUE = Path("/usr/bin/env"), Path("/usr/bin/true")
#: What the system's dpkg knows at first. It would not run the trigger of a package that misses something.
INSTALLED = """\
Package: cfi2sframe
Status: install ok installed
Architecture: all
Version: 1
Maintainer: A <a@example.invalid>
Description: the converter

"""
SPEC = """\
Name: {name}
Version: 1
Release: 1
Summary: A program
License: Apache-2.0
BuildArch: noarch
%description
A program.
%install
install -D {program} %{{buildroot}}{target}
%files
{target}
"""


class Dpkg(NamedTuple):
    """A folder with a dpkg database, and the environment of the dpkg that writes to it."""

    root: Path
    env: dict[str, str]

    @property
    def programs(self) -> Path:
        return self.root / "usr" / "bin"

    def dpkg(self, *words: str | Path) -> str:
        """Run dpkg on the system, with the maintainer scripts outside of it; return what it says."""
        return run("dpkg", f"--root={self.root}", "--force-script-chrootless", *words, env=self.env).err

    def trigger(self) -> str:
        """Install the trigger."""
        return self.dpkg("--install", build(CONTRIB / "dpkg" / PACKAGE, self.root.parent))

    def install(self, name: str, version: int = 1, **files: Path) -> str:
        """Install a package of files in /usr/bin, by their names there."""
        folder = self.root.parent / "packages" / f"{name}_{version}"
        (folder / "DEBIAN").mkdir(parents=True)
        control = f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@example.invalid>\n"
        (folder / "DEBIAN" / "control").write_text(f"{control}Description: files of a test\n")
        (folder / "usr" / "bin").mkdir(parents=True)
        for place, source in files.items():
            write(folder / "usr" / "bin" / place, as_linked(source))
        return self.dpkg("--install", build(folder, self.root.parent))

    def state(self) -> str:
        words = ("-W", "-f", "${db:Status-Abbrev}", PACKAGE)
        return run("dpkg-query", f"--admindir={self.root}/var/lib/dpkg", *words).out.strip()


def build(folder: Path, target: Path) -> Path:
    deb = target / f"{folder.name}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", folder, deb)
    return deb


@pytest.fixture
def dpkg(tmp_path: Path, programs: Path) -> Dpkg:
    """A system with one program, which dpkg does not know."""
    need("dpkg", "dpkg-deb", "env", "true")
    if os.geteuid() != 0:
        pytest.skip("dpkg installs for root only")
    env = environment(programs)
    # dpkg demands programs of sbin, which a user's PATH may lack.
    env["PATH"] += os.pathsep + os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin"))
    system = Dpkg(tmp_path / "root", env)
    database = system.root / "var" / "lib" / "dpkg"
    (database / "updates").mkdir(parents=True)
    (database / "info").mkdir()
    (database / "status").write_text(INSTALLED)
    system.programs.mkdir(parents=True)
    (system.root / "bin").symlink_to("usr/bin")
    write(system.programs / "old", as_linked(TRUE))
    return system


def test_dpkg_converts_what_is_there_and_what_comes_and_nothing_else(dpkg: Dpkg) -> None:
    err = dpkg.trigger()
    assert "1 file: 1 converted" in err
    # apt prints what the trigger prints: of all files that are there, only the sum.
    assert "/usr/bin/old" not in err
    assert dpkg.state() == "ii"
    old = dpkg.programs / "old"
    check_section(old, more_functions_than=0)
    before = old.stat()
    err = dpkg.install("tools", new=ENV, words=ROOT / "LICENSE")
    assert "2 files: 1 converted, 1 unchanged;" in err
    # A line for each change, and none for what stays.
    assert [line.partition("/usr/bin/")[2].partition(":")[0] for line in err.splitlines() if "/usr/bin/" in line] == [
        "new"
    ]
    check_section(dpkg.programs / "new", more_functions_than=0)
    assert "2 files: 1 converted, 1 unchanged;" in dpkg.install("tools", 2, new=TRUE)
    after = old.stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)
    dpkg.dpkg("--purge", PACKAGE)
    assert not (dpkg.root / "etc" / "cfi2sframe").exists()
    assert not (dpkg.root / "usr" / "sbin" / "cfi2sframe-system").exists()


def test_a_converter_that_fails_does_not_stop_dpkg(dpkg: Dpkg, tmp_path: Path) -> None:
    dpkg.trigger()
    broken, sound = shell_script(tmp_path / "broken" / "cfi2sframe", "echo no python >&2; exit 3"), dpkg.env["PATH"]
    dpkg.env["PATH"] = f"{broken.parent}{os.pathsep}{sound}"
    err = dpkg.install("tools", new=ENV)
    assert "no python" in err
    assert WARNING in err
    assert dpkg.state() == "ii"
    assert not has_section(dpkg.programs / "new")
    # The next package makes up for it.
    dpkg.env["PATH"] = sound
    assert "2 converted" in dpkg.install("more", x=ENV)


def test_only_directories_that_dpkg_names_are_looked_at(dpkg: Dpkg) -> None:
    dpkg.trigger()
    other = dpkg.root / "usr" / "sbin" / "other"
    write(other, as_linked(TRUE))
    dpkg.install("tools", new=ENV)
    assert has_section(dpkg.programs / "new")
    assert not has_section(other)
    env = {**dpkg.env, "DPKG_ROOT": str(dpkg.root)}
    system = dpkg.root / "usr" / "sbin" / "cfi2sframe-system"
    run(system, "changed", "/sbin", "/usr/share", env=env)
    check_section(other, more_functions_than=0)
    assert attempt(system, "changed", "/usr/share", env=env).status == 0
    assert attempt(system, "all", env=env).status == 2


def test_warnings_of_files_that_stay_are_not_repeated(dpkg: Dpkg, tmp_path: Path) -> None:
    dpkg.trigger()
    said = ["a: warning: 1", "a: info: unchanged", "b: warning: 2", "b: warning: 3", "b: info: converted: x"]
    said += ["c: warning: 4", "c: info: skipped: y", "d: error: z", "info: 4 files"]
    lines = "; ".join(f"echo 'cfi2sframe: {line}' >&2" for line in said)
    broken = shell_script(tmp_path / "other" / "cfi2sframe", f"{lines}; exit 3")
    env = {**dpkg.env, "DPKG_ROOT": str(dpkg.root), "PATH": f"{broken.parent}{os.pathsep}{dpkg.env['PATH']}"}
    result = attempt(dpkg.root / "usr" / "sbin" / "cfi2sframe-system", env=env)
    kept = [*said[2:5], *said[7:]]
    assert result == (3, "", "".join(f"cfi2sframe: {line}\n" for line in kept))


@pytest.mark.skipif(Path("/usr/local/bin/cfi2sframe").exists(), reason="this system has the converter")
def test_a_system_without_the_converter(dpkg: Dpkg) -> None:
    folders = [entry for entry in dpkg.env["PATH"].split(os.pathsep) if not Path(entry, "cfi2sframe").exists()]
    dpkg.env["PATH"] = os.pathsep.join(folders)
    err = dpkg.trigger()
    assert "cfi2sframe is not installed" in err
    assert WARNING in err


def test_scripts_are_sound() -> None:
    need("shellcheck")
    files = [path for path in (CONTRIB / "dpkg" / PACKAGE).rglob("*") if path.is_file()]
    scripts = [path for path in files if path.read_bytes()[:2] == b"#!"]
    assert sorted(path.name for path in scripts) == ["cfi2sframe-system", "postinst"]
    run("shellcheck", *scripts)
    assert all(stat.S_IMODE(path.stat().st_mode) & 0o111 for path in scripts)


class Rpm(NamedTuple):
    """A folder that packages install into, and the environment of rpm."""

    folder: Path
    env: dict[str, str]

    @property
    def programs(self) -> Path:
        return self.folder / "usr" / "bin"

    @property
    def database(self) -> Path:
        return self.folder / "database"

    def build(self, spec: Path) -> Path:
        top = self.folder / "build" / spec.stem
        defines = {
            "_topdir": top,
            "_dbpath": self.database,
            "_binaries_in_noarch_packages_terminate_build": 0,
            "__os_install_post": "%{nil}",
            "sframe_directories": self.programs,
        }
        words = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
        run("rpmbuild", "-bb", *words, spec, env=self.env)
        (package,) = (top / "RPMS").rglob("*.rpm")
        return package

    def install(self, package: Path) -> str:
        """Run rpm, which runs scripts here and not in another root; return what it says."""
        path = f"_install_script_path {self.env['PATH']}"
        words = ("--dbpath", self.database, "--define", path, "--nodeps", "--install", package)
        result = run("rpm", *words, env=self.env)
        return result.out + result.err

    def trigger(self) -> str:
        return self.install(self.build(CONTRIB / "rpm" / f"{PACKAGE}.spec"))

    def program(self, name: str) -> str:
        """Install a package of one program."""
        spec = self.folder / f"{name}.spec"
        program = write(self.folder / "env", as_linked(ENV))
        spec.write_text(SPEC.format(name=name, program=program, target=self.programs / name))
        return self.install(self.build(spec))


@pytest.fixture
def rpm(tmp_path: Path, programs: Path) -> Rpm:
    """A system with one program, which rpm knows."""
    need("rpm", "rpmbuild", "env")
    need_plain(tmp_path, "rpmbuild")
    if os.geteuid() != 0:
        pytest.skip("rpm installs for root only")
    system = Rpm(tmp_path / "system", environment(programs))
    system.database.mkdir(parents=True)
    system.program("old")
    return system


def test_rpm_converts_what_is_there_and_what_comes(rpm: Rpm) -> None:
    assert "1 file: 1 converted" in rpm.trigger()
    check_section(rpm.programs / "old", more_functions_than=0)
    assert "2 files: 1 converted, 1 unchanged;" in rpm.program("new")
    check_section(rpm.programs / "new", more_functions_than=0)


def test_a_converter_that_fails_does_not_stop_rpm(rpm: Rpm, tmp_path: Path) -> None:
    shutil.copy("/bin/false", tmp_path / "cfi2sframe")
    rpm.env["PATH"] = f"{tmp_path}{os.pathsep}{rpm.env['PATH']}"
    assert WARNING in rpm.trigger()
    assert not has_section(rpm.programs / "old")
    assert attempt("rpm", "--dbpath", rpm.database, "--query", PACKAGE, env=rpm.env).status == 0
