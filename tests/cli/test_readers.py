# SPDX-License-Identifier: Apache-2.0
"""`--for READER`: what is written for a reader, the warning about one that would refuse it, and `verify --for`."""

import json
import subprocess
from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64
from cfi2sframe.api import decode_existing, judge
from cfi2sframe.verification import READERS
from tests.fuzz import seeds
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import cie_of, object_file, push_fp
from tests.support.placing.embedded import linked_of

SOURCE = """
__attribute__((section(".far"), noinline)) int far(int x) { __asm__ volatile(""); return x + 1; }
__attribute__((section(".bare"), naked)) void bare(void) { __asm__ volatile("nop"); }
int main(int count, char **words) { (void)words; return far(count) - 2; }
"""


@pytest.fixture
def two_segments(tmp_path: Path) -> Path:
    return linked_of(tmp_path, SOURCE, "-no-pie", "-fno-pie", "-Wl,--section-start=.far=0x10000000")


WARNING = "a Linux kernel that validates sections (SFrame is in no release of Linux yet) would refuse this one"


@pytest.mark.oracle
@pytest.mark.parametrize("arguments", [["-o", "out"], ["-o", "out.sframe"], ["--check"], ["--in-place"]])
def test_several_segments_are_warned_of(two_segments: Path, tmp_path: Path, arguments: list[str]) -> None:
    words = [str(tmp_path / word) if word.startswith("out") else word for word in arguments]
    done = run("convert", two_segments, *words)
    assert done.status == (1 if arguments == ["--check"] else 0)
    (line,) = done.err
    assert f"program: warning: {WARNING}" in line
    assert subprocess.run([two_segments], check=False).returncode == 0


@pytest.mark.oracle
def test_there_is_nothing_to_warn_of(two_segments: Path, tmp_path: Path) -> None:
    """Of the older versions, which Linux does not read, and where the other segment holds no described function."""
    words = ("--sframe-version", "2", "--errata", "2")
    assert run("convert", two_segments, "-o", tmp_path / "out", *words).err == ()
    flags = ("-no-pie", "-fno-pie", "-Wl,--section-start=.bare=0x10000000", "-fno-exceptions")
    program = linked_of(tmp_path, SOURCE, *flags, "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
    assert sum(s.type == 1 and s.flags & 1 for s in load(program).segments) == 2
    assert run("convert", program, "-o", tmp_path / "out2").err == ()


@pytest.mark.oracle
def test_the_kernel_refuses_it(two_segments: Path, tmp_path: Path) -> None:
    name = str(two_segments)
    why = (
        "functions are in 2 of 2 executable segments; it registers the section for each of them by itself, "
        "and wants all functions there"
    )
    # As convert --for kernel does.
    done = run("verify", "--would-be", name, "--for", "kernel")
    assert done == (3, b"", (f"cfi2sframe: {name}: error: kernel refuses it: {why}",))
    assert run("convert", name, "-o", tmp_path / "out").status == 0
    done = run("verify", tmp_path / "out", "--for", "kernel", "--for", "libsframe")
    lines = done.out.decode().splitlines()
    assert done.status == 1
    assert lines[0].endswith(f"out: kernel (patches of 2026, in no release): refuses it: executable segments: {why}")
    assert [line.split(": ")[1:3] for line in lines[1:4]] == [
        ["libsframe (2.40)", "refuses it"],
        ["libsframe (2.44)", "refuses it"],
        ["libsframe (2.47)", "reads it"],
    ]


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "library.so"
    path.write_bytes(seeds.linked_file(AMD64))
    return path


def test_places_are_named(library: Path, tmp_path: Path) -> None:
    """The first of the places that break a rule, and how many there are."""
    raw = tmp_path / "raw.sframe"
    assert run("convert", library, "-o", raw, "--sframe-version", "2", "-O0").status == 0
    data = bytearray(raw.read_bytes())
    count = int.from_bytes(data[8:12], "little")
    assert count > 2
    for number in range(count):
        # Sizes of one byte: rows start outside.
        data[28 + 20 * number + 4 : 28 + 20 * number + 8] = b"\1\0\0\0"
    raw.write_bytes(data)
    done = run("verify", library, raw, "--for", "glibc")
    assert done.status == 1
    assert b"reads it wrongly: rows outside: 0x" in done.out
    assert b" such places)" in done.out


#: CFA = *(x9 + 8): flexible rows in version 3.
FLEXIBLE = asm.Fde(cie_of(AARCH64_LE, asm.def_cfa_expression(b"\x79\x08\x06")), 0x40, 16)


@pytest.mark.parametrize("name", [name for name, reader in READERS.items() if reader.reads_objects])
def test_objects(tmp_path: Path, name: str) -> None:
    arch = AARCH64_LE if name == "kernel-arm64" else AMD64
    source, out = tmp_path / "in.o", tmp_path / "out.o"
    source.write_bytes(object_file(arch, {".text": (push_fp(arch, 0),)}))
    assert run(source, "-o", out, "--for", name) == (0, b"", ())
    image = load(out)
    section = decode_existing(image)
    assert section.version == READERS[name].version
    assert all(verdict.reads_it for verdict in judge(image, section, name, is_in_file=True))
    assert image.sframe_section is not None
    assert image.sframe_section.type == READERS[name].section_type
    status, said, err = run("verify", out, "--for", name)
    assert (status, err) == (0, ())
    assert said.startswith(f"{out}: {name} (".encode())
    assert said.endswith(b"): reads it\n")


def test_a_function_that_the_reader_refuses_is_left_out_by_name(tmp_path: Path) -> None:
    source, out = tmp_path / "in.o", tmp_path / "out.o"
    source.write_bytes(object_file(AARCH64_LE, {".text": (push_fp(AARCH64_LE, 0), FLEXIBLE)}))
    status, _, (warning,) = run(source, "-o", out, "--for", "kernel-arm64")
    assert status == 0
    assert "the reader refuses it (kernel-arm64: flexible rows)" in warning
    assert len(decode_existing(load(out)).functions) == 1
    assert run("verify", "--for", "kernel-arm64", out).status == 0
    # Without being told, verify expects what version 3 can describe.
    assert b": missing: " in run("verify", out).out
    (account,) = json.loads(run("coverage", "--for", "kernel-arm64", "--format", "json", source).out)["files"]
    assert (account["function_count"], account["left_out_count"]) == (2, 1)
    assert run(source, "-o", out, "--for", "kernel-arm64", "--strict").status == 4


def test_verify_for_a_reader_asks_what_the_reader_demands(tmp_path: Path) -> None:
    """A section of another version is refused; one that lacks a function for no reason differs all the same."""
    source, out = tmp_path / "in.o", tmp_path / "out.o"
    source.write_bytes(object_file(AMD64, {".text": (push_fp(AMD64, 0),)}))
    assert run(source, "-o", out).status == 0
    assert run("verify", out, "--for", "ld").status == 0
    status, said, _ = run("verify", out, "--for", "ld-2.41")
    assert (status, b"refuses it: version: version 3; it reads version 2" in said) == (1, True)
    # Two functions, of which the section has one.
    raw = tmp_path / "out.sframe"
    assert run(source, "-o", raw).status == 0
    source.write_bytes(object_file(AMD64, {".text": (push_fp(AMD64, 0), push_fp(AMD64, 16))}))
    status, said, _ = run("verify", source, raw, "--for", "libsframe")
    assert (status, b"(2.47): reads it" in said, b": missing: " in said) == (1, True, True)
