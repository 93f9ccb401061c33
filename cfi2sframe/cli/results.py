# SPDX-License-Identifier: Apache-2.0
"""Ask a question of each ELF file that a user names, in this process or in several; no file is changed.

Here are also the options of the verbs that do so: which files to read, and where to print what.
"""

import argparse
import gc
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TextIO, TypeVar

from cfi2sframe import __version__
from cfi2sframe.cli.messages import EXIT_UNUSABLE, PROGRAM, exit_status_of, fail, say, worst
from cfi2sframe.cli.options import add_option, check_apart, listed_names, process_count, write_text
from cfi2sframe.cli.progress import watched
from cfi2sframe.constants.elf import ELF_MAGIC
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import CostError, ErrorKind, RequestError, is_out_of_memory, kind_of, reason_of
from cfi2sframe.files.archive import Member, files_named_in, is_thin, members_of, open_named
from cfi2sframe.files.find import Source, Unusable, find_sources, hint_about, open_source
from cfi2sframe.process.guard import limited, part
from cfi2sframe.text import counted

if TYPE_CHECKING:
    from cfi2sframe.report.tables import Report

Answer = TypeVar("Answer")

#: The most members of an archive whose failure is reported by name.
_MAX_FAILURE_COUNT: Final = 100
#: Reference cycles are collected after so many bytes of members.
_COLLECT_SIZE: Final = 1 << 20

#: Formats by the suffix of the file that is written.
_BY_SUFFIX: Final = {
    ".txt": "text",
    ".json": "json",
    ".csv": "csv",
    ".md": "markdown",
    ".html": "html",
    ".htm": "html",
    ".out": "text",
    ".log": "text",
}


# Options


class Inputs(NamedTuple):
    """The files and directories that a user has named, and the number of processes to share them among.

    `listed` are those of `--files-from`, skipped if they have nothing that is asked for.
    """

    named: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    process_count: int = 1
    listed: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All names."""
        return self.named + self.listed

    def find(self) -> list[Source | Unusable]:
        """Return the files, also those in directories; `-` is standard input."""
        listed = (
            item._replace(is_listed=True) if isinstance(item, Source) else item for item in find_sources(self.listed)
        )
        return [*find_sources(self.named, self.excluded), *listed]


def inputs_of(arguments: argparse.Namespace) -> Inputs:
    """Return the files for a verb that only reads. Raises `RequestError` when there are none, and `OSError`."""
    if not arguments.inputs and arguments.files_from is None:
        raise RequestError("no input file")
    excluded, count = tuple(arguments.exclude), process_count(arguments.jobs)
    return Inputs(tuple(arguments.inputs), excluded, count, listed_names(arguments))


class Printing(NamedTuple):
    """Where to print, `-` for standard output, and in what format."""

    path: str = "-"
    format: str = "text"

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """Give a stream to print to; a file appears when all of it is written. Raises `OutputError`."""
        if self.path == "-":
            yield sys.stdout
            return
        text = io.StringIO()
        yield text
        write_text(self.path, text.getvalue())


def add_output(parser: argparse.ArgumentParser, formats: Sequence[str]) -> argparse._ArgumentGroup:
    """Add `-o` and `--format`; the first format is the default. Return their group."""
    group = parser.add_argument_group("output")
    add_option(group, "-o, --output OUT", "the file to write (default: -)", default="-")
    text = f"{', '.join(formats[:-1])} or {formats[-1]} (default: by the suffix of OUT, else {formats[0]})"
    add_option(group, "--format NAME", text, choices=formats)
    group.set_defaults(formats=tuple(formats))
    return group


def printing_of(arguments: argparse.Namespace, inputs: Sequence[str]) -> Printing:
    """Return where to print what.

    Raises `RequestError` for a format that cannot be written, and for a suffix of one that the verb does not write.
    """
    check_apart("output", arguments.output, inputs)
    named = arguments.format or _format_by_suffix(arguments)
    if named == "html":
        from cfi2sframe.report.tables import check_format

        check_format(named)
    return Printing(arguments.output, named)


def _format_by_suffix(arguments: argparse.Namespace) -> str:
    formats = arguments.formats
    suffix = os.path.splitext(arguments.output)[1].lower()
    # Other letters are a format that no verb writes; digits belong to a version or a date.
    named: str = _BY_SUFFIX.get(suffix, suffix[1:] if suffix[1:].isalpha() else formats[0])
    if named not in formats:
        known = f"{', '.join(formats[:-1])} and {formats[-1]}"
        raise RequestError(f"-o {arguments.output}: the formats are {known}, not {named}")
    return named


def count_or_all(text: str) -> int | None:
    """Parse a count, or `all`, which is None."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"neither a count nor 'all': {text!r}")
    return int(text)


