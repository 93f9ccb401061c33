# SPDX-License-Identifier: Apache-2.0
"""Whatever is linked is read by the readers of its version; what one of them would refuse comes with a warning.

What GNU ld reads of objects, `test_readers_oracle` asks it.
"""

from typing import Final

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.api import judge
from cfi2sframe.conversion.options import Level, Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import reader_warnings
from tests.fuzz import seeds
from tests.support.conversion.variants import decode_made
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, Code, cie_of, linked_file

#: Version, errata, level.
CHOICES: Final[list[tuple[int, int | None, Level]]] = [
    *((1, None, 0), (1, None, 1), (1, None, 2)),
    *((2, 0, 1), (2, 0, 2), (2, 1, 1), (2, 1, 2), (2, 2, 1), (2, 2, 2)),
    *((3, None, 0), (3, None, 1), (3, None, 2)),
]


def readers_of(image: ElfImage, options: Options) -> set[str]:
    """Return the readers, as `NAME RELEASES`, that read what is made of an image; all that should, have to."""
    section = decode_made(image, options)
    found = set[str]()
    for name in ("kernel", "glibc", "libsframe"):
        found |= {f"{name} {v.releases}" for v in judge(image, section, name) if v.reads_it}
    version, is_tracked = section.version, section.arch != S390X
    expected = {
        1: {"libsframe 2.40"},
        2: {"libsframe 2.47", *(["libsframe 2.44"] if options.errata == 0 and is_tracked else [])},
        3: {"libsframe 2.47"},
    }[version]
    if version == 3 and not reader_warnings(convert(image, **options._asdict())):
        expected |= {"kernel patches of 2026, in no release"}
    elif version == 2 and options.errata != 2 and is_tracked:
        expected |= {"glibc 2.42 to 2.44"}
    assert expected <= found, (expected - found, found)
    return found


@pytest.mark.parametrize("choice", CHOICES, ids=lambda choice: "-".join(map(str, choice)))
@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, AARCH64_BE, S390X], ids=lambda arch: arch.name)
def test_linked_files(arch: Arch, choice: tuple[int, int, Level]) -> None:
    version, errata, level = choice
    if (arch, version) == (S390X, 1):
        pytest.skip("version 1 does not define s390x")
    image = load(seeds.linked_file(arch))
    assert readers_of(image, Options(version, errata, level=level))


def test_registers_that_linux_cannot_name() -> None:
    """CFA = r40 + 16: no program has that, and Linux would read it as r8 + 16."""
    fdes = [asm.Fde(cie_of(AMD64), TEXT_VADDR, 16, (asm.def_cfa(40, 16),)), asm.Fde(cie_of(AMD64), TEXT_VADDR + 16, 16)]
    image = load(linked_file(AMD64, fdes, codes=(Code(size=32),)))
    (warning,) = reader_warnings(convert(image))
    assert warning == "Linux would misread the rules of 1 function: register 40 is taken for 8"
    assert reader_warnings(convert(image, 2)) == ()
    (verdict,) = judge(image, decode_made(image), "kernel")
    assert [(broken.consequence, broken.message) for broken in verdict.broken] == [
        ("reads it wrongly", "register 40 is taken for 8")
    ]
