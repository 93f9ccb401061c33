# SPDX-License-Identifier: Apache-2.0
"""The verb `verify`: compare sections with the CFI, and check what a reader requires."""

import argparse
import json
import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TextIO

from cfi2sframe import api
from cfi2sframe.cli.messages import (
    EXIT_DIFFERENCE,
    EXIT_SUCCESS,
    EXIT_UNCOMPARED,
    EXIT_UNUSABLE,
    PROGRAM,
    say,
    worst,
)
from cfi2sframe.cli.options import (
    add_conversion_options,
    add_inputs,
    add_option,
    check_report,
    conversion_options,
    debug_file_of,
    is_one_file,
    process_count,
    sources_of,
    write_report,
)
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import Result, add_output, answers_in, each_result, printing_of
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.debug_file import with_debug_file
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import is_section, read_file
from cfi2sframe.errors import InputError, RequestError, SFrameError, UnfitError
from cfi2sframe.existing import Presence, existing_section
from cfi2sframe.files.find import read_named
from cfi2sframe.files.source import STANDARD_INPUT, named_source
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.sframe.read import DecodedSection
from cfi2sframe.text import counted, printable
from cfi2sframe.verification.readers import Verdict
from cfi2sframe.verification.truth import Judged

#: For files such as modules after `strip -g`.
_NOT_COMPARED: Final = (
    "not compared: the file has no call frame information for its section; verify it before it is stripped, or with "
    "--debug-file"
)
_STATUSES: Final = {"clean": EXIT_SUCCESS, "different": EXIT_DIFFERENCE, "uncompared": EXIT_UNCOMPARED}


class _Wanted(NamedTuple):
    """The section to check: the file's, the bytes of another, or with `is_conversion` what convert would make.

    `section_name` is the name of the file with the bytes. The section has to meet the demands of `readers`; it was made
    for the first one (`convert --for`).
    """

    options: Options
    section: bytes | None
    section_name: str
    is_conversion: bool
    readers: tuple[str, ...]
    debug_file: str | None

    @property
    def reader(self) -> str | None:
        """The reader that the section was made for."""
        return self.readers[0] if self.readers else None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} verify FILE... [--would-be] [--for NAME]... [OPTION]...\n"
        f"       {PROGRAM} verify FILE SECTION [--section-address ADDR] [OPTION]...",
        "Compare the SFrame section of each FILE, or the raw bytes in SECTION, with the CFI of FILE at every row of\n"
        "either: CFA, RA, FP, RA signing, outermost frames. With --for, also print what each release of this reader\n"
        "would do with the section. In directories, files without a section are skipped.",
        "examples:\n"
        f"  {PROGRAM} verify program\n"
        f"  {PROGRAM} verify -v -j 4 debian/tmp     every section in a tree\n"
        f"  {PROGRAM} verify --would-be /bin/ls     the section that convert would write\n"
        f"  {PROGRAM} verify program --for kernel --for glibc\n"
        f"  {PROGRAM} program -o - | {PROGRAM} verify program -\n\n"
        "exit status: 0 no difference; 1 a difference, or no release of a reader reads the section; 2 usage; 3 no\n"
        "section, or an unusable file; 5 the file has a section, but no CFI to compare it with.\n",
    )
    add_inputs(parser, "ELF file or directory; - is standard input, also as SECTION")
    group = parser.add_argument_group("what to check")
    add_option(group, "--would-be", "check the section that convert would write, not the one in FILE")
    text = "check what this reader requires; functions that it would refuse may be missing; repeatable"
    add_conversion_options(parser, text, action="append", default=[])
    group = add_output(parser, ("text", "json"))
    add_option(group, "-v, --verbose", "print how much was compared")
    add_option(group, "--report FILE", "write a line of JSON for each file")


def run(arguments: argparse.Namespace) -> int:
    """Verify the sections of all files; return the worst file's exit status."""
    wanted = _wanted(arguments)
    sources = sources_of(arguments, with_archives=True)
    read = [*sources, named_source(wanted.section_name or STANDARD_INPUT)]
    printing = printing_of(arguments, read)
    check_report(arguments, [printing.path], read)
    is_single, is_verbose = is_one_file(sources), arguments.verbose
    results: list[Result[Checked]] = []
    with printing.open() as out:
        for result in each_result(sources, partial(_check, wanted=wanted), process_count(arguments.jobs)):
            results.append(result)
            if result.has_failed:
                say("error", result.reason, result.source.name)
            elif result.answer is not None and printing.format == "text":
                _print(result.source.name, result.answer, out, is_single=is_single, is_verbose=is_verbose)
        if printing.format == "json":
            out.write(json.dumps(_json_of(results), indent=1) + "\n")
    if is_verbose and not is_single:
        say("info", _sums(results))
    write_report(arguments.report, (json.dumps({"schema": SCHEMA_VERSION, **_data_of(result)}) for result in results))
    if all(result.is_skipped for result in results):
        say("error", "none of these files has an .sframe section (--would-be: what convert would write)")
        return EXIT_UNUSABLE
    return worst(map(_exit_status, results))


