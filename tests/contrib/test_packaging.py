# SPDX-License-Identifier: Apache-2.0
"""The archives: the same bytes wherever they are built, whole, and what they install works. Nothing is fetched."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from cfi2sframe import __version__
from tests.support.contrib import EPOCH, PROGRAMS, PROJECT, ROOT, check_section, copy_of_the_tree, has_section, run
from tests.support.needs import attempt, need, need_plain

pytestmark = pytest.mark.sampled

OBJECT = ROOT / "testdata" / "golden" / "amd64-push-rbp.o"


@pytest.fixture(scope="module")
def _backend() -> None:
    if find_spec("flit_core") is None:
        pytest.skip("no flit_core: make venv")


def build(tree: Path, target: Path, *, mask: int = 0o022) -> tuple[Path, Path, Path]:
    """Build from a tree; return sdist, wheel and bill of materials."""
    command = [sys.executable, str(tree / "tools" / "dist.py"), str(target)]
    env = {"PATH": os.environ["PATH"], "SOURCE_DATE_EPOCH": EPOCH, "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, env=env, umask=mask, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    sdist, wheel, bill = (Path(line) for line in done.stdout.splitlines())
    return sdist, wheel, bill


@pytest.fixture(scope="module")
def archives(_backend: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """The sdist, the wheel and the bill of materials of this tree."""
    folder = tmp_path_factory.mktemp("archives")
    return build(copy_of_the_tree(folder / "tree"), folder / "dist")


@pytest.mark.usefixtures("_backend")
def test_the_same_bytes_everywhere(archives: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """Another folder, another umask, other times and modes of the files, files of the interpreter's in between."""
    tree = copy_of_the_tree(tmp_path / "elsewhere" / "deep")
    for path in tree.rglob("*"):
        if path.is_file():
            path.chmod(0o700 if os.access(path, os.X_OK) else 0o600)
            os.utime(path, (1, 1))
    cache = tree / "cfi2sframe" / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "api.cpython-311.pyc").write_bytes(b"stale")
    there = build(tree, tmp_path / "dist", mask=0o077)
    assert [(path.name, path.read_bytes()) for path in there] == [(path.name, path.read_bytes()) for path in archives]


def test_an_rpm_of_the_program(archives: tuple[Path, Path, Path], tmp_path: Path) -> None:
    need("rpmbuild", "rpm2cpio", "cpio")
    need_plain(tmp_path, "rpmbuild")
    top, root = tmp_path / "top", tmp_path / "root"
    words = ["--define", f"_sourcedir {archives[1].parent}", "--define", f"_topdir {top}"]
    run("rpmbuild", "-bb", *words, ROOT / "contrib" / "rpm" / "cfi2sframe.spec")
    (package,) = (top / "RPMS").rglob("*.rpm")
    root.mkdir()
    run("sh", "-c", 'rpm2cpio "$0" | cpio --quiet -id', package, cwd=root)
    (folder,) = root.glob("usr/lib/python3*/site-packages")
    program, env = root / "usr" / "bin" / "cfi2sframe", {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder)}
    run(sys.executable, "-sP", program, OBJECT, "-o", tmp_path / "out.o", env=env)
    assert has_section(tmp_path / "out.o")
    assert (root / "usr" / "share" / "man" / "man1" / "cfi2sframe.1").exists()


def test_the_sdist_builds_the_wheel(archives: tuple[Path, Path, Path], tmp_path: Path) -> None:
    """It has the tests, tools and pages, and nothing that the interpreter made."""
    with tarfile.open(archives[0]) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extraction_filter = tarfile.data_filter
        # Python 3.11 has filters since 3.11.4.
        archive.extractall(tmp_path)  # noqa: S202 - the archive is ours
    tree = tmp_path / f"cfi2sframe-{__version__}"
    for name in (
        "Makefile",
        ".ci/run",
        "LICENSE",
        "tests/conftest.py",
        "contrib/cmake/CFI2SFrame.cmake",
        "docs/design.md",
    ):
        assert (tree / name).exists(), name
    assert (tree / "data" / "share" / "man" / "man1" / "cfi2sframe.1").exists()
    assert not list(tree.rglob("__pycache__"))
    again = build(tree, tmp_path / "dist")
    assert [path.read_bytes() for path in again] == [path.read_bytes() for path in archives]


