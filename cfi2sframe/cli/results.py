# SPDX-License-Identifier: Apache-2.0
"""Ask a question of each ELF file that a user names, in this process or in several; no file is changed.

The options for the output of these verbs are here, too.
"""

import argparse
import gc
import io
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TextIO, TypeVar

from cfi2sframe import __version__
from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM, exit_status_of, fail, say, worst
from cfi2sframe.cli.options import add_option, check_apart, debug_file_of, process_count, write_text
from cfi2sframe.cli.progress import watched
from cfi2sframe.constants.elf import ELF_MAGIC
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.debug_file import with_debug_file
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import CostError, ErrorKind, RequestError, is_out_of_memory, kind_of, reason_of
from cfi2sframe.files.archive import Member, files_named_in, is_thin, members_of, open_named
from cfi2sframe.files.find import open_source
from cfi2sframe.files.source import Source
from cfi2sframe.process.guard import limited, part
from cfi2sframe.text import counted

if TYPE_CHECKING:
    from cfi2sframe.report.tables import Report

Answer = TypeVar("Answer")
#: A question about the bytes of a file and its name.
Question = Callable[[FileData, str], Answer]

#: The most members of an archive whose failure is reported by name.
_MAX_FAILURE_COUNT: Final = 100
#: Reference cycles are collected after this many bytes of members.
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


class Printing(NamedTuple):
    """The file to print to, `-` for standard output, and the format.

    `is_unasked`: with `--quiet`, and neither an output nor a format; the exit status is the answer.
    """

    path: str = "-"
    format: str = "text"
    is_unasked: bool = False

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
    # `trace` takes no list of files.
    group.set_defaults(formats=tuple(formats), files_from=None)
    return group


def printing_of(arguments: argparse.Namespace, sources: Iterable[Source]) -> Printing:
    """Return the output and the format for what is read from the sources.

    Raises `RequestError` for a format that cannot be written, for a suffix of one that the verb does not write, and for
    an output that is one of the sources.
    """
    check_apart("output", arguments.output, [arguments.files_from or "-"], sources)
    named = arguments.format or _format_by_suffix(arguments)
    if named == "html":
        from cfi2sframe.report.tables import check_format

        check_format(named)
    is_unasked = arguments.quiet and arguments.output == "-" and arguments.format is None
    return Printing(arguments.output, named, is_unasked)


def _format_by_suffix(arguments: argparse.Namespace) -> str:
    formats = arguments.formats
    suffix = os.path.splitext(arguments.output)[1].lower()
    # Other letters name a format that no verb writes; digits belong to a version or a date.
    named: str = _BY_SUFFIX.get(suffix, suffix[1:] if suffix[1:].isalpha() else formats[0])
    if named not in formats:
        listed = f"{', '.join(formats[:-1])} and {formats[-1]}"
        raise RequestError(f"-o {arguments.output}: the formats are {listed}, not {named}")
    return named


def count_or_all(text: str) -> int | None:
    """Parse a count, or `all`, which is None."""
    if text == "all":
        return None
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"neither a count nor 'all': {text!r}")
    return int(text)


# Results


class Result(NamedTuple, Generic[Answer]):
    """The answer about a file, with the size that was read, or the reason why there is none.

    `kind` is the reason for programs. `file_count` is the number of an archive's members that share it, unnamed.
    """

    source: Source
    answer: Answer | None = None
    reason: str = ""
    kind: ErrorKind | None = None
    file_count: int = 1

    @property
    def is_skipped(self) -> bool:
        """True if the file lacks what was asked for, which is no failure, since it was found or listed, not named."""
        return self.kind in (ErrorKind.UNFIT, ErrorKind.NOT_ELF) and self.source.may_be_unfit

    @property
    def has_failed(self) -> bool:
        """True if the file cannot be used."""
        return self.kind is not None and not self.is_skipped

    @property
    def exit_status(self) -> int:
        """The exit status for the file alone, unless the verb takes an answer for a failure."""
        return exit_status_of(self.kind) if self.kind is not None and not self.is_skipped else EXIT_SUCCESS

    @property
    def failure(self) -> dict[str, str]:
        """The object that reports have for a file that has failed."""
        return {"file": self.source.name, "kind": self.kind.name.lower() if self.kind else "", "reason": self.reason}


def read_source(source: Source, question: Question[Answer]) -> list[Result[Answer]]:
    """Ask a question of a file's bytes and name, or of those of each ELF file in an archive.

    Raises only interrupts: a failure is a result. An archive is one input, whatever is in it: a member that exceeds
    its limits ends the work on it. A file that a thin archive names is an input of its own.
    """
    results: list[Result[Answer]] = []
    try:
        with open_source(source) as data, limited(stored_size(data), has_parts=not source.is_archive or is_thin(data)):
            if not source.is_archive:
                source = source._replace(size=stored_size(data))
                results.append(Result(source, question(data, source.name)))
            elif is_thin(data):
                _read_files(source, data, question, results)
            else:
                _read_members(source, data, members_of(data), question, results)
    except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
        # Free the memory for the next file.
        gc.collect()
        results.append(_failed(source, error, len(results)))
    return _shortened(source, results)


def _read_files(archive: Source, data: FileData, question: Question[Answer], results: list[Result[Answer]]) -> None:
    """Add the results of the files that a thin archive names."""
    for source, members in files_named_in(data, archive):
        try:
            with open_named(source) as content, part(stored_size(content), has_parts=len(members) == 1):
                _read_members(archive, content, members, question, results)
        except Exception as error:  # noqa: BLE001 - a file's failure is that file's, whatever was raised
            results.append(_failed(source, error))


