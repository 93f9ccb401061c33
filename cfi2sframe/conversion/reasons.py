# SPDX-License-Identifier: Apache-2.0
"""What became of each FDE, why a function is not in the section, and why a source of CFI was not read."""

from enum import Enum
from typing import NamedTuple

from cfi2sframe.errors import Cfi2SFrameError


class SkipReason(Enum):
    """Why a function, or a part of it, is left out, mostly what the chosen version cannot express.

    The value is the text that reports print.
    """

    CFA_EXPRESSION = "CFA is an expression"
    CFA_BASE_REGISTER = "CFA is based on a register other than SP and FP"
    CFA_UNDEFINED = "CFA has no rule"
    CFA_OFFSET_UNKNOWN = "CFA has no offset that is known after an expression"
    RA_EXPRESSION = "RA is given by an expression"
    RA_IN_REGISTER = "RA is in a register"
    RA_NOT_AT_FIXED_OFFSET = "RA is not at its fixed offset from the CFA"
    RA_IS_CFA_VALUE = "RA is a sum with the CFA"
    RA_UNSPECIFIED = "RA has no rule"
    RA_UNDEFINED = "RA is undefined (outermost frame)"
    FP_EXPRESSION = "FP is given by an expression"
    FP_IN_REGISTER = "FP is in a register"
    FP_IS_CFA_VALUE = "FP is a sum with the CFA"
    FP_UNDEFINED = "FP is undefined"
    FP_WITHOUT_RA = "FP is saved without RA"
    SP_RULE = "SP is not restored from the CFA"
    OFFSET_RANGE = "an offset does not fit"
    PAUTH_WITH_PC = "RA is signed with the PC as modifier"
    PAUTH_UNKNOWN = "whether RA is signed is not known"
    FUNCTION_TOO_LARGE = "the function is larger than 4 GiB"
    READER = "the reader refuses it"
    PAST_CODE = "its FDE reaches past the end of the code"


class Fate(Enum):
    """What became of an FDE, or of a function derived from instructions, once it is known who owns each address.

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
    EMPTY = "empty range"
    DUPLICATE = "repeats another FDE"
    SHADOWED = "its whole range belongs to other FDEs"
    BETTER_SOURCE = "a better source describes its whole range"
    # No FDEs, and never counted as such.
    DERIVED = "derived from instructions"
    NOT_DERIVED = "derived from instructions, and left out"

    @property
    def has_code(self) -> bool:
        """Whether the FDE has code of its own, which the section describes or lacks."""
        return self in (Fate.DESCRIBED, Fate.IN_PARTS, Fate.LEFT_OUT)

    @property
    def is_dropped(self) -> bool:
        """Whether the FDE is of no use, though no stub describes its code."""
        return self in (Fate.DISCARDED, Fate.EMPTY, Fate.DUPLICATE, Fate.SHADOWED, Fate.BETTER_SOURCE)

    @property
    def is_of_code(self) -> bool:
        """Whether there is no FDE, but a function derived from instructions."""
        return self in (Fate.DERIVED, Fate.NOT_DERIVED)


class UnreadSource(NamedTuple):
    """CFI that was left unread, though its file has it: the name of its section, and why, without a full stop."""

    name: str
    reason: str

    @classmethod
    def of(cls, name: str, error: Cfi2SFrameError) -> "UnreadSource":
        """Return the record of a section that an error has kept from being read."""
        place = "" if error.offset is None else f"+0x{error.offset:x}"
        if error.where and error.where != name:
            place = f" in {error.where}{place}"
        elif place:
            place = f" at {place}"
        return cls(name, error.reason + place)
