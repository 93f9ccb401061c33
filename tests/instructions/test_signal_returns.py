# SPDX-License-Identifier: Apache-2.0
"""The code that returns from signal handlers gets a signal frame, with the rules for what the kernel has saved."""

import struct
from pathlib import Path

import pytest

from cfi2sframe import account, convert, load, verify
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import Found, Section
from cfi2sframe.trace import Frame, Memory, caller_of
from cfi2sframe.trace.frames import interrupted_frame
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, linked_file
from tests.support.placing.embedded import linked_of

SP = 0x7000_0000
#: What is before the code, and where that starts and the code.
NOP = {"AMD64": b"\x90", "AArch64": b"\x1f\x20\x03\xd5", "AArch64 BE": b"\x1f\x20\x03\xd5", "s390x": b"\x07\x07"}
FORMS = [(arch, form) for arch in (AMD64, AARCH64_LE, AARCH64_BE, S390X) for form in arch.signal_returns]
#: Instructions that return, so that the file has a function with rows.
RETURN = {"AMD64": b"\xc3", "AArch64": b"\xc0\x03\x5f\xd6", "AArch64 BE": b"\xc0\x03\x5f\xd6", "s390x": b"\x07\xfe"}


def file_of(arch: Arch, code: bytes, *, named: bool = True) -> tuple[ElfImage, int]:
    """Return a library with a function that returns, then a no-op and some code; and where that is."""
    head = RETURN[arch.name] * 4 + NOP[arch.name]
    vaddr = TEXT_VADDR + len(head)
    symbols = [asm.Symbol("f", TEXT_VADDR, 0, 0x12), *([asm.Symbol("__restore_rt", vaddr)] if named else [])]
    data = head + code + RETURN[arch.name] * 4
    return load(linked_file(arch, (), codes=(Code(data=data),), symbols=tuple(symbols)), "sample"), vaddr


def found_at(section: Section, vaddr: int) -> Found:
    found = section.find(vaddr)
    assert found is not None
    assert found.state is not None
    return found


@pytest.mark.parametrize(("arch", "code"), [(arch, form.code) for arch, form in FORMS if arch is not S390X])
def test_a_reader_finds_what_the_signal_interrupted(arch: Arch, code: bytes) -> None:
    """By the row alone, from the address of the code, the byte before it, and between its instructions."""
    image, vaddr = file_of(arch, code)
    conversion = convert(image, source="code")
    assert verify(conversion).is_clean
    # Each word of the stack has another value.
    stack = struct.pack(f"{arch.byte_order}200Q", *range(0x1000, 0x1000 + 200))
    memory = Memory([(SP, stack), (vaddr, code)])
    expected = interrupted_frame(Frame(vaddr, SP, 0), memory.read, arch)
    assert expected is not None
    for pc in (vaddr - 1, vaddr, vaddr + len(code) - 1):
        found = found_at(conversion.section, pc)
        assert found.function.body.is_signal_frame
        assert caller_of(Frame(vaddr, SP, 0), found, memory.read)[:3] == expected[:3]
    assert not found_at(conversion.section, TEXT_VADDR).function.body.is_signal_frame
    after = conversion.section.find(vaddr + len(code))
    assert after is None or not after.function.body.is_signal_frame


@pytest.mark.parametrize(("arch", "code"), [(arch, form.code) for arch, form in FORMS])
def test_what_no_row_can_express_is_named(arch: Arch, code: bytes) -> None:
    """On s390x the CFA is 160 above the saved SP: a sum after a load. Versions 1 and 2 have no loads."""
    image, vaddr = file_of(arch, code)
    conversion = convert(image, 3 if arch is S390X else 2, source="code")
    assert verify(conversion).is_clean
    assert conversion.section.find(vaddr) is None
    missing = next(each for each in account(conversion).missing if each.address <= vaddr < each.address + each.size)
    assert (missing.kind, missing.reason) == ("without CFI", "CFA_EXPRESSION")
    assert "deref" in missing.detail or missing.detail[0] == "("


def test_only_where_something_leads() -> None:
    image, vaddr = file_of(AMD64, AMD64.signal_returns[0].code, named=False)
    assert convert(image, source="code").section.find(vaddr) is None


@pytest.mark.oracle
def test_the_rules_are_those_of_glibc(tmp_path: Path) -> None:
    """Glibc has CFI for its own code."""
    source = "#include <signal.h>\nint main(void) { return sigaction(1, 0, 0); }\n"
    image = load(linked_of(tmp_path, source, "-static", compiler="x86_64-linux-gnu-gcc"))
    vaddrs = [vaddr for vaddr, name in image.names_of(range(*span(image))).items() if name == "__restore_rt"]
    own, vaddr = file_of(AMD64, AMD64.signal_returns[0].code)
    for each in vaddrs:
        theirs, ours = found_at(convert(image).section, each), found_at(convert(own, source="code").section, vaddr)
        assert theirs.state == ours.state
        assert theirs.function.body.is_signal_frame
    assert vaddrs


def span(image: ElfImage) -> tuple[int, int]:
    (text,) = (section for section in image.sections if section.name == ".text")
    return text.vaddr, text.end_vaddr
