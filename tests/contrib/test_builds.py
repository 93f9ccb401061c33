# SPDX-License-Identifier: Apache-2.0
"""The recipes for make, Ninja, CMake and Meson, each in a clean folder."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from tests.contrib.support import CONTRIB, check_section, copy_recipe, environment, run
from tests.support.needs import need
from tests.support.walk import check_walks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.walk import Sampler

pytestmark = pytest.mark.sampled


def linker_folder(programs: Path, folder: Path) -> Path:
    """Make a folder for `-B`."""
    folder.mkdir()
    (folder / "ld").symlink_to(programs / "cfi2sframe-ld")
    return folder


def check_pair(sampler: Sampler, program: Path, library: Path) -> None:
    check_section(program)
    check_section(library)
    check_walks(sampler, program, libraries=library.parent)


def times(*paths: Path) -> list[int]:
    return [path.stat().st_mtime_ns for path in paths]


def test_make(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("make", "cc")
    folder = copy_recipe("make", tmp_path / "words")
    shutil.copy(CONTRIB / "make" / "sframe.mk", folder)
    run("make", "words", cwd=folder, env=environment(programs))
    built = (folder / "words", folder / "libwords.so")
    check_pair(sampler, *built)
    before = times(*built)
    assert "up to date" in run("make", "words", cwd=folder, env=environment(programs)).out
    assert times(*built) == before


def test_ninja(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("ninja", "cc")
    folder = copy_recipe("ninja", tmp_path / "words")
    run("ninja", cwd=folder, env=environment(programs))
    check_pair(sampler, folder / "words", folder / "libwords.so")
    assert "no work to do" in run("ninja", cwd=folder, env=environment(programs)).out


@pytest.mark.parametrize("generator", ["Unix Makefiles", "Ninja"])
def test_cmake(tmp_path: Path, programs: Path, sampler: Sampler, generator: str) -> None:
    need("cmake", "cc", "ninja" if generator == "Ninja" else "make")
    folder = copy_recipe("cmake", tmp_path / "words")
    (folder / "cmake").mkdir()
    shutil.copy(CONTRIB / "cmake" / "CFI2SFrame.cmake", folder / "cmake")
    build, root = tmp_path / "build", tmp_path / "root"
    env = environment(programs)
    run("cmake", "-S", folder, "-B", build, "-G", generator, "-DCMAKE_BUILD_TYPE=Release", env=env)
    run("cmake", "--build", build, env=env)
    check_pair(sampler, build / "words", build / "libwords.so.1.0")
    run("cmake", "--install", build, "--prefix", root, "--strip", env=env)
    check_pair(sampler, root / "bin" / "words", root / "lib" / "libwords.so.1.0")


def test_meson_with_the_linker_wrapper(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("meson", "ninja", "cc")
    folder = copy_recipe("meson", tmp_path / "words")
    wrapper = linker_folder(programs, tmp_path / "sframe-ld")
    text = (CONTRIB / "meson" / "sframe.ini.in").read_text().replace("@FOLDER@", str(wrapper))
    (tmp_path / "sframe.ini").write_text(text)
    build, root = tmp_path / "build", tmp_path / "root"
    env = environment(programs)
    setup: list[str | Path] = [
        "meson",
        "setup",
        "--native-file",
        tmp_path / "sframe.ini",
        "--prefix",
        "/",
        "--libdir",
        "lib",
    ]
    run(*setup, build, folder, env=env)
    run("meson", "compile", "-C", build, env=env)
    check_pair(sampler, build / "words", build / "libwords.so.1.0")
    run("meson", "install", "-C", build, "--destdir", root, env=env)
    check_pair(sampler, root / "bin" / "words", root / "lib" / "libwords.so.1.0")