# Answers


def read_source(source: Source, question: Callable[[FileData, str], Answer]) -> list[tuple[Source, Answer | Unusable]]:
    """Ask a question of a file's bytes and name, or of those of each ELF file in an archive.

    Return each with the size that was read, and the answer. Raises only interrupts: a failure is an answer. An archive
    is one input, whatever is in it: what exceeds its limits ends the work on it. What a thin archive names is an input
    of its own.
    """
    answers: list[tuple[Source, Answer | Unusable]] = []
    try:
        with open_source(source) as data, limited(stored_size(data), has_parts=not source.is_archive or is_thin(data)):
            if not source.is_archive:
                source = source._replace(size=stored_size(data))
                answers.append((source, question(data, source.name)))
            elif is_thin(data):
                _read_files(source, data, question, answers)
            else:
                _read_members(source, data, members_of(data), question, answers)
    except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
        # Free the memory for the next file.
        gc.collect()
        answers.append((source, _unusable(source, error, len(answers))))
    return _shortened(source, answers)


def _read_files(
    archive: Source,
    data: FileData,
    question: Callable[[FileData, str], Answer],
    answers: list[tuple[Source, Answer | Unusable]],
) -> None:
    """Add the answers of the files that a thin archive names."""
    for file in files_named_in(data, archive):
        if isinstance(file, Unusable):
            answers.append((archive._replace(name=file.name, is_found=True), file))
            continue
        source, members = file
        try:
            with open_named(source) as content, part(stored_size(content), has_parts=len(members) == 1):
                _read_members(archive, content, members, question, answers)
        except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
            answers.append((source, _unusable(source, error)))


def _read_members(
    archive: Source,
    data: FileData,
    members: Iterable[Member],
    question: Callable[[FileData, str], Answer],
    answers: list[tuple[Source, Answer | Unusable]],
) -> None:
    """Add the answers of the ELF files among the members that are in `data`. Raises what ends the work on all."""
    left = collected = stored_size(data)
    for member in members:
        content = member.content(data)
        if bytes(content[: len(ELF_MAGIC)]) != ELF_MAGIC:
            continue
        # The sizes of members with holes, or over the same bytes, add up to no more than is stored.
        size = min(len(content), left)
        left -= size
        source = archive._replace(name=f"{archive.name}({member.name})", size=size, is_found=True, is_archive=False)
        try:
            answers.append((source, question(content, source.name)))
        except Exception as error:
            if isinstance(error, CostError) or is_out_of_memory(error):
                raise
            answers.append((source, _unusable(source, error)))
        # Errors keep what they came from.
        if collected - left >= _COLLECT_SIZE:
            gc.collect()
            collected = left


def _unusable(source: Source, error: Exception, member_count: int = 0) -> Unusable:
    """Return why a file cannot be used, or an archive after so many of its members."""
    kind = kind_of(error)
    hint = hint_about(source.path) if kind is ErrorKind.NOT_ELF else ""
    after = f" (after {counted(member_count, 'member')})" if member_count else ""
    return Unusable(source.name, f"{reason_of(error)}{hint}{after}", kind)


