# SPDX-License-Identifier: Apache-2.0
"""Check a file's SFrame section: against the file's CFI, or by what readers insist on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.conversion import Options
from cfi2sframe.elf.strings import shown_name
from cfi2sframe.errors import InputError, SFrameError, UnfitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.read import DecodedSection
    from cfi2sframe.verification.readers import Verdict


class CheckRequest(NamedTuple):
    """What to check: the section that a file has, the bytes of another one, or the one that `convert` would make.

    `section_name` is the name of the file with the bytes. `readers` are those whose demands the section is held to;
    without any, it is compared with the CFI. `reader` is the one that it was made for (`convert --for`).
    """

    options: Options = Options()
    section: bytes | None = None
    section_name: str = ""
    is_conversion: bool = False
    readers: tuple[str, ...] = ()
    reader: str | None = None


#: Said of a file like a module after `strip -g`.
_NOT_COMPARED: Final = (
    "not compared: the file has no call frame information for its section; verify it before it is stripped"
)


class SectionFault(NamedTuple):
    """What is wrong with a section at a place in the code: an address, or `SECTION+OFFSET` in an object."""

    place: str
    kind: str
    message: str


class Checked(NamedTuple):
    """What a check found. Without readers: how much was compared, and where the section differs from the CFI.

    With readers, `sentences` say what each of them would do, and `is_read` whether each reads the section in some
    release.
    """

    name: str
    function_count: int = 0
    row_count: int = 0
    left_out_count: int = 0
    findings: tuple[SectionFault, ...] = ()
    sentences: tuple[str, ...] = ()
    is_read: bool = True
    is_compared: bool = True

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong with the section, as far as it was compared."""
        return self.is_read and not self.findings


def check(image: ElfImage, request: CheckRequest) -> Checked:
    """Check the section of a file.

    Raises `UnfitError` when the file has none, and otherwise what `decode_existing`, `convert` and `verify` raise.
    """
    from cfi2sframe import api

    if not (request.section or request.is_conversion or image.sframe_section or image.sframe_segment):
        raise UnfitError("no .sframe section; --would-be checks the one that convert would write")
    if request.readers:
        section = _section(image, request)
        sentences: list[str] = []
        is_read = True
        for reader in request.readers:
            verdicts = api.judge(image, section, reader, is_in_file=not (request.section or request.is_conversion))
            sentences += [sentence for verdict in verdicts for sentence in _sentences(verdict, image)]
            is_read &= any(verdict.reads_it for verdict in verdicts)
        return Checked(image.name, sentences=tuple(sentences), is_read=is_read)
    if request.is_conversion:
        result = api.verify(api.convert_for(image, request.options, request.reader))
    elif request.reader is not None:
        result = api.verify(api.convert_for(image, request.options, request.reader), _section(image, request))
    else:
        result = api.verify(image, _section(image, request), source=request.options.source)
    return Checked(
        image.name,
        result.function_count,
        result.point_count,
        result.left_out_count,
        tuple(SectionFault(_place(image, found.vaddr), found.kind, found.message) for found in result.differences),
        () if result.is_compared else (_NOT_COMPARED,),
        is_compared=result.is_compared,
    )


def _section(image: ElfImage, request: CheckRequest) -> DecodedSection:
    from cfi2sframe import api

    if request.is_conversion:
        return api.decode_made(image, request.options, request.reader)
    if request.section is not None:
        try:
            return api.decode_raw(image, request.section, request.options.section_vaddr, request.options)
        except SFrameError as error:
            raise InputError(f"{request.section_name}: {error.detail}") from None
    return api.decode_existing(image)


def _place(image: ElfImage, vaddr: int) -> str:
    place = image.place(vaddr)
    return f"{shown_name(place.section_name)}+0x{place.offset:x}" if image.is_relocatable else f"0x{place.offset:x}"


def _sentences(verdict: Verdict, image: ElfImage) -> Iterator[str]:
    """Yield what a reader would do with a section, a sentence for each rule that the section breaks."""
    prefix = f"{verdict.reader} ({verdict.releases})"
    for broken in verdict.broken:
        where = "" if broken.vaddr is None else f"{_place(image, broken.vaddr)}: "
        count = len(broken.vaddrs)
        more = f" ({count:,} such places)" if count > 1 else ""
        yield f"{prefix}: {broken.consequence}: {broken.rule}: {where}{broken.message}{more}"
    if verdict.reads_it:
        yield f"{prefix}: reads it"
    for habit in verdict.habits:
        yield f"{prefix}: {habit.amount:,} {habit.message}"
