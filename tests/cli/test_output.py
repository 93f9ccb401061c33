# SPDX-License-Identifier: Apache-2.0
"""Where output is written, with which mode; that a failure leaves nothing half written; odd names."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from cfi2sframe.files import new_file
from tests.support.cli import PROGRAM, ROOT, SECTION, run, run_process
from tests.support.needs import attempt, need, open_terminal

OBJECT = ROOT / "testdata/golden/amd64-push-rbp.o"


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


@pytest.mark.parametrize(("mask", "expected"), [(0o022, 0o644), (0o077, 0o600), (0o000, 0o666)])
def test_a_new_file_has_the_mode_that_the_umask_leaves(good: Path, tmp_path: Path, mask: int, expected: int) -> None:
    out = tmp_path / "out.sframe"
    good.chmod(0o700)
    before = os.umask(mask)
    try:
        assert run(good, "-o", out) == (0, b"", ())
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert mode(out) == expected


@pytest.mark.parametrize("old", [0o600, 0o664, 0o755])
def test_an_existing_file_keeps_its_mode(good: Path, tmp_path: Path, old: int) -> None:
    out = tmp_path / "out.sframe"
    out.write_bytes(b"old")
    out.chmod(old)
    assert run(good, "-o", out) == (0, b"", ())
    assert (mode(out), out.read_bytes()) == (old, SECTION.assemble())


def test_a_symbolic_link_is_followed(good: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target.sframe", tmp_path / "link.sframe"
    target.write_bytes(b"old")
    link.symlink_to("folder/target.sframe")
    assert run(good, "-o", link) == (0, b"", ())
    assert link.is_symlink()
    assert target.read_bytes() == SECTION.assemble()
    target.unlink()
    assert run(good, "-o", link) == (0, b"", ())
    assert target.read_bytes() == SECTION.assemble()
    assert names(tmp_path) == {"folder", "in", "link.sframe"}


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("two\nlines", "two\\nlines"),
        ("\x1b[31mred", "\\x1b[31mred"),
        ("caf\u00e9 au lait", "caf\u00e9 au lait"),
        (os.fsdecode(b"latin-\xe9"), "latin-\\udce9"),
        ("right\u202eleft", "right\\u202eleft"),
    ],
)
def test_names_cannot_forge_lines(tmp_path: Path, name: str, shown: str) -> None:
    path = tmp_path / name
    path.write_bytes(b"nonsense")
    assert run(path, "-o", "-").failed(3, f"{tmp_path}/{shown}")
    path.write_bytes(PROGRAM)
    out = tmp_path / f"{name}.sframe"
    assert run(path, "-o", out) == (0, b"", ())
    assert out.read_bytes() == SECTION.assemble()
    assert run("coverage", path).out.startswith(f"{tmp_path}/{shown}: SFrame version 3 describes ".encode())
    process = run_process(path, "-o", out, "-v")
    assert process.returncode == 0
    assert len(process.stderr.splitlines()) == 2


def run_without_rights(
    request: pytest.FixtureRequest, mode: int, *words: str
) -> tuple[Path, "subprocess.CompletedProcess[str]"]:
    """Run a command as another user in a directory of root's with that mode; return the directory, too."""
    # Directories of pytest cannot be entered by another user.
    parent = TemporaryDirectory()
    request.addfinalizer(parent.cleanup)
    tmp_path, folder = Path(parent.name), Path(parent.name, "closed")
    tmp_path.chmod(0o755)
    folder.mkdir()
    folder.chmod(mode)
    (folder / "in.o").write_bytes(OBJECT.read_bytes())
    (folder / "in.o").chmod(0o666)
    (tmp_path / "warm.o").write_bytes(OBJECT.read_bytes())
    # The first runs load what another user may not be able to read.
    code = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from cfi2sframe.cli import main
