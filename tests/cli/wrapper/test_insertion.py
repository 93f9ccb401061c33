# SPDX-License-Identifier: Apache-2.0
"""What becomes of a file that was linked: its section, the log, STRICT, and flags that are wrong."""

import errno
import os
import subprocess
from pathlib import Path

import pytest

from cfi2sframe.cli.wrapper.insertion import insert_section
from cfi2sframe.cli.wrapper.programs import ASSEMBLER, Role
from tests.support.contrib import environment, has_section, run, shell_script
from tests.support.needs import Result, attempt, need
from tests.support.placing.embedded import as_linked

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("strict", ["0", "1"])
def test_an_output_that_no_argument_names(tmp_path: Path, programs: Path, objects: list[str], strict: str) -> None:
    """A linker script names it: there is no section, and that is said."""
    (tmp_path / "script").write_text("OUTPUT(out)\n")
    log = tmp_path / "log"
    env = environment(programs, CFI2SFRAME_STRICT=strict, CFI2SFRAME_LOG=str(log))
    result = attempt("cfi2sframe-ld", *objects, "-shared", "-T", "script", cwd=tmp_path, env=env)
    assert (tmp_path / "out").exists()
    assert result.status == int(strict)
    assert "a.out: warning: no .sframe section was put in: the linker has not written this file" in log.read_text()
    assert ("a.out: error: no .sframe section" in result.err) is (strict == "1")


def link_with(tmp_path: Path, programs: Path, script: str, **variables: str) -> Result:
    """Run the wrapper around a linker that follows the script."""
    env = environment(programs, CFI2SFRAME_LD=str(shell_script(tmp_path / "linker", script)), **variables)
    return attempt("cfi2sframe-ld", "-o", "out", cwd=tmp_path, env=env)


DAMAGED = "head -c 20000 /bin/ls > out; head -c 20000 /dev/zero >> out"


@pytest.mark.parametrize("strict", ["0", "1"])
def test_what_cannot_be_converted_stays_linked(tmp_path: Path, programs: Path, strict: str) -> None:
    """Unless STRICT asks nothing is printed: libtool and configure take that for a failure. There is a log."""
    log = tmp_path / "log"
    result = link_with(tmp_path, programs, DAMAGED, CFI2SFRAME_LOG=str(log), CFI2SFRAME_STRICT=strict)
    assert (result.status, result.out) == (int(strict), "")
    assert (tmp_path / "out").stat().st_size == 40000
    why, verdict = log.read_text().splitlines()
    assert why.startswith(f"cfi2sframe: {tmp_path}/out: error: ")
    assert verdict == f"cfi2sframe-ld: {tmp_path}/out: warning: no .sframe section was put in"
    told = [why, "cfi2sframe-ld: out: error: no .sframe section was put in (CFI2SFRAME_STRICT)"]
    assert result.err.splitlines() == (told if strict == "1" else [])


def test_what_sframe_is_not_defined_for_is_no_failure(tmp_path: Path, programs: Path) -> None:
    """Configure scripts try to link for other machines; STRICT is about files that should have a section."""
    need("gcc")
    (tmp_path / "none.s").write_text(".globl _start\n_start: ret\n")
    run("gcc", "-c", "none.s", cwd=tmp_path)
    env = environment(programs, CFI2SFRAME_STRICT="1")
    assert attempt("cfi2sframe-ld", "-o", "none", "none.o", cwd=tmp_path, env=env) == Result(0, "", "")
    assert not has_section(tmp_path / "none")


@pytest.mark.parametrize(
    "flags",
    [
        *("--sframe-version 7", "'unbalanced", "--no-such-option", "file", "-o file", "--report file", "--check"),
        *("--help", "--files-from list"),
    ],
)
def test_wrong_flags_are_an_error_of_one_line(tmp_path: Path, programs: Path, flags: str) -> None:
    """A mistake of the user's, which would cost every file its section; nothing has been linked."""
    result = link_with(tmp_path, programs, "cp /bin/ls out", CFI2SFRAME_FLAGS=flags)
    assert (result.status, result.out, result.err.count("\n")) == (2, "", 1)
    assert result.err.startswith("cfi2sframe-ld: error: CFI2SFRAME_FLAGS: ")
    assert not (tmp_path / "out").exists()


def test_a_log_that_is_standard_error_is_written_to_its_end(tmp_path: Path, programs: Path) -> None:
    """Opened by name, the file has a position of its own, and the next line of the build overwrites the log's."""
    (tmp_path / "ls").write_bytes(as_linked("/bin/ls"))
    linker = shell_script(tmp_path / "linker", "cp ls out")
    env = environment(programs, CFI2SFRAME_LD=str(linker), CFI2SFRAME_LOG="/dev/stderr")
    with (tmp_path / "heard").open("wb") as heard:
        for _ in range(2):
            subprocess.run(["cfi2sframe-ld", "-o", "out"], cwd=tmp_path, env=env, stderr=heard, check=True)
    assert (tmp_path / "heard").read_text().count(": info: converted: ") == 2


def test_a_log_that_cannot_be_written_is_said_once(tmp_path: Path, programs: Path) -> None:
    result = link_with(tmp_path, programs, "cp /bin/ls out", CFI2SFRAME_LOG=f"{tmp_path}/missing/log")
    assert (result.status, result.err.count("\n")) == (0, 1)
    assert "CFI2SFRAME_LOG: " in result.err


def test_a_step_succeeds_where_no_process_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))

    monkeypatch.setattr(os, "fork", refuse)
    monkeypatch.setenv("CFI2SFRAME_LOG", f"{tmp_path}/log")
    assert insert_section(Role(ASSEMBLER, ("as",)), f"{tmp_path}/in.o", lambda: ()) == 0
    verdict = "warning: no .sframe section was put in: Resource temporarily unavailable"
    assert (tmp_path / "log").read_text() == f"cfi2sframe-as: {tmp_path}/in.o: {verdict}\n"