def _read_members(
    archive: Source,
    data: FileData,
    members: Iterable[Member],
    question: Question[Answer],
    results: list[Result[Answer]],
) -> None:
    """Add the results of the ELF files among the members in `data`. Raises what ends the work on the whole archive."""
    left = collected = stored_size(data)
    for member in members:
        content = member.content(data)
        if bytes(content[: len(ELF_MAGIC)]) != ELF_MAGIC:
            continue
        # The sizes of members with holes, or over the same bytes, add up to no more than is stored.
        size = min(len(content), left)
        left -= size
        source = Source(archive.path, f"{archive.name}({member.name})", size, is_found=True)
        try:
            results.append(Result(source, question(content, source.name)))
        except Exception as error:
            if isinstance(error, CostError) or is_out_of_memory(error):
                raise
            results.append(_failed(source, error))
        # Errors form cycles with the frames that they keep alive.
        if collected - left >= _COLLECT_SIZE:
            gc.collect()
            collected = left


def _failed(source: Source, error: Exception, member_count: int = 0) -> Result[Any]:
    """Return the result for a file that cannot be used, or for an archive after `member_count` of its members."""
    kind = kind_of(error)
    after = f" (after {counted(member_count, 'member')})" if member_count else ""
    return Result(source, reason=f"{reason_of(error)}{after}", kind=kind)


def _shortened(source: Source, results: list[Result[Answer]]) -> list[Result[Answer]]:
    """Return results with at most a few failures of the members of an archive."""
    kept: list[Result[Answer]] = []
    failed: list[Result[Answer]] = []
    for result in results:
        if result.has_failed:
            failed.append(result)
        if not result.has_failed or len(failed) <= _MAX_FAILURE_COUNT:
            kept.append(result)
    more = failed[_MAX_FAILURE_COUNT:]
    if more:
        reason = f"{counted(len(more), 'more member')} cannot be read"
        kept.append(Result(source, reason=reason, kind=more[0].kind, file_count=len(more)))
    return kept


def each_result(sources: Sequence[Source], question: Question[Answer], count: int) -> Iterator[Result[Answer]]:
    """Yield the results for files: first those with a fault, then all others, in their order.

    `count` processes ask, an archive as one file. The caller may print after each.
    """
    sources = sorted(sources, key=lambda source: not source.fault)

    def lost(source: Source, reason: str) -> list[Result[Answer]]:
        return [Result(source, reason=reason, kind=ErrorKind.SYSTEM)]

    with closing(watched(partial(read_source, question=question), sources, lost, count=count)) as results:
        yield from chain.from_iterable(results)


# Reports of all files


def collect(
    arguments: argparse.Namespace, sources: Sequence[Source], question: Callable[[ElfImage], Answer]
) -> list[Result[Answer]]:
    """Ask all files, each with its debug file if the arguments name one; report those that fail, and go on.

    Raises what `debug_file_of` raises.
    """
    debug_file = debug_file_of(arguments)

    def ask(data: FileData, name: str) -> Answer:
        with with_debug_file(ElfImage(data, name), debug_file) as image:
            return question(image)

    results: list[Result[Answer]] = []
    for result in each_result(sources, ask, process_count(arguments.jobs)):
        results.append(result)
        if result.has_failed:
            say("error", result.reason, result.source.name)
    return results


def answers_in(results: Iterable[Result[Answer]]) -> list[Answer]:
    """Return the answers of the files that have one."""
    return [result.answer for result in results if result.answer is not None]


def publish(results: Sequence[Result[Answer]], make: "Callable[[], Report]", printing: Printing, nothing: str) -> int:
    """Make a report of the answers and write it, if it is asked for; return the worst file's exit status.

    Without answers, say `nothing`. Raises `OutputError`.
    """
    status = worst(result.exit_status for result in results)
    answered = [result.source for result in results if result.answer is not None]
    if not answered:
        if status != EXIT_SUCCESS:
            return status
        say("error", nothing)
        return EXIT_UNUSABLE
    if printing.is_unasked:
        return status
    from cfi2sframe.report.tables import render

    try:
        with limited(sum(source.size for source in answered)), printing.open() as out:
            report = _with_rest(make(), results)
            if printing.format == "html":
                report = report._replace(origin=_origin())
            out.write(render(report, printing.format))
    except CostError as error:
        names = {source.name for source in answered}
        return fail(error, names.pop() if len(names) == 1 else "")
    return status


def _with_rest(report: "Report", results: Sequence[Result[Answer]]) -> "Report":
    """Return a report that also counts the files without an answer."""
    notes = [*report.notes]
    reasons = Counter(result.reason for result in results if result.is_skipped).most_common()
    if reasons:
        texts = [f"{count:,}: {reason}" if len(reasons) > 1 else reason for reason, count in reasons]
        notes.append(f"Skipped: {counted(sum(count for _, count in reasons), 'file')} ({'; '.join(texts)}).")
    failed = [result for result in results if result.has_failed]
    if failed:
        notes.append(f"Not read: {counted(sum(result.file_count for result in failed), 'file')}.")
    return report._replace(notes=notes, data={**report.data, "failures": [result.failure for result in failed]})


def _origin() -> str:
    """Return the command that this process runs, with its version and the date."""
    import shlex
    import time

    # Reproducible builds set the date.
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH") or time.time())
    command = shlex.join([PROGRAM, *sys.argv[1:]])
    return f"{command} (version {__version__}, {time.strftime('%Y-%m-%d', time.gmtime(seconds))})"
