# SPDX-License-Identifier: Apache-2.0
"""The man page, from the parsers that `--help` prints from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe import __version__
from cfi2sframe.cli.exit_status import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commands import Command, CommandLine, Option

_HELP = ("-h", "--help")


def man_page(line: CommandLine) -> str:
    """Return the page in the man macros, which man-db and mandoc read."""
    rows = list(_page(line))
    # A paragraph begins by itself at a heading, and one that is followed by another or by an item is empty.
    kept = [
        row
        for before, row, after in zip(["", *rows], rows, [*rows[1:], ".SH"], strict=False)
        if row != ".PP" or not (before.startswith(".SH") or after[:3] in (".PP", ".TP", ".SH"))
    ]
    return "\n".join(kept) + "\n"


def _page(line: CommandLine) -> Iterator[str]:
    yield '.\\" SPDX-License-Identifier: Apache-2.0'
    yield '.\\" Made by tools/generate.py from the parsers of the command line.'
    yield f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM} {__version__}" "User Commands"'
    yield ".SH NAME"
    yield f"{PROGRAM} \\- make SFrame sections from the DWARF CFI of finished ELF files"
    yield ".SH SYNOPSIS"
    for command in line.commands:
        for usage in command.usage:
            yield ".PP"
            yield _usage(usage)
    yield ".SH DESCRIPTION"
    yield _text(line.summary)
    yield "A first argument that is none of the verbs is the input of"
    yield ".BR convert ."
    for verb, text in line.verbs.items():
        yield ".TP"
        yield f".B {_text(verb)}"
        yield _text(text)
    shared = _shared(line)
    for command in line.commands:
        yield from _command(command, shared)
    yield ".SH OPTIONS OF SEVERAL VERBS"
    for option, verbs in shared.items():
        yield from _option(option, f"({', '.join(verbs)})")
    yield ".SH EXIT STATUS"
    yield from _exit_status(line.exit_status)
    yield ".SH ENVIRONMENT"
    yield from _item("NO_COLOR", "Not empty: reports on a terminal have no colour.")
    yield ".SH EXAMPLES"
    yield from _example(line.examples)
    yield ".SH SEE ALSO"
    yield ".BR readelf (1),\n.BR ld (1),\n.BR elf (5)"


def _shared(line: CommandLine) -> dict[Option, list[str]]:
    """Return the options that several verbs have in the same words, with their verbs."""
    found: dict[Option, list[str]] = {}
    for command in line.commands:
        for option in command.options:
            if option.names != _HELP:
                found.setdefault(option, []).append(command.name)
    return {option: verbs for option, verbs in found.items() if len(verbs) > 1}


def _command(command: Command, shared: dict[Option, list[str]]) -> Iterator[str]:
    yield f".SH {_text(command.name.upper())}"
    yield ".PP"
    for paragraph in command.description.split("\n\n"):
        yield _text(" ".join(paragraph.split()))
        yield ".PP"
    for positional in command.positionals:
        yield from _item(positional.metavar, positional.help, font="I")
    for option in command.options:
        if option.names != _HELP and option not in shared:
            yield from _option(option, "")
    others = [option.names[-1] for option in command.options if option in shared]
    if others:
        yield ".PP"
        yield f"Also, see below: {', '.join(_bold(name) for name in others)}."
    if command.epilog:
        head, _, rest = command.epilog.partition("\n")
        yield ".PP"
        yield _text(head)
        yield from _example(rest)


def _option(option: Option, note: str) -> Iterator[str]:
    values = " ".join(f"\\fI{_text(value)}\\fR" for value in option.values)
    if option.is_optional:
        values = f"[{values}]"
    yield ".TP"
    yield ", ".join(_bold(name) for name in option.names) + (f" {values}" if values else "")
    yield _text(option.help) + (f" {_text(note)}" if note else "")


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
