# SPDX-License-Identifier: Apache-2.0
"""The command line as records, read from its own parsers; the man page is made from them."""

from __future__ import annotations

import argparse
from typing import NamedTuple

from cfi2sframe.cli.parsers import VERBS, make_parser, parsers_of


class Argument(NamedTuple):
    """An option with its names, or a positional argument without; and its values as `--help` shows them."""

    names: tuple[str, ...]
    values: tuple[str, ...]
    help: str


class Group(NamedTuple):
    """The arguments under one heading of `--help`; the first group of a verb has none."""

    title: str
    arguments: tuple[Argument, ...]


class Command(NamedTuple):
    """A verb with its arguments; `epilog` holds its examples."""

    name: str
    usage: tuple[str, ...]
    description: str
    epilog: str
    groups: tuple[Group, ...]


class CommandLine(NamedTuple):
    """The program: its verbs, and what its own `--help` says."""

    usage: tuple[str, ...]
    description: str
    commands: tuple[Command, ...]
    summaries: dict[str, str]
    examples: str
    exit_status: str


def command_line() -> CommandLine:
    """Read the whole command line."""
    parser = make_parser()
    of = {paragraph.split(maxsplit=1)[0]: paragraph for paragraph in (parser.epilog or "").strip().split("\n\n")}
    return CommandLine(
        _lines(parser.usage),
        parser.description or "",
        tuple(_command(name, verb) for name, verb in parsers_of(parser).items()),
        dict(VERBS),
        of["examples:"].split("\n", 1)[1],
        " ".join(of["exit"].removeprefix("exit status: ").split()),
    )


def is_hidden(action: argparse.Action) -> bool:
    """Whether `--help` does not show an argument."""
    return action.help == argparse.SUPPRESS


def _command(name: str, parser: argparse.ArgumentParser) -> Command:
    groups = []
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no public way to ask
        arguments = tuple(_argument(action) for action in group._group_actions if not is_hidden(action))  # noqa: SLF001
        if arguments:
            is_unnamed = group.title in ("positional arguments", "options")
            groups.append(Group("" if is_unnamed else group.title or "", arguments))
    return Command(name, _lines(parser.usage), parser.description or "", parser.epilog or "", tuple(groups))


def _argument(action: argparse.Action) -> Argument:
    text = " ".join((action.help or "").replace("%%", "%").split())
    return Argument(tuple(action.option_strings), () if action.nargs == 0 else _values(action), text)


def _values(action: argparse.Action) -> tuple[str, ...]:
    if isinstance(action.metavar, tuple):
        return action.metavar
    if action.metavar is not None:
        return (action.metavar,) * (action.nargs if isinstance(action.nargs, int) else 1)
    if action.choices:
        return ("{" + ",".join(str(choice) for choice in action.choices) + "}",)
    return (action.dest.upper(),)


def _lines(usage: str | None) -> tuple[str, ...]:
    return tuple(" ".join(line.split()) for line in (usage or "").splitlines())
