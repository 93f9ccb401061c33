# SPDX-License-Identifier: Apache-2.0
"""`--for NAME`: what is written for a reader, what is left out for it, and that the reader then reads it."""

import json
from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_LE, AMD64
from cfi2sframe.api import decode_existing, judge
from cfi2sframe.verification.reader_names import READERS
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import cie_of, object_file, push_fp

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