main(["../warm.o", "-o", "../warmer.o"])
main(["../warm.o", "--in-place"])
os.setuid(65534)
sys.exit(main({list(words)}))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (3, 1), done.stderr
    return folder, done


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize("words", [("--in-place", "in.o"), ("in.o", "-o", "out.o"), ("--check", "in.o")])
def test_a_directory_that_cannot_be_written_is_named(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    """The file itself may well be writable. A check says what would happen."""
    folder, done = run_without_rights(request, 0o755, *words)
    assert f"error: cannot create a file in {folder}: Permission denied" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize("option", ["--in-place", "--check"])
def test_a_file_of_another_user_in_a_sticky_directory(option: str, request: pytest.FixtureRequest) -> None:
    """Anybody can create a file there, and not replace this one."""
    _, done = run_without_rights(request, 0o1777, option, "in.o")
    assert "in.o: error: Operation not permitted" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without rights")
@pytest.mark.parametrize("option", ["--in-place", "--check"])
def test_a_file_whose_owner_cannot_be_kept(option: str, request: pytest.FixtureRequest) -> None:
    _, done = run_without_rights(request, 0o777, option, "--keep-rights", "in.o")
    assert "in.o: error: --keep-rights: cannot keep owner\n" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make files immutable")
@pytest.mark.parametrize("words", ["+i in.o", "+a in.o", "+i .", "+a ."])
@pytest.mark.parametrize("is_named", [True, False])
def test_what_chattr_protects_stays_and_a_check_says_so(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_named: bool
) -> None:
    """No new name is left in a directory in which none can be removed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(new_file._Unnamed, "works", not is_named)
    Path("in.o").write_bytes(OBJECT.read_bytes())
    if attempt(need("chattr"), *words.split()).status:
        pytest.skip(f"no chattr on the file system of {tmp_path}")
    done = [run(option, "in.o") for option in ("--in-place", "--check")]
    left = os.listdir()
    attempt("chattr", *words.replace("+", "-").split())
    assert all(result.failed(3, "in.o") for result in done)
    assert (left, Path("in.o").read_bytes()) == (["in.o"], OBJECT.read_bytes())


def test_raw_bytes_do_not_go_to_a_terminal(good: Path) -> None:
    terminal, end = open_terminal()
    with os.fdopen(end, "wb") as stream:
        command = [sys.executable, "-m", "cfi2sframe", str(good), "-o", "-"]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, stdout=stream, stderr=subprocess.PIPE, env=env, text=True, check=False)
    os.close(terminal)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "a terminal cannot show raw bytes" in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        "--in-place FILE --report",
        "--check FILE --report",
        "remove --check FILE --report",
        "coverage FILE -o",
        "size FILE -o",
        "size --compare FILE FILE -o",
        "audit FILE -o",
        "dump FILE -o",
        "verify --would-be FILE -o",
        "verify --would-be FILE --report",
    ],
)
def test_no_output_takes_the_place_of_an_input(words: str, tmp_path: Path) -> None:
    """Whether the input is named, by any name, listed, or found in a directory."""
    tree = tmp_path / "tree"
    tree.mkdir()
    file, link, listed = tree / "file", tmp_path / "link", tmp_path / "list"
    file.write_bytes(OBJECT.read_bytes())
    link.symlink_to(tree)
    listed.write_bytes(os.fsencode(f"{link}/file\0"))
    option = "output" if words.endswith("-o") else "report"
    refused = (2, b"", (f"cfi2sframe: error: --{option} {file} would overwrite an input or another output",))
    lists = (2, b"", (f"cfi2sframe: error: --{option} {listed} would overwrite an input or another output",))
    if "--compare" not in words:
        assert run(*[f"--files-from={listed}" if word == "FILE" else word for word in words.split()], listed) == lists
    names = [str(name) for name in (file, tree, link / "file", link)]
    for name in names if "--compare" in words else [*names, f"--files-from={listed}"]:
        assert run(*[name if word == "FILE" else word for word in words.split()], file) == refused
    assert file.read_bytes() == OBJECT.read_bytes()


@pytest.mark.parametrize("option", ["output", "report"])
def test_no_output_takes_the_place_of_a_section(option: str, tmp_path: Path) -> None:
    section = tmp_path / "section.sframe"
    assert run(OBJECT, "-o", section).status == 0
    message = f"cfi2sframe: error: --{option} {section} would overwrite an input or another output"
    assert run("verify", OBJECT, section, f"--{option}", section) == (2, b"", (message,))
