# SPDX-License-Identifier: Apache-2.0
"""The verb `trace`: text, JSON, names of functions, and requests that cannot be met."""

import json
import os
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.trace import Frame
from tests.support.cli import run
from tests.support.needs import need
from tests.support.trace.core_files import MODELS, moved, plain_core, written_program
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
        f"#0   0x0000555500100040 first+0x40 in {path} (v3 default, file)",
        f"#1   0x0000555500101040 second::f()+0x40 in {path} (v3 default, file)",
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


def test_a_call_through_a_null_pointer(path: str, tmp_path: Path) -> None:
    core, (_, caller, *_) = plain_core(AMD64, path), make_stack(AMD64, 3, MODELS).frames
    called = Frame(0, caller.sp - 8, caller.fp)
    (tmp_path / "core").write_bytes(core._replace(frames=((77, called),)).assemble())
    (thread,) = json.loads(run("trace", tmp_path / "core", "--format", "json").out)["threads"]
    assert [frame["pc"] for frame in thread["frames"][:2]] == [0, moved(caller).pc]
    row = {"source": "null call", "version": None, "kind": None, "type": None, "signal": False}
    assert thread["frames"][0]["row"] == row


def test_requests_that_cannot_be_met(path: str, tmp_path: Path) -> None:
    core = tmp_path / "core"
    core.write_bytes(plain_core(AMD64, path).assemble())
    for words, status, text in (
        ((core, "--thread", "5"), 2, "no thread 5; there are 77, 78"),
        ((), 2, "no core file; name one, or use --pid N"),
        ((core, "--pid", "1"), 2, "CORE and --pid are mutually exclusive"),
        (("--pid", "1", "--executable", path), 2, "--executable is only valid with CORE"),
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
