# SPDX-License-Identifier: Apache-2.0
"""Look-up by identity, and each row of the table in `intern.py`: which equal objects are one object."""

import gc
import weakref
from collections.abc import Iterable

from cfi2sframe import load
from cfi2sframe.conversion.convert import Options, convert_image
from cfi2sframe.intern import IdentityMap
from cfi2sframe.sframe.read import read_section

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


def is_one_each(objects: Iterable[object]) -> bool:
    """Whether equal objects are one object."""
    known: dict[object, object] = {}
    return all(known.setdefault(each, each) is each for each in objects)


def test_equal_objects_of_a_conversion_are_one() -> None:
    conversion = convert_image(load("/bin/ls"), Options(level=0))
    section = read_section(conversion.data, conversion.section_vaddr)
    tables = [program.table for program in conversion.cfi.programs]
    lists: dict[str, list[object]] = {
        "rows of the CFI": [state for table in tables for state in table.states],
        "lists of these": [table.states for table in tables],
        "bodies that were read": list(section.bodies),
    }
    for name, objects in lists.items():
        assert is_one_each(objects), name
        assert len(set(objects)) < len(objects), f"no {name} recur"
    for number, body in zip(conversion.cfi.entries.program_numbers, conversion.outcomes.results, strict=True):
        assert body is conversion.outcomes.results[conversion.cfi.entries.program_numbers.index(number)]
