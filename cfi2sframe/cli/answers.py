# SPDX-License-Identifier: Apache-2.0
"""A question to every ELF file that the user has named: in processes, with the progress of the run."""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from cfi2sframe.cli.common import exit_status_of, fail, say, worst
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE
from cfi2sframe.errors import CostError, ErrorKind, kind_of, reason_of
from cfi2sframe.files.find import Source, Unusable
from cfi2sframe.guard import limited
from cfi2sframe.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from cfi2sframe.cli.outputs import Printing
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.report.records import Report

Answer = TypeVar("Answer")
Kept = TypeVar("Kept")


class Collected(NamedTuple, Generic[Kept]):
    """What is known of all files; `size` is that of the inputs in bytes, `status` the worst exit status.

    `name` is that of a single input, empty for several.
    `skipped` files have nothing that was asked for, and were found, not named; `failed` ones are reported already.
    """

    kept: list[Kept]
    skipped: list[Unusable]
    failed: list[Unusable]
    status: int
    size: int
    name: str = ""

    @property
    def notes(self) -> list[str]:
        """Sentences about the files that the report does not have."""
        notes = []
        if self.skipped:
            reasons = Counter(item.reason for item in self.skipped).most_common()
            texts = [f"{count:,}: {reason}" if len(reasons) > 1 else reason for reason, count in reasons]
            notes.append(f"Skipped: {counted(len(self.skipped), 'file')} ({'; '.join(texts)}).")
        if self.failed:
            notes.append(f"Not read: {counted(len(self.failed), 'file')}.")
        return notes

    def complete(self, report: Report) -> Report:
        """Return a report with what is known of the files that it does not have."""
        failures = [{"file": item.name, "reason": item.reason} for item in self.failed]
        notes = [*report.notes, *self.notes]
        return report._replace(notes=notes, data={**report.data, "failures": failures})


def collect(
    found: Sequence[Source | Unusable],
    question: Callable[[ElfImage], Answer],
    keep: Callable[[Answer, Source], Kept],
    count: int,
) -> Collected[Kept]:
    """Ask all files in `count` processes; a file that fails is reported, and does not stop the others.

    `keep` returns what the report needs of an answer: it bounds what is held in memory, and may fail as a file does.
    """
    result = Collected[Kept]([], [], [], EXIT_SUCCESS, 0)
    statuses, size = [EXIT_SUCCESS], 0
    for source, answer in answers_of(found, question, count):
        failure = answer if isinstance(answer, Unusable) else None
        if not isinstance(answer, Unusable) and isinstance(source, Source):
            size += source.size
            try:
                with limited(source.size):
                    result.kept.append(keep(answer, source))
            except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
                failure = Unusable(source.name, reason_of(error), kind_of(error))
        if failure is not None and is_skipped(source, failure):
            result.skipped.append(failure)
        elif failure is not None:
            say("error", failure.reason, failure.name)
            result.failed.append(failure)
            statuses.append(exit_status_of(failure.kind))
    name = found[0].name if len(found) == 1 else ""
    return result._replace(status=worst(statuses), size=size, name=name)


def publish(collected: Collected[Kept], make: Callable[[list[Kept]], Report], printing: Printing, nothing: str) -> int:
    """Make a report of what was collected, and write it; return the exit status. `nothing` is said of no files.

    Raises `OutputError`, and `RequestError` without what a page needs.
    """
    if not collected.kept:
        if collected.failed:
            return collected.status
        say("error", nothing)
        return EXIT_UNUSABLE
    from cfi2sframe.report.formats import render

    try:
        with limited(collected.size), printing.open() as out:
            out.write(render(collected.complete(make(collected.kept)), printing.format))
    except CostError as error:
        return fail(error, collected.name)
    return collected.status


def is_one_file(found: Sequence[Source | Unusable]) -> bool:
    """Whether the user has named a single file, and not a folder or a container."""
    return len(found) == 1 and isinstance(found[0], Source) and found[0].kind == "elf" and not found[0].is_in_folder


def is_skipped(source: Source | Unusable, result: Unusable) -> bool:
    """Whether a file has nothing that was asked for, and was found, not named: then it is no failure."""
    was_found = isinstance(source, Unusable) or source.is_in_folder or source.kind != "elf"
    return result.kind is ErrorKind.UNFIT and was_found


def answers_of(
    found: Sequence[Source | Unusable], function: Callable[[ElfImage], Answer], count: int
) -> Iterator[tuple[Source | Unusable, Answer | Unusable]]:
    """Yield each source with the answer for each ELF file in it, in their order; what cannot be opened comes first.

    `count` processes do it. A source's size is then that of what was read. The caller may print while it has an answer.
    """
    from cfi2sframe.cli.progress import Files
    from cfi2sframe.readings import read_all

    yield from ((item, item) for item in found if isinstance(item, Unusable))
    sources = [item for item in found if isinstance(item, Source)]
    with Files({source.name: source.size for source in sources}) as files:
        done = read_all(sources, function, count=count, on_done=lambda source, _: files.add(source.name))
        with closing(done):
            for source, results in done:
                files.clear()
                yield from ((source, result) for result in results)
