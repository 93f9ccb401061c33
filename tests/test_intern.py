# SPDX-License-Identifier: Apache-2.0
"""Look-up by identity, and each row of the table in `intern.py`: which equal objects are one object."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.conversion import Conversion, Options, convert_image
from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.sframe.read import read_section
from tests.support import cfi_asm as asm
from tests.support.samples import TEXT_VADDR, cie_of, linked

if TYPE_CHECKING:
    from collections.abc import Iterable


# The look-up itself


def test_an_identity_map_keeps_its_keys_alive() -> None:
    """Otherwise a later object could have the identity of a key, and get its value."""

    class Key:
        pass

    key = Key()
    reference = weakref.ref(key)
    values: IdentityMap[Key, None] = IdentityMap(lambda _: None)
    assert values[key] is None
    del key
    gc.collect()
    assert reference() is not None
    del values
    gc.collect()
    assert reference() is None


# The contract


def interned_of(conversion: Conversion) -> dict[str, list[object]]:
    """Return the objects of a conversion that the contract is about, as often as they occur."""
    programs = conversion.cfi.programs
    bodies = [result for result in conversion.outcomes.results if isinstance(result, FunctionBody)]
    return {
        "CIEs": [entry.fde.cie for entry in conversion.cfi.entries],
        "rows of the CFI": [state for program in programs for state in program.table.states],
        "lists of these": [program.table.states for program in programs],
        "rows of the section": [state for body in bodies for state in body.states],
    }


def is_one_each(objects: Iterable[object]) -> bool:
    """Whether equal objects are one object."""
    known: dict[object, object] = {}
    return all(known.setdefault(each, each) is each for each in objects)


def _functions() -> tuple[asm.Entry, ...]:
    """Functions of two equal CIEs and of a third, whose rows, lists of rows and programs recur in every way."""
    usual, again, signal = cie_of(AMD64), cie_of(AMD64), cie_of(AMD64, augmentation="zRS")
    push = (asm.advance(1), asm.def_cfa_offset(16), asm.offset(6, 2))
    later_push = (asm.advance(2), asm.def_cfa_offset(16), asm.offset(6, 2))
    # The row of an expression is read by the row machine, the others by the cache.
    by_expression = (asm.advance(1), asm.def_cfa_expression(bytes.fromhex("77 08 06")))
    # The second of these rows is not different in SFrame.
    same_value = (asm.advance(1), asm.same_value(6), *push)
    in_steps = (*push, asm.advance(1), asm.def_cfa_offset(24))
    programs = (push, push, later_push, by_expression, (*by_expression, *push), same_value, in_steps)
    sizes = (16, 16, 16, 16, 16, 16, 2)
    return (
        usual,
        again,
        signal,
        *(
            asm.Fde(cie, TEXT_VADDR + 0x100 * page + 0x10 * place, size, program)
            for page, cie in enumerate((usual, again, signal))
            for place, (program, size) in enumerate(zip(programs, sizes, strict=True))
        ),
    )


@pytest.mark.parametrize("version", [2, 3])
def test_equal_objects_of_a_conversion_are_one(version: int) -> None:
    conversion = convert_image(linked(AMD64, *_functions()), Options(version))
    assert conversion.is_whole == (version == 3)
    section = read_section(conversion.data, conversion.section_vaddr)
    lists: dict[str, list[object]] = {**interned_of(conversion), "bodies that were read": list(section.bodies)}
    for name, objects in lists.items():
        assert is_one_each(objects), name
        assert len(set(objects)) < len(objects), f"no {name} recur"
    for number, body in zip(conversion.cfi.entries.program_numbers, conversion.outcomes.results, strict=True):
        assert body is conversion.outcomes.results[conversion.cfi.entries.program_numbers.index(number)]
