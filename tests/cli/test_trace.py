# SPDX-License-Identifier: Apache-2.0
"""The verb `trace`: text, JSON, names of functions, and requests that cannot be met."""

import bz2
import gzip
import json
import lzma
import os
import struct
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.trace import Frame
from tests.support.cli import run
from tests.support.elf.elf_asm import note
from tests.support.needs import need
from tests.support.trace.core_files import BUILD_ID, MODELS, moved, plain_core, written_program
from tests.support.trace.stacks import make_stack


def test_a_number_is_no_core_file() -> None:
    assert run("trace", "1234") == (
        2, b"", ("cfi2sframe: error: no core file 1234; for a process: cfi2sframe trace --pid 1234",)
    )  # fmt: skip


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a program for AMD64."""
    return written_program(tmp_path)


def test_what_is_printed(path: str, tmp_path: Path) -> None:
    """From a file as from a pipe."""
    need("c++filt")
    core = plain_core(AMD64, path).assemble()
    (tmp_path / "core").write_bytes(core)
    read_end, write_end = os.pipe()
    os.write(write_end, core)
    os.close(write_end)
    done = run("trace", f"/dev/fd/{read_end}", "--thread", "78")
    os.close(read_end)
    assert done == run("trace", tmp_path / "core", "--thread", "78")
    assert done == run("trace", "-", "--thread", "78", stdin=core)
    lines = done.out.decode().splitlines()
    assert (done.status, done.err) == (0, ())
    assert lines[:3] == [
        "thread 78",
        f"#0   0x0000555500100040 first+0x40 in {path}+0x100040 (v3 default, file) [{BUILD_ID.hex()}]",
        f"#1   0x0000555500101040 second::f()+0x40 in {path}+0x101040 (v3 default, file) [{BUILD_ID.hex()}]",
    ]
    assert lines[-1] == "end: outermost: RA is undefined"


def test_json(path: str, tmp_path: Path) -> None:
    (tmp_path / "core").write_bytes(plain_core(AMD64, path).assemble())
    need("c++filt")
    found = json.loads(run("trace", tmp_path / "core", "--format", "json").out)
    assert (found["file"], found["machine"]) == (str(tmp_path / "core"), "AMD64")
    assert [thread["id"] for thread in found["threads"]] == [77, 78]
    frames, ending = found["threads"][0]["frames"], found["threads"][0]["ending"]
    assert (frames[1]["index"], frames[1]["offset"], frames[-1]["cfa"], ending) == (1, 0x40, None, "outermost")
    assert (frames[1]["function"], frames[1]["symbol"]) == ("second::f()", "_ZN6second1fEv")
    row = {"source": "file", "version": 3, "kind": "default", "type": "pcinc", "signal": False}
    stack = make_stack(AMD64, 3, MODELS)
    assert [(f["pc"], f["sp"], f["fp"], f["row"]) for f in frames] == [(*moved(f)[:3], row) for f in stack.frames]
    assert [f["cfa"] for f in frames[:-1]] == [f.sp for f in stack.frames[1:]]
    assert [f["vaddr"] for f in frames] == [f.pc for f in stack.frames]
    assert {f["build_id"] for f in frames} == {BUILD_ID.hex()}


def test_a_call_through_a_null_pointer(path: str, tmp_path: Path) -> None:
    core, (_, caller, *_) = plain_core(AMD64, path), make_stack(AMD64, 3, MODELS).frames
    called = Frame(0, caller.sp - 8, caller.fp)
    (tmp_path / "core").write_bytes(core._replace(frames=((77, called),)).assemble())
    (thread,) = json.loads(run("trace", tmp_path / "core", "--format", "json").out)["threads"]
    assert [frame["pc"] for frame in thread["frames"][:2]] == [0, moved(caller).pc]
    row = {"source": "null call", "version": None, "kind": None, "type": None, "signal": False}
    assert thread["frames"][0]["row"] == row


def test_how_the_process_ended(path: str, tmp_path: Path) -> None:
    """NT_SIGINFO and NT_PRPSINFO as the kernel has them; what a signal of a process says is no address."""
    core = plain_core(AMD64, path)
    command = note(b"CORE", 3, bytes(56) + b"prog -x\x1b".ljust(80, b"\0"))
    for number, code, text in (
        (11, 1, "SIGSEGV, code 1, address 0x123456789a"),
        (11, 0, "SIGSEGV, code 0"),
        (6, -6, "SIGABRT, code -6"),
        (99, 0, "99, code 0"),
    ):
        about = struct.pack("<iiiiQ", number, 0, code, 0, 0x123456789A).ljust(128, b"\0")
        (tmp_path / "core").write_bytes(core._replace(notes=command + note(b"CORE", 0x53494749, about)).assemble())
        lines = run("trace", tmp_path / "core").out.decode().splitlines()
        assert lines[:4] == ["command: prog -x\\x1b", f"signal: {text}, thread 77", "", "thread 77"]
        death = json.loads(run("trace", tmp_path / "core", "--format", "json").out)["death"]
        assert (death["signal"], death["code"], death["thread_id"]) == (number, code, 77)


def test_truncated_and_compressed_cores(path: str, tmp_path: Path) -> None:
    whole = plain_core(AMD64, path).assemble()
    done = run("trace", "-", stdin=whole[:-1])
    assert done.status == 0
    assert done.err == (f"cfi2sframe: <stdin>: warning: truncated: it has {len(whole) - 1:,} of {len(whole):,} bytes",)
    done = run("trace", "-", stdin=whole[:500])
    assert done.status == 3
    assert "no thread: the core is truncated: it has 500 of " in done.err[0]
    for tool, data in (("gzip", gzip.compress(whole)), ("xz", lzma.compress(whole)), ("bzip2", bz2.compress(whole))):
        (tmp_path / "packed").write_bytes(data)
        message = f"error: compressed; run: {tool} -dc CORE | cfi2sframe trace -"
        assert run("trace", tmp_path / "packed")[::2] == (3, (f"cfi2sframe: {tmp_path}/packed: {message}",))
        assert run("trace", "-", stdin=data)[::2] == (3, (f"cfi2sframe: <stdin>: {message}",))


def test_requests_that_cannot_be_met(path: str, tmp_path: Path) -> None:
    core = tmp_path / "core"
    core.write_bytes(plain_core(AMD64, path).assemble())
    for words, status, text in (
        ((core, "--thread", "5"), 2, "no thread 5; there are 77, 78"),
        ((path,), 3, "not a core file"),
        ((core, "--executable", tmp_path / "none"), 3, "No such file"),
        ((tmp_path / "none",), 3, "No such file"),
        (("--pid", str(1 << 30)), 3, "no such process"),
        (("--pid", str(os.getpid())), 3, "Operation not permitted: tracing needs"),
    ):
        done = run("trace", *words)
        assert done.status == status, words
        assert len(done.err) == 1, done.err
        assert text in done.err[0]


@pytest.mark.fuzz
def test_names_that_a_terminal_would_act_on(tmp_path: Path, path: str) -> None:
    core = plain_core(AMD64, path)
    named = core._replace(mapped=tuple(m._replace(path="/a\x1b[31m\n" + m.path) for m in core.mapped))
    (tmp_path / "core").write_bytes(named.assemble())
    done = run("trace", tmp_path / "core")
    assert done.status == 0
    assert b"\x1b" not in done.out
