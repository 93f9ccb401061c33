# SPDX-License-Identifier: Apache-2.0
"""The library: convert a file in memory, decode a section, verify one.

Addresses are virtual addresses of the file; sizes count bytes. Everything raised on purpose is a `Cfi2SFrameError`.
"""

from cfi2sframe.constants.sframe import ERRATA, SFRAME_VERSION_2, SFRAME_VERSION_3
from cfi2sframe.conversion.convert import Conversion, convert_image, default_section_vaddr, place_again, read_cfi
from cfi2sframe.conversion.lower import Target, check_target
from cfi2sframe.conversion.options import Level, Options, check_options
from cfi2sframe.conversion.sources import Cfi, find_cfi, read_programs
from cfi2sframe.dwarf.fdes import FdeIndex
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.headers import Buffer
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import File, load
from cfi2sframe.errors import ChangedError, InputError, ReaderError, RequestError, check_type, with_file_name
from cfi2sframe.existing import existing_section
from cfi2sframe.range_map import touches, united
from cfi2sframe.sframe.model import Section
from cfi2sframe.sframe.read import DecodedSection, read_header, read_section
from cfi2sframe.verification.readers import Broken, Verdict
from cfi2sframe.verification.section_column import function_ends
from cfi2sframe.verification.verify import Asked, Verification, verify_section


def convert(
    file: File,
    version: int = SFRAME_VERSION_3,
    *,
    errata: int | None = None,
    source: CfiKind | None = None,
    section_vaddr: int | None = None,
    level: Level | None = None,
) -> Conversion:
    """Convert the CFI of a file, given as for `load`, and write nothing.

    `Conversion.data` is the section. `errata`, `source`, `section_vaddr` and `level` are the options `--errata`,
    `--from`, `--section-address` and `-O`. `account` counts the fates of functions, and `convert_file` writes a
    file. Raises `InputError` when the CFI cannot be used, `RequestError` when an option does not exist or does not fit
    the file, and what `load` raises.
    """
    options = Options(version, errata, source, section_vaddr, level)
    check_options(options)
    image = load(file)
    with with_file_name(image.name):
        return convert_image(image, options)


def convert_for(image: ElfImage, options: Options, reader: str | None) -> Conversion:
    """Convert for a reader of `READERS`, and leave out functions for which it would refuse the section.

    `options` has the reader's version. Raises `ReaderError` when the reader would refuse any section of this file, and
    what `convert` raises.
    """
    with with_file_name(image.name):
        if reader is not None:
            from cfi2sframe.verification.readers import refusal_of_file

            refusal = refusal_of_file(reader, image)
            if refusal is not None:
                raise ReaderError(f"{reader} {refusal.consequence}: {refusal.message}")
        conversion = convert_image(image, options)
        if reader is None or not conversion.data or _broken(reader, conversion) == ():
            return conversion
        # At -O0 each function has an FDE of its own; a range of -O2 may join several.
        alone = convert_image(image, options._replace(level=0), cfi=conversion.cfi)
        return convert_image(image, options, _refused_by(reader, alone), conversion.cfi)


def _broken(reader: str, conversion: Conversion) -> tuple[Broken, ...]:
    """Return the rules for which the newest edition of a reader refuses a section; none if any edition reads it."""
    verdicts = judge(conversion.image, decode_conversion(conversion), reader)
    return () if any(verdict.reads_it for verdict in verdicts) else verdicts[-1].broken


def _refused_by(reader: str, conversion: Conversion) -> dict[FdeIndex, str]:
    """Return the indices of the FDEs that a reader refuses, each with the reason.

    Raises `ReaderError` when the reader refuses the section as a whole, or its stubs, which have no FDE.
    """
    refused: dict[FdeIndex, str] = {}
    for broken in _broken(reader, conversion):
        if not broken.vaddrs:
            raise ReaderError(f"{reader} {broken.consequence}: {broken.message}")
        for vaddr in broken.vaddrs:
            piece = conversion.piece_at(vaddr)
            if piece is None or piece.origin is None:
                raise ReaderError(f"{reader} {broken.consequence}: stubs at 0x{vaddr:x}: {broken.message}")
            refused.setdefault(piece.origin, f"{reader}: {broken.rule}")
    return refused


