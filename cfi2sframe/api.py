# SPDX-License-Identifier: Apache-2.0
"""The library: convert a loaded file, read a section, verify one. `elf.load` loads files.

Addresses are virtual addresses of the file; sizes count bytes. Everything raised on purpose is a `Cfi2SFrameError`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.code_map import map_code
from cfi2sframe.conversion import (
    Conversion,
    Options,
    check_options,
    convert_image,
    default_section_vaddr,
    place_again,
    read_cfi,
)
from cfi2sframe.dwarf.programs import read_programs
from cfi2sframe.elf.cfi import relocated_bytes
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import load
from cfi2sframe.errors import ChangedError, InputError, ReaderError, RequestError, UnfitError, naming
from cfi2sframe.functions import outcomes_of
from cfi2sframe.lower import Target, check_target, lower_programs
from cfi2sframe.sframe.constants import ERRATA, SFRAME_VERSION_2, SFRAME_VERSION_3
from cfi2sframe.sframe.read import read_header, read_section
from cfi2sframe.sources import find_cfi
from cfi2sframe.verification import Truth, Verification, verify_section

if TYPE_CHECKING:
    from collections.abc import Container
    from os import PathLike

    from cfi2sframe.code_map import CodeMap
    from cfi2sframe.conversion import Level
    from cfi2sframe.dwarf.programs import Cfi, CfiEntries
    from cfi2sframe.elf.cfi import CfiKind
    from cfi2sframe.functions import Outcomes
    from cfi2sframe.sframe.model import Section
    from cfi2sframe.sframe.read import DecodedSection
    from cfi2sframe.verification.readers import Broken, Verdict


def convert(
    file: ElfImage | bytes | str | PathLike[str],
    version: int = SFRAME_VERSION_3,
    *,
    errata: int | None = None,
    source: CfiKind | None = None,
    section_vaddr: int | None = None,
    level: Level | None = None,
) -> Conversion:
    """Convert the CFI of a file in memory: of a path, of the file's bytes, or of what `load` has returned.

    `Conversion.data` is the section; the other parameters are the fields of `conversion.Options`. `account` counts the
    outcomes, `convert_file` writes a file with the section in it. Raises `InputError` when the CFI cannot be used,
    `RequestError` when something is asked for that does not exist or does not fit, and what `load` raises.
    """
    options = Options(version, errata, source, section_vaddr, level)
    check_options(options)
    image = _image(file)
    with naming(image.name):
        return convert_image(image, options)


def _image(file: ElfImage | bytes | str | PathLike[str]) -> ElfImage:
    return file if isinstance(file, ElfImage) else load(file)


def convert_for(image: ElfImage, options: Options, reader: str | None) -> Conversion:
    """Convert for a reader of `readers.READERS`, whose version `options` has: functions that it refuses are left out.

    Raises `ReaderError` when it would not read the section of such a file at all, and what `convert` raises.
    """
    with naming(image.name):
        conversion = convert_image(image, options)
        if reader is None or not conversion.data or _broken(reader, conversion) == ():
            return conversion
        # Each function by itself: a range of -O2 is of several.
        alone = convert_image(image, options._replace(level=0))
        return convert_image(image, options, _refused_by(reader, alone))


def _broken(reader: str, conversion: Conversion) -> tuple[Broken, ...]:
    """Return the rules by which the newest edition of a reader refuses a section; none if any edition reads it."""
    verdicts = judge(conversion.image, _decode_made(conversion), reader)
    return () if any(verdict.reads_it for verdict in verdicts) else verdicts[-1].broken


def _refused_by(reader: str, conversion: Conversion) -> dict[int, str]:
    """Return the FDEs, by their numbers, of the functions that a reader refuses, and why.

    Raises `ReaderError` when it refuses the section as a whole, or stubs, which have no FDE.
    """
    numbers = dict(zip(conversion.section.starts, conversion.function_entries, strict=True))
    refused: dict[int, str] = {}
    for broken in _broken(reader, conversion):
        if not broken.vaddrs:
            raise ReaderError(f"{reader} {broken.consequence}: {broken.message}")
        for vaddr in broken.vaddrs:
            number = numbers[vaddr]
            if number is None:
                raise ReaderError(f"{reader} {broken.consequence}: stubs at 0x{vaddr:x}: {broken.message}")
            refused.setdefault(number, f"{reader}: {broken.rule}")
    return refused


def decode(data: bytes, section_vaddr: int = 0, *, is_object: bool = False) -> DecodedSection:
    """Read the raw bytes of a section at `section_vaddr`. Raises `SFrameError` when they are damaged.

    `is_object`: they are those of an object, with relocations applied.
    """
    return read_section(data, section_vaddr, is_object=is_object)


def decode_existing(image: ElfImage | bytes | str | PathLike[str]) -> DecodedSection:
    """Decode the SFrame section of a file, which is loaded if it is a path; in an object, with its relocations applied.

    An object's function starts are addresses in the image's layout (see `ElfImage.place`). Raises `InputError` when
    there is no section or it is damaged, and what `load` raises.
    """
    image = _image(image)
    section, segment = image.sframe_section, image.sframe_segment
    with naming(image.name):
        if section is not None and section.size:
            return read_section(relocated_bytes(image, section), section.vaddr, is_object=image.is_relocatable)
        if segment is not None:
            data = image.bytes_at(segment.vaddr, segment.file_size)
            if data is not None:
                return read_section(data, segment.vaddr)
        raise UnfitError("no .sframe section")


def decode_made(image: ElfImage, options: Options = Options(), reader: str | None = None) -> DecodedSection:
    """Decode the section that `convert_for` makes, to be verified or judged. Raises as it does.

    In an object each function has its address in the image's layout.
    """
    with naming(image.name):
        return _decode_made(convert_for(image, options, reader))


def _decode_made(conversion: Conversion) -> DecodedSection:
    """Decode a conversion's section; it raises `InputError` where there is none."""
    if not conversion.data:
        version = conversion.target.version
        reason = f"SFrame version {version} can describe none of the functions; there is no section"
        raise InputError(reason, file=conversion.image.name)
    if conversion.image.is_relocatable:
        # A raw section has every text section at 0; to be compared, functions need distinct addresses.
        conversion = place_again(conversion, 0)
    return read_section(conversion.data, conversion.section_vaddr)


