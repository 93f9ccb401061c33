# SPDX-License-Identifier: Apache-2.0
"""The grammar of the command line: one parser for each verb under that of the program."""

import argparse
import os
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import chain, groupby
from typing import TYPE_CHECKING, Any, Final, NoReturn

from cfi2sframe.cli.messages import EXIT_USAGE, PROGRAM
from cfi2sframe.text import printable

if TYPE_CHECKING:
    from _typeshed import SupportsWrite

#: The verb that may be left out.
DEFAULT_VERB: Final = "convert"
#: The verbs, each with its line of `--help`. The module of this name beside this one has `configure` and `run`.
VERBS: Final = {
    "convert": "write an .sframe section made from the file's CFI: its raw bytes, or a copy of the file with it",
    "remove": "remove the .sframe section from files",
    "dump": "print .sframe sections in the form of readelf --sframe",
    "lookup": "print what section and CFI say of some addresses, and whether they agree",
    "verify": "compare the .sframe section of a file with its CFI at every PC",
    "audit": "list where the CFI of a file and its instructions contradict each other",
    "coverage": "report how much of the code SFrame can describe, and why not the rest",
    "size": "measure what an SFrame section costs or would cost",
    "trace": "print the stacks of a core file or a live process, unwound by SFrame rows",
}

_USAGE: Final = f"""\
{PROGRAM} [convert] IN -o OUT [OPTION]...
       {PROGRAM} [convert] (--in-place | --check) FILE... [OPTION]...
       {PROGRAM} VERB FILE... [OPTION]..."""
_EPILOG: Final = f"""\
examples:
  {PROGRAM} /bin/ls -o ls.sframe
  {PROGRAM} --for ld-2.41 in.o -o out.o
  {PROGRAM} --in-place program
  {PROGRAM} --in-place -j 4 --report report.jsonl debian/tmp
  {PROGRAM} verify program
  {PROGRAM} dump program
  {PROGRAM} coverage /usr/lib/x86_64-linux-gnu/libc.so.6
  {PROGRAM} trace core

"{PROGRAM} help VERB" lists a verb's options.
"cfi2sframe-cc --cfi2sframe-help" describes the wrappers of compiler driver, linker and assembler.

exit status: 0 success; 1 verify or audit found a difference, or --check would change a file; 2 usage;
3 a file cannot be used; 4 --strict, --fail-under or --fail-over is not met; 5 verify found no CFI.
Of several files the worst counts: 3, 2, 4, 1, 5, 0.
"""


#: Columns of help: where standard output is no terminal, and at most.
_DEFAULT_WIDTH: Final = 80
_MAX_WIDTH: Final = 100
_UNRECOGNIZED: Final = "unrecognized arguments: "


class _HelpFormatter(argparse.HelpFormatter):
    """Fits texts to the terminal; lines that begin with a space, such as examples, stay as they are."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(_columns(), _MAX_WIDTH) - 1)

    def _split_lines(self, text: str, width: int) -> list[str]:
        from textwrap import wrap

        return wrap(text, width, break_long_words=False, break_on_hyphens=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks = groupby(text.splitlines(), lambda line: not line or line.startswith(" "))
        filled = (lines if is_literal else self._split_lines(" ".join(lines), width) for is_literal, lines in blocks)
        return "\n".join(indent + line for line in chain.from_iterable(filled))


def _columns() -> int:
    """Return the width of the terminal, without the import that argparse would pay for in each run."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named):
        return int(named)
    try:
        return os.get_terminal_size(1).columns or _DEFAULT_WIDTH
    except OSError:
        return _DEFAULT_WIDTH