@pytest.fixture(scope="module")
def installed(archives: tuple[Path, Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel alone; its dependencies are those that run this test."""
    if find_spec("ensurepip") is None:
        pytest.skip("no ensurepip: make packages")
    folder = tmp_path_factory.mktemp("installed") / "venv"
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", archives[1])
    (packages,) = (folder / "lib").glob("python*/site-packages")
    spec = find_spec("elftools")
    assert spec is not None
    assert spec.origin is not None
    (packages / "dependencies.pth").write_text(f"{Path(spec.origin).parents[1]}\n")
    return folder


@pytest.mark.slow
def test_what_is_installed_works(installed: Path, tmp_path: Path) -> None:
    need("cc", "ld")
    env = {"PATH": f"{installed / 'bin'}:{os.environ['PATH']}"}
    assert run("cfi2sframe", "--version", env=env).out == f"cfi2sframe {__version__}\n"
    run("cfi2sframe-cc", "-O2", "-o", tmp_path / "words", PROJECT / "main.c", PROJECT / "words.c", env=env)
    check_section(tmp_path / "words")
    assert run("cfi2sframe-ld", "--version", env=env).out == run("ld", "--version", env=env).out
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == PROGRAMS
    assert set(PROGRAMS) <= {path.name for path in (installed / "bin").iterdir()}
    for name in ("man/man1/cfi2sframe.1", "bash-completion/completions/cfi2sframe", "zsh/site-functions/_cfi2sframe"):
        assert (installed / "share" / name).is_file()


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program as one file."""
    target = tmp_path_factory.mktemp("zipapp") / "cfi2sframe.pyz"
    run(sys.executable, ROOT / "tools" / "zipapp.py", target)
    return target


def test_zipapp_is_the_same_each_time(zipapp: Path, tmp_path: Path) -> None:
    run(sys.executable, ROOT / "tools" / "zipapp.py", tmp_path / "again.pyz")
    assert (tmp_path / "again.pyz").read_bytes() == zipapp.read_bytes()


#: With nothing but the standard library.
PYTHON = (sys.executable, "-I", "-S")


def test_zipapp_alone(zipapp: Path, tmp_path: Path) -> None:
    """It has all but capstone, which code with stubs needs."""
    result = attempt(*PYTHON, zipapp, "/bin/ls", "-o", tmp_path / "ls.sframe")
    assert result.status == 3
    assert "capstone, which cannot be loaded" in result.err
    run(*PYTHON, zipapp, "--strict", OBJECT, "-o", tmp_path / "out.sframe")
    assert (tmp_path / "out.sframe").stat().st_size > 28


@pytest.mark.parametrize("name", ["cfi2sframe", "cfi2sframe.pyz", "cfi2sframe-1.0.pyz", "c.pyz"])
def test_zipapp_is_the_program_by_these_names(zipapp: Path, tmp_path: Path, name: str) -> None:
    shutil.copy(zipapp, tmp_path / name)
    assert run(*PYTHON, tmp_path / name, "--version").out == f"cfi2sframe {__version__}\n"


def test_every_dependency_has_a_lower_bound() -> None:
    """A dependency without a lower bound would not be tested by make test-lowest."""
    bounds = {line.split("==")[0] for line in run(sys.executable, ROOT / "tools" / "lowest.py").out.splitlines()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["zstd"], *extras["html"]]
    assert {re.split(r"[<>=\[ ]", text)[0] for text in wanted} == bounds
