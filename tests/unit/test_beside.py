# SPDX-License-Identifier: Apache-2.0
"""Work in a process beside this one: its result, or none, and nothing left behind."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, NoReturn

import pytest

from cfi2sframe.beside import Beside
from tests.children import children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """No test leaves a process or a descriptor."""
    before = children(), os.listdir("/proc/self/fd")
    yield
    assert (children(), os.listdir("/proc/self/fd")) == before


def test_a_result() -> None:
    own = os.getpid()
    assert Beside(lambda: (os.getpid() != own, [b"bytes", 1 << 70])).result() == (True, [b"bytes", 1 << 70])


def test_it_goes_on_beside(tmp_path: Path) -> None:
    """The result does not wait for this process to ask for it, however large it is."""
    mark = tmp_path / "mark"

    def work() -> bytes:
        mark.touch()
        return bytes(1 << 22)

    other = Beside(work)
    end = time.monotonic() + 60
    while not mark.exists() and time.monotonic() < end:
        time.sleep(0.001)
    assert mark.exists()
    assert other.result() == bytes(1 << 22)


def test_there_is_one_result() -> None:
    other = Beside(lambda: 1)
    assert other.result() == 1
    assert other.result() is None


def fail() -> NoReturn:
    raise ValueError("it is for whoever computes it again")


def leave() -> NoReturn:
    sys.exit("not of any interest")


def be_killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def be_interrupted() -> None:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)


def make_what_cannot_be_carried() -> object:
    return lambda: 1


@pytest.mark.parametrize("work", [fail, leave, be_killed, be_interrupted, make_what_cannot_be_carried])
def test_no_result(work: Callable[[], object], capfd: pytest.CaptureFixture[str]) -> None:
    assert Beside(work).result() is None
    assert capfd.readouterr() == ("", "")


def test_stopping() -> None:
    other = Beside(lambda: time.sleep(60))
    began = time.monotonic()
    other.stop()
    assert time.monotonic() - began < 30
    assert other.result() is None
    other.stop()


@pytest.mark.parametrize("asks", [True, False])
def test_where_nobody_is_told_how_it_ended(*, asks: bool) -> None:
    """A caller may ignore SIGCHLD, and what it starts inherits that."""
    previous = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        other = Beside(lambda: 1)
        assert not asks or other.result() is None
        other.stop()
    finally:
        signal.signal(signal.SIGCHLD, previous)


def test_an_interrupt_while_it_is_waited_for() -> None:
    def interrupt(_number: int, _frame: object) -> NoReturn:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    other = Beside(lambda: time.sleep(60))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(KeyboardInterrupt):
            other.result()
    finally:
        signal.signal(signal.SIGALRM, previous)
    other.stop()


def test_not_beside_other_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What they hold would be held for ever in a copy."""
    monkeypatch.setattr(os, "fork", lambda: pytest.fail("a copy was made"))
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert Beside(lambda: 1).result() is None
    finally:
        done.set()
        thread.join()


def test_where_there_is_no_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert Beside(lambda: 1).result() is None


@pytest.mark.parametrize("name", ["fork", "memfd_create"])
def test_where_there_is_no_room(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    def refuse(*_: object) -> NoReturn:
        raise OSError(12, os.strerror(12))

    monkeypatch.setattr(os, name, refuse)
    assert Beside(lambda: 1).result() is None
