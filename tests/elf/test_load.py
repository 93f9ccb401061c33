# SPDX-License-Identifier: Apache-2.0
"""What loading asks of the interpreter, and how files are opened that another file names."""

import os
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cfi2sframe.elf import load
from cfi2sframe.elf.load import open_regular
from cfi2sframe.errors import InputError


@contextmanager
def waiting_writer(fifo: Path) -> Iterator[threading.Event]:
    """Make a FIFO with a writer, and give what is set once somebody has opened it to read."""
    os.mkfifo(fifo)
    path = os.open(fifo, os.O_PATH)
    starts, released = threading.Event(), threading.Event()

    def write() -> None:
        starts.set()
        descriptor = os.open(f"/proc/self/fd/{path}", os.O_WRONLY)
        released.set()
        os.close(descriptor)

    thread = threading.Thread(target=write)
    thread.start()
    assert starts.wait(10)
    # Nothing tells that it waits now.
    time.sleep(0.05)
    try:
        yield released
    finally:
        reader = os.open(f"/proc/self/fd/{path}", os.O_RDONLY | os.O_NONBLOCK)
        assert released.wait(10)
        thread.join()
        os.close(reader)
        os.close(path)


WITHOUT_NAME = """
import os
del os.O_PATH
from cfi2sframe.cli import main
raise SystemExit(main(["/bin/true", "-o", "made"]))
"""


def test_an_interpreter_without_the_name_of_o_path(tmp_path: Path) -> None:
    """PyPy 7.3 is one."""
    result = subprocess.run([sys.executable, "-c", WITHOUT_NAME], cwd=tmp_path, check=False, capture_output=True)
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "made").stat().st_size > 0


@pytest.fixture(params=["path only", "no O_PATH", "no /proc"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a system lacks for opening a path alone."""
    if request.param == "no O_PATH":
        monkeypatch.setattr(load, "PATH_ONLY", 0)
    elif request.param == "no /proc":
        monkeypatch.setattr(load, "DESCRIPTORS", "/nosuch")
    return str(request.param)


def text_of(path: str, root: str) -> str:
    descriptor = open_regular(path, root)
    with open(descriptor, encoding="ascii") as file:
        return file.read()


@pytest.mark.usefixtures("system")
@pytest.mark.parametrize("is_below", [False, True])
def test_what_is_no_file_is_not_opened(tmp_path: Path, *, is_below: bool) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("fifo")
    before = os.listdir("/proc/self/fd")
    with waiting_writer(tmp_path / "fifo") as released:
        for name in ("fifo", "link", "empty", ".", "fifo/"):
            path, root = (f"/{name}", str(tmp_path)) if is_below else (f"{tmp_path}/{name}", "")
            with pytest.raises((InputError, NotADirectoryError), match=r"not a regular file, or empty|Not a directory"):
                open_regular(path, root)
        for path in ("/dev/ptmx", "/dev/zero", "/proc/kmsg"):
            with pytest.raises(InputError, match="not a regular file, or empty"):
                open_regular(path, "/" if is_below else "")
        assert not released.wait(0.1)
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("is_below", [False, True])
def test_what_takes_the_place_of_a_file(
    tmp_path: Path, system: str, monkeypatch: pytest.MonkeyPatch, *, is_below: bool
) -> None:
    """A FIFO, after the name was looked at: it is not read, and where the system allows that not even opened."""
    file, look = tmp_path / "file", os.stat
    file.write_text("x")

    def exchanging(*words: object, **options: object) -> os.stat_result:
        status = look(*words, **options)  # type: ignore[arg-type]
        if stat.S_ISREG(status.st_mode):
            os.rename(tmp_path / "fifo", file)
        return status

    with waiting_writer(tmp_path / "fifo") as released:
        monkeypatch.setattr(os, "stat", exchanging)
        with pytest.raises(InputError, match="not a regular file"):
            open_regular("file" if is_below else str(file), str(tmp_path) if is_below else "")
        monkeypatch.undo()
        assert released.wait(0.1) == (system != "path only")


@pytest.mark.usefixtures("system")
def test_a_fifo_without_a_writer_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that takes the place of a file."""
    file, other = tmp_path / "file", tmp_path / "other"
    other.write_text("x")
    os.mkfifo(file)
    found = os.stat(other)
    monkeypatch.setattr(os, "stat", lambda *_words, **_options: found)
    errors: list[Exception] = []

    def open_it() -> None:
        try:
            open_regular("file", str(tmp_path))
        except InputError as error:
            errors.append(error)

    thread = threading.Thread(target=open_it)
    thread.start()
    thread.join(5)
    in_time = not thread.is_alive()
    # Whoever waits is released.
    os.close(os.open(file, os.O_RDWR))
    thread.join()
    assert in_time
    assert str(*errors) == "not a regular file, or empty"


@pytest.mark.usefixtures("system")
def test_no_path_leads_out_of_a_root(tmp_path: Path) -> None:
    """Links and ".." lead to what a process in that root would see."""
    root = tmp_path / "root"
    (root / "usr/lib").mkdir(parents=True)
    for file, text in ((root / "usr/lib/x", "inside"), (root / "x", "top"), (tmp_path / "x", "outside")):
        file.write_text(text)
    links = {
        "lib": "usr/lib",
        "usr/absolute": "/usr/lib",
        "file": "usr/lib/x",
        "out": "../x",
        "far": "usr/lib/../../../../../x",
        "usr/lib/host": str(tmp_path / "x"),
        "again": "/lib/../absolute/x",
        "loop": "loop",
        "magic": f"/proc/{os.getpid()}/root/x",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    before = os.listdir("/proc/self/fd")
    inside = ("usr/lib/x", "/usr//lib/./x", "lib/x", "usr/absolute/x", "file", "again")
    assert {text_of(path, str(root)) for path in inside} == {"inside"}
    assert {text_of(path, str(root)) for path in ("x", "/../x", "usr/../../x", "out", "far", "lib/../../x")} == {"top"}
    for path in ("lib/host", "usr/lib/y", str(tmp_path / "x"), "magic"):
        with pytest.raises(FileNotFoundError):
            open_regular(path, str(root))
    (root / "0").write_text("end")
    for number in range(41):
        (root / str(number + 1)).symlink_to(str(number))
    assert text_of("40", str(root)) == "end"
    for path in ("41", "loop"):
        with pytest.raises(OSError, match="Too many levels of symbolic links"):
            open_regular(path, str(root))
    with pytest.raises(NotADirectoryError):
        open_regular("file/x", str(root))
    assert os.listdir("/proc/self/fd") == before


@pytest.mark.parametrize("exchanged", ["lib", "lib/x"])
def test_a_link_that_takes_the_place_of_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exchanged: str) -> None:
    """It is not followed, although a folder or a file was seen there."""
    root, look = tmp_path / "root", os.stat
    for folder in (root / "lib", tmp_path / "lib"):
        folder.mkdir(parents=True)
        (folder / "x").write_text("text")

    def exchanging(*words: object, **options: object) -> os.stat_result:
        status = look(*words, **options)  # type: ignore[arg-type]
        if words[0] == os.path.basename(exchanged):
            os.rename(root / exchanged, tmp_path / "old")
            os.symlink(tmp_path / exchanged, root / exchanged)
        return status

    monkeypatch.setattr(os, "stat", exchanging)
    with pytest.raises((NotADirectoryError, InputError), match=r"Not a directory|not a regular file"):
        open_regular("lib/x", str(root))