def _status(result: "Result[Checked]") -> str:
    """Return the status of a file: a key of `_STATUSES`, skipped or failed."""
    if result.answer is not None:
        return result.answer.status
    return "skipped" if result.is_skipped else "failed"


def _exit_status(result: "Result[Checked]") -> int:
    return _STATUSES.get(_status(result), result.exit_status)


def _data_of(result: "Result[Checked]") -> dict[str, Any]:
    """Return the object that a report has for a file."""
    kind = result.failure["kind"] if result.has_failed else ""
    head = {"file": result.source.name, "status": _status(result), "exit_status": _exit_status(result)}
    return head | {"kind": kind, "reason": result.reason} | ({} if result.answer is None else result.answer._asdict())


def _print(name: str, checked: "Checked", out: TextIO, *, is_single: bool, is_verbose: bool) -> None:
    """Print the differences of a file, and with -v what is unusual."""
    lines = (*checked.lines, *(checked.note_lines if is_verbose else ()))
    out.writelines(f"{printable(f'{name}: {line}')}\n" for line in lines)
    if is_verbose and is_single and (checked.function_count or not checked.readers):
        debug_file = f"; with {checked.debug_file}" if checked.debug_file else ""
        say("info", f"{_comparison([checked])}{debug_file}", name)


def _json_of(results: "Sequence[Result[Checked]]") -> dict[str, Any]:
    """Return the document for `--format json`, in the form that coverage, size and audit write, too."""
    return {
        "schema": SCHEMA_VERSION,
        "files": [_data_of(result) for result in results if result.answer is not None],
        "failures": [result.failure for result in results if result.has_failed],
    }


def _sums(results: "Sequence[Result[Checked]]") -> str:
    """Return a sentence about all files."""
    if not results:
        return "no ELF files found"
    statuses = Counter(map(_status, results))
    kinds = ", ".join(f"{count:,} {status}" for status, count in sorted(statuses.items()))
    return f"{counted(len(results), 'file')}: {kinds}; {_comparison(answers_in(results))}"


def _wanted(arguments: argparse.Namespace) -> _Wanted:
    """Return what to check, and take SECTION out of the inputs. Raises `RequestError` when options contradict."""
    readers = tuple(dict.fromkeys(arguments.reader))
    arguments.reader = readers[0] if readers else None
    options = conversion_options(arguments)
    section, section_name = None, ""
    if len(arguments.inputs) == 2:
        file, wanted = arguments.inputs
        is_piped = _is_pipe(wanted) and not arguments.would_be
        section = _piped_section(wanted) if is_piped else _section_in(wanted)
        if section is None and _section_in(file) is not None:
            raise RequestError(f"FILE comes before SECTION: {PROGRAM} verify {wanted} {file}")
        if section and arguments.would_be:
            raise RequestError("--would-be and SECTION are mutually exclusive")
        if section:
            section_name = arguments.inputs.pop()
    if section is None and arguments.section_address is not None and not arguments.would_be:
        raise RequestError("--section-address is only valid with SECTION or --would-be")
    return _Wanted(options, section, section_name, arguments.would_be, readers, debug_file_of(arguments))


def _is_pipe(path: str) -> bool:
    try:
        return path == STANDARD_INPUT or stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:
        return False


def _piped_section(path: str) -> bytes:
    """Return the content of a pipe or standard input. Raises `RequestError` unless it is the raw bytes of a section."""
    data = read_named(path)
    if not is_section(data):
        # It cannot be read again, as a second FILE.
        raise RequestError(f"{path} after FILE is SECTION, and does not begin like an SFrame section")
    return bytes(data)


def _section_in(path: str) -> bytes | None:
    """Return the content of a regular file if it is the raw bytes of a section; otherwise None."""
    try:
        data = read_file(path) if os.path.isfile(path) else b""
    except OSError:
        return None
    return bytes(data) if is_section(data) else None


def _comparison(checks: "Sequence[Checked]") -> str:
    judged = Judged(*map(sum, zip(*[checked.judged.values() for checked in checks if checked.judged], strict=True)))
    return (
        f"{counted(sum(checked.function_count for checked in checks), 'function')}, "
        f"{counted(sum(checked.point_count for checked in checks), 'row')} compared ({judged}), "
        f"{sum(checked.left_out_count for checked in checks):,} correctly omitted, "
        f"{counted(sum(len(checked.differences) for checked in checks), 'difference')}"
    )


