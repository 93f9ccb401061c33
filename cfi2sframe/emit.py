# SPDX-License-Identifier: Apache-2.0
"""A conversion put where it belongs, into a copy of the file that it was made of; and taken out of it again."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.conversion import place_again
from cfi2sframe.elf.constants import SHT_GNU_SFRAME, SHT_SYMTAB
from cfi2sframe.errors import EmbedError, VerificationError
from cfi2sframe.sframe.constants import FDE_SIZE, HEADER_SIZE, SFRAME_VERSION_3
from cfi2sframe.sframe.encode import encode_section

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.elf.contents import Joined
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.rewrite.linked import EmbeddingPlan
    from cfi2sframe.rewrite.objects import ObjectRelocation

#: The distance from a section's start that 32-bit fields of CFI can say.
_MAX_SECTION_OFFSET: Final = 0xFFFFFFFF


class Emitted(NamedTuple):
    """A rewritten file: `chunks` are its bytes, to be written one behind the other.

    What a large file keeps is read from it while that is done, which may raise `InputError`. `conversion` is the one
    whose section is in there, `placement` says in words how it was placed, `plan` (of a linked file) in numbers.
    """

    chunks: Joined
    conversion: Conversion
    placement: str
    warnings: tuple[str, ...] = ()
    plan: EmbeddingPlan | None = None


def emit(
    conversion: Conversion,
    *,
    replace: bool = False,
    section_type: int = SHT_GNU_SFRAME,
    may_move_table: bool = False,
) -> Emitted:
    """Put the section into a copy of the file. `replace`: a section that is there already gives way.

    `may_move_table`: the program headers of a linked file may go to its end where nothing else is possible.

    Raises `EmbedError` when the file is better left alone, `RequestError` when a start does not fit its field.
    """
    if conversion.image.is_relocatable:
        return _emit_object(conversion, replace=replace, section_type=section_type)
    return _emit_linked(conversion, replace=replace, section_type=section_type, may_move_table=may_move_table)


def _emit_object(conversion: Conversion, *, replace: bool, section_type: int) -> Emitted:
    from cfi2sframe.rewrite.objects import add_to_object, has_section

    if has_section(conversion.image.data) and not replace:
        raise EmbedError("the object has an .sframe section already; replacing it has to be asked for")
    # The relocations carry the whole value (RELA), so the fields stay 0, as assemblers leave them.
    blank = conversion.plan._replace(start_fields=(0,) * len(conversion.plan.sizes))
    section = encode_section(blank)
    chunks = add_to_object(conversion.image.data, section, _relocations(conversion), section_type)
    return Emitted(chunks, conversion, "as a section with relocations")


def _relocations(conversion: Conversion) -> list[ObjectRelocation]:
    """Return one relocation per function, against the symbol and addend that the FDE's own uses."""
    from cfi2sframe.rewrite.objects import ObjectRelocation

    target = conversion.target
    is_wide = target.version >= SFRAME_VERSION_3
    kind = target.arch.pc64_relocation if is_wide else target.arch.pc32_relocation
    record_size = FDE_SIZE[target.version]
    relocations = []
    symbols = _symbols_of(conversion.image)
    for index, (function, number) in enumerate(
        zip(conversion.section.functions, conversion.function_entries, strict=True)
    ):
        if number is None:
            raise EmbedError("an object has no stubs")
        _, fde, _, cfi_section = conversion.cfi.entries[number]
        relocation = cfi_section.relocations.get(fde.pc_offset)
        if relocation is None:
            raise EmbedError(f"{cfi_section.name}+0x{fde.pc_offset:x}: no relocation says where the function starts")
        # A function may be a later piece of its FDE's range.
        addend = relocation.addend + function.start_vaddr - fde.pc_begin_vaddr
        # The FDE's own field may be so narrow that a sum beyond it lands in the code; a wider one would leave it.
        value, vaddr = symbols(relocation.symbol_index)
        is_near = 0 <= value + addend <= _MAX_SECTION_OFFSET
        if not is_near or vaddr is None or vaddr + relocation.addend != fde.pc_begin_vaddr:
            raise EmbedError(f"a symbol of the function at 0x{function.start_vaddr:x} is far outside its section")
        field_offset = HEADER_SIZE + index * record_size
        relocations.append(ObjectRelocation(field_offset, kind, relocation.symbol_index, addend))
    return relocations


def _symbols_of(image: ElfImage) -> Callable[[int], tuple[int, int | None]]:
    """Return what gives an object's symbol by its index: its value, and its address in the image, if it has one."""
    # With no table, or several, writing is refused in the end.
    tables = [section for section in image.sections if section.type == SHT_SYMTAB]
    data = image.section_bytes(tables[0]) if tables else b""
    vaddrs = image.symbol_vaddrs(tables[0]) if tables else ()
    read = struct.Struct(image.byte_order + "8xQ").unpack_from

    def symbol_at(index: int) -> tuple[int, int | None]:
        return (int(read(data, 24 * index)[0]), vaddrs[index]) if index < len(vaddrs) else (0, None)

    return symbol_at


def _emit_linked(conversion: Conversion, *, replace: bool, section_type: int, may_move_table: bool) -> Emitted:
    from cfi2sframe.rewrite.linked import plan_embedding, write_embedding

    data = conversion.image.data
    plan = plan_embedding(
        data, conversion.plan.size, replace=replace, section_type=section_type, may_move_table=may_move_table
    )
    placed = place_again(conversion, plan.section_vaddr)
    chunks = write_embedding(data, plan, placed.data)
    return Emitted(chunks, placed, plan.description, plan.warnings, plan)


def check(emitted: Emitted, rewritten: ElfImage) -> None:
    """Read a rewritten file back: everything old is as it was, and its section says what the CFI says.

    Raises `EmbedError` or `VerificationError` when that is not so, `InputError` when it cannot even be read.
    """
    from cfi2sframe.api import decode_existing, truth_of
    from cfi2sframe.rewrite.linked import self_check
    from cfi2sframe.verification import verify_section

    conversion = emitted.conversion
    if emitted.plan is not None:
        self_check(conversion.image.data, rewritten.data, emitted.plan, conversion.data)
    else:
        from cfi2sframe.rewrite.objects import check_added

        check_added(conversion.image, rewritten)
    # Everything old has just been found in its place, so the CFI need not be read again.
    found = verify_section(conversion.image, truth_of(conversion), decode_existing(rewritten))
    if not found.is_clean:
        first = found.differences[0]
        raise VerificationError(
            f"the written section is wrong in {len(found.differences)} places, first at 0x{first.vaddr:x}: "
            f"{first.message}"
        )


def remove(image: ElfImage) -> Joined:
    """Return a copy of a file without its SFrame section, to be given to `check_removal` when it is written.

    Raises `EmbedError` when the file has none, or it cannot go.
    """
    if image.is_relocatable:
        from cfi2sframe.rewrite.objects import remove_from_object

        return remove_from_object(image.data)
    from cfi2sframe.rewrite.linked import remove_section

    return remove_section(image.data)


def check_removal(original: ElfImage, rewritten: ElfImage) -> None:
    """Read a file that `remove` has made back: but for the section, everything is as it was.

    Every byte that was mapped is mapped at the same address, what loaders are led to is the same, and so are sections
    and symbols. Raises `EmbedError` when that is not so, `InputError` when the file cannot even be read.
    """
    if original.is_relocatable:
        from cfi2sframe.rewrite.objects import check_taken_out

        check_taken_out(original, rewritten)
    else:
        from cfi2sframe.rewrite import linked

        linked.check_removal(original.data, rewritten.data)
