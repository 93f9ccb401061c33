# SPDX-License-Identifier: Apache-2.0
"""The fates of FDEs."""

from enum import Enum


class Fate(Enum):
    """The fate of an FDE, or of a function derived from instructions, once each address has an owner.

    The value is the text for reports.
    """

    # Fates are counted, one for each FDE, and the hash of `Enum` is Python's, by the name.
    __hash__ = object.__hash__

    DESCRIBED = "described from start to end"
    IN_PARTS = "described in part"
    LEFT_OUT = "left out"
    STUBS = "stubs describe its whole range"
    # Without code of its own: nothing is lost.
    DISCARDED = "function outside the executable sections"
    EMPTY = "empty range, or of a function that the linker has discarded"
    DUPLICATE = "repeats another FDE"
    SHADOWED = "its whole range belongs to other FDEs"
    BETTER_SOURCE = "a better source describes its whole range"
    # No FDEs, and never counted as such.
    DERIVED = "derived from instructions"
    NOT_DERIVED = "derived from instructions, and left out"

    @property
    def has_code(self) -> bool:
        """True if the FDE has code of its own, which the section describes or lacks."""
        return self in (Fate.DESCRIBED, Fate.IN_PARTS, Fate.LEFT_OUT)

    @property
    def is_dropped(self) -> bool:
        """True if the FDE is of no use, though no stub describes its code."""
        return self in (Fate.DISCARDED, Fate.EMPTY, Fate.DUPLICATE, Fate.SHADOWED, Fate.BETTER_SOURCE)

    @property
    def is_of_code(self) -> bool:
        """True if there is no FDE, but a function derived from instructions."""
        return self in (Fate.DERIVED, Fate.NOT_DERIVED)
