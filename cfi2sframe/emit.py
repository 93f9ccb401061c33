# SPDX-License-Identifier: Apache-2.0
"""A conversion put where it belongs: into a copy of the object or linked file that it was made of."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.elf.constants import SHT_GNU_SFRAME
from cfi2sframe.elf.relocatable import ObjectRelocation, add_to_object
from cfi2sframe.errors import EmbedError
from cfi2sframe.sframe.constants import FDE_SIZE, HEADER_SIZE, SFRAME_VERSION_3
from cfi2sframe.sframe.encode import encode_section

if TYPE_CHECKING:
    from cfi2sframe.elf.records import Buffer
    from cfi2sframe.pipeline import Conversion


class Emitted(NamedTuple):
    """A rewritten file as buffers to be written one behind the other, and how the section was placed."""

    chunks: list[Buffer]
    placement: str
    warnings: tuple[str, ...] = ()


def emit_object(conversion: Conversion, section_type: int = SHT_GNU_SFRAME) -> Emitted:
    """Put a section into a copy of the relocatable object it was made of.

    Raises `EmbedError` when a function's start has no relocation to repeat, or the object cannot take the section.
    """
    target, plan = conversion.target, conversion.plan
    is_wide = target.version >= SFRAME_VERSION_3
    kind = target.arch.pc64_relocation if is_wide else target.arch.pc32_relocation
    relocations = []
    record_size = FDE_SIZE[target.version]
    for index, (function, number) in enumerate(
        zip(conversion.section.functions, conversion.function_entries, strict=True)
    ):
        if number is None:
            raise EmbedError("an object has no stubs")
        fde, _program, cfi_section = conversion.cfi.entries[number]
        relocation = cfi_section.relocations.get(fde.pc_offset)
        if relocation is None:
            raise EmbedError(f"{cfi_section.name}+0x{fde.pc_offset:x}: no relocation says where the function starts")
        # A function may be a later piece of its FDE's range.
        addend = relocation.addend + function.start_vaddr - fde.pc_begin_vaddr
        relocations.append(ObjectRelocation(HEADER_SIZE + index * record_size, kind, relocation.symbol_index, addend))
    # The relocations carry the whole value (RELA), so the fields stay 0, as assemblers leave them.
    blank = plan._replace(functions=tuple(f._replace(start_field=0) for f in plan.functions))
    chunks = add_to_object(conversion.image.data, encode_section(blank), relocations, section_type)
    return Emitted(chunks, "a section of the object, with relocations")
