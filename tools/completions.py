# SPDX-License-Identifier: Apache-2.0
"""Completions for the shells, made by shtab from the parsers of the command line."""

from __future__ import annotations

import argparse
from typing import Final

import shtab

from cfi2sframe.cli.parsers import DEFAULT_VERB, make_parser, parsers_of

#: Metavariables of arguments that are files or folders.
_FILES: Final = frozenset({"FILE", "IN", "OUT", "OLD", "NEW", "DIR", "CORE", "LIST"})
_HEAD: Final = """\
# SPDX-License-Identifier: Apache-2.0
# Made by tools/generate.py from the parsers of the command line.
"""
_MARK_OF_ZSH: Final = "#compdef "


def completion(shell: str) -> str:
    """Return the script for bash, zsh or fish."""
    text = shtab.complete(_parser(), shell)
    if text.startswith(_MARK_OF_ZSH):
        # zsh looks for this mark in the first line.
        first, _, rest = text.partition("\n")
        return f"{first}\n{_HEAD}{rest}"
    return f"{_HEAD}{text}"


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line, with what completes arguments and with convert's options before a verb."""
    parser = make_parser()
    verbs = parsers_of(parser)
    for action in verbs[DEFAULT_VERB]._actions:  # noqa: SLF001 - argparse has no public way to ask
        if action.option_strings and action.dest != "help":
            parser._add_action(action)  # noqa: SLF001
    for verb in verbs.values():
        for action in verb._actions:  # noqa: SLF001
            action.help = _first_sentence(action.help or "")
            values = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
            if not action.choices and _FILES.intersection(value for value in values if value):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    return parser


def _first_sentence(text: str) -> str:
    """Return what fits beside a name: up to the first stop, and no more than a line."""
    for stop in ("; ", ": ", " ("):
        text = text.partition(stop)[0]
    return text if len(text) <= 80 else text[:79].rsplit(" ", 1)[0]
