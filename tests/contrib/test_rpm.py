# SPDX-License-Identifier: Apache-2.0
"""The rpm build root policy script: in a package that rpmbuild makes, and alone."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from tests.contrib.support import CONTRIB, attempt, check_section, copy_recipe, environment, has_section, run
from tests.support.needs import need
from tests.support.walk import check_walks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.walk import Sampler

pytestmark = pytest.mark.sampled

SCRIPT = CONTRIB / "rpm" / "brp-sframe"


def rpmbuild(tmp_path: Path, programs: Path) -> Path:
    """Build the example in a folder of its own; return the folder that its package unpacks to."""
    need("rpmbuild", "rpm2cpio", "cpio", "cc", "bash", "od", "awk")
    sources = copy_recipe("rpm", tmp_path / "sources")
    macros = tmp_path / "macros"
    macros.mkdir()
    shutil.copy(CONTRIB / "rpm" / "macros.sframe", macros)
    defines = {
        "_topdir": tmp_path / "top",
        "_sourcedir": sources,
        "_dbpath": tmp_path / "database",
        "__brp_sframe": f"{SCRIPT} %{{sframe_options}}",
        "_build_id_links": "none",
    }
    words = [word for name, value in defines.items() for word in ("--define", f"{name} {value}")]
    load = ["--load", str(macros / "macros.sframe")]
    run("rpmbuild", "-bb", *load, *words, sources / "words.spec", env=environment(programs))
    (package,) = (tmp_path / "top" / "RPMS").rglob("words-*.rpm")
    root = tmp_path / "root"
    root.mkdir()
    run("sh", "-c", 'rpm2cpio "$0" | cpio --quiet -id', package, cwd=root)
    return root


def test_package(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    root = rpmbuild(tmp_path, programs)
    program, library = root / "usr" / "bin" / "words", root / "usr" / "lib" / "words" / "libwords.so"
    check_section(program)
    check_section(library)
    check_walks(sampler, program, libraries=library.parent)
    assert os.path.samefile(program, program.with_name("words-too"))


@pytest.fixture
def build_root(tmp_path: Path) -> Path:
    """A build root with a program under two names, a library, an object, a debug file and a text."""
    need("cc", "bash", "od", "awk", "find", "sort")
    sources = copy_recipe("rpm", tmp_path / "sources")
    root = tmp_path / "root with space"
    (root / "usr" / "lib" / "debug").mkdir(parents=True)
    run("cc", "-O2", "-o", root / "usr" / "words", "main.c", "words.c", cwd=sources)
    os.link(root / "usr" / "words", root / "usr" / "again")
    run("cc", "-O2", "-shared", "-fPIC", "-o", root / "usr" / "words.so", "words.c", cwd=sources)
    run("cc", "-O2", "-c", "-o", root / "usr" / "words.o", "words.c", cwd=sources)
    shutil.copy(root / "usr" / "words", root / "usr" / "lib" / "debug" / "words.debug")
    (root / "usr" / "text").write_text("text")
    return root


def test_script(build_root: Path, programs: Path) -> None:
    run(SCRIPT, env=environment(programs, RPM_BUILD_ROOT=str(build_root), RPM_ARCH="x86_64"))
    folder = build_root / "usr"
    check_section(folder / "words")
    check_section(folder / "words.so")
    assert os.path.samefile(folder / "words", folder / "again")
    assert not has_section(folder / "words.o")
    assert not has_section(folder / "lib" / "debug" / "words.debug")


def test_script_on_what_cannot_be_converted(build_root: Path, programs: Path) -> None:
    damaged = build_root / "usr" / "damaged"
    damaged.write_bytes((build_root / "usr" / "words").read_bytes()[:5000])
    env = environment(programs, RPM_BUILD_ROOT=str(build_root), RPM_ARCH="x86_64")
    result = run(SCRIPT, env=env)
    assert f"cfi2sframe: {damaged}: error: " in result.err
    assert "brp-sframe: the files named above stay without an SFrame section" in result.err
    check_section(build_root / "usr" / "words")
    assert attempt(SCRIPT, env={**env, "BRP_SFRAME_REQUIRE": "1"}).status == 1


@pytest.mark.parametrize(
    ("script", "status"),
    [
        ("exit 127", 127),
        ("echo 'cfi2sframe: error: Python 3.11 or later is needed' >&2; exit 1", 1),
        ("echo 'cfi2sframe: x: error: internal error: IndexError: 1' >&2; exit 3", 3),
    ],
)
def test_a_tool_that_cannot_run(tmp_path: Path, script: str, status: int) -> None:
    """The build must not go on as if there were nothing to convert."""
    need("bash", "od", "awk")
    (tmp_path / "root").mkdir()
    shutil.copy("/bin/ls", tmp_path / "root")
    (tmp_path / "bin").mkdir()
    fake = tmp_path / "bin" / "cfi2sframe"
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    assert attempt(SCRIPT, env=environment(tmp_path / "bin", RPM_BUILD_ROOT=str(tmp_path / "root"))).status == status
