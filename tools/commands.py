# SPDX-License-Identifier: Apache-2.0
"""The command line as records, read from its own parsers; the man page and the completions are made from them."""

from __future__ import annotations

import argparse
import contextlib
import io
from importlib import import_module
from typing import NamedTuple

from cfi2sframe import cli

#: Metavariables of arguments that are files or folders.
_FILES = frozenset({"FILE", "FOLDER", "IN", "OUT", "PATH", "SECTION", "OLD", "NEW", "DIR", "CORE", "PROGRAM", "STAMP"})


class Option(NamedTuple):
    """An option: its names, its values as `--help` shows them (none for a switch), and the choices of values."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    choices: tuple[str, ...]
    is_file: bool
    is_optional: bool
    help: str


class Positional(NamedTuple):
    """An argument without a name."""

    metavar: str
    is_file: bool
    help: str


class Command(NamedTuple):
    """A verb with its arguments; `epilog` holds its examples."""

    name: str
    usage: tuple[str, ...]
    description: str
    epilog: str
    options: tuple[Option, ...]
    positionals: tuple[Positional, ...]


class CommandLine(NamedTuple):
    """The program: its verbs, and the paragraphs of its own `--help` by their first word."""

    commands: tuple[Command, ...]
    summary: str
    verbs: dict[str, str]
    examples: str
    exit_status: str


def command_line() -> CommandLine:
    """Read the whole command line."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        cli.main(["--help"])
    paragraphs = out.getvalue().strip().split("\n\n")
    of = {paragraph.split(maxsplit=1)[0]: paragraph for paragraph in paragraphs}
    return CommandLine(
        tuple(_command(verb) for verb in cli.VERBS),
        " ".join(paragraphs[1].split()),
        _verbs(of["verbs"]),
        of["examples:"].split("\n", 1)[1],
        " ".join(of["exit"].removeprefix("exit status: ").split()),
    )


def _verbs(paragraph: str) -> dict[str, str]:
    found: dict[str, str] = {}
    verb = ""
    for line in paragraph.splitlines():
        word, _, rest = line.strip().partition(" ")
        if word in cli.VERBS and line.startswith("  ") and not line.startswith("   "):
            verb = word
            found[verb] = rest.strip()
        elif verb:
            found[verb] += f" {line.strip()}"
    return found


def _command(verb: str) -> Command:
    parser: argparse.ArgumentParser = import_module(f"cfi2sframe.cli.{verb}").make_parser()
    options, positionals = [], []
    for action in parser._actions:  # noqa: SLF001 - argparse has no public way to ask
        if action.help == argparse.SUPPRESS:
            continue
        values = () if action.nargs == 0 else _values(action)
        is_file = bool(values) and values[0] in _FILES and not action.choices
        text = " ".join((action.help or "").replace("%%", "%").split())
        if action.option_strings:
            choices = tuple(str(choice) for choice in action.choices or ())
            names = tuple(action.option_strings)
            options.append(Option(names, values, choices, is_file, action.nargs == "?", text))
        else:
            positionals.append(Positional(values[0], is_file, text))
    usage = tuple(" ".join(line.split()) for line in (parser.usage or "").splitlines())
    return Command(verb, usage, parser.description or "", parser.epilog or "", tuple(options), tuple(positionals))


def _values(action: argparse.Action) -> tuple[str, ...]:
    if isinstance(action.metavar, tuple):
        return action.metavar
    if action.metavar is not None:
        return (action.metavar,) * (action.nargs if isinstance(action.nargs, int) else 1)
    if action.choices:
        return ("{" + ",".join(str(choice) for choice in action.choices) + "}",)
    return (action.dest.upper(),)
