#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write what is made from the command line's parsers: share.py [DIR] (default: data/share). `dist.py` calls it.

The man page, and shtab's completions for bash, zsh and fish. argparse-manpage would make the page, but has no wheels.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

ROOT = Path(__file__).resolve().parents[1]
# The parsers are those of this tree, also where another one is installed.
sys.path.insert(0, str(ROOT))

import shtab  # noqa: E402

from cfi2sframe import __version__  # noqa: E402
from cfi2sframe.cli.messages import PROGRAM  # noqa: E402
from cfi2sframe.cli.parsers import DEFAULT_VERB, make_parser, parsers_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Metavariables of arguments that are files or folders.
_FILES: Final = frozenset({"FILE", "IN", "OUT", "OLD", "NEW", "CORE", "LIST"})
_ESCAPES: Final = {"\\": "\\e", "-": "\\-", "'": "\\(aq", "^": "\\(ha", "~": "\\(ti", "`": "\\(ga"}


def main(arguments: list[str]) -> int:
    """Write the files."""
    write_share(Path(arguments[0]) if arguments else ROOT / "data" / "share")
    return 0


def write_share(share: Path) -> None:
    """Write the man page and the completions below a folder."""
    files = {
        share / "man" / "man1" / f"{PROGRAM}.1": man_page(),
        share / "bash-completion" / "completions" / PROGRAM: completion("bash"),
        share / "zsh" / "site-functions" / f"_{PROGRAM}": completion("zsh"),
        share / "fish" / "vendor_completions.d" / f"{PROGRAM}.fish": completion("fish"),
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o644)


def completion(shell: str) -> str:
    """Return the script for a shell; convert's options are offered before a verb, too."""
    parser = make_parser()
    verbs = parsers_of(parser)
    for action in verbs[DEFAULT_VERB]._actions:  # noqa: SLF001 - argparse has no public way to ask
        if action.option_strings and action.dest != "help":
            parser._add_action(action)  # noqa: SLF001
    for verb in verbs.values():
        for action in verb._actions:  # noqa: SLF001
            text = (action.help or "").partition(" (")[0].partition("; ")[0].partition(": ")[0]
            action.help = text if len(text) <= 80 else text[:79].rsplit(" ", 1)[0]
            values = action.metavar if isinstance(action.metavar, tuple) else (action.metavar,)
            if not action.choices and _FILES.intersection(value for value in values if value):
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    script: str = shtab.complete(parser, shell)
    if shell == "fish":
        # The files of the verb that may be left out.
        script += f"complete -c {PROGRAM} -n _shtab_{PROGRAM}_using -ka '(__fish_complete_path (commandline -ct))'\n"
    return script


def man_page() -> str:
    """Return the page in the man macros, which man-db and mandoc read: what `--help` of each verb says."""
    return "\n".join(_page()) + "\n"


def _page() -> Iterator[str]:
    parser = make_parser()
    yield f'.TH {PROGRAM.upper()} 1 "" "{PROGRAM} {__version__}" "User Commands"'
    yield from (".SH NAME", f"{PROGRAM} \\- make SFrame sections from the DWARF CFI of finished ELF files")
    yield from (".SH SYNOPSIS", *_usage(parser))
    yield from (".SH DESCRIPTION", _text(parser.description or ""))
    for verb, child in parsers_of(parser).items():
        yield from (f".SH {verb.upper()}", *_usage(child), ".PP")
        yield _text(" ".join((child.description or "").split()))
        for group in child._action_groups:  # noqa: SLF001
            actions = [each for each in group._group_actions if each.help != argparse.SUPPRESS]  # noqa: SLF001
            if actions and group.title not in ("positional arguments", "options"):
                yield f".SS {_text((group.title or '').capitalize())}"
            yield from (line for action in actions for line in _argument(child, action))
        yield from (".PP", *_literal(child.epilog or ""))
    yield from (".SH NOTES", *_literal(parser.epilog or ""))
    yield from (".SH SEE ALSO", f".BR {PROGRAM}\\-ld (1),", ".BR readelf (1),", ".BR ld (1),", ".BR elf (5)")


def _usage(parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the lines of a usage, which argparse wants below the first one's "usage: "."""
    yield from _literal((parser.usage or "").replace("\n" + " " * len("usage: "), "\n"))


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> Iterator[str]:
    formatter = parser._get_formatter()  # noqa: SLF001
    yield ".TP"
    yield f"\\fB{_text(formatter._format_action_invocation(action))}\\fR"  # noqa: SLF001
    yield _text(" ".join((action.help or "").replace("%%", "%").split()))


def _literal(text: str) -> Iterator[str]:
    """Yield lines that stay as they are."""
    if text:
        yield from (".nf", *(_text(line) or "\\&" for line in text.rstrip("\n").splitlines()), ".fi")


def _text(text: str) -> str:
    """Escape what roff would act on."""
    escaped = "".join(_ESCAPES.get(character, character) for character in text)
    return f"\\&{escaped}" if escaped.startswith(".") else escaped


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