def verify(
    subject: ElfImage | Conversion | bytes | str | PathLike[str],
    section: Section | None = None,
    *,
    source: CfiKind | None = None,
) -> Verification:
    """Compare an SFrame section with the CFI of a file, at every address where rows of either start or end.

    Of a file (as `convert` takes it), the section is the one that it has, or a given one, and `source` is the CFI to
    compare it with, as in `convert`. Functions that it has for code which no CFI covers are compared with what the
    instructions say; only where `source` is "code", none of these may be missing. Where all CFI has been stripped and
    instructions say something else, the result is not `is_compared`. Of a conversion, the section is the one that was
    made, encoded and decoded again. Raises `InputError` when there is no section, and what `convert` raises.
    """
    if isinstance(subject, Conversion):
        with naming(subject.image.name):
            made = _decode_made(subject) if section is None else section
            return verify_section(subject.image, truth_of(subject), made)
    check_options(Options(source=source))
    image = _image(subject)
    with naming(image.name):
        return _verify(image, decode_existing(image) if section is None else section, source)


def _verify(image: ElfImage, section: Section, source: CfiKind | None) -> Verification:
    target = Target(image.arch, section.version, section.errata)
    check_target(target)
    if source is not None:
        return _compare(image, read_cfi(image, source), section, target)
    cfi = read_programs(image, *find_cfi(image, "code"))
    found = _compare(image, cfi, section, target)
    if any(difference.kind == "extra" for difference in found.differences):
        found = _compare_with_code(image, cfi, section, target) or found
    if not (cfi.entries or cfi.damaged or found.is_clean):
        # The section was made from CFI that has been stripped, which says more than instructions do.
        broken = tuple(difference for difference in found.differences if difference.kind == "invariant")
        return Verification(0, 0, 0, broken, is_compared=False)
    return found


