# SPDX-License-Identifier: Apache-2.0
"""The man page, from the parsers that `--help` prints from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe import __version__
from cfi2sframe.cli.exit_status import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commands import Argument, Command, CommandLine

_HELP = ("-h", "--help")
_VARIABLES = {
    "NO_COLOR": "Not empty: reports on a terminal have no colour.",
    "TMPDIR": "No difference: a file is written beside the one that it replaces, and renamed.",
}
_NAMES_OF_FILES = {
    ".cfi2sframe-*": "The new file, in the folder of the old one, until it is whole and has been checked. An interrupted run "
    "removes it.",
}
_NOTES = (
    "A version 3 section wants GNU ld 2.46 or later, if an object carries it; linked files do not depend on the linker.",
    "A name that begins with - or is that of a verb is written with its folder: ./verify.",
)


def man_page(line: CommandLine) -> str:
    """Return the page in the man macros, which man-db and mandoc read."""
    rows = list(_page(line))
    # A paragraph begins by itself at a heading, and one that is followed by another or by an item is empty.
    kept = [
        row
        for before, row, after in zip(["", *rows], rows, [*rows[1:], ".SH"], strict=False)
        if row != ".PP" or not (before.startswith((".SH", ".SS")) or after[:3] in (".PP", ".TP", ".SH", ".SS"))
    ]
    return "\n".join(kept) + "\n"


def _page(line: CommandLine) -> Iterator[str]:
    yield '.\\" SPDX-License-Identifier: Apache-2.0'
    yield '.\\" Made by tools/generate.py from the parsers of the command line.'
    yield f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM} {__version__}" "User Commands"'
    yield ".SH NAME"
    yield f"{PROGRAM} \\- make SFrame sections from the DWARF CFI of finished ELF files"
    yield ".SH SYNOPSIS"
    for usage in (*line.usage[:2], *(usage for command in line.commands[1:] for usage in command.usage)):
        yield ".PP"
        yield _usage(usage)
    yield ".SH DESCRIPTION"
    yield _text(line.description)
    yield "A first word that is none of the verbs is an input of"
    yield ".BR convert ."
    for verb, text in line.summaries.items():
        yield from _item(verb, f"{text[0].upper()}{text[1:]}.")
    shared = _shared(line)
    for command in line.commands:
        yield from _command(command, shared)
    yield ".SH OPTIONS OF SEVERAL VERBS"
    for argument, verbs in shared.items():
        yield from _argument(argument, f"({', '.join(verbs)})")
    yield ".SH EXIT STATUS"
    yield from _exit_status(line.exit_status)
    yield ".SH ENVIRONMENT"
    for variable, text in _VARIABLES.items():
        yield from _item(variable, text)
    yield ".SH FILES"
    for file, text in _NAMES_OF_FILES.items():
        yield from _item(file, text, font="I")
    yield ".SH NOTES"
    for note in _NOTES:
        yield ".PP"
        yield _text(note)
    yield ".SH EXAMPLES"
    yield from _example(line.examples)
    yield ".SH SEE ALSO"
    yield f".BR {PROGRAM}\\-ld (1),\n.BR readelf (1),\n.BR ld (1),\n.BR elf (5)"


def _shared(line: CommandLine) -> dict[Argument, list[str]]:
    """Return the options that several verbs have in the same words, with their verbs."""
    found: dict[Argument, list[str]] = {}
    for command in line.commands:
        for group in command.groups:
            for argument in group.arguments:
                if argument.names and argument.names != _HELP:
                    found.setdefault(argument, []).append(command.name)
    return {argument: verbs for argument, verbs in found.items() if len(verbs) > 1}


def _command(command: Command, shared: dict[Argument, list[str]]) -> Iterator[str]:
    yield f".SH {_text(command.name.upper())}"
    yield ".PP"
    for paragraph in command.description.split("\n\n"):
        yield _text(" ".join(paragraph.split()))
        yield ".PP"
    others: list[str] = []
    for group in command.groups:
        others += [argument.names[-1] for argument in group.arguments if argument in shared]
        own = [argument for argument in group.arguments if argument not in shared and argument.names != _HELP]
        if own and group.title:
            yield f".SS {_text(group.title[0].upper() + group.title[1:])}"
        for argument in own:
            yield from _argument(argument, "")
    if others:
        yield ".PP"
        yield f"Also, see below: {', '.join(_bold(name) for name in others)}."
    if command.epilog:
        head, _, rest = command.epilog.partition("\n")
        yield ".PP"
        yield _text(head)
        yield from _example(rest)


def _argument(argument: Argument, note: str) -> Iterator[str]:
    values = " ".join(f"\\fI{_text(value)}\\fR" for value in argument.values)
    names = ", ".join(_bold(name) for name in argument.names)
    yield ".TP"
    yield f"{names} {values}".strip()
    yield _text(argument.help) + (f" {_text(note)}" if note else "")


def _item(head: str, text: str, font: str = "B") -> Iterator[str]:
    yield ".TP"
    yield f".{font} {_text(head)}"
    yield _text(text)


def _exit_status(text: str) -> Iterator[str]:
    for part in text.rstrip(".").split("; "):
        code, _, meaning = part.partition(" ")
        yield from _item(code, f"{meaning}.")


def _example(text: str) -> Iterator[str]:
    yield ".PP"
    yield ".nf"
    for row in text.rstrip("\n").splitlines():
        yield _text(row) or "\\&"
    yield ".fi"


def _usage(usage: str) -> str:
    head, *rest = usage.split(" ")
    return f"\\fB{_text(head)}\\fR {_text(' '.join(rest))}"


def _bold(name: str) -> str:
    return f"\\fB{_text(name)}\\fR"


def _text(text: str) -> str:
    """Escape what roff would act on."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    escaped = escaped.replace("~", "\\(ti").replace("`", "\\(ga")
    return f"\\&{escaped}" if escaped.startswith(".") else escaped
