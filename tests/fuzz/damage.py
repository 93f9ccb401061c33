# SPDX-License-Identifier: Apache-2.0
"""Files and what may happen to them: cut, bytes changed, fields of headers, of CFI and of `.sframe` rewritten."""

from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.abi import AMD64, S390X
from cfi2sframe.elf.image import ElfImage
from tests.fuzz import seeds

TESTDATA: Final = Path(__file__).resolve().parents[2] / "testdata"
ZONES: Final = ("header", "segments", "sections", "cfi", "sframe", "anywhere")
#: Values that fields are given: limits of each width, and small numbers.
VALUES: Final = (0, 1, 2, 7, 8, 0x10, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


class Seed(NamedTuple):
    """A file without fault, and where in it the zones are: (offset, size), none of them empty."""

    name: str
    data: bytes
    zones: dict[str, tuple[int, int]]

    def __repr__(self) -> str:
        # In hypothesis's reports a name is clearer than the bytes.
        return f"Seed({self.name!r})"


class Change(NamedTuple):
    """A field that is given a value: `place` counts from the start of the zone, modulo its size."""

    zone: str
    place: int
    width: int
    value: int


class Damage(NamedTuple):
    """What happens to a file: changes, and then it is cut; `cut` counts bytes, None leaves it whole."""

    changes: tuple[Change, ...]
    cut: int | None

    def apply(self, seed: Seed) -> bytes:
        """Return the damaged file."""
        out = bytearray(seed.data)
        order = "little" if seed.data[5] == 1 else "big"
        for change in self.changes:
            offset, size = seed.zones.get(change.zone, seed.zones["anywhere"])
            place = offset + change.place % size
            field = (change.value % (1 << 8 * change.width)).to_bytes(change.width, order)  # type: ignore[arg-type]
            out[place : place + change.width] = field[: len(out) - place]
        return bytes(out if self.cut is None else out[: self.cut % (len(out) + 1)])


@cache
def whole_files() -> tuple[Seed, ...]:
    """Return objects and linked files of each ABI with `.eh_frame`, handmade and of linkers; some have `.sframe`."""
    files = {f"assembled {arch.name}": seeds.linked_file(arch) for arch in (AMD64, S390X)}
    for pattern in ("golden/*.o", "converted/*-*"):
        files |= {path.name: path.read_bytes() for path in sorted(TESTDATA.glob(pattern))}
    return tuple(Seed(name, data, zones_of(load(data))) for name, data in files.items())


def zones_of(image: ElfImage) -> dict[str, tuple[int, int]]:
    """Return the zones that a file has."""
    header = image.header
    found = {"anywhere": (0, len(image.data)), "header": (0, 64)}
    found["segments"] = (header.program_headers_offset, 56 * len(image.segments))
    found["sections"] = (header.section_headers_offset, 64 * len(image.sections))
    for section in image.sections:
        if section.name in (".eh_frame", ".debug_frame"):
            found["cfi"] = (section.file_offset, section.size)
    section_header = image.sframe_section
    if section_header is not None:
        found["sframe"] = (section_header.file_offset, section_header.size)
    return {name: zone for name, zone in found.items() if zone[1]}


def damages() -> st.SearchStrategy[Damage]:
    """Return a strategy of damage: a few changes, most often without a cut."""
    change = st.builds(
        Change,
        st.sampled_from(ZONES),
        st.integers(0, 1 << 17),
        st.sampled_from((1, 1, 2, 4, 8)),
        st.sampled_from(VALUES) | st.integers(0, 255) | st.integers(0, (1 << 64) - 1),
    )
    cut = st.one_of(st.none(), st.none(), st.none(), st.integers(0, 1 << 17))
    return st.builds(Damage, st.lists(change, max_size=4).map(tuple), cut)
