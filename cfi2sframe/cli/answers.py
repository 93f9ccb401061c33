# SPDX-License-Identifier: Apache-2.0
"""Ask a question of each ELF file that a user names, in this process or in several; no file is changed."""

from __future__ import annotations

import gc
from collections import Counter
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from cfi2sframe.cli.messages import EXIT_UNUSABLE, exit_status_of, fail, say, worst
from cfi2sframe.cli.progress import watched
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import CostError, ErrorKind, kind_of, reason_of
from cfi2sframe.files.find import Source, Unusable
from cfi2sframe.files.read import images_of, open_source
from cfi2sframe.guard import limited
from cfi2sframe.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.cli.options import Printing
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.report.tables import Report

Answer = TypeVar("Answer")


def read_source(source: Source, function: Callable[[ElfImage], Answer]) -> tuple[Source, tuple[Answer | Unusable, ...]]:
    """Call a function with each ELF file in a source; return the source with the size that was read, and the answers.

    Raises only interrupts: a failure is an answer.
    """
    answers: list[Answer | Unusable] = []
    try:
        with open_source(source) as data, limited(stored_size(data)):
            source = source._replace(size=stored_size(data))
            for image in images_of(source, data):
                answers.append(image if isinstance(image, Unusable) else _answer(image, function))  # noqa: PERF401 - those before a failure are kept
    except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
        # The next file needs the memory, and this one's time is over.
        gc.collect()
        answers.append(failure(source.name, error))
    return source, tuple(answers)


def _answer(image: ElfImage, function: Callable[[ElfImage], Answer]) -> Answer | Unusable:
    try:
        return function(image)
    except (CostError, MemoryError):
        # The limits are those of the whole source.
        raise
    except Exception as error:  # noqa: BLE001 - a member's failure is that member's
        return failure(image.name, error)


def failure(name: str, error: Exception) -> Unusable:
    """Return why there is no answer, whatever was raised."""
    return Unusable(name, reason_of(error), kind_of(error))


def answers_of(
    found: Sequence[Source | Unusable], function: Callable[[ElfImage], Answer], count: int
) -> Iterator[tuple[Source | Unusable, Answer | Unusable]]:
    """Yield each source with the answer of each ELF file in it, in order, after what cannot be opened at all.

    `count` processes do it. A source then has the size that was read. The caller may print while it has an answer.
    """

    def lost(source: Source, reason: str) -> tuple[Source, tuple[Unusable]]:
        return source, (Unusable(source.name, reason, ErrorKind.SYSTEM),)

    yield from ((item, item) for item in found if isinstance(item, Unusable))
    sources = [item for item in found if isinstance(item, Source)]
    if not all(source.size for source in sources):
        # Other processes have another standard input; pipes, too, are read here.
        count = 1
    with closing(watched(partial(read_source, function=function), sources, lost, count=count)) as readings:
        for source, answers in readings:
            yield from ((source, answer) for answer in answers)


def is_one_file(found: Sequence[Source | Unusable]) -> bool:
    """Whether the user has named a single file, and no folder or archive."""
    return len(found) == 1 and isinstance(found[0], Source) and found[0].kind == "elf" and not found[0].is_in_folder


def is_skipped(source: Source | Unusable, result: Unusable) -> bool:
    """Whether a file is no failure: it has nothing that was asked for, and was found in a folder or an archive."""
    was_found = isinstance(source, Unusable) or source.is_in_folder or source.kind != "elf"
    return result.kind is ErrorKind.UNFIT and was_found


class Collected(NamedTuple, Generic[Answer]):
    """The answers, each with its source, the files that were skipped, and those that failed, which are reported."""

    answers: list[Answer]
    sources: list[Source]
    skipped: list[Unusable]
    failed: list[Unusable]

    @property
    def status(self) -> int:
        """The worst file's exit status."""
        return worst(exit_status_of(item.kind) for item in self.failed)

    @property
    def size(self) -> int:
        """The bytes that were read."""
        return sum(source.size for source in self.sources)

    def complete(self, report: Report) -> Report:
        """Return a report that also counts the files without an answer."""
        notes = [*report.notes]
        if self.skipped:
            reasons = Counter(item.reason for item in self.skipped).most_common()
            texts = [f"{count:,}: {reason}" if len(reasons) > 1 else reason for reason, count in reasons]
            notes.append(f"Skipped: {counted(len(self.skipped), 'file')} ({'; '.join(texts)}).")
        if self.failed:
            notes.append(f"Not read: {counted(len(self.failed), 'file')}.")
        failures = [{"file": item.name, "reason": item.reason} for item in self.failed]
        return report._replace(notes=notes, data={**report.data, "failures": failures})


def collect(
    found: Sequence[Source | Unusable], question: Callable[[ElfImage], Answer], count: int
) -> Collected[Answer]:
    """Ask all files in `count` processes; report those that fail, and go on."""
    result = Collected[Answer]([], [], [], [])
    for source, answer in answers_of(found, question, count):
        if isinstance(answer, Unusable):
            if is_skipped(source, answer):
                result.skipped.append(answer)
            else:
                say("error", answer.reason, answer.name)
                result.failed.append(answer)
        elif isinstance(source, Source):
            result.answers.append(answer)
            result.sources.append(source)
    return result


def publish(collected: Collected[Answer], make: Callable[[], Report], printing: Printing, nothing: str) -> int:
    """Make a report of what was collected and write it; return the exit status. Without answers, say `nothing`.

    Raises `OutputError`, and `RequestError` when Jinja2 is missing for a page.
    """
    if not collected.answers:
        if collected.failed:
            return collected.status
        say("error", nothing)
        return EXIT_UNUSABLE
    from cfi2sframe.report.tables import render

    try:
        with limited(collected.size), printing.open() as out:
            out.write(render(collected.complete(make()), printing.format))
    except CostError as error:
        names = {source.name for source in collected.sources}
        return fail(error, names.pop() if len(names) == 1 else "")
    return collected.status
