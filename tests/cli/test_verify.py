# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`: sections in files and beside them, of objects, and where there is no CFI to compare with."""

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cfi2sframe import api
from cfi2sframe.abi import AMD64
from cfi2sframe.cli import main
from cfi2sframe.report import SCHEMA_VERSION
from tests.support.cli import PUSH, SECTION, run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import linked_file, object_file, push_fp


def test_verify_at_an_address(good: Path, raw: Path) -> None:
    raw.write_bytes(SECTION._replace(vaddr=0x50000).assemble())
    assert run("verify", good, raw, "--section-address", "0x50000") == (0, b"", ())
    assert run("verify", good, raw).status == 1


def test_the_section_may_come_from_a_pipe(good: Path, raw: Path, tmp_path: Path) -> None:
    section, pipe = raw.read_bytes(), tmp_path / "pipe"
    os.mkfifo(pipe)
    for data in (section, section[:-1] + b"\xe8"):
        raw.write_bytes(data)
        beside = run("verify", good, raw)
        assert beside.status == (data != section)
        assert run("verify", good, "-", stdin=data) == beside
        with ThreadPoolExecutor() as pool:
            pool.submit(pipe.write_bytes, data)
            assert run("verify", good, pipe) == beside
    status, out, err = run("verify", good, "-", stdin=good.read_bytes())
    assert (status, out) == (2, b"")
    assert err[0].endswith("- after FILE is SECTION, and does not begin like an SFrame section")
    assert run("verify", "--would-be", good, "-", stdin=good.read_bytes()) == (0, b"", ())


def test_what_a_reader_would_do_is_asked_of_the_section_that_is_compared(
    good: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made once, and decoded once by the reader's condition, once to be judged and compared."""
    calls: list[str] = []

    def counted(name: str, real: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **keywords: object) -> object:
            calls.append(name)
            return real(*arguments, **keywords)

        return call

    for name in ("convert_image", "read_section"):
        monkeypatch.setattr(api, name, counted(name, getattr(api, name)))
    assert main(["verify", "--would-be", "--for", "kernel", str(good)]) == 0
    assert sorted(calls) == ["convert_image", "read_section", "read_section"]


def test_what_is_unusual_is_printed_on_request(good: Path, raw: Path) -> None:
    late = PUSH._replace(rows=PUSH.rows + bytes.fromhex("20 03 08"), row_count=4)
    raw.write_bytes(SECTION._replace(functions=(late,)).assemble())
    assert run("verify", good, raw) == (0, b"", ())
    status, out, _ = run("verify", "-v", good, raw)
    assert (status, b": unusual: the last row starts at the end, 32" in out) == (0, True)


def test_json(good: Path, raw: Path, tmp_path: Path) -> None:
    """A document as of the other verbs; a difference is in it, and not printed as text."""
    raw.write_bytes(SECTION._replace(vaddr=0x50000).assemble())
    report = tmp_path / "report"
    status, out, err = run("verify", good, raw, "--format", "json", "--report", report)
    (file,) = json.loads(out)["files"]
    assert (status, err, file["status"], file["file"]) == (1, (), "different", str(good))
    assert file["differences"]
    assert {"schema": SCHEMA_VERSION, **file} == json.loads(report.read_text())
    (tmp_path / "damaged").write_bytes(b"\x7fELF")
    status, out, err = run("verify", "--would-be", good, tmp_path / "damaged", "-o", tmp_path / "out.json")
    found = json.loads((tmp_path / "out.json").read_text())
    assert (status, out, len(err)) == (3, b"", 1)
    assert [each["status"] for each in found["files"]] == ["clean"]
    assert [each["kind"] for each in found["failures"]] == ["damaged"]


def test_verify_without_any_cfi(tmp_path: Path) -> None:
    """What a section alone shows is told: a function where there is no code."""
    path = tmp_path / "in"
    for start, status, sentence in ((PUSH.start, 5, b": not compared: "), (0x90000, 1, b": invariant: ")):
        section = SECTION._replace(functions=(PUSH._replace(start=start),))
        sframe = asm.Section(".sframe", section.assemble(), 0x6FFFFFF4, 2, section.vaddr, align=8)
        path.write_bytes(linked_file(AMD64, (), more=(sframe,)))
        done = run("verify", path)
        assert (done.status, done.err, sentence in done.out) == (status, (), True)


def test_verify_of_an_object(tmp_path: Path) -> None:
    path, section = tmp_path / "in.o", tmp_path / "out.sframe"
    path.write_bytes(object_file(AMD64, {".text": (push_fp(AMD64, 0),), ".text.b": (push_fp(AMD64, 16),)}))
    assert run("verify", "--would-be", path) == (0, b"", ())
    assert run(path, "-o", section) == (0, b"", ())
    assert run("verify", path, section) == (0, b"", ())
    data = section.read_bytes()
    section.write_bytes(data[:-1] + b"\xe8")
    status, out, _ = run("verify", path, section)
    # The last function's: in objects, each has rows of its own.
    assert status == 1
    assert out.startswith(f"{path}: .text.b+0x18: wrong: FP is ".encode())
