# SPDX-License-Identifier: Apache-2.0
"""Cross linkers merge converted objects into what they make of the cross assembler's own SFrame sections."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from cfi2sframe import Options, convert, decode_existing, load
from cfi2sframe.api import verify
from cfi2sframe.elf.constants import SHT_GNU_SFRAME, SHT_PROGBITS
from cfi2sframe.emit import check, emit
from tests.support.meaning import differences_in_meaning
from tests.support.project import units
from tests.support.targets import AARCH64, S390, Target, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedSection
    from cfi2sframe.verification import Difference
    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]


class Generation(NamedTuple):
    """What an assembler and a linker of one release agree upon."""

    target: Target
    binutils: BinutilsVersion
    options: Options
    section_type: int


# 2.44 has no SFrame for s390x; its libsframe refuses the flag for PC-relative starts.
GENERATIONS: Final = {
    "aarch64-newest": Generation(AARCH64, "newest", Options(version=3), SHT_GNU_SFRAME),
    "aarch64-2.44": Generation(AARCH64, "2.44", Options(version=2, errata=0), SHT_PROGBITS),
    "s390x-newest": Generation(S390, "newest", Options(version=3), SHT_GNU_SFRAME),
}
LINKS: Final[dict[str, tuple[str, ...]]] = {
    "plain": (),
    "nopie": ("-no-pie",),
    "shared": ("-shared",),
    "static": ("-static",),
}
FLAGS: Final = ("-O2", "-w", "-ffunction-sections", "-fPIC")
#: Compiled differently by the number of the source: RA is signed with key A, with key B, or not at all; with a stack
#: that has backchains.
MORE_FLAGS: Final = {
    AARCH64: (("-mbranch-protection=standard",), ("-mbranch-protection=pac-ret+b-key",), ()),
    S390: (("-mbackchain",), ("-fno-omit-frame-pointer",), ()),
}
FEWEST_FUNCTIONS: Final = 60


class Objects(NamedTuple):
    """The same objects twice: with the assembler's sections, and with those made of their CFI."""

    generation: Generation
    linker_folder: Path
    theirs: list[Path]
    ours: list[Path]


@pytest.fixture(scope="module", params=GENERATIONS)
def objects(
    request: pytest.FixtureRequest,
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path_factory: pytest.TempPathFactory,
) -> Objects:
    generation = GENERATIONS[request.param]
    target = generation.target
    compiler, tools = target.compiler, binutils(generation.binutils)
    assembler = tools.tool("as", target.name)
    folder = tmp_path_factory.mktemp("objects")
    # The driver looks for the plain name.
    (folder / "tools").mkdir()
    (folder / "tools" / "ld").symlink_to(tools.tool("ld", target.name))
    found = Objects(generation, folder / "tools", [], [])
    for number, (name, source, flags) in enumerate(units(with_cpp=False)):
        assembly = folder / f"{name}.s"
        run([compiler, *FLAGS, *flags, *MORE_FLAGS[target][number % 3], "-S", source, "-o", assembly])
        plain, theirs, ours = (folder / f"{name}.{kind}.o" for kind in ("plain", "theirs", "ours"))
        run([assembler, assembly, "-o", plain])
        run([assembler, "--gsframe", assembly, "-o", theirs])
        emitted = emit(convert(load(str(plain)), generation.options), section_type=generation.section_type)
        ours.write_bytes(b"".join(emitted.chunks))
        check(emitted, load(str(ours)))
        found.theirs.append(theirs)
        found.ours.append(ours)
    return found


def _link(objects: Objects, inputs: Sequence[Path], output: Path, *flags: str) -> Path:
    """Link with the linker of the set, which may warn of nothing that is about SFrame."""
    target = objects.generation.target
    printed = run([target.compiler, f"-B{objects.linker_folder}", "-o", output, *inputs, *flags])
    assert "sframe" not in printed.lower(), printed
    return output


def _problems_of_functions(image: ElfImage, section: DecodedSection) -> list[Difference]:
    """What is wrong with our objects' functions: ld writes no rows for stubs here, and libc's own code has none."""
    names = image.names_of(entry.fde.pc_begin_vaddr for entry in convert(image).cfi.entries)
    starts = {vaddr for vaddr, name in names.items() if re.fullmatch(r"main|c\d+_\d+(_\w+)?", name)}
    ends = {f.start_vaddr: f.start_vaddr + f.size for f in section.functions}
    assert len(starts) >= FEWEST_FUNCTIONS
    assert set(starts) <= set(ends)
    ours = [range(start, ends[start]) for start in starts]
    return [
        difference
        for difference in verify(image, section).differences
        if difference.kind != "missing" or any(difference.vaddr in covered for covered in ours)
    ]


@pytest.mark.parametrize("link", LINKS)
def test_linked_sections_mean_the_same(objects: Objects, link: str, tmp_path: Path) -> None:
    theirs = _link(objects, objects.theirs, tmp_path / "theirs", *LINKS[link])
    ours = _link(objects, objects.ours, tmp_path / "ours", *LINKS[link])
    image, section = load(str(ours)), decode_existing(load(str(ours)))
    said, meant = decode_existing(load(str(theirs))), section
    assert said.header.version == meant.header.version == objects.generation.options.version
    assert differences_in_meaning(said, meant, image) == []
    assert len(section.functions) >= FEWEST_FUNCTIONS
    assert _problems_of_functions(image, section) == []
    if objects.generation.target is AARCH64:
        signed = [f.uses_b_key for f in section.functions if any(row.row.state.mangled_ra for row in f.rows)]
        assert set(signed) == {False, True}
        assert signed == [f.uses_b_key for f in said.functions if any(row.row.state.mangled_ra for row in f.rows)]
    if link != "shared":
        target = objects.generation.target
        emulator: list[str | Path] = [target.emulator, "-L", target.sysroot]
        assert run([*emulator, ours]) == run([*emulator, theirs])