class _Parser(argparse.ArgumentParser):
    """Reports a mistake in one line, with a suggestion."""

    def error(self, message: str) -> NoReturn:
        # Arguments may come from a shell pattern: escape control characters.
        sys.stderr.write(f"{PROGRAM}: error: {printable(message)}{self._hint(message)}\n")
        raise SystemExit(EXIT_USAGE)

    def _hint(self, message: str) -> str:
        unknown = message.removeprefix(_UNRECOGNIZED).split()
        if not message.startswith(_UNRECOGNIZED) or not unknown[0].startswith("-"):
            return f"; see {self.prog} --help"
        word = unknown[0].partition("=")[0]
        if word == "--version":
            return f"; {PROGRAM} --version prints it"
        if word == "--dry-run" and "--check" in self._option_string_actions:
            return "; did you mean --check?"
        if word == "--json" and "--format" in self._option_string_actions:
            return "; did you mean --format json?"
        parsers = parsers_of(make_parser())
        others = [verb for verb, parser in parsers.items() if word in parser._option_string_actions]  # noqa: SLF001
        if others:
            return f"; it is an option of {', '.join(others)}"
        from difflib import get_close_matches

        options = [option for option in self._option_string_actions if option.startswith("--")]
        near = [option for option in options if option.startswith(word)] if len(word) > 2 else []
        # `--version` belongs to the program, not to a verb.
        near = near or get_close_matches(word, ("--version",), 1, 0.8) or get_close_matches(word, options, 1)
        return f"; did you mean {' or '.join(near)}?" if near else f"; see {self.prog} --help"

    def _print_message(self, message: str, file: "SupportsWrite[str] | None" = None) -> None:
        """Print a text; raise `BrokenPipeError`, which argparse suppresses in some versions of Python."""
        stream = sys.stderr if file is None else file
        stream.write(message)
        sys.stdout.flush()


def make_parser(verbs: Iterable[str] = VERBS) -> argparse.ArgumentParser:
    """Return the parser of the whole command line; only the given verbs have their arguments."""
    parser = _Parser(
        prog=PROGRAM,
        usage=_USAGE,
        description="Make SFrame sections from the DWARF CFI of finished ELF objects, executables and libraries.",
        epilog=_EPILOG,
        formatter_class=_HelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="store_true", help="print the version")
    children = parser.add_subparsers(title="verbs", metavar="VERB", description="Without a verb, convert is assumed.")
    for verb, summary in VERBS.items():
        child = children.add_parser(verb, help=summary, **_parser_arguments(verb))
        if verb in verbs:
            _configure(child, verb)
    return parser


def verb_parser(verb: str) -> argparse.ArgumentParser:
    """Return the parser of one verb; the modules of the others are not loaded."""
    parser = _Parser(**_parser_arguments(verb))
    _configure(parser, verb)
    return parser


def _parser_arguments(verb: str) -> dict[str, Any]:
    # Messages of convert do not name the verb, which the user may have left out.
    prog = PROGRAM if verb == DEFAULT_VERB else f"{PROGRAM} {verb}"
    return {"prog": prog, "formatter_class": _HelpFormatter, "allow_abbrev": False}


def _configure(parser: argparse.ArgumentParser, verb: str) -> None:
    text = "print no warnings" if verb in ("dump", "trace") else "print errors only"
    parser.add_argument("-q", "--quiet", action="store_true", help=text)
    text = "color messages: auto (default; not if NO_COLOR is set), always or never"
    parser.add_argument("--color", metavar="WHEN", choices=("auto", "always", "never"), default="auto", help=text)
    parser.add_argument("-r", "--recursive", action="store_true", help=argparse.SUPPRESS)
    configure: Callable[[argparse.ArgumentParser], None] = import_module(f"cfi2sframe.cli.{verb}").configure
    configure(parser)


def parsers_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of the verbs by their names."""
    (children,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))  # noqa: SLF001 - argparse has no public way to ask
    return dict(children.choices)


def describe(parser: argparse.ArgumentParser, usage: str, description: str, epilog: str) -> None:
    """Give a verb's parser its texts."""
    parser.usage, parser.description, parser.epilog = usage, description, epilog
