# SPDX-License-Identifier: Apache-2.0
"""Contents of sections as a linker relocates them (gABI, "Relocation": S + A, S + A - P)."""

import struct

import pytest

from cfi2sframe import load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.elf.object_code import RelocatedCode
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.images import DATA_VADDR, linked
from tests.support.elf.samples import SHF_ALLOC, object_file, push_fp


@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, AARCH64_BE, S390X], ids=lambda arch: arch.name)
def test_words_of_data(arch: Arch) -> None:
    """Addresses and distances, and the address that stands for an undefined symbol; nothing past the section's end."""
    forms = (
        *((".text.start", arch.absolute_relocation, 4), (".text.start", arch.pc64_relocation, 12)),
        ("elsewhere", arch.absolute_relocation, 0),
    )
    relocations = [asm.Relocation(".data", 8 * n, *form) for n, form in enumerate(forms)]
    data, symbol = (
        asm.Section(".data", b"\xee" * 32, 1, SHF_ALLOC, align=8),
        asm.Symbol("elsewhere", info=0x10, section=""),
    )
    fdes = {".text": (push_fp(arch, 0),)}
    file = object_file(arch, fdes, text=bytes(32), more=(data,), symbols=(symbol,), relocations=tuple(relocations))
    image = load(file, "in.o")
    code = RelocatedCode(image)
    (text,), (section,) = image.sections_named(".text"), image.sections_named(".data")
    ((undefined, name),) = code.imports.items()
    words = struct.pack(arch.byte_order + "QqQ", text.vaddr + 4, text.vaddr + 12 - (section.vaddr + 8), undefined)
    assert text.vaddr < section.vaddr
    assert (name, image.section_at(undefined)) == ("elsewhere", None)
    assert code.data_at(section.vaddr, 32) == words + b"\xee" * 8
    assert code.data_at(section.vaddr + 5, 7) == words[5:12]
    assert (code.data_at(section.vaddr + 25, 8), code.data_at(0, 8)) == (None, None)


def test_data_of_a_linked_file_are_its_bytes() -> None:
    code = RelocatedCode(load(linked()))
    assert code.data_at(DATA_VADDR + 2, 4) == b"TADA"
    assert (code.data_at(DATA_VADDR + 0x40, 17), code.imports) == (None, {})
