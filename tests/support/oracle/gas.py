# SPDX-License-Identifier: Apache-2.0
"""Objects of GNU as with SFrame sections of its own, beside the sections made of the same CFI."""

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from cfi2sframe import convert, load
from cfi2sframe.api import decode_existing, decode_raw
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import InputError
from cfi2sframe.range_map import Span, bytes_of, common
from cfi2sframe.sframe.model import OUTERMOST, FrameState, Function, Section
from cfi2sframe.sframe.read import DecodedSection
from tests.support.needs import need

# A fatal error of these assemblers, with a message of their own and no object.
FATAL = ("SFrame unsupported offset value", "Internal error in sframe_xlate_do_restore")


class Pair(NamedTuple):
    """An object of GNU as, its own SFrame section, and ours; None where there is no section."""

    image: ElfImage
    theirs: DecodedSection | None
    ours: Section | None
    #: The padding that our functions reach over and theirs do not.
    padding: tuple[Span, ...]


def assembled(source: str, folder: Path, assembler: str = "as", *options: str) -> Path:
    """Return an object of some source. Skips the test where the assembler is missing."""
    target = folder / "assembled.o"
    subprocess.run([need(assembler), *options, "-o", target, "-"], input=source, text=True, check=True)
    return target


def assemble(assembler: str, source: Path, target: Path, *options: str) -> Path | None:
    """Assemble a source with SFrame; None where the assembler gives up because of it."""
    run = subprocess.run(
        [assembler, "--gsframe", *options, source, "-o", target], capture_output=True, text=True, check=False
    )
    if run.returncode:
        assert any(message in run.stderr for message in FATAL), run.stderr
        return None
    return target


def pair_of(path: Path, options: Options) -> Pair:
    """Convert an object, and decode both sections."""
    image = load(path)
    theirs = decode_existing(image) if any(s.name == ".sframe" for s in image.sections) else None
    data, padding = b"", tuple[Span, ...]()
    with suppress(InputError):
        conversion = convert(image, **options._asdict())
        data, padding = conversion.data, conversion.padding
    ours = decode_raw(image, data, 0, options) if data else None
    return Pair(image, theirs, ours, padding)


def functions_of(section: Section | None) -> list[Function]:
    """Return the functions that cover anything."""
    return [function for function in section.functions if function.size] if section else []


def _state_at(lookup: Section, pc: int) -> FrameState | None:
    found = lookup.find(pc)
    if found is None:
        return None
    if not len(found.function):
        # Version 3: a function without rows is an outermost frame from end to end.
        return OUTERMOST
    return found.row.state if found.row else None


def problems_of(pair: Pair) -> list[str]:
    """Return where the assembler's section and ours differ in meaning, and where ours has more rows."""
    problems = []
    ours = pair.ours or None
    for function in functions_of(pair.theirs):
        assert pair.theirs is not None
        theirs = pair.theirs
        where = pair.image.place(function.start_vaddr)
        # Where the CFA has no rule at first, the assembler's rows begin late.
        late = function.rows[0].start_delta if len(function) else 0
        if ours is None or ours.find(function.start_vaddr + late) is None:
            problems.append(f"{where}: gas has it, we have not")
            continue
        points = (_changes(theirs) | _changes(ours)) & {*range(function.start_vaddr, function.end_vaddr)}
        for pc in sorted(points):
            said, meant = _state_at(theirs, pc), _state_at(ours, pc)
            if said != meant:
                problems.append(f"{where} at {pc - function.start_vaddr}: gas {said}, we {meant}")
        peers = [f for f in ours.functions if 0 <= f.start_vaddr - function.start_vaddr < function.size]
        padding = common(pair.padding, [(f.start_vaddr, f.end_vaddr) for f in peers])
        if sum(f.size for f in peers) - sum(end - start for start, end in padding) != function.size - late:
            problems.append(f"{where}: not as many bytes")
        if sum(len(f) for f in peers) > max(1, len(function)):
            problems.append(f"{where}: we have more rows")
        marks = (
            function.body.is_signal_frame,
            function.body.uses_b_key and any(row.state.mangled_ra for row in function.rows),
        )
        if any((peer.body.is_signal_frame, peer.body.uses_b_key) != marks for peer in peers):
            problems.append(f"{where}: gas has signal frame and B key {marks}, we have {peers}")
    return problems


def differences_in_meaning(theirs: Section, ours: Section, image: ElfImage) -> list[str]:
    """Describe each address at which an assembler's sections, as linked, and ours of the image say different things.

    An assembler says nothing of padding, nor of functions that can be described in part only.
    """
    fdes = convert(image, ours.version).in_parts
    in_parts = [(fde.start_vaddr, fde.start_vaddr + fde.size) for fde in fdes]
    padding = bytes_of(convert(image).padding)
    problems = []
    for pc in sorted(_changes(theirs) | _changes(ours)):
        said, meant = _state_at(theirs, pc), _state_at(ours, pc)
        is_known = any(start <= pc < end for start, end in in_parts) or pc in padding
        if said != meant and not (said is None and is_known):
            problems.append(f"0x{pc:x}: {said} with the assembler's sections, {meant} with ours")
    return problems


def _changes(section: Section) -> set[int]:
    """Every address at which the row in force changes; blocks of stubs are looked at one by one."""
    points = set()
    for function in section.functions:
        start, end = function.start_vaddr, function.start_vaddr + function.size
        points |= {start, end}
        for block in range(start, end, function.body.repeat_size or function.size or 1):
            points |= {block + row.start_delta for row in function.rows}
    return points
