#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write the pages of docs/ that say what the program itself says: reference.py.

`command-line.md` has the options of each verb, from the parsers; `python.md` has the public names of the package, from
their signatures and docstrings. The list of what is promised gets what is new, and loses nothing: who withdraws a name
deletes it there.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import re
import sys
import textwrap
import types
import typing
from enum import Enum
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

ROOT = Path(__file__).resolve().parents[1]
# The package is that of this tree, also where another one is installed.
sys.path.insert(0, str(ROOT))

import cfi2sframe  # noqa: E402
from cfi2sframe.cli import messages  # noqa: E402
from cfi2sframe.cli.parsers import make_parser, parsers_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: The modules whose `__all__` is public, as users name them.
MODULES: Final = {
    "cfi2sframe": cfi2sframe,
    "cfi2sframe.trace": cfi2sframe.trace,
    "cfi2sframe.emit": cfi2sframe.emit,
    "cfi2sframe.guard": cfi2sframe.guard,
    "cfi2sframe.errors": cfi2sframe.errors,
}
#: The public members of classes of which users see only a part.
_PARTS: Final = {
    "Arch": ("name", "byte_order", "abi_id", "sp_register", "fp_register", "ra_register", "registers", "register_name"),
    "Cfi2SFrameError": ("kind", "reason", "where", "offset", "file", "detail"),
    "Conversion": ("image", "section", "section_vaddr", "data", "described_count", "is_whole"),
    "DecodedSection": ("data", "vaddr", "header"),
    "ElfImage": ("name", "data", "arch", "is_relocatable", "debug_file", "place", "close"),
    "FunctionBody": ("starts", "states", "is_flexible", "is_signal_frame", "uses_b_key", "repeat_size", "rows"),
}
#: The names that a major version keeps.
PROMISED: Final = ROOT / "tests" / "contrib" / "promised.txt"
_COMMAND_LINE: Final = """\
# The command line

For users of the program: what `cfi2sframe VERB --help` prints. Without a verb, `cfi2sframe IN -o OUT` is `cfi2sframe
convert IN -o OUT`. `make generated` writes this page."""
_PYTHON: Final = """\
# The Python package

For users of the [library](library.md), which shows how these are used. `help(cfi2sframe.convert)` prints the same. What
this page does not have, also of a class, is not public. `make generated` writes it."""
_WIDTH: Final = 120
_CODE_TYPES: Final = (property, types.FunctionType)
_CODE: Final = re.compile(r"(`[^`]+`)")
_OPTION: Final = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")
#: What Markdown would act on: `_` not in the middle of a name.
_MARKUP: Final = re.compile(r"([\\*<>\[\]|`]|\b_|_\b)")


def main() -> int:
    """Write the pages, and add to the list."""
    for name, text in pages().items():
        (ROOT / "docs" / name).write_text(text, "utf-8")
    kept = read_promises()
    for owner, names in promises().items():
        kept[owner] = kept.get(owner, set()) | names
    PROMISED.write_text("".join(f"{owner}: {' '.join(sorted(kept[owner]))}\n" for owner in sorted(kept)))
    return 0


# What is promised


def read_promises() -> dict[str, set[str]]:
    """Return the promised names of each verb, function, class and kind of JSON."""
    return {owner: set(names.split()) for owner, names in re.findall(r"(.+): (.*)\n", PROMISED.read_text())}


def promises() -> dict[str, set[str]]:
    """Return what the code has of them, without the keys of JSON."""
    options = {
        f"options of {verb}": {name for each in _shown(parser._actions) for name in each.option_strings}  # noqa: SLF001
        for verb, parser in parsers_of(make_parser()).items()
    }
    names = {
        f"{module}.{name}": set(members(made) if isinstance(made, type) else inspect.signature(made).parameters)
        for module, made_of in public_names().items()
        for name, made in made_of.items()
    }
    statuses = {
        name.removeprefix("EXIT_") + f"={value}" for name, value in vars(messages).items() if name[:5] == "EXIT_"
    }
    return options | names | {"exit statuses": statuses}


