# SPDX-License-Identifier: Apache-2.0
"""Where output is written, with which mode; that a failure leaves nothing half written; odd names and streams."""

import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cfi2sframe.abi import AMD64
from tests.support.cli import ROOT, run, run_process
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked_file, push_fp
from tests.support.needs import need

DATA = linked_file(AMD64, (push_fp(AMD64), asm.Fde(cie_of(AMD64), TEXT_VADDR + 0x40, 16)))
OBJECT = ROOT / "testdata/golden/amd64-push-rbp.o"
SECTION = run("-", "-o", "-", stdin=DATA).out


@pytest.fixture
def good(tmp_path: Path) -> Path:
    path = tmp_path / "in"
    path.write_bytes(DATA)
    return path


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o7777


# Modes and links


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
    assert (mode(out), out.read_bytes()) == (old, SECTION)


def test_a_symbolic_link_is_followed(good: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "target.sframe", tmp_path / "link.sframe"
    target.write_bytes(b"old")
    link.symlink_to("folder/target.sframe")
    assert run(good, "-o", link) == (0, b"", ())
    assert link.is_symlink()
    assert target.read_bytes() == SECTION
    target.unlink()
    assert run(good, "-o", link) == (0, b"", ())
    assert target.read_bytes() == SECTION
    assert names(tmp_path) == {"folder", "in", "link.sframe"}


# Failures


# Names


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
    path.write_bytes(DATA)
    out = tmp_path / f"{name}.sframe"
    assert run(path, "-o", out) == (0, b"", ())
    assert out.read_bytes() == SECTION
    assert run("coverage", path).out.startswith(f"{tmp_path}/{shown}: SFrame version 3 describes ".encode())
    process = run_process(path, "-o", out, "-v")
    assert process.returncode == 0
    assert len(process.stderr.splitlines()) == 2


def test_names_that_begin_with_a_dash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-in").write_bytes(DATA)
    for arguments in (
        ("./-in", "-o", "./-out.sframe"),
        ("-o", "./-out.sframe", "--", "-in"),
        ("-o-out.sframe", "--", "-in"),
    ):
        assert run(*arguments) == (0, b"", ())
        assert Path("-out.sframe").read_bytes() == SECTION
        Path("-out.sframe").unlink()


# Streams


def shell(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a shell script with arguments `$1` and so on; the program is `"$PYTHON" -m cfi2sframe`."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=60,
    )


@pytest.mark.parametrize("arguments", ['"$1" -o -', 'dump "$2"', 'coverage "$1"', 'verify "$1" "$2"'])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(good: Path, tmp_path: Path, arguments: str, closed: str) -> None:
    raw = tmp_path / "raw.sframe"
    raw.write_bytes(SECTION)
    done = shell(f'"$PYTHON" -m cfi2sframe {arguments} {closed}', good, raw)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.parametrize("arguments", ["--help", "--version", "size --help", "", "--odd"])
def test_closed_streams_without_a_file(arguments: str) -> None:
    done = shell(f'"$PYTHON" -m cfi2sframe {arguments} >&-')
    assert done.returncode == (0 if arguments.endswith(("help", "version")) else 2)
    assert "internal error" not in done.stderr
    done = shell(f'"$PYTHON" -m cfi2sframe {arguments} <&- >&- 2>&-')
    assert done.returncode == (0 if arguments.endswith(("help", "version")) else 2)


@pytest.mark.parametrize(
    "environment",
    ["PYTHONIOENCODING=ascii", "PYTHONIOENCODING=cp1252:strict", "LC_ALL=C PYTHONCOERCECLOCALE=0 PYTHONUTF8=0"],
)
@pytest.mark.parametrize(
    "arguments", ["coverage", "size", "size --format html", "size --format csv", "size --format markdown"]
)
def test_encodings_that_cannot_hold_a_name(good: Path, tmp_path: Path, environment: str, arguments: str) -> None:
    named = tmp_path / "\u65e5\xef"
    named.write_bytes(good.read_bytes())
    done = shell(f'{environment} "$PYTHON" -m cfi2sframe {arguments} "$1"', named)
    assert (done.returncode, done.stderr) == (0, "")


def test_arguments_cannot_forge_lines() -> None:
    """A shell pattern gives the names of files, which may look like options."""
    for verb in ("convert", "remove", "dump", "verify", "coverage", "size", "trace"):
        done = shell(f'"$PYTHON" -m cfi2sframe {verb} x "$1"', Path("--\x1b[31m\ncfi2sframe:x:y"))
        assert done.returncode == 2
        assert "\x1b" not in done.stderr
        assert done.stderr.splitlines()[-1].find(r"--\x1b[31m\ncfi2sframe:x:y;") > 0


def test_a_closed_standard_input_is_empty() -> None:
    done = shell('"$PYTHON" -m cfi2sframe - -o - <&-')
    assert (done.returncode, done.stderr) == (3, "cfi2sframe: <stdin>: error: not an ELF file\n")


@pytest.mark.parametrize("arguments", ['"$1" -o -', 'dump "$2"', 'coverage "$1"', 'coverage --format json "$1"'])
def test_a_full_standard_output(good: Path, tmp_path: Path, arguments: str) -> None:
    raw = tmp_path / "raw.sframe"
    raw.write_bytes(SECTION)
    done = shell(f'"$PYTHON" -m cfi2sframe {arguments} >/dev/full', good, raw)
    assert done.returncode == 3
    assert done.stderr == "cfi2sframe: <stdout>: error: No space left on device\n"


# Garbage


@pytest.mark.sampled
@settings(max_examples=40)
@given(st.data())
def test_no_traceback_on_garbage(data: st.DataObject) -> None:
    """A file with some bytes changed: every verb ends with a status, and with lines of its own only."""
    changed = bytearray(DATA)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    size = data.draw(st.sampled_from((len(changed), len(changed), 0, 63, 64, 0x1000, len(changed) - 1)))
    changed = changed[:size]
    for arguments in (("-", "-o", "-"), ("coverage", "-"), ("dump", "-"), ("verify", "-"), ("dump", "-")):
        status, _, err = run(*arguments, stdin=bytes(changed))
        assert status in {0, 1, 3}
        assert all(line.startswith("cfi2sframe: ") for line in err)
        assert status != 3 or err


def test_an_unforeseen_error_is_one_line() -> None:
    """If there ever is one, the user gets what a bug report needs, and no traceback."""
    script = "import cfi2sframe.cli as cli; cli.main = lambda: {}['a\\nb']; cli.run()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (3, "")
    line = r"cfi2sframe: internal error: KeyError: 'a\\\\nb' at __main__:1; please report it\n"
    assert re.fullmatch(line, done.stderr), done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a user without rights")
@pytest.mark.parametrize("words", [("--in-place", "in.o"), ("in.o", "-o", "out.o")])
def test_a_directory_that_cannot_be_written_is_named(words: tuple[str, ...], request: pytest.FixtureRequest) -> None:
    """The file itself may well be writable."""
    # Directories of pytest cannot be entered by another user.
    parent = TemporaryDirectory()
    request.addfinalizer(parent.cleanup)
    tmp_path, folder = Path(parent.name), Path(parent.name, "closed")
    tmp_path.chmod(0o755)
    folder.mkdir(mode=0o755)
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
    assert f"error: cannot create a file in {folder}: Permission denied" in done.stderr


def test_an_object_of_link_time_optimization(tmp_path: Path) -> None:
    """It has bytecode, and no machine code that CFI could describe."""
    need("gcc")
    (tmp_path / "in.c").write_text("int main(void) { return 0; }\n")
    subprocess.run(["gcc", "-flto", "-fno-fat-lto-objects", "-c", "in.c"], cwd=tmp_path, check=True)
    message = "LTO bytecode without machine code: convert the linked file"
    path = tmp_path / "in.o"
    for words in (("--in-place", path), ("coverage", path), ("verify", "--would-be", path)):
        assert run(*words) == (3, b"", (f"cfi2sframe: {path}: error: {message}",))


def test_an_option_of_another_verb_names_that_verb() -> None:
    assert run("audit", "--for", "ld").err == (
        "cfi2sframe: error: unrecognized arguments: --for; it is an option of convert, verify, coverage, size",
    )
    assert "it is an option of convert" in run("dump", "--strict").err[0]


def test_the_option_of_the_program_is_known_to_its_verbs() -> None:
    assert run("--verison").err[0].endswith("--verison; did you mean --version?")
    assert run("verify", "--version").err[0].endswith("--version; cfi2sframe --version prints it")
