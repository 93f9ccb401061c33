# SPDX-License-Identifier: Apache-2.0
"""Paths of other root directories: those of `--sysroot`, and those of processes that have changed theirs."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.trace import FileStore, trace_process
from cfi2sframe.trace.modules import ModuleFile
from cfi2sframe.trace.sysroot import open_inside
from tests.support.trace.core_files import program

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory in which every name outside of it would be there too, with other contents."""
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/x").write_text("inside")
    (root / "lib").symlink_to("/usr/lib")
    (tmp_path / "secret").write_text("outside")
    return root


def contents(root: Path, path: str) -> str:
    descriptor = open_inside(str(root), path)
    try:
        with open(f"/proc/self/fd/{descriptor}", encoding="utf-8") as file:
            return file.read()
    finally:
        os.close(descriptor)


def refusal(root: Path, path: str) -> int | None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError) as caught:
        open_inside(str(root), path)
    assert len(os.listdir("/proc/self/fd")) == before
    return caught.value.errno


@pytest.mark.parametrize(
    "path",
    [
        "/usr/lib/x",
        "usr/lib/x",
        "/lib/x",
        "/lib//./x",
        "/../../usr/lib/x",
        "/usr/lib/../../../usr/lib/x",
        "/lib/../lib/x",
    ],
)
def test_paths_inside(root: Path, path: str) -> None:
    assert contents(root, path) == "inside"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("/secret", "/a"),
        ("../secret", "/a"),
        ("usr/lib/../../../../secret", "/a"),
        ("/..", "/a/secret"),
        ("./" * 1000 + "../secret", "/a"),
        ("./" * 2000 + "..", "/a/secret"),
    ],
)
def test_links_do_not_lead_out(root: Path, target: str, path: str) -> None:
    (root / "a").symlink_to(target)
    assert refusal(root, path) == errno.ENOENT


def test_a_link_of_a_thousand_folders_stays_inside(root: Path) -> None:
    """A link to what is outside by its absolute path, too long for a resolver that counts its steps to give up on."""
    secret = root.parent / "secret"
    (root / "a").symlink_to("./" * 1000 + str(secret))
    assert refusal(root, "/a") == errno.ENOENT
    store = FileStore(str(root))
    assert store.open(str(secret)) == "No such file or directory"
    # With such a path inside, that is what is found.
    inside = root / str(secret).lstrip("/")
    inside.parent.mkdir(parents=True)
    inside.write_text("inside")
    assert contents(root, "/a") == "inside"


def test_links_are_counted(root: Path) -> None:
    (root / "loop").symlink_to("loop")
    assert refusal(root, "/loop") == errno.ELOOP
    (root / "0").write_text("end")
    for number in range(60):
        (root / str(number + 1)).symlink_to(f"./{number}")
    assert contents(root, "/40") == "end"
    assert refusal(root, "/41") == errno.ELOOP
    # Each link doubles what is still to be looked for.
    (root / "d").mkdir()
    for number in range(39):
        (root / "d" / str(number + 1)).symlink_to(f"{number}/../{number}")
    (root / "d/0").mkdir()
    assert refusal(root, "/d/39") == errno.ELOOP


def test_paths_that_are_too_long(root: Path) -> None:
    assert refusal(root, "/" * 5000 + "usr") == errno.ENAMETOOLONG
    assert refusal(root, "a" * 300) == errno.ENAMETOOLONG
    assert FileStore(str(root)).open("/usr\0/lib") == "embedded null byte"
    assert refusal(root, "/usr/lib/x/y") == errno.ENOTDIR


def test_a_store_with_a_sysroot(root: Path) -> None:
    (root / "usr/lib/p").write_bytes(program(AMD64, b""))
    store = FileStore(str(root))
    file = store.open("/lib/p")
    assert isinstance(file, ModuleFile)
    assert file.image.name == "/lib/p"
    os.mkfifo(root / "usr/lib/pipe")
    assert store.open("/lib/pipe") == "not a regular file, or empty"


SOURCE = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int inner(void) { char c; puts("ready"); fflush(stdout); return read(0, &c, 1); }
int main(void) { return inner() + 1; }
"""


@pytest.mark.parametrize("prefix", [(), ("unshare", "--mount")], ids=["chroot", "mount namespace"])
def test_a_process_in_another_root(tmp_path: Path, prefix: tuple[str, ...]) -> None:
    """The kernel gives paths from the top of the mount namespace, not from the process's root."""
    if os.geteuid() != 0:
        pytest.skip("only root may change the root directory")
    for tool in ("gcc", "chroot", *prefix[:1]):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    if not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("traces processes of Linux on AMD64")
    inside = tmp_path / "root/inside"
    inside.mkdir(parents=True)
    (tmp_path / "program.c").write_text(SOURCE)
    built = subprocess.run(
        ["gcc", "-O1", "-static", "-o", inside / "program", tmp_path / "program.c"], capture_output=True, check=False
    )
    if built.returncode:
        pytest.skip("needs a static C library")
    process = subprocess.Popen(
        [*prefix, "chroot", str(tmp_path / "root"), "/inside/program"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            pytest.skip("the root directory cannot be changed here")
        traced = trace_process(process.pid)
    finally:
        process.kill()
        process.communicate()
    names = [traced.space.symbol_at(e.frame.lookup_pc) for e in traced.threads[0].trace.entries]
    found = [name.name for name in names if name]
    # The program may still be in its call of write.
    assert found[found.index("inner") :][:2] == ["inner", "main"]
    assert traced.threads[0].trace.ending.kind == "outermost"
    assert {module.note for module in traced.space.modules} == {""}
