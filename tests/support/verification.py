# SPDX-License-Identifier: Apache-2.0
"""Sections put together by hand, verified against functions of one rule each."""

from cfi2sframe.abi import Arch
from cfi2sframe.api import verify
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.read import read_section
from cfi2sframe.verification.verify import Verification
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, linked
from tests.support.sframe.raw_sframe import RawFunction, RawSection

#: The fields of a section for AArch64.
AARCH64 = {"abi": 2, "fixed_ra": 0}


def check(image: ElfImage, raw: RawSection) -> Verification:
    """Verify a section of an image."""
    return verify(image, read_section(raw.assemble(), raw.vaddr))


def said(image: ElfImage, raw: RawSection) -> list[str]:
    """Return the differences as lines; addresses count from the start of the code."""
    found = check(image, raw)
    return [f"{d.kind} +{d.vaddr - TEXT_VADDR:#x} {d.message}" for d in (*found.differences, *found.notes)]


def truth(arch: Arch, *instructions: asm.Instruction, augmentation: str = "zR") -> ElfImage:
    """Return an image with one function of 0x10 bytes whose CIE has these instructions after the usual ones."""
    return linked(arch, asm.Fde(cie_of(arch, *instructions, augmentation=augmentation), TEXT_VADDR, 0x10))


def one_row(text: str, **changes: int) -> RawSection:
    """Return a section with one function of one row."""
    info, info2 = changes.pop("info", 0), changes.pop("info2", 0)
    function = RawFunction(TEXT_VADDR, 0x10, bytes.fromhex(text), 1, info, info2)
    return RawSection((function,))._replace(**changes)  # type: ignore[arg-type]
