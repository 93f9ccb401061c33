# SPDX-License-Identifier: Apache-2.0
"""Rules of readers as data, and what comes of holding a section to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from cfi2sframe.verification.readers.subject import Subject

#: What becomes of a section that breaks a rule.
Consequence = Literal["refuses it", "does not find it", "reads it wrongly", "leaves traces to DWARF", "crashes"]


class Breach(NamedTuple):
    """A place where a section breaks a rule: the function that starts at `vaddr`, or with None the section itself."""

    vaddr: int | None
    message: str


class Demand(NamedTuple):
    """A demand of a reader.

    `breaches` yields where a section breaks it. Nothing after a broken rule that `is_decisive` is looked at: the reader
    would not look at it either, or could not.
    """

    name: str
    breaches: Callable[[Subject], Iterable[Breach]]
    consequence: Consequence = "refuses it"
    is_decisive: bool = False


class Habit(NamedTuple):
    """What a reader does with `amount` functions or rows (`message` says which) of a section that it reads."""

    amount: int
    message: str


class Remark(NamedTuple):
    """Functions or rows that a reader treats in its own way: how to count them, and what to say of them."""

    measure: Callable[[Subject], int]
    message: str


class Edition(NamedTuple):
    """Releases of a reader that read alike. `releases` are those that the rules were seen in."""

    releases: str
    rules: tuple[Demand, ...]
    remarks: tuple[Remark, ...] = ()


class Reader(NamedTuple):
    """A reader, by the name that users give it, and its editions, the oldest first."""

    name: str
    editions: tuple[Edition, ...]


class Broken(NamedTuple):
    """A rule that a section breaks in `place_count` places, first at `vaddr` (None: the section as a whole)."""

    rule: str
    consequence: Consequence
    place_count: int
    vaddr: int | None
    message: str


class Verdict(NamedTuple):
    """What one edition of a reader would do with a section."""

    reader: str
    releases: str
    broken: tuple[Broken, ...]
    habits: tuple[Habit, ...]

    @property
    def reads_it(self) -> bool:
        """Whether no rule is broken."""
        return not self.broken
