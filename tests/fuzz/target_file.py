# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as an ELF file: it is read, converted, given a section, and has it taken out again."""

from collections.abc import Iterator
from itertools import islice

from cfi2sframe import Conversion, convert, load, verify
from cfi2sframe.abi import AMD64
from cfi2sframe.constants.elf import SHT_DYNSYM, SHT_NOBITS, SHT_SYMTAB
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import check, check_removal, emit, remove
from cfi2sframe.errors import Cfi2SFrameError, InputError, RequestError, VerificationError
from tests.fuzz import seeds as make
from tests.fuzz.checks import LEVELS, check_conversions, check_existing
from tests.fuzz.harness import FindingError, expect
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import FRAME_VADDR, SHF_ALLOC, TEXT_VADDR, cie_of
from tests.support.gotable.go_table import GoFunction, GoTable, go_file

_SOME = 64


def run(data: bytes) -> None:
    """Load a file, look at all its parts, convert it in every version, at a level that its size chooses; rewrite it."""
    try:
        image = load(data)
    except Cfi2SFrameError:
        return
    _look_around(image)
    check_existing(image)
    check_conversions(image, LEVELS[len(data) % len(LEVELS)])
    _rewrite(image)


def _look_around(image: ElfImage) -> None:
    for section in islice(image.sections, _SOME):
        try:
            image.section_bytes(section)
            if section.type in (SHT_SYMTAB, SHT_DYNSYM):
                vaddrs = [s.vaddr for s in islice(image.symbols(section), _SOME) if s.vaddr is not None]
                image.names_of(vaddrs)
        except Cfi2SFrameError:
            continue
        image.place(section.vaddr)
        image.code_range_of(section.vaddr)
        image.bytes_at(section.vaddr, 16)
    image.end_of_segments()


def _rewrite(image: ElfImage) -> None:
    """Put a section into a file, replace it by another version's, and take each out; what is refused is so by name."""
    had_one = any(section.is_sframe for section in image.sections)
    if had_one:
        _take_out(image)
    try:
        once = _put_in(convert(image))
    except Cfi2SFrameError:
        return
    if once is None:
        return
    rewritten, again = load(once), None
    try:
        again = _put_in(convert(rewritten, version=2))
    except RequestError:
        # Sections may be too far apart for 32 bits.
        pass
    except InputError as error:
        raise FindingError(f"a rewritten file cannot be converted again: {error}") from error
    for file in (rewritten, *([load(again)] if again is not None else [])):
        _take_out(file, had_one=had_one)


def _put_in(conversion: Conversion) -> bytes | None:
    """Return a checked copy of the file with the section; None where the file is refused."""
    if not conversion.data:
        return None
    try:
        emitted = emit(conversion)
        out = b"".join(emitted.chunks)
        check(emitted, load(out))
    except VerificationError as error:
        # What the judge does not believe of the conversion, it does not believe of the file.
        expect(not verify(conversion).is_clean, f"written wrongly: {error}")
        return None
    except Cfi2SFrameError:
        return None
    return out


def _take_out(full: ElfImage, *, had_one: bool = False) -> None:
    """What removal leaves passes its check, which notices a changed byte of code; code is where it was.

    A file that `had_one` before gets it back.
    """
    try:
        out = b"".join(remove(full).content)
        bare = load(out)
        check_removal(full, bare)
    except Cfi2SFrameError:
        return
    expect(had_one or not any(section.is_sframe for section in bare.sections), "the section is still there")
    for code in full.sections:
        if code.is_code and code.size and not code.is_sframe and not full.is_relocatable:
            expect(full.bytes_at(code.vaddr, code.size) == bare.bytes_at(code.vaddr, code.size), f"{code.name} differs")
    for code in bare.sections:
        place, end = code.file_offset + code.size // 2, code.file_offset + code.size
        if code.is_code and code.size and not code.is_sframe and code.type != SHT_NOBITS and end <= len(out):
            changed = out[:place] + bytes([out[place] ^ 1]) + out[place + 1 :]
            try:
                check_removal(full, load(changed))
            except Cfi2SFrameError:
                return
            raise FindingError(f"a changed byte of {code.name} is not noticed")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield files of every ABI, linked ones and objects, without and with a section, and without section headers."""
    for arch in make.ARCHES:
        name = arch.name.lower().replace(" ", "-")
        for kind, data in (("linked", make.linked_file(arch)), ("object", make.small_object(arch))):
            yield f"{name}-{kind}", data
            yield f"{name}-{kind}-with-section", b"".join(emit(convert(load(data))).chunks)
    yield "no-section-headers", make.linked_file(make.ARCHES[0], section_headers=False)
    yield "debug-frame", make.linked_file(make.ARCHES[0], debug_frame=True)
    yield "all-sources", _all_sources()


def _all_sources() -> bytes:
    """Return a file with all sources of CFI; they overlap, and contradict one another."""
    cies = [cie_of(AMD64), cie_of(AMD64, augmentation="")]
    body = (asm.advance(4), asm.def_cfa_offset(16))
    debug = (asm.Fde(cies[1], TEXT_VADDR, 32, body), asm.Fde(cies[1], TEXT_VADDR + 48, 32, body))
    eh_frame = (asm.Fde(cies[0], TEXT_VADDR + 8, 16, body), asm.Fde(cies[0], TEXT_VADDR + 64, 32, body))
    frame = asm.EhFrame((*eh_frame, asm.Terminator()), FRAME_VADDR).assemble()
    table = GoTable((GoFunction(0, ((4, 0), (60, 8))), GoFunction(64, ((4, 0), (28, 16)))), 128)
    return go_file(
        AMD64,
        table,
        asm.Section(".eh_frame", frame, 1, SHF_ALLOC, FRAME_VADDR, align=8),
        asm.Section(".debug_frame", asm.EhFrame(debug, debug_frame=True).assemble()),
    )
