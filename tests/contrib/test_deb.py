# SPDX-License-Identifier: Apache-2.0
"""The Debian package of the program itself: in clean systems of the releases that it is for, all of it works."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.contrib import EPOCH, ROOT, copy_of_the_tree, run
from tests.support.needs import attempt, need

SUITES = ["bookworm", "trixie"]
#: What a user does with the package, and what is left when it is gone.
SESSION = """
set -e
dpkg --install /tmp/cfi2sframe_*.deb
test -s /usr/share/man/man1/cfi2sframe.1 -a -s /usr/share/man/man1/cfi2sframe-ld.1
test -s /usr/share/bash-completion/completions/cfi2sframe -a -s /usr/share/zsh/vendor-completions/_cfi2sframe
test -d /usr/lib/python3/dist-packages/cfi2sframe/__pycache__
cd /tmp
cp /bin/bash program
cfi2sframe --in-place program
cfi2sframe verify program
test "$(./program -c 'echo runs')" = runs
cfi2sframe remove --in-place program
cmp program /bin/bash
dpkg --install cfi2sframe-trigger_*.deb
cfi2sframe verify /bin/bash
dpkg --purge cfi2sframe-trigger
cfi2sframe remove --in-place -q /usr
cmp program /bin/bash
dpkg --purge cfi2sframe
test ! -e /usr/lib/python3/dist-packages/cfi2sframe
"""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("dpkg-deb")
    if find_spec("flit_core") is None:
        pytest.skip("flit_core is not here: make venv")
    return build(tmp_path_factory.mktemp("packages"))


def build(folder: Path) -> Path:
    """Build the packages, as always from the same sources at the same time; return the folder that has them."""
    tree, made = copy_of_the_tree(folder / "tree"), folder / "dist"
    run(sys.executable, tree / "tools" / "deb.py", made, env={**os.environ, "SOURCE_DATE_EPOCH": EPOCH})
    return made


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES)
def test_it_works_in_a_clean_system(suite: str, packages: Path, tmp_path: Path) -> None:
    need("debootstrap")
    if os.geteuid():
        pytest.skip("only root can make a system")
    system = ROOT / "build" / "roots" / suite
    made = attempt(ROOT / "tools" / "debian-root", suite, system, "python3-pyelftools", "python3-capstone")
    if made.status:
        pytest.skip(f"no system of {suite} can be made: {made.err}")
    root = tmp_path / "root"
    run("cp", "-a", "--reflink=auto", system, root)
    for package in packages.glob("*.deb"):
        shutil.copy(package, root / "tmp")
    words = ["chroot", str(root), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "sh", "-c", SESSION]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_same_sources_give_the_same_package(packages: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    names = sorted(path.name for path in packages.iterdir())
    assert len(names) == 2
    assert [(again / name).read_bytes() for name in names] == [(packages / name).read_bytes() for name in names]
