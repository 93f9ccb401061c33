# SPDX-License-Identifier: Apache-2.0
"""Calls of the library of capstone 5, against the Python package that brings it."""

import ctypes
from pathlib import Path
from types import SimpleNamespace

import capstone
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.elf.capstone5 import NUMBERS, Capstone5, CsInsn
from cfi2sframe.elf.disassembler import open_disassembler
from cfi2sframe.instructions.decoder import abi_of
from tests.support.cli import ROOT, run_process
from tests.support.needs import need, run

pytestmark = pytest.mark.skipif(capstone.version_bind()[0] != 5, reason="capstone is of another release than 5")


def test_numbers_and_layout_are_those_of_the_package() -> None:
    assert {name: getattr(capstone, name) for name in NUMBERS} == NUMBERS
    assert ctypes.sizeof(CsInsn) == ctypes.sizeof(capstone._cs_insn)
    for name, *_ in CsInsn._fields_:
        ours, theirs = getattr(CsInsn, name), getattr(capstone._cs_insn, name)
        assert (ours.offset, ours.size) == (theirs.offset, theirs.size)


@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, AARCH64_BE, S390X], ids=lambda arch: arch.name)
@given(code=st.binary(max_size=40), vaddr=st.integers(0, 2**64 - 64), count=st.integers(0, 3))
def test_instructions_are_those_of_the_package(arch: Arch, code: bytes, vaddr: int, count: int) -> None:
    _, name, mode = names = abi_of(arch).disassembler
    ours, theirs = (
        open_disassembler(names, "code is read"),
        capstone.Cs(getattr(capstone, name), getattr(capstone, mode)),
    )
    assert isinstance(ours, Capstone5)
    assert list(ours.disasm_lite(code, vaddr, count)) == list(theirs.disasm_lite(code, vaddr, count))


def test_another_release_is_left_to_its_package(tmp_path: Path) -> None:
    """Numbers and layout are those of release 5 only."""
    package = tmp_path / "capstone"
    (package / "lib").mkdir(parents=True)
    (tmp_path / "six.c").write_text(
        "int cs_version(int *a, int *b) { return 6 << 8; }\nint cs_disasm(void) { return 0; }\n"
    )
    run(need("gcc"), "-shared", "-fPIC", tmp_path / "six.c", "-o", package / "lib/libcapstone.so")
    (package / "__init__.py").write_text(
        "CS_ARCH_X86 = CS_MODE_64 = 0\nclass Cs:\n  def __init__(self, *names): print('the package is asked')\n"
    )
    result = run_process("/bin/ls", "-o", tmp_path / "out", PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert "the package is asked" in result.stdout


def test_lack_of_memory_is_raised() -> None:
    """Any call may meet it: `CS_ERR_MEM` is 1."""
    library = SimpleNamespace(cs_open=lambda *_: 1, cs_disasm=lambda *_: 0, cs_errno=lambda _: 1)
    with pytest.raises(MemoryError):
        Capstone5(library, "CS_ARCH_X86", "CS_MODE_64")  # type: ignore[arg-type]
    library.cs_open = lambda *_: 0
    with pytest.raises(MemoryError):
        list(Capstone5(library, "CS_ARCH_X86", "CS_MODE_64").disasm_lite(b"\xc3", 0))  # type: ignore[arg-type]
