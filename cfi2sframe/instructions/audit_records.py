# SPDX-License-Identifier: Apache-2.0
"""What an audit says of a file: how many instructions were compared with their CFI, and where the two contradict."""

from __future__ import annotations

from enum import Enum, IntEnum
from typing import NamedTuple


class RuleSubject(Enum):
    """What a rule is about. The value is the text that reports print."""

    CFA = "CFA"
    RA = "RA"
    FP = "FP"


class Answer(IntEnum):
    """What the instructions say of a rule, from good to bad."""

    SILENT = 0
    """The rule claims nothing: the caller's value is undefined."""
    AGREES = 1
    UNDECIDED = 2
    """The instructions do not tell."""
    CONTRADICTS = 3


class Undecided(Enum):
    """Why an instruction is not compared with its CFI. The value is the text that reports print."""

    NOT_REACHED = "no known path leads there"
    SIGNAL_FRAME = "the CFI describes interrupted code (a signal frame)"
    STATE_UNKNOWN = "the instructions do not tell where the caller is"
    OTHER_PLACE = "the CFI names a place whose value is not followed"


class Contradiction(NamedTuple):
    """Instructions whose CFI contradicts them in the same way: of one function, or also of its clones.

    `function_vaddr` is where the function's FDE starts, `vaddr` the first of `instruction_count` instructions; where
    these are not neighbours, others begin at the addresses `also_at`.
    `cfi_rule` is the CFI's rule of the `subject`, `code_rule` what the instructions say instead, and `directive` what
    says so to an assembler; both are empty where the instructions only say that the CFI's rule is wrong.
    """

    function_vaddr: int
    vaddr: int
    instruction_count: int
    subject: RuleSubject
    cfi_rule: str
    code_rule: str
    directive: str = ""
    also_at: tuple[int, ...] = ()


class RuleTally(NamedTuple):
    """Instructions by what was found out about one rule."""

    silent: int = 0
    agreed: int = 0
    undecided: int = 0
    contradicted: int = 0


class Audit(NamedTuple):
    """The result for a file; counts are of instructions, except `function_count` (FDEs) and `code_size` (bytes).

    An instruction is decided if its CFA, RA and FP all are, and agreed if nothing contradicts it. `undecided` has the
    reasons; `undecided_functions` the FDEs' addresses with the instructions for each reason. `findings` ascend.
    """

    name: str
    function_count: int
    code_size: int
    agreed_count: int
    contradicted_count: int
    tallies: dict[RuleSubject, RuleTally]
    undecided: dict[Undecided, int]
    undecided_functions: tuple[tuple[int, Undecided, int], ...]
    findings: tuple[Contradiction, ...]

    @property
    def undecided_count(self) -> int:
        """Instructions of which at least one rule could not be decided, and none is contradicted."""
        return sum(self.undecided.values())

    @property
    def decided_count(self) -> int:
        """Instructions whose rules all were decided."""
        return self.agreed_count + self.contradicted_count
