# SPDX-License-Identifier: Apache-2.0
"""Look-up by identity, and each row of the table in `intern.py`: which equal objects are one object."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING, NamedTuple

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.conversion import Conversion, Options, convert_image
from cfi2sframe.dwarf.instructions import CUTTER
from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.sframe.read import read_section, stored_of
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


class Interned(NamedTuple):
    """The objects of a conversion that the contract is about, as often as they occur."""

    cies: list[object]
    row_states: list[object]
    row_state_tuples: list[object]
    frame_states: list[object]
    frame_state_tuples: list[object]


def interned_of(conversion: Conversion) -> Interned:
    programs = conversion.cfi.programs
    bodies = [result for result in conversion.outcomes.results if isinstance(result, FunctionBody)]
    return Interned(
        [entry.fde.cie for entry in conversion.cfi.entries],
        [state for program in programs for state in program.table.states],
        [program.table.states for program in programs],
        [state for body in bodies for state in body.states],
        [body.states for body in bodies],
    )


def is_one_each(objects: Iterable[object]) -> bool:
    """Whether equal objects are one object."""
    kept = list(objects)
    return len(set(map(id, kept))) == len(set(kept))


def is_one_each_of(pairs: Iterable[tuple[object, object]]) -> bool:
    """Whether the objects that occur with equal keys are one object."""
    known: dict[object, object] = {}
    return all(known.setdefault(key, found) is found for key, found in pairs)


def check_contract(conversion: Conversion) -> None:
    for name, objects in interned_of(conversion)._asdict().items():
        assert is_one_each(objects), name
    outcomes, numbers = conversion.outcomes.results, conversion.cfi.entries.program_numbers
    assert is_one_each_of(zip(numbers, outcomes, strict=True))
    section = read_section(conversion.data, conversion.section_vaddr)
    records = stored_of(section).records
    assert is_one_each_of(zip(records, section.bodies, strict=True))
    assert len(set(records)) < len(records)


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


@pytest.mark.parametrize("patience", [0, 1000])
@pytest.mark.parametrize("version", [2, 3])
def test_equal_objects_of_a_conversion_are_one(version: int, patience: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CUTTER, "patience", patience)
    conversion = convert_image(linked(AMD64, *_functions()), Options(version))
    assert conversion.is_whole == (version == 3)
    check_contract(conversion)
    for name, objects in interned_of(conversion)._asdict().items():
        assert len(set(objects)) < len(objects), f"no {name} recur"
