# SPDX-License-Identifier: Apache-2.0
"""Files of a distribution, of three ABIs: rows of all FDEs against the naive evaluator, and sections against the rows.

Each run takes another sample: 1 of CORPUS_ONE_OF files and members of archives, chosen by CORPUS_SEED, which the report
prints (`make nightly` takes all, with each version). The section is read raw, or from the file as written.
"""

import os
import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple, get_args

import pytest

from cfi2sframe import convert, load, verify
from cfi2sframe.api import decode, decode_existing
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.options import Level, Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import emit
from cfi2sframe.errors import EmbedError, InputError, RequestError
from cfi2sframe.sframe.model import Section
from tests.support.dwarf import naive
from tests.support.dwarf.naive_compare import fdes_of_section, problems_of_cfi
from tests.support.instructions.hidden import compare as compare_derived
from tests.support.oracle.tools import CorpusArch, corpus_directory

pytestmark = [pytest.mark.corpus, pytest.mark.slow, pytest.mark.oracle]

ONE_OF: Final = int(os.environ.get("CORPUS_ONE_OF", "25"))
#: Files are shared out, so that several processes work.
SHARES: Final = 4
#: Of an object's relocations, those that linkers resolve to the symbol plus the addend, less the place or not.
RELATIVE: Final = {(62, 2): "i", (62, 24): "q", (183, 261): "i", (183, 260): "q", (22, 5): "i", (22, 23): "q"}
ABSOLUTE: Final = {(62, 1): "Q", (183, 257): "Q", (22, 22): "Q"}


class Case(NamedTuple):
    """A file, or a member of an archive, by its name and its bytes."""

    name: str
    data: bytes


def cases(arch: CorpusArch, share: int, one_of: int = ONE_OF) -> Iterator[tuple[Case, random.Random]]:
    """Yield the sample of a share, each with its own chance, whatever else is in the sample."""
    root = corpus_directory(arch)
    paths = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    assert len(paths) > 100
    for path in paths[share::SHARES]:
        for case in members(path.relative_to(root), path.read_bytes()):
            chance = random.Random(f"{os.environ['CORPUS_SEED']} {arch} {case.name}")  # noqa: S311 - a sample
            if case.data[:4] == b"\x7fELF" and chance.randrange(one_of) == 0:
                yield case, chance


def members(path: Path, data: bytes) -> Iterator[Case]:
    """Yield a file, or what an archive (ar(5)) has."""
    if data[:8] != b"!<arch>\n":
        yield Case(str(path), data)
        return
    at = 8
    while at + 60 <= len(data):
        size = int(data[at + 48 : at + 58])
        yield Case(f"{path}({data[at : at + 16].decode().strip()}@{at})", data[at + 60 : at + 60 + size])
        at += 60 + size + size % 2


def variants(chance: random.Random, versions: tuple[int, ...]) -> Iterator[tuple[Options, bool]]:
    """Yield options and whether the file is written: one at random, or one of each version."""
    for version in versions if ONE_OF == 1 else [chance.choice(versions)]:
        level: Level = chance.choice((0, 1, 2))
        yield Options(version, source="eh_frame", level=level), chance.random() < 0.5


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("arch", get_args(CorpusArch))
def test_rows_of_a_sample(arch: CorpusArch, share: int) -> None:
    problems, file_count, fde_count = list[str](), 0, 0
    for case, chance in cases(arch, share):
        image = load(case.data, case.name)
        for options, is_placed in variants(chance, (2, 3) if arch == "s390x" else (1, 2, 3)):
            try:
                conversion = convert(image, **options._asdict())
            except (InputError, RequestError):
                # It has no CFI of this kind.
                continue
            file_count, fde_count = file_count + 1, fde_count + len(conversion.cfi.entries)
            found = [*problems_of_cfi(conversion.cfi, image.arch, list(fdes_of(conversion)))]
            found += differences(image, conversion, is_placed=is_placed or image.is_relocatable)
            problems += [f"{case.name} {options} {is_placed}: {problem}" for problem in found[:3]]
    print(f"{arch}: {file_count} conversions, {fde_count:,} FDEs")  # noqa: T201 - shown with -rP
    assert not problems, "\n".join([f"CORPUS_SEED={os.environ['CORPUS_SEED']}", *problems])


def differences(image: ElfImage, conversion: Conversion, *, is_placed: bool) -> list[str]:
    """Return how the section of a conversion differs from the CFI, raw or as it is in the written file."""
    # Where nothing can be described there are no bytes, and what could have been described is reported as missing.
    section = Section(conversion.target.version, conversion.target.arch.abi_id)
    if conversion.data:
        section = decode(conversion.data, conversion.section_vaddr)
    if conversion.data and is_placed:
        try:
            section = decode_existing(load(bytes(emit(conversion).chunks)))
        except EmbedError:
            # Objects can be read with relocations only, which cannot be placed.
            if image.is_relocatable:
                raise
    return [str(each) for each in verify(image, section, source="eh_frame").differences]


def fdes_of(conversion: Conversion) -> Iterator[naive.Fde]:
    """Yield the FDEs of a file, an object's with its relocations applied: sections are where the image has them."""
    image, order = conversion.image, conversion.target.arch.byte_order
    machine = conversion.target.arch.elf_machine
    for section in image.sections:
        if section.name != ".eh_frame":
            continue
        data = bytearray(image.section_bytes(section))
        for table in image.sections:
            if table.type != 4 or table.info != section.index:
                continue
            symbols = image.symbol_vaddrs(image.sections[table.link])
            for offset, info, addend in image.records(table, "QQq"):
                vaddr, key = symbols[info >> 32], (machine, info & 0xFFFFFFFF)
                if vaddr is None:
                    continue
                if key in RELATIVE:
                    struct.pack_into(order + RELATIVE[key], data, offset, vaddr + addend - section.vaddr - offset)
                else:
                    struct.pack_into(order + ABSOLUTE[key], data, offset, vaddr + addend)
        yield from fdes_of_section(bytes(data), section.vaddr, conversion.target.arch)


@pytest.mark.parametrize("share", range(SHARES))
@pytest.mark.parametrize("arch", get_args(CorpusArch))
def test_rows_from_instructions_of_a_sample(arch: CorpusArch, share: int) -> None:
    problems, hidden, derived = list[str](), 0, 0
    for case, chance in cases(arch, share, ONE_OF if ONE_OF == 1 else ONE_OF * 4):
        # LLVM's CFI of AArch64 is right at calls only, if nothing asks for more: Debian's Rust does not.
        if arch == "arm64" and b"RUST_BACKTRACE" in case.data:
            continue
        image = load(case.data, case.name)
        seed = None if image.is_relocatable else chance.choice((None, 1, 2, 3))
        try:
            found = compare_derived(image, seed)
        except (InputError, RequestError):
            continue
        hidden, derived = hidden + found.hidden, derived + found.derived
        problems += [f"{case.name} {seed}: {problem}" for problem in found.wrong[:3]]
    assert not problems, "\n".join([f"CORPUS_SEED={os.environ['CORPUS_SEED']}", *problems])
    # Most of what is not derived ends in a jump to an import, and a small sample may have nothing else.
    assert derived >= hidden // 10 or hidden < 100_000
