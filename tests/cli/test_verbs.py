# SPDX-License-Identifier: Apache-2.0
"""What all verbs share: folders, files of no use to any, and gates for builds."""

import json
import subprocess
from pathlib import Path

from cfi2sframe.abi import AMD64
from tests.support.cli import run
from tests.support.elf.samples import object_file, push_fp
from tests.support.needs import need


def test_gates_of_ci_change_nothing(good: Path) -> None:
    """A share of code that is described, a share of the file that a section may cost."""
    before = good.read_bytes()
    percent = json.loads(run("coverage", "--format", "json", good).out)["files"][0]
    share = 100 * percent["described_size"] / percent["code_size"]
    assert 0 < share < 100
    for words, status in (
        (("coverage", "--fail-under", f"{share - 0.1}"), 0),
        (("coverage", "--fail-under", f"{share + 0.1}"), 4),
        (("size", "--fail-over", "100"), 0),
        (("size", "--fail-over", "0"), 4),
        (("size", "--for", "glibc", "--fail-over", "0"), 4),
    ):
        done = run(*words, good)
        assert (done.status, len(done.err)) == (status, 1 if status else 0), words
    assert run("size", "--compare", good, good, "--fail-over", "0").status == 0
    assert good.read_bytes() == before


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
