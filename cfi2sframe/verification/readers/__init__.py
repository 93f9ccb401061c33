# SPDX-License-Identifier: Apache-2.0
"""What each reader of SFrame sections insists on, as data, and what it would do with a section; the door is `judge`.

Each rule was seen in the releases that its edition names: in the reader's source, or by running it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.sframe.read import stored_of
from cfi2sframe.verification.readers.binutils import GNU_LD, LIBSFRAME
from cfi2sframe.verification.readers.glibc import GLIBC
from cfi2sframe.verification.readers.kernel import KERNEL
from cfi2sframe.verification.readers.records import Broken, Edition, Habit, Reader, Verdict
from cfi2sframe.verification.readers.subject import Subject, stored_functions

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.model import Section

__all__ = ["READERS", "Broken", "Habit", "Verdict", "judge"]

#: The readers, by the names that users give them.
READERS: Final[dict[str, Reader]] = {reader.name: reader for reader in (KERNEL, GLIBC, LIBSFRAME, GNU_LD)}


def judge(name: str, section: Section, image: ElfImage, *, is_in_file: bool = False) -> tuple[Verdict, ...]:
    """Return what the reader called `name` would do with a section for `image`, by edition, the oldest first.

    `is_in_file`: the section is the one that the file has, so that headers which lead to it count too. Raises
    `KeyError` for a name that `READERS` does not have.
    """
    reader, stored = READERS[name], stored_of(section)
    subject = Subject(section, stored, image, is_in_file, tuple(stored_functions(section, stored)))
    return tuple(_verdict(reader.name, edition, subject) for edition in reader.editions)


def _verdict(name: str, edition: Edition, subject: Subject) -> Verdict:
    broken: list[Broken] = []
    for rule in edition.rules:
        breaches = list(rule.breaches(subject))
        if not breaches:
            continue
        first = breaches[0]
        broken.append(Broken(rule.name, rule.consequence, len(breaches), first.vaddr, first.message))
        if rule.is_decisive:
            return Verdict(name, edition.releases, tuple(broken), ())
    habits = (Habit(remark.measure(subject), remark.message) for remark in edition.remarks)
    return Verdict(name, edition.releases, tuple(broken), tuple(habit for habit in habits if habit.amount))