def _shortened(
    source: Source, answers: list[tuple[Source, Answer | Unusable]]
) -> list[tuple[Source, Answer | Unusable]]:
    """Return answers with no more than a few failures of the members of an archive."""
    kept: list[tuple[Source, Answer | Unusable]] = []
    failed: list[Unusable] = []
    for asked, answer in answers:
        if isinstance(answer, Unusable) and not is_skipped(asked, answer):
            failed.append(answer)
            if len(failed) > _MAX_FAILURE_COUNT:
                continue
        kept.append((asked, answer))
    more = failed[_MAX_FAILURE_COUNT:]
    if more:
        reason = f"{counted(len(more), 'more member')} cannot be read"
        kept.append((source, Unusable(source.name, reason, more[0].kind, len(more))))
    return kept


def answers_of(
    found: Sequence[Source | Unusable], question: Callable[[ElfImage], Answer], count: int
) -> Iterator[tuple[Source | Unusable, Answer | Unusable]]:
    """Yield each file, with the size that was read, and its answer, in order; files that cannot be found come first.

    `count` processes ask, an archive as one file. The caller may print between answers.
    """

    def ask(source: Source) -> list[tuple[Source, Answer | Unusable]]:
        return read_source(source, lambda data, name: question(ElfImage(data, name)))

    def lost(source: Source, reason: str) -> list[tuple[Source, Answer | Unusable]]:
        return [(source, Unusable(source.name, reason, ErrorKind.SYSTEM))]

    yield from ((item, item) for item in found if isinstance(item, Unusable))
    sources = [item for item in found if isinstance(item, Source)]
    if not all(source.size for source in sources):
        # Standard input and pipes are read in this process.
        count = 1
    with closing(watched(ask, sources, lost, count=count)) as answers:
        yield from chain.from_iterable(answers)


def is_one_file(found: Sequence[Source | Unusable]) -> bool:
    """Whether the user has named a single file, and no directory, list or archive."""
    if len(found) != 1 or not isinstance(found[0], Source):
        return False
    return not (found[0].is_found or found[0].is_listed or found[0].is_archive)


def is_skipped(source: Source | Unusable, result: Unusable) -> bool:
    """Whether a file is no failure: it has nothing that was asked for, and was found or listed, not named."""
    if result.kind not in (ErrorKind.UNFIT, ErrorKind.NOT_ELF) or not isinstance(source, Source):
        return False
    return source.is_found or source.is_listed


class Collected(NamedTuple, Generic[Answer]):
    """Answers with their sources, the files that were skipped, and those that failed, which are reported already."""

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

    def complete(self, report: "Report") -> "Report":
        """Return a report that also counts the files without an answer."""
        notes = [*report.notes]
        if self.skipped:
            reasons = Counter(item.reason for item in self.skipped).most_common()
            texts = [f"{count:,}: {reason}" if len(reasons) > 1 else reason for reason, count in reasons]
            notes.append(f"Skipped: {counted(len(self.skipped), 'file')} ({'; '.join(texts)}).")
        if self.failed:
            notes.append(f"Not read: {counted(sum(item.file_count for item in self.failed), 'file')}.")
        failures = [{"file": item.name, "kind": item.kind.name.lower(), "reason": item.reason} for item in self.failed]
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


def publish(collected: Collected[Answer], make: "Callable[[], Report]", printing: Printing, nothing: str) -> int:
    """Make a report of what was collected and write it; return the exit status. Without answers, say `nothing`.

    Raises `OutputError`.
    """
    if not collected.answers:
        if collected.failed:
            return collected.status
        say("error", nothing)
        return EXIT_UNUSABLE
    from cfi2sframe.report.tables import render

    try:
        with limited(collected.size), printing.open() as out:
            report = collected.complete(make())
            if printing.format == "html":
                report = report._replace(origin=_origin())
            out.write(render(report, printing.format))
    except CostError as error:
        names = {source.name for source in collected.sources}
        return fail(error, names.pop() if len(names) == 1 else "")
    return collected.status


def _origin() -> str:
    """Return the command that this process runs, with its version and the date."""
    import shlex
    import time

    # Reproducible builds set the date.
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    command = shlex.join([PROGRAM, *sys.argv[1:]])
    return f"{command} (version {__version__}, {time.strftime('%Y-%m-%d', time.gmtime(seconds))})"