def pages() -> dict[str, str]:
    """Return the text of each page by its file's name."""
    command_line = [_COMMAND_LINE, *(block for each in parsers_of(make_parser()).items() for block in _verb(*each))]
    python = [_PYTHON, *(block for each in public_names().items() for block in _module(*each))]
    return {"command-line.md": "\n\n".join(command_line) + "\n", "python.md": "\n\n".join(python) + "\n"}


# The command line


def _verb(verb: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    """Yield the blocks of a verb's section."""
    usage = parser.format_usage().rstrip().removeprefix("usage: ").replace("\n       ", "\n")
    yield from (f"## {verb}", _literal(usage), _prose(_with_options(" ".join((parser.description or "").split()))))
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no public way to ask
        actions = _shown(group._group_actions)  # noqa: SLF001
        if actions and group.title not in ("positional arguments", "options"):
            yield f"**{(group.title or '').capitalize()}**"
        if actions and group.description:
            yield _prose(_with_options(group.description))
        if actions:
            yield "\n".join(_argument(parser, action) for action in actions)
    if parser.epilog:
        yield _literal(parser.epilog.rstrip())


def _shown(actions: list[argparse.Action]) -> list[argparse.Action]:
    return [each for each in actions if each.help != argparse.SUPPRESS and "--help" not in each.option_strings]


def _argument(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """Return the item of an option or another argument."""
    formatter = parser._get_formatter()  # noqa: SLF001
    default = formatter._get_default_metavar_for_optional(action)  # noqa: SLF001
    values = "" if action.nargs == 0 else formatter._format_args(action, default)  # noqa: SLF001
    head = ", ".join(f"`{f'{name} {values}'.rstrip()}`" for name in action.option_strings) or f"`{values}`"
    return _item(f"{head}: {_with_options(' '.join((action.help or '').replace('%%', '%').split()))}")


def _with_options(text: str) -> str:
    """Return a text of the parsers as Markdown, with the options in it as code."""
    parts = _OPTION.split(text)
    return "".join(f"`{part}`" if n % 2 else _MARKUP.sub(r"\\\1", part) for n, part in enumerate(parts))


# The package


def public_names() -> dict[str, dict[str, Any]]:
    """Return the public functions and classes of each module; each is in the last module that has it."""
    homes = {name: module for module, made in MODULES.items() for name in made.__all__}
    found: dict[str, dict[str, Any]] = {module: {} for module in MODULES}
    for name, module in homes.items():
        made = getattr(MODULES[module], name)
        if callable(made):
            found[module][name] = made
    return found


def hints_of(made: Callable[..., Any]) -> dict[str, Any]:
    """Return the types of a function's parameters or a class's fields, which may be known only to the face."""
    faces = {name: each for names in public_names().values() for name, each in names.items()}
    return typing.get_type_hints(made, localns=faces)


def members(made: type) -> list[str]:
    """Return the public members of a class: values or fields, then properties and methods in the source's order."""
    if issubclass(made, Enum):
        return [each.name for each in made]
    if made.__name__ in _PARTS:
        return list(_PARTS[made.__name__])
    inherited = () if made.__base__ in (None, object, tuple) else dir(made.__base__)
    fields = [name for name in (*getattr(made, "_fields", ()), *getattr(made, "_names", ())) if name not in inherited]
    described = [name for name, member in vars(made).items() if isinstance(member, _CODE_TYPES) and name[0] != "_"]
    return [*fields, *described]


def _module(module: str, names: dict[str, Any]) -> Iterator[str]:
    """Yield the blocks of a module's section: functions, then classes."""
    yield f"## {module}"
    for name, each in sorted(names.items(), key=lambda item: isinstance(item[1], type)):
        yield f"### {name}"
        yield from _class(each) if isinstance(each, type) else _function(name, each)


def _function(name: str, function: Callable[..., Any]) -> Iterator[str]:
    yield _literal(_signature(name, function), "python")
    yield from _paragraphs(function)


def _class(made: type) -> Iterator[str]:
    base = made.__bases__[0]
    if base not in (object, tuple, Enum) and not base.__name__.startswith("_"):
        yield f"A subclass of `{base.__name__}`."
    if "__init__" in vars(made) and not hasattr(made, "_names"):
        yield _literal(_signature(made.__name__, made), "python")
    yield from _paragraphs(made)
    items = [_member(made, name) for name in members(made)]
    if items:
        yield "\n".join(items)


def _member(made: type, name: str) -> str:
    """Return the item of a value, a field, a property or a method."""
    if issubclass(made, Enum):
        return _item(f"`{name}`: {made[name].value}")
    member = inspect.getattr_static(made, name, None)
    if isinstance(member, property):
        kind = _type(hints_of(typing.cast("Callable[..., Any]", member.fget))["return"])
        return _item(f"`{name}`: `{kind}`. {_one_line(member)}")
    if isinstance(member, types.FunctionType):
        return _item(f"`{_signature(name, getattr(made, name))}`: {_one_line(member)}")
    kind = _type(hints_of(made)[name])
    default = getattr(made, "_field_defaults", {}).get(name, inspect.Parameter.empty)
    kind += "" if default is inspect.Parameter.empty else f" = {_default(default)}"
    return _item(f"`{name}`: `{kind}`{_field_text(made).get(name, '')}")


def _field_text(made: type) -> dict[str, str]:
    """Return the docstrings that follow fields in the source."""
    (node,) = ast.parse(textwrap.dedent(inspect.getsource(made))).body
    return {
        ast.unparse(field.target): f". {ast.literal_eval(text.value)}"
        for field, text in pairwise(typing.cast("ast.ClassDef", node).body)
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr)
    }


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Return how something is called; each parameter has a line of its own where one line is too long."""
    signature = inspect.signature(function)
    hints = hints_of(function if inspect.isroutine(function) else function.__init__)
    parameters: list[str] = []
    for each in signature.parameters.values():
        if each.name == "self":
            continue
        if each.kind is each.KEYWORD_ONLY and "*" not in parameters:
            parameters.append("*")
        text = f"{'**' if each.kind is each.VAR_KEYWORD else ''}{each.name}: {_type(hints[each.name])}"
        parameters.append(text if each.default is each.empty else f"{text} = {_default(each.default)}")
    result = f" -> {_type(hints['return'])}" if hints.get("return", type(None)) is not type(None) else ""
    if hasattr(function, "__wrapped__") and inspect.isgeneratorfunction(inspect.unwrap(function)):
        # A context manager.
        name, result = f"with {name}", ": ..."
    line = f"{name}({', '.join(parameters)}){result}"
    return line if len(line) <= _WIDTH else f"{name}(\n    {f',{chr(10)}    '.join(parameters)},\n){result}"


def _default(value: object) -> str:
    if callable(value) or isinstance(value, types.MappingProxyType):
        return "..."
    return hex(value) if type(value) is int and value > 0xFFFF else repr(value)


def _type(hint: Any) -> str:  # noqa: ANN401 - what annotations are
    """Return an annotation as code, alike in all versions of Python."""
    if hint in (None, type(None), Ellipsis):
        return "..." if hint is Ellipsis else "None"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(map(_type, arguments))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if isinstance(hint, list):
        return f"[{', '.join(map(_type, hint))}]"
    name = getattr(origin or hint, "__name__", str(hint))
    return f"{name}[{', '.join(map(_type, arguments))}]" if arguments else name


# Markdown


def _paragraphs(made: object) -> Iterator[str]:
    """Yield the paragraphs of a docstring."""
    yield from (_prose(_escaped(" ".join(part.split()))) for part in (inspect.getdoc(made) or "").split("\n\n"))


def _one_line(made: object) -> str:
    return _escaped(" ".join((inspect.getdoc(made) or "").split()))


def _escaped(text: str) -> str:
    """Return a docstring as Markdown, which has code in backquotes as it is."""
    parts = _CODE.split(text)
    return "".join(part if n % 2 else _MARKUP.sub(r"\\\1", part) for n, part in enumerate(parts))


def _prose(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_long_words=False, break_on_hyphens=False)


def _item(text: str) -> str:
    """Return an item of a list."""
    return textwrap.fill(
        text, _WIDTH, initial_indent="- ", subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _literal(text: str, language: str = "text") -> str:
    return f"```{language}\n{text}\n```"


if __name__ == "__main__":
    sys.exit(main())