def decode(data: Buffer, section_vaddr: int = 0, *, is_object: bool = False) -> DecodedSection:
    """Decode the raw bytes of a section at `section_vaddr`. Raises `SFrameError` when they are damaged.

    `is_object`: the section is an object's, with its relocations applied. Raises `RequestError` for anything but bytes.
    """
    check_type(data, Buffer, "the bytes of a section", "decode_existing takes the file that has it")
    return read_section(data, section_vaddr, is_object=is_object)


def decode_existing(image: File) -> DecodedSection:
    """Decode the SFrame section of a file, given as for `load`; in an object, with its relocations applied.

    An object's functions start at addresses of the image's layout (see `ElfImage.place`). Raises `InputError` when
    the file has no section or a damaged one, and what `load` raises.
    """
    image = load(image)
    with with_file_name(image.name):
        return existing_section(image).or_raise()


def decode_conversion(conversion: Conversion) -> DecodedSection:
    """Decode the section of a conversion, so that it can be verified or judged. Raises `InputError` without one."""
    if not conversion.data:
        version = conversion.target.version
        reason = f"SFrame version {version} can describe none of the functions; there is no section"
        raise InputError(reason, file=conversion.image.name)
    if conversion.image.is_relocatable:
        # In the raw section all text sections start at 0; a comparison needs an address of its own for each function.
        conversion = place_again(conversion, 0)
    return read_section(conversion.data, conversion.section_vaddr)


def verify(
    subject: File | Conversion,
    section: Section | None = None,
    *,
    source: CfiKind | None = None,
    reader: str | None = None,
) -> Verification:
    """Compare an SFrame section with the CFI of a file, at every address where rows of either start or end.

    For a file, given as for `load`, that is its own section or `section`, and `source` selects the CFI. Functions
    of the section in code without CFI are compared with what the instructions say; the section need not have any,
    unless `source` is "code". If the file has lost all of its CFI, and the instructions say something else than the
    section, the result is not `is_compared`. For a conversion, the section is decoded from its bytes. What `reader`,
    a name of `--for`, would refuse may be absent. Raises `InputError` when there is no section, and what `convert`
    raises.
    """
    _check_reader(reader)
    if section is not None:
        check_type(section, Section, "a section", "decode and decode_existing return one")
    if isinstance(subject, Conversion):
        if section is None:
            return verify_made(subject, decode_conversion(subject), reader)
        with with_file_name(subject.image.name):
            asked = asked_of(subject, reader)._replace(over_padding=False)
            return verify_section(subject.image, subject.cfi.entries, section, asked)
    check_options(Options(source=source))
    image = load(subject)
    with with_file_name(image.name):
        return _verify(image, decode_existing(image) if section is None else section, source, Asked(reader=reader))


def verify_made(conversion: Conversion, section: Section, reader: str | None = None) -> Verification:
    """Compare the section of a conversion, decoded, with the CFI that was read; `reader` as for `verify`."""
    with with_file_name(conversion.image.name):
        return verify_section(conversion.image, conversion.cfi.entries, section, asked_of(conversion, reader))


def asked_of(conversion: Conversion, reader: str | None = None, version: int | None = None) -> Asked:
    """Return the request that the section of a conversion has to meet; `version` is the one that the user has named."""
    target = conversion.target
    return Asked(version or target.version, target.errata, reader, in_parts=True, over_padding=True)


def _verify(image: ElfImage, section: Section, source: CfiKind | None, asked: Asked) -> Verification:
    check_target(Target(image.arch, section.version))
    if source is not None:
        return verify_section(image, read_cfi(image, source).entries, section, asked)
    cfi = read_programs(image, *find_cfi(image, "code"))
    verification = verify_section(image, cfi.entries, section, asked)
    # Where Go's table has a function without rules, rows are wrong by it.
    of_code = ("extra", "wrong") if cfi.entries.without_rules else ("extra",)
    if any(difference.kind in of_code for difference in verification.differences):
        verification = _compare_with_code(image, cfi, section, asked) or verification
    if not (cfi.entries or cfi.damaged or verification.is_clean):
        # The section was made from CFI that has been stripped since, and that had more than instructions tell.
        broken = tuple(difference for difference in verification.differences if difference.kind == "invariant")
        return Verification(0, 0, 0, broken, is_compared=False)
    return verification


