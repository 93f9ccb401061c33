# SPDX-License-Identifier: Apache-2.0
"""Options that several verbs share, and their values: files to read, and how to convert."""

import argparse
import os
from collections.abc import Iterable, Sequence
from typing import Any

from cfi2sframe.constants.sframe import DEFAULT_ERRATA, ERRATA
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import RequestError, naming_path
from cfi2sframe.files.source import Source
from cfi2sframe.files.write import write_output
from cfi2sframe.verification import READERS


def add_option(group: argparse._ActionsContainer, spelling: str, text: str, **more: Any) -> None:  # noqa: ANN401 - argparse's
    """Add an option, spelled as in its help: `-j, --jobs N` takes a value, `--compare OLD NEW` two, `--check` none."""
    words = spelling.replace(",", "").split()
    names = [word for word in words if word.startswith("-")]
    metavars = tuple(words[len(names) :])
    if not metavars:
        more["action"] = "store_true"
    elif len(metavars) == 1:
        more["metavar"] = metavars[0]
    else:
        more |= {"nargs": len(metavars), "metavar": metavars}
    group.add_argument(*names, help=text, **more)


# Files


def add_inputs(parser: argparse.ArgumentParser, text: str, *, has_processes: bool = True) -> argparse._ArgumentGroup:
    """Add FILE... and the options that select files in directories; return their group."""
    group = parser.add_argument_group("files")
    group.add_argument("inputs", metavar="FILE", nargs="*", help=text)
    text = "skip files and directories by name, or by path if GLOB has a slash"
    add_option(group, "--exclude GLOB", text, action="append", default=[])
    text = "also process the files in LIST, NUL-terminated (find -print0); - is stdin"
    add_option(group, "--files-from LIST", text)
    if has_processes:
        add_option(group, "-j, --jobs N", "number of processes (default: one per processor)", type=positive)
    else:
        parser.set_defaults(jobs=1)
    return group


def sources_of(arguments: argparse.Namespace, *, with_archives: bool = False, cleans: bool = False) -> list[Source]:
    """Return the files that the arguments name (`find_sources`).

    Raises `RequestError` when they name none, or a list that is none, and `OSError` when it cannot be read.
    """
    if not arguments.inputs and arguments.files_from is None:
        raise RequestError("no input file")
    from cfi2sframe.files.find import find_sources, names_from

    listed = () if arguments.files_from is None else names_from(arguments.files_from)
    return find_sources(arguments.inputs, arguments.exclude, listed, with_archives=with_archives, cleans=cleans)


def compared_sources(arguments: argparse.Namespace) -> list[list[Source]]:
    """Return the files of `--compare OLD NEW`, those of trees called by their paths below them.

    Raises `RequestError` when other files are named, or a file and a tree.
    """
    if arguments.inputs or arguments.files_from:
        raise RequestError("--compare OLD NEW takes no other files")
    if len({os.path.isdir(root) for root in arguments.compare if os.path.exists(root)}) > 1:
        raise RequestError("--compare takes two files or two directories, not one of each")
    from cfi2sframe.files.find import find_sources

    return [find_sources([r], arguments.exclude, with_archives=True, is_relative=True) for r in arguments.compare]


def is_one_file(sources: Sequence[Source]) -> bool:
    """Return whether the user has named a single file, and no directory, list or archive: messages are longer then."""
    return len(sources) == 1 and not (sources[0].may_be_unfit or sources[0].is_archive)


def process_count(jobs: int | None) -> int:
    """Return the number of `-j` or, without it, of the processors that this process may use."""
    return jobs or len(os.sched_getaffinity(0))


# Conversion


def add_conversion_options(
    parser: argparse.ArgumentParser,
    for_reader: str = "write what this reader reads, and leave out functions that it would refuse",
    **more: Any,  # noqa: ANN401 - argparse's
) -> argparse._ArgumentGroup:
    """Add the options that determine the section; return their group. `for_reader` is the help of `--for`."""
    group = parser.add_argument_group("conversion")
    text = f"{for_reader}: {', '.join(READERS)}"
    add_option(group, "--for NAME", text, dest="reader", choices=READERS, **more)
    add_version(group)
    levels = ", ".join(f"{level} ({what})" if what else str(level) for level, what in ERRATA.items())
    text = f"errata of version 2: {levels}; default {DEFAULT_ERRATA}"
    add_option(group, "--errata N", text, type=int, choices=tuple(ERRATA))
    add_source(group, ("eh_frame", "debug_frame", "gopclntab", "code"))
    add_debug_file(group)
    text = "size: 0 plain, 1 share equal rows, 2 (default) also cut and join functions"
    add_option(group, "-O N", text, dest="level", type=int, choices=(0, 1, 2))
    text = "load address of raw bytes (default: first 64 KiB boundary past PT_LOAD)"
    add_option(group, "--section-address ADDR", text, type=address)
    return group


