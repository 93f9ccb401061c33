# SPDX-License-Identifier: Apache-2.0
"""The block of bytes that a file gets (the section, then other sections that move there), and places for it."""

from collections.abc import Callable
from typing import Final, NamedTuple

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.contents import is_zero
from cfi2sframe.elf.headers import ProgramHeader
from cfi2sframe.errors import EmbedError
from cfi2sframe.placing.checks import LinkedFile, round_up
from cfi2sframe.placing.header_room import END_SIZE, MovableGroup, alignment_of, slack_end
from cfi2sframe.placing.kinds import finds_itself, may_be_interpreter
from cfi2sframe.range_map import ADDRESS_END, Span

SECTION_ALIGNMENT: Final = 8
#: Bytes of the largest page of the supported architectures (AArch64).
LARGEST_PAGE_SIZE: Final = 1 << 16
#: Bytes of the usual page. OpenJDK's reader of core dumps expects the mapping of a segment to have as many pages as the
#: segment's size, so a new segment begins on a page.
PAGE_SIZE: Final = 1 << 12
#: The most zeros (bytes) that are written to the file in place of .bss.
_LARGEST_PADDING: Final = 1 << 24
_RIGHTS: Final = c.PF_R | c.PF_W | c.PF_X


class AddedBlock(NamedTuple):
    """The added bytes `[file_offset, end)`: the section, then sections that move there.

    `load` is the PT_LOAD that grows, None for a new one. `is_inserted`: what follows in the file moves.
    """

    file_offset: int
    vaddr: int
    section_file_offset: int
    end: int
    placed: dict[int, int]
    load: ProgramHeader | None
    is_inserted: bool

    @property
    def bias(self) -> int:
        """The distance of addresses from file offsets."""
        return self.vaddr - self.file_offset

    @property
    def end_vaddr(self) -> int:
        """The first address after the block."""
        return self.end + self.bias

    @property
    def section_vaddr(self) -> int:
        """The section's address."""
        return self.section_file_offset + self.bias


def in_place_of(old: Span, file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block in the place of an old section, which is zeros now; None where that is too small."""
    for load in file.loads:
        vaddr = load.vaddr_of(old.start)
        if load.file_offset <= old.start <= load.file_span.end and vaddr % SECTION_ALIGNMENT == 0:
            block = _filled(old.start, vaddr, section_size, groups, load)
            return block if block.end <= old.end else None
    return None


def _in_slack(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block over unused zeros after the last read-only segment that has enough; None where none has.

    A segment with code is the last choice, and only if the linker put the unwind tables there (as it does without
    `-z separate-code`), where it would put its own `.sframe`.
    """
    tables = [section.vaddr for section in file.sections if section.name == ".eh_frame"]
    plain = [load for load in file.loads if load.flags & _RIGHTS == c.PF_R]
    code = [load for load in file.loads if load.flags & _RIGHTS == c.PF_R | c.PF_X]
    code = [load for load in code if any(load.vaddr <= vaddr < load.end_vaddr for vaddr in tables)]
    for load in (*reversed(plain), *code):
        start = load.file_span.end + END_SIZE
        block = _filled(start, load.vaddr_of(start), section_size, groups, load)
        if block.end <= slack_end(file, load):
            return block
    return None


def _in_hole(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block over zeros at the start of a read-only segment, as a removed section leaves them."""
    for load in file.loads if file.sections else ():
        start, inside = load.file_offset, file.indices_within(load.file_span)
        end = min([load.file_span.end, *(file.sections[index].file_offset for index in inside)])
        block = _filled(start, load.vaddr, section_size, groups, load)
        is_free = start > file.table_end and block.end <= end and is_zero(file.data, Span(start, block.end))
        if load.flags & _RIGHTS == c.PF_R and is_free:
            return block
    return None


def _into_last(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block that continues the last segment; None unless that is read-only and ends what is loaded."""
    last, end = file.loads[-1], file.loaded_end
    if last.flags & _RIGHTS != c.PF_R or last.file_size != last.memory_size or last.file_span.end != end:
        return None
    return inserted(_filled(end + END_SIZE, last.end_vaddr + END_SIZE, section_size, groups, last))


def _after_last(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock:
    """Return a block in a new segment on the next page of the file. Its address is chosen to be congruent to that."""
    start, page = round_up(file.loaded_end, PAGE_SIZE), max(LARGEST_PAGE_SIZE, alignment_of(file))
    vaddr = round_up(max(load.end_vaddr for load in file.loads), page) + start % page
    return inserted(_filled(start, vaddr, section_size, groups, None))


def _after_bss(file: LinkedFile, section_size: int, groups: list[MovableGroup]) -> AddedBlock | None:
    """Return a block in the last segment, on the page after its .bss, which becomes zeros of the file.

    Kernels before 6.7 map the .bss of an interpreter only after its last segment, which therefore has to stay the last.
    The rest of the page of .bss stays free for the first `malloc` of glibc's interpreter.
    """
    last = file.loads[-1]
    vaddr = round_up(last.end_vaddr, alignment_of(file))
    start = last.offset_of(vaddr)
    if last.file_span.end != file.loaded_end or last.flags & c.PF_X or start - file.loaded_end > most_padding(file):
        return None
    return inserted(_filled(start, vaddr, section_size, groups, last))


def most_padding(file: LinkedFile) -> int:
    """Return the most zeros (bytes) that a file may get in place of .bss."""
    return max(_LARGEST_PADDING, len(file.data) // 4)


def has_symbols(file: LinkedFile) -> bool:
    """Return whether the file may still be stripped, which damages a file with program headers at its end."""
    return any(section.type == c.SHT_SYMTAB for section in file.sections)


class Way(NamedTuple):
    """A place for the section in the files `allowed`, and how many program headers it needs there."""

    make_block: Callable[[LinkedFile, int, list[MovableGroup]], AddedBlock | None]
    added_headers: int
    allowed: Callable[[LinkedFile], bool] = lambda _file: True


#: The best one first.
WAYS: Final = (
    Way(_in_hole, 1),
    Way(_in_slack, 1),
    Way(_into_last, 1),
    Way(_after_last, 2, lambda file: not may_be_interpreter(file)),
)
#: The last resort: it is better to move a note of tools.
LAST_WAYS: Final = (
    Way(_after_bss, 1, lambda file: may_be_interpreter(file) or has_symbols(file) or finds_itself(file)),
)


def inserted(block: AddedBlock) -> AddedBlock:
    """Return the block as one that moves what follows it in the file. Raises `EmbedError` past the last address."""
    if block.end_vaddr > ADDRESS_END:
        raise EmbedError("no addresses are left after the last segment")
    return block._replace(is_inserted=True)


def _filled(
    start: int, vaddr: int, section_size: int, groups: list[MovableGroup], load: ProgramHeader | None
) -> AddedBlock:
    """Return a block with its layout: the section, then the groups.

    For llvm-objcopy, the first in the table of several segments at one file offset is the parent of the others, and has
    to be the PT_LOAD. PT_INTERP precedes it in the table, so `.interp` must not be first in the block.
    """
    bias, placed = vaddr - start, dict[int, int]()
    section = round_up(vaddr, SECTION_ALIGNMENT) - bias
    position = section + section_size
    for group in sorted(groups, key=lambda group: group.file_offset):
        group_places, position = group.placed_from(position, bias)
        placed.update(group_places)
    return AddedBlock(start, vaddr, section, position, placed, load, is_inserted=False)