def _compare_with_code(image: ElfImage, cfi: Cfi, section: Section, asked: Asked) -> Verification | None:
    """Compare with rows from instructions, too; None where there are none."""
    from cfi2sframe.conversion.uncovered import with_derived

    # Where the version cannot express a function's first row, the section has only what follows.
    held = united(zip(section.ascending.starts, function_ends(section), strict=True))
    try:
        cfi = with_derived(image, cfi, lambda function: touches(held, function))
    except ChangedError:
        raise
    except InputError:
        # A comparison that the user has not asked for must not fail.
        return None
    return verify_section(image, cfi.entries, section, asked) if "code" in cfi.entries.sources else None


def decode_raw(image: ElfImage, data: bytes, section_vaddr: int | None, options: Options = Options()) -> DecodedSection:
    """Decode the raw bytes of a section that was made for an image with these options.

    `section_vaddr` None is the address that `convert` assumes. In the raw section of an object all text sections start
    at 0, so each of its functions gets the address of the function with the same offset and size, with the padding
    after it or without, that `convert` makes; several such functions follow the order of the FDEs. Raises `SFrameError`
    when the bytes are damaged, and for objects what `convert` raises.
    """
    if section_vaddr is None:
        section_vaddr = default_section_vaddr(image)
    decoded = read_section(data, section_vaddr)
    if not image.is_relocatable:
        return decoded
    options = options._replace(version=read_header(data).version)
    places: dict[tuple[int, int], list[int]] = {}
    cfi: Cfi | None = None
    # Nothing in the bytes tells the errata level, and where a function is cut depends on it.
    for errata in sorted(ERRATA, reverse=True) if options.version == SFRAME_VERSION_2 else (None,):
        conversion = convert_image(image, options._replace(errata=errata), cfi=cfi)
        cfi = conversion.cfi
        for place, vaddrs in _places(conversion).items():
            places.setdefault(place, vaddrs)
    starts = []
    for start, size in zip(decoded.starts, decoded.sizes, strict=True):
        candidates = places.get((start, size))
        starts.append(candidates.pop(0) if candidates else start)
    return decoded._replace(starts=tuple(starts))


def _places(conversion: Conversion) -> dict[tuple[int, int], list[int]]:
    """Return the addresses of an object's functions by offset and size, with and without the padding after them."""
    padding_starts = {end: start for start, end in conversion.padding}
    places: dict[tuple[int, int], list[int]] = {}
    for function in conversion.section:
        start, end = function.start_vaddr, function.end_vaddr
        for possible_end in {end, padding_starts.get(end, end)}:
            places.setdefault((conversion.image.place(start).offset, possible_end - start), []).append(start)
    return places


def judge(image: File, section: DecodedSection, reader: str, *, is_in_file: bool = False) -> tuple[Verdict, ...]:
    """Return the verdicts of a reader's editions, the oldest first, on a section for a file, given as for `load`.

    `reader` is a name of `--for`; for any other, raises `RequestError`. `is_in_file`: the file has this section, so the
    headers that lead to it are judged, too.
    """
    from cfi2sframe.verification.readers import verdicts_of

    _check_reader(reader)
    check_type(section, DecodedSection, "a section that was read", "decode and decode_existing return one")
    image = load(image)
    with with_file_name(image.name):
        return verdicts_of(reader, section, image, is_in_file=is_in_file)


def _check_reader(reader: str | None) -> None:
    """Raise `RequestError` unless a reader is None or a name of `--for`."""
    from cfi2sframe.verification import READERS

    if reader is not None and reader not in READERS:
        raise RequestError(f"reader {reader!r} is none of {', '.join(READERS)}")