def add_version(group: argparse._ActionsContainer) -> None:
    """Add `--sframe-version`; None is the version of `--for`, or the newest."""
    add_option(group, "--sframe-version N", "SFrame version: 1, 2 or 3 (default 3)", type=int, choices=(1, 2, 3))


def add_source(group: argparse._ActionsContainer, choices: tuple[str, ...]) -> None:
    """Add `--from`."""
    text = "code: also derive rows from the instructions of code without CFI"
    if len(choices) > 1:
        only = f"only this CFI: {', '.join(choice for choice in choices if choice != 'code')}"
        text = f"{only}; {text}" if "code" in choices else only
    add_option(group, "--from CFI", text, dest="source", choices=choices)


def add_debug_file(group: argparse._ActionsContainer) -> None:
    """Add `--debug-file`."""
    text = "also read this debug file, or one in this directory; auto: where gdb looks"
    add_option(group, "--debug-file FILE", text)


def debug_file_of(arguments: argparse.Namespace) -> str | None:
    """Return the value of `--debug-file`.

    Raises `RequestError` when `--from` excludes it, or it is an output, and `OSError` when it is not there.
    """
    path: str | None = arguments.debug_file
    if path is not None and arguments.source not in (None, "code"):
        raise RequestError(f"--from {arguments.source} and --debug-file are mutually exclusive")
    if path not in (None, "auto"):
        with naming_path(path):
            os.stat(path)
        for option in ("output", "report"):
            check_apart(option, getattr(arguments, option, None), [path])
    return path


def conversion_options(arguments: argparse.Namespace) -> Options:
    """Return the options for the library. Raises `RequestError` when they contradict one another."""
    version, errata = arguments.sframe_version or 3, arguments.errata
    if arguments.reader is not None:
        reader = READERS[arguments.reader]
        for option, of_reader in (("sframe_version", reader.version), ("errata", reader.errata)):
            value = getattr(arguments, option)
            if value not in (None, of_reader):
                name = option.replace("_", "-")
                raise RequestError(f"--for {arguments.reader} and --{name} {value} contradict each other")
        version, errata = reader.version, reader.errata
    if errata is not None and version != 2:
        raise RequestError("--errata is only valid with --sframe-version 2")
    return Options(version, errata, arguments.source, arguments.section_address, arguments.level)


# Output


def write_text(path: str, text: str) -> None:
    """Write a file, whole or not at all; `-` is standard output. Raises `OutputError`."""
    write_output(path, text.encode("utf-8", "backslashreplace"))


def check_apart(option: str, path: str | None, others: Iterable[str] = (), sources: Iterable[Source] = ()) -> None:
    """Raise `RequestError` where an option names an input or another output, also through symbolic links.

    Hard links are different files; devices and pipes may be named twice.
    """
    if path is None or path == "-" or (os.path.exists(path) and not os.path.isfile(path)):
        return
    taken = {os.path.realpath(other) for other in others if other != "-"}
    if os.path.realpath(path) in taken.union(*(source.targets for source in sources)):
        raise RequestError(f"--{option} {path} would overwrite an input or another output")


def check_report(arguments: argparse.Namespace, outputs: Iterable[str], sources: Iterable[Source]) -> None:
    """Raise `RequestError` or `OSError`, before a long run, where the file of `--report` cannot be written after it."""
    path = arguments.report
    check_apart("report", path, [*outputs, arguments.files_from or "-"], sources)
    if path is not None and path != "-":
        with naming_path(path):
            os.stat(os.path.dirname(os.path.realpath(path)))


def write_report(path: str | None, lines: Iterable[str]) -> None:
    """Write the lines of `--report`, if there is to be one. Raises `OutputError`."""
    if path is not None:
        write_text(path, "".join(f"{line}\n" for line in lines))


# Values


def address(text: str) -> int:
    """Parse an address in C notation."""
    try:
        value = int(text, 0)
    except ValueError:
        raise argparse.ArgumentTypeError(f"not a number: {text!r}") from None
    if not 0 <= value < 1 << 64:
        raise argparse.ArgumentTypeError(f"not a 64-bit address: {text!r}")
    return value


def percentage(text: str) -> float:
    """Parse a number from 0 to 100."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"not a percentage: {text!r}")
    return value


def positive(text: str) -> int:
    """Parse a number of at least one."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"not a positive number: {text!r}")
    return int(text)
