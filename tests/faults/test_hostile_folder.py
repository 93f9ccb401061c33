# SPDX-License-Identifier: Apache-2.0
"""The program run in another user's folder, with a file there for every module that could be imported."""

import shutil
import sys
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe.cli.convert import POOL_SIZE
from tests.faults.test_truncation import file_of
from tests.support.contrib import ROOT, environment, install_programs, run, shell_script, wrapper_folder
from tests.support.jobs import object_of
from tests.support.needs import Result, attempt, need

pytestmark = [pytest.mark.fuzz, pytest.mark.sampled]

#: Beside the standard library: what this program may load, and what Python itself looks for.
OTHERS: Final = (
    *("capstone", "elftools", "zstandard", "jinja2", "markupsafe", "cffi", "_cffi_backend"),
    *("sitecustomize", "usercustomize", "pkg_resources", "setuptools", "cfi2sframe", "__main__"),
)
TOOLS: Final = ("ldconfig", "gcc", "cc", "ld", "as", "objdump", "python3", "cfi2sframe", "true")
LIBRARIES: Final = ("libcapstone.so", "libcapstone.so.4", "libcapstone.so.5")
OBJECTS: Final = tuple(f"object{number}.o" for number in range(5))
PADDING: Final = bytes(1 << 18)
CONSTRUCTOR: Final = """
#include <stdio.h>
__attribute__((constructor)) static void load(void) { fclose(fopen("MARK", "a")); }
"""


class Trap(NamedTuple):
    """A folder full of files that leave a mark when they are run."""

    folder: Path
    mark: Path

    def run(self, *command: str | Path, env: dict[str, str]) -> Result:
        """Run a program in the folder; it must not spring the trap."""
        result = attempt(*command, cwd=self.folder, env=env)
        assert not self.mark.exists(), (self.mark.read_text(), result.err)
        assert "Traceback" not in result.err
        return result


@pytest.fixture
def trap(tmp_path: Path) -> Trap:
    folder, mark = tmp_path / "folder", tmp_path / "sprung"
    folder.mkdir()
    for name in (*sys.stdlib_module_names, *OTHERS):
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'a').write('{name}\\n')\n")
    if shutil.which("cc") is not None:
        source = tmp_path / "library.c"
        source.write_text(CONSTRUCTOR.replace("MARK", str(mark)))
        for name in LIBRARIES:
            run("cc", "-shared", "-fPIC", "-o", folder / name, source)
    for name in TOOLS:
        shell_script(folder / name, f"echo {name} >> '{mark}'")
    for number, name in enumerate(OBJECTS):
        (folder / name).write_bytes(object_of(number) + PADDING)
    for number in range(2):
        shutil.copy("/bin/ls", folder / f"ls{number}")
    for name in ("core", "program"):
        (folder / name).write_bytes(file_of(name))
    # The trap works: an interpreter that looks in the current directory imports it.
    attempt(sys.executable, "-c", "import selectors", cwd=folder)
    mark.unlink()
    return Trap(folder, mark)


#: Each verb, with processes where it has them, and the exit statuses that it may end with.
RUNS: Final = {
    "check": (("--check", "-r", "--for", "ld", ".", "-j", "2"), {1}),
    "convert": (("ls0", "-o", "out"), {0}),
    "coverage": (("coverage", "--format", "json", "ls0", "object1.o"), {0}),
    "verify": (("verify", "--would-be", "-v", "ls0"), {0}),
    "dump": (("dump", "program"), {0}),
    "remove": (("remove", "program", "-o", "out"), {0}),
    "size": (("size", ".", "-j", "2", "--format", "html", "-o", "page"), {0}),
    "compare": (("size", "--compare", "ls0", "ls1", "-j", "2"), {0}),
    "trace": (("trace", "core", "--format", "json"), {0}),
    "in place": (("--in-place", "-r", "--for", "ld", ".", "-j", "2", "--report", "report"), {0}),
}


@pytest.mark.parametrize("kind", ["script", "module"])
def test_verbs(trap: Trap, tmp_path: Path, kind: str) -> None:
    assert sum((trap.folder / name).stat().st_size for name in OBJECTS) >= POOL_SIZE
    programs = install_programs(tmp_path / "programs")
    env = environment(programs)
    command: tuple[str | Path, ...] = (programs / "cfi2sframe",)
    if kind == "module":
        command, env = (sys.executable, "-P", "-m", "cfi2sframe"), {**env, "PYTHONPATH": str(ROOT)}
    for name, (words, statuses) in RUNS.items():
        result = trap.run(*command, *words, env=env)
        assert result.status in statuses, (name, result)


@pytest.mark.parametrize("kind", ["cc", "ld", "as"])
def test_wrappers(trap: Trap, tmp_path: Path, kind: str) -> None:
    need("gcc", "cc", "ld")
    programs = install_programs(tmp_path / "programs")
    (trap.folder / "main.c").write_text("int main(void) { return 0; }\n")
    env = environment(programs)
    if kind == "cc":
        result = trap.run("cfi2sframe-cc", "-o", "main", "main.c", env=env)
    else:
        links = wrapper_folder(programs, tmp_path / "links", kind)
        what = ("-Wa,--gsframe-3", "-c") if kind == "as" else ()
        result = trap.run("gcc", "-B", links, *what, "-o", "main", "main.c", env=env)
    assert (result.status, result.err) == (0, "")
    assert b".sframe\0" in (trap.folder / "main").read_bytes()
