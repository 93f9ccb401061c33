# SPDX-License-Identifier: Apache-2.0
"""A large file converted by two processes: the same output, also when the second one cannot be had or is killed."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from cfi2sframe import load
from cfi2sframe.arch import AMD64
from cfi2sframe.cli import main
from cfi2sframe.elf.cfi import find_cfi
from tests import cfi_asm as asm
from tests.children import children
from tests.samples import TEXT_VADDR, Code, cie_of, linked_file, object_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: As many functions as make the section large enough, of 16 bytes each.
COUNT = 20_000
SIZE = 1 << 19


def functions(start: int) -> tuple[asm.Fde, ...]:
    """Return functions that have each a string of their own."""
    cie = cie_of(AMD64)
    fdes = []
    for number in range(COUNT):
        string = (asm.advance(1), asm.def_cfa_offset(16), asm.advance(1 + number % 8), asm.def_cfa_offset(8 * number))
        fdes.append(asm.Fde(cie, start + 16 * number, 16, string))
    return tuple(fdes)


@pytest.fixture(scope="module", name="large")
def _large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a library with a large .eh_frame."""
    path = tmp_path_factory.mktemp("large") / "large.so"
    path.write_bytes(linked_file(AMD64, functions(TEXT_VADDR), codes=(Code(size=16 * COUNT),)))
    (section,) = find_cfi(load(str(path)))
    assert len(section.data) >= SIZE
    return path


@pytest.fixture(scope="module", name="expected")
def _expected(large: Path) -> bytes:
    output = large.with_name("expected.sframe")
    assert main([str(large), "-o", str(output), "-j", "1"]) == 0
    return output.read_bytes()


def child_count(work: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> int:
    """Return how many processes are started by some work."""
    processes: list[int] = []
    fork = os.fork

    def counted() -> int:
        process = fork()
        processes.append(process)
        return process

    monkeypatch.setattr(os, "fork", counted)
    work()
    return len(processes)


@pytest.mark.parametrize(("words", "count"), [(["-j", "1"], 0), (["-j", "2"], 1), (["-j", "9"], 1), ([], 1)])
def test_the_same_output(
    large: Path, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], count: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    output = tmp_path / "out.sframe"

    def convert() -> None:
        assert main([str(large), "-o", str(output), *words]) == 0

    assert child_count(convert, monkeypatch) == count
    assert output.read_bytes() == expected


def test_one_processor(large: Path, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    output = tmp_path / "out.sframe"

    def convert() -> None:
        assert main([str(large), "-o", str(output)]) == 0

    assert child_count(convert, monkeypatch) == 0
    assert output.read_bytes() == expected


def test_a_small_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes would take longer."""
    path = tmp_path / "small.so"
    path.write_bytes(linked_file(AMD64, functions(TEXT_VADDR)[: COUNT // 2], codes=(Code(size=16 * COUNT),)))

    def convert() -> None:
        assert main([str(path), "-o", str(tmp_path / "out.sframe"), "-j", "2"]) == 0

    assert child_count(convert, monkeypatch) == 0


def test_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = object_file(AMD64, {".text": functions(0)}, code_size=16 * COUNT)
    contents = []
    for count, name in enumerate(("one", "two")):
        path = tmp_path / name
        path.write_bytes(data)

        def convert(words: tuple[str, ...] = (str(path), "-j", str(count + 1))) -> None:
            assert main(["--in-place", *words]) == 0

        assert child_count(convert, monkeypatch) == count
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


def test_the_second_process_is_killed(
    large: Path, expected: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "out.sframe"
    fork = os.fork

    def fork_and_kill() -> int:
        process = fork()
        if process:
            os.kill(process, signal.SIGKILL)
        return process

    monkeypatch.setattr(os, "fork", fork_and_kill)
    assert main([str(large), "-o", str(output), "-j", "2"]) == 0
    assert output.read_bytes() == expected
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_ends_both(large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one waits for the other."""
    before = children()
    fork = os.fork

    def fork_slowly() -> int:
        process = fork()
        if process == 0:
            time.sleep(60)
        signal.setitimer(signal.ITIMER_REAL, 0.5)
        return process

    monkeypatch.setattr(os, "fork", fork_slowly)
    previous = signal.signal(signal.SIGALRM, signal.default_int_handler)
    began = time.monotonic()
    try:
        assert main([str(large), "-o", str(tmp_path / "out"), "-j", "2"]) == 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert time.monotonic() - began < 30
    assert children() == before
    assert not list(tmp_path.iterdir())
