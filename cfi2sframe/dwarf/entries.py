# SPDX-License-Identifier: Apache-2.0
"""Section bytes -> CIEs and FDEs (DWARF 5, 6.4.1; LSB, "The .eh_frame section").

Knows nothing of SFrame, and does not look into call frame instructions.
"""

import struct
from collections.abc import Iterator
from typing import Final, NamedTuple

from cfi2sframe.constants import dwarf as d
from cfi2sframe.dwarf.numbers import PointerBases, fixed_size, read_pointer, read_sleb, read_uleb, read_value
from cfi2sframe.elf.cfi import CfiSection
from cfi2sframe.errors import CfiError

#: The encoding of pc_begin in nearly every .eh_frame.
_PCREL_SDATA4: Final = d.DW_EH_PE_pcrel | d.DW_EH_PE_sdata4
#: Letters of an augmentation that rows depend on.
_FOR_ROWS: Final = frozenset("RSB")
#: Letters of an augmentation that a message shows.
_MAX_SHOWN_AUGMENTATION: Final = 32


class DwarfCie(NamedTuple):
    """A CIE's fields, without its offset.

    `code_alignment` and `data_alignment` are the factors of advances and of offsets, `ra_register` is the return
    address column. The encodings are DW_EH_PE values. `is_signal_frame` and `uses_b_key` are the augmentation's "S"
    and "B" (AArch64: the RA is signed with key B).
    """

    version: int
    augmentation: str
    code_alignment: int
    data_alignment: int
    ra_register: int
    fde_encoding: int
    lsda_encoding: int
    is_signal_frame: bool
    uses_b_key: bool
    instructions: bytes


class DwarfFde(NamedTuple):
    """A function's CFI. `offset` is the entry's in its section, `pc_offset` that of its pc_begin field.

    `pc_begin_vaddr` is the function's virtual address (for objects: in the image's layout), `pc_range` its size in
    bytes. `instructions_offset` is the offset of `instructions` in the section.
    """

    offset: int
    cie: DwarfCie
    pc_begin_vaddr: int
    pc_range: int
    instructions: bytes
    instructions_offset: int
    pc_offset: int


class _Entry(NamedTuple):
    """An entry: its field CIE_id or CIE_pointer, which is at `start`, and the bytes `[body, end)` after that field."""

    is_cie: bool
    identifier: int
    start: int
    body: int
    end: int


