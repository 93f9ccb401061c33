# SPDX-License-Identifier: Apache-2.0
"""What has to hold of whatever was read or made, for any input."""

from collections.abc import Iterator
from itertools import islice
from typing import Final

from cfi2sframe import Conversion, account, convert, verify
from cfi2sframe.api import decode, decode_existing, judge
from cfi2sframe.conversion.options import Level, Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import reader_warnings
from cfi2sframe.errors import Cfi2SFrameError, CostError, RequestError
from cfi2sframe.range_map import Span, touches, united
from cfi2sframe.report.coverage_report import headline, missing_sentences
from cfi2sframe.sframe.dump import dump_json, dump_text
from cfi2sframe.sframe.model import FrameRow, Function
from cfi2sframe.sframe.read import DecodedSection
from tests.fuzz.harness import FindingError, expect

VERSIONS: Final = (1, 2, 3)
#: As two bits of an input choose them, 2 twice: the first is what most of the kept ones stand for.
LEVELS: Final[tuple[Level, ...]] = (1, 2, 2, 0)
#: Looking up is checked at so many functions and addresses of each; decoding, at all of them.
_FUNCTION_COUNT: Final = 32
_PC_COUNT: Final = 8


def check_conversions(image: ElfImage, level: Level, versions: tuple[int, ...] = VERSIONS) -> None:
    """Convert an image: an error of the project's own, or a section that agrees with the CFI."""
    for version in versions:
        options = Options(version=version, level=level)
        try:
            conversion = convert(image, **options._asdict())
        except Cfi2SFrameError:
            continue
        check_conversion(conversion, options)


def check_conversion(conversion: Conversion, options: Options) -> None:
    """Account for a conversion, read it back, verify it, and ask what readers demand."""
    image = conversion.image
    coverage = account(conversion)
    headline(coverage)
    list(islice(missing_sentences(coverage), _FUNCTION_COUNT))
    if not conversion.data:
        return
    try:
        found = verify(conversion)
    except RequestError as error:
        # An object's sections are compared at addresses of their own, which may be too far apart for 32 bits.
        expect(image.is_relocatable and options.version < 3, f"converted, but not to be verified: {error}")
        return
    except CostError:
        # It ends the whole run; what is too costly, the harness decides.
        raise
    except Cfi2SFrameError as error:
        raise FindingError(f"converted, but not to be verified: {error}") from error
    # Of section headers that lie about stubs, the judge may believe other ones; the job then refuses the file.
    plt = united(
        Span(section.vaddr, section.end_vaddr) for section in image.sections if section.name.startswith(".plt")
    )
    elsewhere = [each for each in found.differences if not touches(plt, Span(each.vaddr, each.vaddr + 1))]
    expect(not elsewhere, f"version {options.version}: {elsewhere[:3]}")
    if not found.is_clean:
        return
    decoded = decode(conversion.data, conversion.section_vaddr)
    check_decoded(decoded)
    # What Linux would refuse or misread comes with a warning, and nothing that is made is unusual.
    expect(not found.notes, f"version {options.version}: {found.notes[:3]}")
    if not image.is_relocatable and options.version == VERSIONS[-1]:
        broken = {rule.message for verdict in judge(image, decoded, "kernel") for rule in verdict.broken}
        warnings = " ".join(reader_warnings(conversion))
        expect(all(message in warnings for message in broken), f"{broken}: {warnings}")


def check_existing(image: ElfImage) -> None:
    """Decode and look into the section that a file has, if it has one."""
    try:
        decoded = decode_existing(image)
    except Cfi2SFrameError:
        return
    check_decoded(decoded)
    try:
        verify(image, decoded)
    except Cfi2SFrameError:
        return


def check_decoded(decoded: DecodedSection) -> None:
    """Show a decoded section in every form, and look addresses up in it the quick way and the plain one."""
    for _ in dump_text(decoded):
        pass
    "".join(dump_json(decoded))
    version = decoded.version
    plain_starts = sorted(function.start_vaddr for function in decoded.functions)
    expect(decoded.ascending.starts == tuple(plain_starts), "the functions are not in order")
    for function in islice(decoded.functions, _FUNCTION_COUNT):
        for pc in _some_pcs(function):
            found = decoded.find(pc)
            if found is None:
                # Another function starts between, or this one has no bytes.
                continue
            holder = found.function
            expect(holder.start_vaddr <= pc < holder.start_vaddr + holder.size, f"0x{pc:x} is not in {holder}")
            if _ascends(holder):
                expect(found.row == _plain_row(holder, pc, version), f"0x{pc:x}: {found.row}")
    for pc in (0, 1, (1 << 63) - 1, (1 << 64) - 1):
        decoded.find(pc)


def _some_pcs(function: Function) -> Iterator[int]:
    start = function.start_vaddr
    yield from (start - 1, start, start + 1, start + function.size - 1, start + function.size)
    for row in function.rows[:_PC_COUNT]:
        yield start + row.start_delta
        yield start + row.start_delta - 1


def _ascends(function: Function) -> bool:
    deltas = [row.start_delta for row in function.rows]
    return deltas == sorted(deltas)


def _plain_row(function: Function, pc: int, version: int) -> FrameRow | None:
    """Return the last row that is not past an address, by looking at all."""
    distance = pc - function.start_vaddr
    best = None
    for row in function.rows:
        start = row.start_delta
        if function.body.is_pcmask and version == 1:
            # No block size: the mask is the row's own start (version 1, "PCMASK").
            matches = pc & start >= start
        elif function.body.is_pcmask:
            # Without a block size there is nothing to look up.
            matches = function.body.repeat_size > 0 and start <= distance % function.body.repeat_size
        else:
            matches = start <= distance
        if matches:
            best = row
    return best