class Checked(NamedTuple):
    """The entry of a report for a file: a key of `_STATUSES`, counts, differences, and what readers would do.

    `judged` has the addresses by what they were compared with. `debug_file` is the separate debug file whose CFI
    counted.
    """

    status: str
    function_count: int = 0
    point_count: int = 0
    judged: dict[str, int] = {}  # noqa: RUF012 - never changed
    left_out_count: int = 0
    differences: tuple[dict[str, str], ...] = ()
    notes: tuple[dict[str, str], ...] = ()
    readers: tuple[str, ...] = ()
    reason: str = ""
    debug_file: str = ""

    @property
    def lines(self) -> tuple[str, ...]:
        """The lines printed after the file's name."""
        differences = [": ".join(difference.values()) for difference in self.differences]
        return (*self.readers, *differences, *([self.reason] if self.reason else []))

    @property
    def note_lines(self) -> tuple[str, ...]:
        """The lines that -v adds: what the specification allows and some readers reject."""
        return tuple([": ".join(note.values()) for note in self.notes])


def _check(data: FileData, name: str, wanted: _Wanted) -> Checked:
    """Check the section of a file.

    Raises `UnfitError` when the file has none, and otherwise what `decode_existing`, `convert` and `verify` raise.
    """
    file = ElfImage(data, name)
    has_one = wanted.section or wanted.is_conversion or file.has_sframe
    if not has_one and existing_section(file).presence is Presence.ABSENT:
        raise UnfitError("no .sframe section; --would-be checks the one that convert would write")
    with with_debug_file(file, wanted.debug_file) as image:
        made = api.convert_for(image, wanted.options, wanted.reader) if wanted.is_conversion else None
        section = _section(image, wanted) if made is None else api.decode_conversion(made)
        lines, all_read_it = _verdicts(image, section, wanted)
        checked = _compared(made or image, section, wanted) if all_read_it else Checked("different")
        return checked._replace(readers=lines, debug_file="" if image.debug_file is None else image.debug_file.name)


def _verdicts(image: ElfImage, section: DecodedSection, wanted: _Wanted) -> tuple[tuple[str, ...], bool]:
    """Return the lines about what readers would do with the section, and whether each reads it in some release."""
    lines: list[str] = []
    all_read_it = True
    for reader in wanted.readers:
        verdicts = api.judge(image, section, reader, is_in_file=not (wanted.section or wanted.is_conversion))
        lines += [line for verdict in verdicts for line in _lines_of(verdict, image)]
        all_read_it &= any(verdict.reads_it for verdict in verdicts)
    return tuple(lines), all_read_it


def _compared(subject: ElfImage | Conversion, section: DecodedSection, wanted: _Wanted) -> Checked:
    """Compare the section with the CFI of a file, or with the CFI that a conversion has read."""
    if isinstance(subject, Conversion):
        image, result = subject.image, api.verify_made(subject, section, wanted.reader)
    else:
        image = subject
        result = api.verify(image, section, source=wanted.options.source, reader=wanted.reader)
    differences, notes = (
        tuple({"place": image.place_text(vaddr), "kind": kind, "message": text} for kind, vaddr, text in places)
        for places in (result.differences, result.notes)
    )
    status = "different" if differences else "clean" if result.is_compared else "uncompared"
    counts = (result.function_count, result.point_count, result.judged._asdict(), result.left_out_count)
    return Checked(status, *counts, differences, notes, reason="" if result.is_compared else _NOT_COMPARED)


def _section(image: ElfImage, wanted: _Wanted) -> DecodedSection:
    if wanted.section is not None:
        try:
            return api.decode_raw(image, wanted.section, wanted.options.section_vaddr, wanted.options)
        except SFrameError as error:
            raise InputError(f"{wanted.section_name}: {error.detail}") from None
    return api.decode_existing(image)


def _lines_of(verdict: Verdict, image: ElfImage) -> Iterator[str]:
    """Yield a line for each rule of a reader that the section breaks, or that it reads the section."""
    prefix = f"{verdict.reader} ({verdict.releases})"
    for broken in verdict.broken:
        count = len(broken.vaddrs)
        where = f"{image.place_text(broken.vaddrs[0])}: " if count else ""
        more = f" ({count:,} such places)" if count > 1 else ""
        yield f"{prefix}: {broken.consequence}: {broken.rule}: {where}{broken.message}{more}"
    if verdict.reads_it:
        yield f"{prefix}: reads it"