class EntryWalk:
    """A pass over a section's entries: `fdes` yields the sound FDEs; after that, `failures` has the errors of others.

    The errors' offsets are those of the FDEs in the section.
    """

    def __init__(self, section: CfiSection, bases: PointerBases) -> None:
        self.section = section
        self.data = section.data
        self.bases = bases
        self.is_eh_frame = section.kind == "eh_frame"
        self.cies: dict[int, DwarfCie | CfiError] = {}
        self.failures: list[CfiError] = []
        #: The CIEs whose FDEs have the common form (see `fdes`).
        self._common_cies: dict[int, DwarfCie] = {}

    def fdes(self) -> Iterator[DwarfFde]:
        """Yield each sound FDE. Raises `CfiError` where an entry's length leaves the section."""
        data = self.data
        size = len(data)
        order = self.bases.byte_order
        word = struct.Struct(order + "I").unpack_from
        common_fde = struct.Struct(order + "IIiIB").unpack_from
        section_vaddr, must_find = self.section.vaddr, self.section.must_find_offset
        relocated = self.section.relocations if self.section.is_of_object else None
        common_cies = self._common_cies
        self.failures = []
        offset = 0
        while offset + 4 <= size:
            # The common form, 17 bytes and the instructions: with pcrel sdata4 pointers, and a size of the augmentation
            # data below 128. Without this, libLLVM takes 1.35 times as long at -O0, and 1.1 times by default.
            if offset + 17 <= size:
                length, cie_field, pc, pc_range, augmentation_size = common_fde(data, offset)
                cie = common_cies.get(offset + 4 - cie_field)
                body, end = offset + 17 + augmentation_size, offset + 4 + length
                is_common = cie is not None and cie_field and augmentation_size < 0x80 and body <= end <= size
                if is_common and cie is not None and (relocated is None or offset + 8 in relocated):
                    pc_begin = (section_vaddr + offset + 8 + pc) & 0xFFFFFFFFFFFFFFFF
                    yield DwarfFde(offset, cie, pc_begin, pc_range, data[body:end], body, offset + 8)
                    offset = end
                    continue
            if word(data, offset)[0] == 0:
                offset += 4
                if must_find is not None and offset > must_find:
                    # No section header gives the size: what follows belongs to other sections of the segment.
                    offset = size
                    break
                continue
            entry = self._entry_at(offset)
            if entry.is_cie:
                if offset not in self.cies:
                    self._read_cie(offset, entry)
            else:
                try:
                    fde = self._fde(offset, entry)
                except CfiError as error:
                    self.failures.append(self._error(error.reason, offset))
                else:
                    yield fde
            offset = entry.end
        if data[offset:].strip(b"\0"):
            raise self._error("truncated entry", offset)

    def _entry_at(self, offset: int) -> _Entry:
        """Return the entry at an offset (DWARF 5, 7.4). Raises `CfiError` when it leaves the section."""
        order = self.bases.byte_order
        length = struct.unpack_from(order + "I", self.data, offset)[0]
        start, id_size = offset + 4, 4
        if length == 0xFFFFFFFF:
            if offset + 12 > len(self.data):
                raise self._error("truncated 64-bit length", offset)
            length = struct.unpack_from(order + "Q", self.data, start)[0]
            # .eh_frame keeps its CIE pointer at 4 bytes (LSB); .debug_frame widens it.
            start, id_size = offset + 12, 4 if self.is_eh_frame else 8
        if length < id_size or start + length > len(self.data):
            raise self._error(f"the entry's length of {length} bytes exceeds the section", offset)
        identifier = struct.unpack_from(order + ("I" if id_size == 4 else "Q"), self.data, start)[0]
        of_cies = 0 if self.is_eh_frame else (1 << (8 * id_size)) - 1
        return _Entry(identifier == of_cies, identifier, start, start + id_size, start + length)

    def _error(self, reason: str, offset: int) -> CfiError:
        return CfiError(reason, self.section.name, offset)

    def _find_cie(self, offset: int) -> DwarfCie:
        """Return the CIE at an offset; it is read ahead when it follows its FDE (legal in .debug_frame).

        Raises `CfiError` when it is damaged or there is none.
        """
        if offset not in self.cies:
            last = len(self.data) - 8
            if self.is_eh_frame and 0 <= offset + (1 << 32) <= last:
                raise CfiError("its CIE follows it, where .eh_frame has CIEs before their FDEs")
            if not 0 <= offset <= last:
                raise CfiError("the CIE pointer is outside the section")
            no_cie = CfiError("the CIE pointer does not point to a CIE")
            try:
                entry = self._entry_at(offset)
            except CfiError:
                raise no_cie from None
            if not entry.is_cie:
                raise no_cie
            self._read_cie(offset, entry)
        cie = self.cies[offset]
        if isinstance(cie, CfiError):
            raise CfiError(f"its CIE at 0x{offset:x} is damaged: {cie.reason}")
        return cie

    def _read_cie(self, offset: int, entry: _Entry) -> None:
        """Add the CIE at an offset to `cies`, or the error where it is damaged."""
        try:
            cie = _parse_cie(self.data[entry.body : entry.end], self.bases, self.section.vaddr + entry.body)
        except CfiError as error:
            self.cies[offset] = error
        else:
            self.cies[offset] = cie
            if self.is_eh_frame and cie.fde_encoding == _PCREL_SDATA4 and not self.section.unresolved:
                self._common_cies[offset] = cie

    def _fde(self, offset: int, entry: _Entry) -> DwarfFde:
        cie = self._find_cie(entry.start - entry.identifier if self.is_eh_frame else entry.identifier)
        body, data, order = entry.body, self.data[entry.body : entry.end], self.bases.byte_order
        if body in self.section.unresolved:
            raise CfiError("its function is in no section of this file")
        if self.section.is_of_object and body not in self.section.relocations:
            raise CfiError("there is no relocation for the function's start")
        pc_begin, position = read_pointer(data, 0, cie.fde_encoding, self.bases, self.section.vaddr + body)
        pc_range, position = read_value(data, position, cie.fde_encoding, order)
        if pc_range < 0:
            # A range has the form of pc_begin, which may be signed, but never a sign.
            pc_range &= (1 << 8 * (fixed_size(cie.fde_encoding) or 8)) - 1
        if pc_range and not (pc_begin | pc_range) & 0xFFFFFFFF and not self.is_eh_frame and body == entry.start + 4:
            # Free Pascal writes this: both fields are shifted by the upper half of the pointer before them.
            raise CfiError("its CIE pointer has 8 bytes, where a 32-bit length asks for 4")
        if cie.augmentation.startswith("z"):
            size, position = read_uleb(data, position)
            position += size
            if position > len(data):
                raise CfiError("the augmentation data extend past the end of the entry")
        return DwarfFde(offset, cie, pc_begin, pc_range, data[position:], body + position, body)


