# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the script is loaded by its path: no types can be taken from it
"""tools/root_trial.py sees what goes wrong, in a root of a shell and one program."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.contrib.support import run
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.fixture(scope="module")
def script() -> Iterator[Any]:
    sys.path.insert(0, str(TOOLS))
    try:
        spec = importlib.util.spec_from_file_location("root_trial_tool", TOOLS / "root_trial.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["root_trial_tool"] = module
        spec.loader.exec_module(module)
        yield module
        del sys.modules["root_trial_tool"]
    finally:
        sys.path.remove(str(TOOLS))


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A directory with a pristine root that can be entered."""
    need("unshare", "chroot", "mount", "ldd", "dash", "env", "cp")
    if (
        os.geteuid() != 0
        or subprocess.run(["unshare", "--mount", "--pid", "--fork", "--net", "true"], check=False).returncode
    ):
        pytest.skip("only root enters a root")
    root = tmp_path / "pristine"
    for name in ("proc", "tmp", "usr/bin"):
        (root / name).mkdir(parents=True)
    (root / "bin").symlink_to("usr/bin")
    for program in ("/usr/bin/env", "/usr/bin/dash"):
        shutil.copy(program, root / "usr" / "bin")
        for word in run("ldd", program).out.split():
            if word.startswith("/"):
                (root / word.lstrip("/")).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(word, root / word.lstrip("/"))
    (root / "usr" / "bin" / "sh").symlink_to("dash")
    return tmp_path


def write_script(directory: Path, text: str) -> Path:
    path = directory / "check.sh"
    path.write_text(text)
    return path


def test_a_trial_without_failures(script: Any, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    check = write_script(directory, "env --version\necho $(( 6 * 7 ))\n")
    status = script.trial(directory, [check], with_trigger=False)
    text = capsys.readouterr().out
    assert status == 0, text
    assert " converted" in text
    assert "lines are the same" in text
    assert text.endswith("root trial: 5 checks, 0 failures\n")
    assert script.snapshot(directory / "pristine") == script.snapshot(directory / "converted")


def test_a_script_that_prints_something_else(script: Any, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = (script.copy(directory / "pristine", directory / name) for name in ("before", "after"))
    (after / "answer").write_text("NO\n")
    account = script.Account()
    check = write_script(directory, 'answer=YES\n[ ! -e /answer ] || read answer < /answer\necho "links: $answer"\n')
    script.compare_scripts(account, before, after, [check])
    text = capsys.readouterr().out
    assert account.failure_count == 1
    assert "FAIL  check" in text
    assert "-links: YES" in text
    assert "+links: NO" in text


def test_a_script_that_fails(script: Any, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    account = script.Account()
    check = write_script(directory, "echo no linker\nexit 7\n")
    script.compare_scripts(account, directory / "pristine", directory / "pristine", [check])
    assert "exit status 7\n        no linker" in capsys.readouterr().out
    assert account.failure_count == 1


def test_a_damaged_section(script: Any, directory: Path) -> None:
    from cfi2sframe import load

    path = directory / "pristine" / "usr" / "bin" / "env"
    assert script.cfi2sframe("--in-place", path).status == 0
    assert script.difference_of(path) == ""
    section = next(section for section in load(str(path)).sections if section.name == ".sframe")
    data = bytearray(path.read_bytes())
    data[section.file_offset + section.size - 2] ^= 0x10
    path.write_bytes(data)
    assert script.difference_of(path) != ""


def _touch(root: Path) -> None:
    os.utime(root / "a", ns=(0, 1))


def _attribute(root: Path) -> None:
    os.setxattr(root / "a", "user.x", b"1")


def _link(root: Path) -> None:
    (root / "folder" / "link").unlink()
    (root / "folder" / "link").symlink_to("../b")


def _copy(root: Path) -> None:
    status = (root / "b").stat()
    data = (root / "b").read_bytes()
    (root / "b").unlink()
    (root / "b").write_bytes(data)
    os.utime(root / "b", ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda root: (root / "folder" / "c").touch(), ["folder/c: new"]),
        (lambda root: (root / "folder" / "link").unlink(), ["folder/link: missing"]),
        (lambda root: (root / "a").chmod(0o4755), ["a: another mode"]),
        (lambda root: (root / "folder").chmod(0o700), ["folder: another mode"]),
        (_touch, ["a: another modified_ns"]),
        (_attribute, ["a: another attributes"]),
        (_link, ["folder/link: another size, modified_ns, content"]),
        (_copy, ["b: another links", "b2: another links"]),
        (lambda root: (root / "folder").touch(), []),
    ],
)
def test_differences_of_trees(script: Any, tmp_path: Path, change: Callable[[Path], object], found: list[str]) -> None:
    (tmp_path / "folder").mkdir()
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    (tmp_path / "b2").hardlink_to(tmp_path / "b")
    (tmp_path / "folder" / "link").symlink_to("../aa")
    before = script.snapshot(tmp_path)
    try:
        change(tmp_path)
    except OSError as error:
        pytest.skip(f"not here: {error}")
    assert script.differences(before, script.snapshot(tmp_path)) == found


def test_shell_is_sound() -> None:
    need("shellcheck")
    run("shellcheck", "-x", TOOLS / "fetch-root", *sorted((TOOLS / "root_trial_checks").glob("*.sh")))
