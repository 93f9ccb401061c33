# SPDX-License-Identifier: Apache-2.0
"""What pages have from the program itself: the options of the verbs, and the names of the library.

A line `<!-- the command line -->` or `<!-- the names of MODULE -->` of a page stands for it.
"""

from __future__ import annotations

import argparse
import re
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_PLACE = re.compile(r"^<!-- the (command line|names of ([\w.]+)) -->$", re.MULTILINE)
_LINK = re.compile(r"\[([^\]\n]*)\]\(([^)#:\s]+)\)")
_OPTION = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")
#: What Markdown would act on.
_MARKUP = re.compile(r"([\\`*_<>\[\]|])")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Return the parser of each verb."""
    from cfi2sframe.cli.parsers import make_parser, parsers_of

    return parsers_of(make_parser())


def fill_in(root: Path, page: str, source: list[str]) -> None:
    """Replace the lines of a page, the only element of `source`, that stand for what is made here.

    `page` is its path below `root`, without a suffix. A link to a directory, which has no
    page, becomes its text.
    """
    folder = (root / page).parent

    def linked(match: re.Match[str]) -> str:
        return match[1] if (folder / match[2]).is_dir() else match[0]

    text = _PLACE.sub(lambda match: public_names(match[2]) if match[2] else command_line(), source[0])
    source[0] = _LINK.sub(linked, text)


def is_field(member: object) -> bool:
    """Whether a member of a class is a record's field: the signature has it, and its own docstring says nothing."""
    return "Alias for field number" in (getattr(member, "__doc__", None) or "")


def command_line() -> str:
    """Return a section in Markdown for each verb."""
    return "\n".join(line for verb, parser in parsers().items() for line in _verb(verb, parser))


def _verb(verb: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    usage = parser.format_usage().rstrip().removeprefix("usage: ").replace("\n       ", "\n")
    yield from (f"## {verb}", "", "```text", usage, "```", "")
    yield from (_escaped(parser.description or ""), "")
    yield from (f"```{{program}} cfi2sframe {verb}", "```", "")
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no public way to ask
        shown = [
            action
            for action in group._group_actions  # noqa: SLF001
            if action.help != argparse.SUPPRESS and "--help" not in action.option_strings
        ]
        if shown and group.title not in ("positional arguments", "options"):
            yield from (f"**{_escaped((group.title or '').capitalize())}**", "")
        if shown and group.description:
            yield from (_escaped(group.description), "")
        for action in shown:
            text = _escaped((action.help or "").replace("%%", "%"))
            yield from (f"```{{option}} {', '.join(_spellings(action, parser))}", text, "```", "")
    if parser.epilog:
        yield from ("```text", parser.epilog.rstrip(), "```", "")


def _spellings(action: argparse.Action, parser: argparse.ArgumentParser) -> Iterator[str]:
    formatter = parser._get_formatter()  # noqa: SLF001
    default = formatter._get_default_metavar_for_optional(action)  # noqa: SLF001
    values = "" if action.nargs == 0 else formatter._format_args(action, default)  # noqa: SLF001
    if not action.option_strings:
        yield action.metavar if isinstance(action.metavar, str) else action.dest
    for name in action.option_strings:
        yield f"{name} {values}".rstrip()


def _escaped(text: str) -> str:
    """Return text for Markdown, with the options in it as code."""
    parts = _OPTION.split(text)
    return "".join(f"`{part}`" if number % 2 else _MARKUP.sub(r"\\\1", part) for number, part in enumerate(parts))


def public_names(module: str) -> str:
    """Return the directives that describe the public names of a module, from their docstrings."""
    return "\n".join(line for name in import_module(module).__all__ for line in _public(module, name))


def _public(module: str, name: str) -> Iterator[str]:
    made = getattr(import_module(module), name)
    if isinstance(made, type):
        yield from ("```{eval-rst}", f".. autoclass:: {module}.{name}", "   :members:", "```", "")
    elif callable(made):
        yield from ("```{eval-rst}", f".. autofunction:: {module}.{name}", "```", "")