def _parse_cie(data: bytes, bases: PointerBases, data_vaddr: int) -> DwarfCie:
    """Parse a CIE: `data` is all of it from its version byte on, which is at the address `data_vaddr`."""
    if not data:
        raise CfiError("truncated CIE")
    version = data[0]
    if version not in (1, 3, 4):
        raise CfiError(f"CIE version {version} is unknown")
    terminator = data.find(b"\0", 1)
    if terminator < 0:
        raise CfiError("the augmentation string has no end")
    augmentation = data[1:terminator].decode("latin-1")
    position = terminator + 1
    if augmentation == "eh":
        # GCC 2 put a pointer to exception data here, which is not used.
        position += 8
    if version == 4:
        if data[position : position + 2] != b"\x08\0":
            raise CfiError("the CIE's addresses are not 8 bytes wide and without segments")
        position += 2
    code_alignment, position = read_uleb(data, position)
    data_alignment, position = read_sleb(data, position)
    if version == 1:
        if position >= len(data):
            raise CfiError("truncated CIE")
        ra_register = data[position]
        position += 1
    else:
        ra_register, position = read_uleb(data, position)
    end, fde_encoding, lsda_encoding = position, d.DW_EH_PE_absptr, d.DW_EH_PE_omit
    if augmentation.startswith("z"):
        size, position = read_uleb(data, position)
        end = position + size
        if end > len(data):
            raise CfiError("the augmentation data extend past the end of the CIE")
        encodings = _encodings(augmentation, data[:end], position, bases, data_vaddr)
        fde_encoding, lsda_encoding = encodings.get("R", fde_encoding), encodings.get("L", lsda_encoding)
    elif augmentation not in ("", "eh"):
        raise CfiError(f"unknown augmentation {_shown(augmentation)}")
    elif end > len(data):
        raise CfiError("truncated CIE")
    return DwarfCie(
        *(version, augmentation, code_alignment, data_alignment, ra_register, fde_encoding, lsda_encoding),
        is_signal_frame="S" in augmentation,
        uses_b_key="B" in augmentation,
        instructions=data[end:],
    )


def _encodings(augmentation: str, data: bytes, position: int, bases: PointerBases, data_vaddr: int) -> dict[str, int]:
    """Return the encodings in the augmentation data, from `position` to the end, by their letters."""
    encodings: dict[str, int] = {}
    for place, letter in enumerate(augmentation[1:], 1):
        if letter in "SBG":
            continue
        if letter not in "RLP" and not _FOR_ROWS.intersection(augmentation[place:]):
            # Readers go on: the data have their size, and rows depend on no letter that follows.
            break
        if letter not in "RLP" or position >= len(data):
            raise CfiError(f"unknown or truncated augmentation {_shown(augmentation)}")
        encoding = encodings[letter] = data[position]
        position += 1
        if letter == "P" and encoding != d.DW_EH_PE_omit:
            # The personality routine's address is not used.
            if encoding == d.DW_EH_PE_aligned:
                position += -(data_vaddr + position) % 8
                encoding = d.DW_EH_PE_absptr
            position = read_value(data, position, encoding, bases.byte_order)[1]
    return encodings


def _shown(augmentation: str) -> str:
    """Return an augmentation for a message, cut where it is long: each FDE of its CIE repeats the message."""
    shown = augmentation[:_MAX_SHOWN_AUGMENTATION]
    return f"{shown!r}" if shown == augmentation else f"{shown!r} and {len(augmentation) - len(shown):,} more letters"
