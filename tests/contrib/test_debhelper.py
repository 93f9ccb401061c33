# SPDX-License-Identifier: Apache-2.0
"""The debhelper add-on: Debian packages that are built with it, unpacked or installed, and whose programs run."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.contrib.support import (
    CONTRIB,
    Result,
    attempt,
    check_section,
    copy_recipe,
    environment,
    gdb_session,
    has_section,
    lists_section,
    run,
)
from tests.support.needs import need
from tests.support.walk import check_walks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.walk import Sampler

pytestmark = pytest.mark.sampled

ADD_ON = CONTRIB / "debhelper"
BUILD = ("dpkg-buildpackage", "-b", "-us", "-uc")


@pytest.fixture
def debian(tmp_path: Path, programs: Path) -> dict[str, str]:
    """An environment in which debhelper finds the add-on, installed as in its README."""
    need("dpkg-buildpackage", "dh", "cc", "make", "perl")
    perl, tools = tmp_path / "perl", tmp_path / "tools"
    (perl / "Debian" / "Debhelper" / "Sequence").mkdir(parents=True)
    shutil.copy(ADD_ON / "sframe.pm", perl / "Debian" / "Debhelper" / "Sequence")
    tools.mkdir()
    shutil.copy(ADD_ON / "dh_sframe", tools)
    env = environment(programs, PERL5LIB=str(perl))
    env["PATH"] = os.pathsep.join([str(tools), env["PATH"]])
    return env


def build_example(tmp_path: Path, env: dict[str, str]) -> tuple[Path, Result]:
    """Build the example; return the folder that its package unpacks to."""
    folder = copy_recipe("debhelper", tmp_path / "build" / "words-1.0")
    result = run(*BUILD, cwd=folder, env=env)
    root = tmp_path / "root"
    (package,) = folder.parent.glob("words_1.0_*.deb")
    run("dpkg", "-x", package, root)
    return root, result


def test_native_package(tmp_path: Path, debian: dict[str, str], sampler: Sampler) -> None:
    root, result = build_example(tmp_path, debian)
    steps = [line.split()[0] for line in result.out.splitlines() if line.startswith("   dh_")]
    assert steps.index("dh_sframe") + 1 == steps.index("dh_strip") < steps.index("dh_md5sums")
    program, library = root / "usr" / "bin" / "words", root / "usr" / "lib" / "words" / "libwords.so"
    check_section(program)
    check_section(library)
    check_walks(sampler, program, libraries=library.parent)
    assert os.path.samefile(program, root / "usr" / "bin" / "words-too")
    assert not has_section(root / "usr" / "lib" / "words" / "words.o")
    (debug,) = (tmp_path / "build").glob("words-dbgsym_1.0_*.deb")
    run("dpkg", "-x", debug, tmp_path / "debug")
    assert (tmp_path / "debug" / "usr" / "lib" / "debug" / ".build-id").is_dir()
    separate = list((tmp_path / "debug" / "usr" / "lib" / "debug" / ".build-id").rglob("*.debug"))
    assert len(separate) == 2
    assert all(lists_section(path) for path in separate)
    debug_folder = tmp_path / "debug" / "usr" / "lib" / "debug"
    for path in (program, library):
        assert "sframe" not in gdb_session(path, debug_folder)
    (package,) = (tmp_path / "build").glob("words_1.0_*.deb")
    run("dpkg", "-e", package, tmp_path / "control")
    run("md5sum", "--check", "--strict", tmp_path / "control" / "md5sums", cwd=root)


def staged(tmp_path: Path, env: dict[str, str]) -> Path:
    """Return a source tree whose package directory holds files as dh_install leaves them."""
    folder = copy_recipe("debhelper", tmp_path / "words-1.0")
    run("make", "install", f"DESTDIR={folder}/debian/words", cwd=folder, env=env)
    return folder


def test_a_file_that_cannot_be_converted(tmp_path: Path, debian: dict[str, str]) -> None:
    folder = staged(tmp_path, debian)
    damaged = folder / "debian" / "words" / "usr" / "bin" / "damaged"
    damaged.write_bytes((folder / "words").read_bytes()[:5000])
    result = run("dh_sframe", cwd=folder, env=debian)
    assert "debian/words/usr/bin/damaged: error: " in result.err
    assert "the files named above stay without an SFrame section" in result.err
    assert has_section(folder / "debian" / "words" / "usr" / "bin" / "words")
    assert attempt("dh_sframe", "--require", cwd=folder, env=debian).status != 0


@pytest.mark.parametrize(
    ("script", "status", "message"),
    [
        (None, 127, "cfi2sframe: No such file or directory"),
        ("echo 'cfi2sframe: error: Python 3.11 or later is needed' >&2; exit 1", 1, "3.11 or later is needed"),
        ("echo 'cfi2sframe: x: error: internal error: IndexError: 1' >&2; exit 3", 3, "internal error: IndexError"),
        ("kill -SEGV $$", 128 + 11, ""),
    ],
)
def test_a_tool_that_cannot_run(
    tmp_path: Path, debian: dict[str, str], script: str | None, status: int, message: str
) -> None:
    """The build must not go on as if there were nothing to convert."""
    folder = staged(tmp_path, debian)
    # The first folders of PATH have the programs of this project.
    path = [each for each in debian["PATH"].split(os.pathsep) if not os.path.exists(os.path.join(each, "cfi2sframe"))]
    if script is not None:
        fake = tmp_path / "fake" / "cfi2sframe"
        fake.parent.mkdir()
        fake.write_text(f"#!/bin/sh\n{script}\n")
        fake.chmod(0o755)
        path = [str(fake.parent), *path]
    result = attempt("dh_sframe", cwd=folder, env={**debian, "PATH": os.pathsep.join(path)})
    assert result.status == status
    assert message in result.err
    assert f"cfi2sframe failed with status {status}" in result.err
