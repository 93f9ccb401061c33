# SPDX-License-Identifier: Apache-2.0
"""Debian and rpm packages built with the recipes: what they hold, and what stops a build."""

import os
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.consumer.walk import Sampler
from tests.support.contrib import (
    CONTRIB,
    PROJECT,
    build_example,
    check_pair,
    check_section,
    copy_recipe,
    environment,
    gdb_session,
    has_section,
    lists_section,
    run,
    shell_script,
)
from tests.support.needs import Result, attempt, need, need_plain

pytestmark = pytest.mark.sampled


@pytest.mark.slow
def test_a_debian_package(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("dpkg-buildpackage", "dh", "cc", "make", "perl")
    folder = copy_recipe("debhelper", tmp_path)
    result = build_example(folder, environment(programs))
    steps = [line.split()[0] for line in result.out.splitlines() if line.startswith("   dh_")]
    assert steps.index("dh_sframe") + 1 == steps.index("dh_strip") < steps.index("dh_md5sums")
    root, control, debug = tmp_path / "root", tmp_path / "control", tmp_path / "debug"
    (package,) = folder.parent.glob("words_1.0_*.deb")
    (debug_package,) = folder.parent.glob("words-dbgsym_1.0_*.deb")
    for option, archive, target in (("-x", package, root), ("-e", package, control), ("-x", debug_package, debug)):
        run("dpkg", option, archive, target)
    program, library = root / "usr" / "bin" / "words", root / "usr" / "lib" / "words" / "libwords.so"
    check_pair(sampler, program, library)
    assert os.path.samefile(program, program.with_name("words-too"))
    assert not has_section(library.with_name("words.o"))
    run("md5sum", "--check", "--strict", control / "md5sums", cwd=root)
    separate = list((debug / "usr" / "lib" / "debug" / ".build-id").rglob("*.debug"))
    assert [lists_section(path) for path in separate] == [True, True]
    for path in (program, library):
        assert "sframe" not in gdb_session(path, debug / "usr" / "lib" / "debug")


def test_an_rpm_package(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("rpmbuild", "rpm2cpio", "cpio", "make", "cc", "bash", "od", "awk")
    need_plain(tmp_path, "rpmbuild")
    folder = copy_recipe("rpm", tmp_path)
    build_example(folder, environment(programs))
    (package,) = (folder / "build" / "RPMS").rglob("words-1.0-*.rpm")
    root = tmp_path / "root"
    root.mkdir()
    run("sh", "-c", 'rpm2cpio "$0" | cpio --quiet -id', package, cwd=root)
    program = root / "usr" / "bin" / "words"
    check_pair(sampler, program, root / "usr" / "lib" / "words" / "libwords.so")
    assert os.path.samefile(program, program.with_name("words-too"))


class Step(NamedTuple):
    """The step of a package's build that converts a tree of installed files."""

    tree: Path
    source: Path
    command: tuple[str | Path, ...]
    #: The command with which a file that cannot be converted fails the build.
    strict_command: tuple[str | Path, ...]
    env: dict[str, str]

    def run(self, *, is_strict: bool = False, **variables: str) -> Result:
        return attempt(*(self.strict_command if is_strict else self.command), cwd=self.source, env=self.env | variables)


@pytest.fixture(params=["debhelper", "rpm"])
def step(request: pytest.FixtureRequest, tmp_path: Path, programs: Path) -> Step:
    """A tree with what may be among installed files: `words` under two names, an object, a debug file, a text."""
    need("cc", "bash", "od", "awk", "find", "sort")
    source = copy_recipe(request.param, tmp_path)
    if request.param == "debhelper":
        need("dh", "perl")
        tree = source / "debian" / "words"
        script = CONTRIB / "debhelper" / "dh_sframe"
        made = Step(tree / "usr", source, (script,), (script, "--require"), environment(programs))
    else:
        tree = tmp_path / "root with space"
        env = environment(programs, RPM_BUILD_ROOT=str(tree), RPM_ARCH="x86_64")
        script = CONTRIB / "rpm" / "brp-sframe"
        made = Step(tree / "usr", source, (script,), ("env", "BRP_SFRAME_REQUIRE=1", script), env)
    (made.tree / "lib" / "debug").mkdir(parents=True)
    run("cc", "-O2", "-o", made.tree / "words", "main.c", "words.c", cwd=PROJECT)
    os.link(made.tree / "words", made.tree / "again")
    run("cc", "-O2", "-c", "-o", made.tree / "words.o", "words.c", cwd=PROJECT)
    shutil.copy(made.tree / "words", made.tree / "lib" / "debug" / "words.debug")
    (made.tree / "text").write_text("text")
    return made


def test_what_is_converted(step: Step) -> None:
    assert step.run(is_strict=True).status == 0
    check_section(step.tree / "words")
    assert os.path.samefile(step.tree / "words", step.tree / "again")
    assert not has_section(step.tree / "words.o")
    assert not has_section(step.tree / "lib" / "debug" / "words.debug")


def test_a_file_that_cannot_be_converted(step: Step) -> None:
    (step.tree / "damaged").write_bytes((step.tree / "words").read_bytes()[:5000])
    result = step.run()
    assert result.status == 0
    assert "usr/damaged: error: " in result.err
    assert "the files named above stay without an SFrame section" in result.err
    assert has_section(step.tree / "words")
    assert step.run(is_strict=True).status != 0


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        ("echo 'cfi2sframe: error: Python 3.11 or later is needed' >&2; exit 1", 1, "3.11 or later is needed"),
        ("exit 127", 127, ""),
        ("echo 'cfi2sframe: x: error: internal error: IndexError: 1' >&2; exit 3", 3, "internal error: IndexError"),
        ("kill -SEGV $$", 128 + 11, ""),
    ],
)
def test_a_tool_that_cannot_run(step: Step, tmp_path: Path, script: str, status: int, message: str) -> None:
    """The build must not go on as if there were nothing to convert."""
    fake = shell_script(tmp_path / "fake" / "cfi2sframe", script)
    result = step.run(PATH=os.pathsep.join([str(fake.parent), step.env["PATH"]]))
    assert result.status == status
    assert message in result.err


def test_a_tool_that_is_not_there(step: Step) -> None:
    path = [each for each in step.env["PATH"].split(os.pathsep) if not os.path.exists(os.path.join(each, "cfi2sframe"))]
    assert step.run(PATH=os.pathsep.join(path)).status == 127
