# SPDX-License-Identifier: Apache-2.0
"""What all verbs share: folders, and files of no use to any."""

import subprocess
from pathlib import Path

from cfi2sframe.abi import AMD64
from tests.support.cli import run
from tests.support.elf.samples import object_file, push_fp
from tests.support.needs import need


def test_directories_are_searched_by_every_verb(tmp_path: Path) -> None:
    """With -r, which others need, and without."""
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "in.o").write_bytes(object_file(AMD64, {".text": (push_fp(AMD64, 0),)}))
    for words in (
        ("--in-place", "--for", "ld"),
        ("verify",),
        ("dump",),
        ("coverage", "-r"),
        ("size",),
        ("audit",),
        ("remove", "--in-place", "-r"),
    ):
        assert run(*words, tmp_path / "tree").status == 0, words


def test_an_object_of_link_time_optimization(tmp_path: Path) -> None:
    """It has bytecode, and no machine code that CFI could describe."""
    need("gcc")
    (tmp_path / "in.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-flto", "-fno-fat-lto-objects", "-c", "in.c"], cwd=tmp_path, check=True)
    message = "LTO bytecode without machine code: convert the linked file"
    path = tmp_path / "in.o"
    for words in (("--in-place", path), ("coverage", path), ("verify", "--would-be", path)):
        assert run(*words) == (3, b"", (f"cfi2sframe: {path}: error: {message}",))
