# SPDX-License-Identifier: Apache-2.0
"""Look-up by identity, and each row of the table in `intern.py`: which equal objects are one object."""

from __future__ import annotations

import gc
import weakref
from typing import TYPE_CHECKING

from cfi2sframe import load
from cfi2sframe.conversion import Conversion, Options, convert_image
from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.model import FunctionBody
from cfi2sframe.sframe.read import read_section

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


def test_equal_objects_of_a_conversion_are_one() -> None:
    conversion = convert_image(load("/bin/ls"), Options(level=1))
    section = read_section(conversion.data, conversion.section_vaddr)
    lists: dict[str, list[object]] = {**interned_of(conversion), "bodies that were read": list(section.bodies)}
    for name, objects in lists.items():
        assert is_one_each(objects), name
        assert len(set(objects)) < len(objects), f"no {name} recur"
    for number, body in zip(conversion.cfi.entries.program_numbers, conversion.outcomes.results, strict=True):
        assert body is conversion.outcomes.results[conversion.cfi.entries.program_numbers.index(number)]
