# SPDX-License-Identifier: Apache-2.0
"""The reasons why code has no rows: one table of reasons for CFI, PLT stubs and instructions."""

from enum import Enum
from typing import NamedTuple


class Reason(Enum):
    """A kind of reason. Reports print the value, and JSON also has the name; neither changes its meaning."""

    # CFI that an SFrame version or a reader does not accept
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
    # PLT stubs
    NOT_IN_FILE = "its bytes are not in the file"
    OVERLAP = "stub sections overlap"
    UNKNOWN_INSTRUCTION = "an instruction whose effect on the stack is not known"
    DEPTH_CONFLICT = "code that is reached with different stack depths"
    ENTRY_UNKNOWN = "nothing is known to enter it"
    VERSION_1_MASK = "version 1's mask test cannot express where the rows start"
    # Code without CFI, from whose instructions rows were asked for
    NOT_REACHED = "no known entry leads there"
    UNKNOWN = "an instruction or a value that is not known"
    PATHS_DISAGREE = "paths disagree on the stack depth"
    NOT_PROVEN = "no return proves the stack depth"
    NO_LOCAL_SYMBOL = "no local symbol gives a linker its place"
    # Instructions that an audit cannot compare with their CFI
    NO_PATH = "no known path leads there"
    NOT_FOLLOWED = "the CFI names a value that is not followed"


class Why(NamedTuple):
    """The reason why a function, a part of it or a stub has no rows, and the rule or instruction in readable form.

    `start_delta` is the start of that rule, in bytes from the function's start.
    """

    reason: Reason
    detail: str = ""
    start_delta: int = 0