def _compare_with_code(image: ElfImage, cfi: Cfi, section: Section, target: Target) -> Verification | None:
    """Compare also the functions that the section may have from instructions; None where no rows follow from these."""
    from cfi2sframe.uncovered import with_derived

    try:
        cfi = with_derived(image, cfi, lambda vaddr: section.holder_of(vaddr) is not None)
    except ChangedError:
        raise
    except InputError:
        # Nobody has asked for this.
        return None
    return _compare(image, cfi, section, target) if cfi.derived_numbers else None


def _compare(image: ElfImage, cfi: Cfi, section: Section, target: Target) -> Verification:
    outcomes = outcomes_of(cfi.entries, lower_programs(cfi.programs, target))
    code_map = map_code(image, cfi.entries, target.version)
    # The section may be that of a producer which describes no function in part.
    return verify_section(image, _truth(cfi.entries, outcomes, code_map, may_lack_parts=outcomes.in_parts), section)


def truth_of(conversion: Conversion) -> Truth:
    """Return what a section made by a conversion is verified against."""
    return _truth(conversion.cfi.entries, conversion.outcomes, conversion.code_map)


def _truth(entries: CfiEntries, outcomes: Outcomes, code_map: CodeMap, may_lack_parts: Container[int] = ()) -> Truth:
    holes = tuple(outcomes.holes(entries, code_map.pieces))
    return Truth(entries, outcomes.skipped, holes, may_lack_parts, code_map.stubs, code_map.padding)


def decode_raw(image: ElfImage, data: bytes, section_vaddr: int | None, options: Options = Options()) -> DecodedSection:
    """Decode a raw section that was made for an image with these options, to be verified against it.

    `section_vaddr` None is the address that `convert` assumes. The raw section of an object has every text section at
    0: each function gets the address, in the image's layout, of a function that `convert` makes of its offset and size,
    with padding or without; of several, in the order of the FDEs. Raises `SFrameError` when the bytes are damaged; for
    objects what `convert` raises.
    """
    if section_vaddr is None:
        section_vaddr = default_section_vaddr(image)
    decoded = read_section(data, section_vaddr)
    if not image.is_relocatable:
        return decoded
    options = options._replace(version=read_header(data).version)
    places: dict[tuple[int, int], list[int]] = {}
    # It may follow newer errata than it uses, and functions are cut where rows without data words may not be used.
    for errata in sorted(ERRATA, reverse=True) if options.version == SFRAME_VERSION_2 else (None,):
        for place, vaddrs in _places(convert_image(image, options._replace(errata=errata))).items():
            places.setdefault(place, vaddrs)
    starts = []
    for start, size in zip(decoded.starts, decoded.sizes, strict=True):
        candidates = places.get((start, size))
        starts.append(candidates.pop(0) if candidates else start)
    return decoded._replace(starts=tuple(starts))


def _places(conversion: Conversion) -> dict[tuple[int, int], list[int]]:
    """Return the addresses of an object's functions by (offset, size), with the padding after them and without."""
    padding_starts = {end: start for start, end in conversion.code_map.padding.ranges}
    places: dict[tuple[int, int], list[int]] = {}
    for function in conversion.section:
        start, end = function.start_vaddr, function.end_vaddr
        for possible_end in {end, padding_starts.get(end, end)}:
            places.setdefault((conversion.image.place(start).offset, possible_end - start), []).append(start)
    return places


def judge(image: ElfImage, section: DecodedSection, reader: str, *, is_in_file: bool = False) -> tuple[Verdict, ...]:
    """Return what a reader would do with a section for an image: a verdict for each of its editions, the oldest first.

    `reader` is a name of `readers.READERS`. `is_in_file`: the section is the one that the file
    has, so that the headers which lead to it count too. Raises `RequestError` for any other reader.
    """
    from cfi2sframe.readers import READERS
    from cfi2sframe.verification.readers import judge as judge_section

    if reader not in READERS:
        raise RequestError(f"reader {reader!r} is none of {', '.join(READERS)}")
    with naming(image.name):
        return judge_section(reader, section, image, is_in_file=is_in_file)
