# SPDX-License-Identifier: Apache-2.0
"""Paths of other root directories: those of processes that have changed theirs, or are in a container."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.trace import FileStore, trace_process
from cfi2sframe.trace.files import ModuleFile
from tests.support.needs import need
from tests.support.trace.core_files import program

if TYPE_CHECKING:
    from pathlib import Path

WAITING = """
#include <stdio.h>
#include <unistd.h>
int main(int count, char **words) {
  char c;
  if (count < 2 || chroot(words[1]) || chdir("/")) return 1;
  puts("ready");
  fflush(stdout);
  return read(0, &c, 1) & 1;
}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root directory in which every name outside of it would be there too, with other contents."""
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    (root / "usr/lib/x").write_bytes(program(AMD64, b""))
    (root / "lib").symlink_to("/usr/lib")
    (tmp_path / "secret").write_bytes(program(AMD64, b""))
    return root


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
    file = FileStore().open(path, str(root))
    assert isinstance(file, ModuleFile)
    assert file.image.name == path


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
    before = len(os.listdir("/proc/self/fd"))
    assert FileStore().open(path, str(root)) == "No such file or directory"
    assert len(os.listdir("/proc/self/fd")) == before


def test_what_is_no_file(root: Path) -> None:
    os.mkfifo(root / "usr/lib/pipe")
    assert FileStore().open("/lib/pipe", str(root)) == "not a regular file, or empty"
    (root / "self").symlink_to("self")
    assert FileStore().open("/self", str(root)) == "Too many levels of symbolic links"
    assert FileStore().open("/x" * 5000, str(root)) == "File name too long"


@pytest.mark.skipif(os.uname().machine != "x86_64" or os.geteuid() != 0, reason="changes its root on AMD64, as root")
def test_a_process_that_has_changed_its_root(root: Path, tmp_path: Path) -> None:
    """Its program is found, although it is not below the root that the process sees."""
    (tmp_path / "waiting.c").write_text(WAITING)
    subprocess.run([need("gcc"), "-static", "-o", tmp_path / "waiting", tmp_path / "waiting.c"], check=True)
    command = [tmp_path / "waiting", root]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        traced = trace_process(process.pid)
        process.kill()
    (thread,) = traced.threads
    assert thread.ending.kind == "outermost"
    assert [module.note for module in traced.space.modules if module.name == str(tmp_path / "waiting")] == [""]
