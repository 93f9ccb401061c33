# SPDX-License-Identifier: Apache-2.0
"""Completions for the shells, made from the parsers of the command line; files complete to file names."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from cfi2sframe.cli.exit_status import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Iterator

    from commands import Command, CommandLine, Option

_HEAD = "SPDX-License-Identifier: Apache-2.0"
_ORIGIN = "Made by tools/generate.py from the parsers of the command line."
_DEFAULT_VERB = "convert"


def bash_completion(line: CommandLine) -> str:
    """Return the script for bash."""
    verbs = " ".join(command.name for command in line.commands)
    cases, options = [], []
    for command in line.commands:
        for option in command.options:
            pattern = "|".join(f"{command.name}:{name}" for name in option.names)
            if option.choices:
                cases.append(f"    {pattern}) choices={shlex.quote(' '.join(option.choices))} ;;")
            elif option.values:
                # Files, and values that are unknown here: bash completes file names by itself.
                cases.append(f"    {pattern}) return ;;")
        names = " ".join(name for option in command.options for name in option.names)
        options.append(f"      {command.name}) choices={shlex.quote(names)} ;;")
    return f"""\
# {_HEAD}
# {_ORIGIN}
_{PROGRAM}() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD - 1]}} verb={_DEFAULT_VERB} choices=
  case ${{COMP_WORDS[1]-}} in
    {verbs.replace(" ", " | ")}) [ "$COMP_CWORD" -eq 1 ] || verb=${{COMP_WORDS[1]}} ;;
  esac
  COMPREPLY=()
  case $verb:$previous in
{chr(10).join(cases)}
  esac
  if [ -z "$choices" ] && [[ $current == -* ]]; then
    case $verb in
{chr(10).join(options)}
    esac
    [ "$COMP_CWORD" -ne 1 ] || choices+=" --version"
  elif [ -z "$choices" ] && [ "$COMP_CWORD" -eq 1 ]; then
    choices={shlex.quote(verbs)}
  fi
  mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$current")
}}
complete -o default -F _{PROGRAM} {PROGRAM}
"""


def zsh_completion(line: CommandLine) -> str:
    """Return the function for zsh."""
    functions = "\n".join("\n".join(_zsh_command(command)) for command in line.commands)
    described = "\n".join(f"    {shlex.quote(f'{verb}:{_first_sentence(text)}')}" for verb, text in line.verbs.items())
    cases = "\n".join(
        f"    {command.name}) shift words; (( CURRENT-- )); _{PROGRAM}_{command.name} ;;" for command in line.commands
    )
    return f"""\
#compdef {PROGRAM}
# {_HEAD}
# {_ORIGIN}

{functions}

_{PROGRAM}() {{
  local -a verbs=(
{described}
  )
  if (( CURRENT == 2 )) && [[ $words[2] != -* ]]; then
    _describe -t verbs verb verbs
    _files
    return
  fi
  case $words[2] in
{cases}
    *) _{PROGRAM}_{_DEFAULT_VERB} ;;
  esac
}}

if [[ $funcstack[1] == _{PROGRAM} ]]; then
  _{PROGRAM} "$@"
else
  compdef _{PROGRAM} {PROGRAM}
fi
"""


def _zsh_command(command: Command) -> Iterator[str]:
    yield f"_{PROGRAM}_{command.name}() {{"
    yield "  _arguments -s -S \\"
    for option in command.options:
        for name in option.names:
            yield f"    {shlex.quote(_zsh_option(name, option))} \\"
    yield "    '*:file:_files'"
    yield "}"


def _zsh_option(name: str, option: Option) -> str:
    text = _first_sentence(option.help)
    for character in "\\[]:":
        text = text.replace(character, f"\\{character}")
    # Long options also take their value after "=".
    mark = "=" if option.values and name.startswith("--") else ""
    if option.values and not mark:
        mark = "+"
    values = ""
    for value in option.values:
        what = f"({' '.join(option.choices)})" if option.choices else "_files" if option.is_file else " "
        values += f"{'::' if option.is_optional else ':'}{value.strip('{}').replace(':', ' ')}:{what}"
    return f"*{name}{mark}[{text}]{values}"


def fish_completion(line: CommandLine) -> str:
    """Return the script for fish."""
    return "\n".join(_fish(line)) + "\n"


def _fish(line: CommandLine) -> Iterator[str]:
    yield f"# {_HEAD}"
    yield f"# {_ORIGIN}"
    verbs = " ".join(command.name for command in line.commands)
    others = " ".join(command.name for command in line.commands if command.name != _DEFAULT_VERB)
    for verb, text in line.verbs.items():
        condition = f"not __fish_seen_subcommand_from {verbs}"
        yield f"complete -c {PROGRAM} -n {_fish_quote(condition)} -a {verb} -d {_fish_quote(_first_sentence(text))}"
    yield f"complete -c {PROGRAM} -n {_fish_quote(f'not __fish_seen_subcommand_from {verbs}')} -l version"
    for command in line.commands:
        is_default = command.name == _DEFAULT_VERB
        condition = (
            f"not __fish_seen_subcommand_from {others}" if is_default else f"__fish_seen_subcommand_from {command.name}"
        )
        for option in command.options:
            words = [f"complete -c {PROGRAM} -n {_fish_quote(condition)}"]
            words += [f"-l {name[2:]}" if name.startswith("--") else f"-s {name[1:]}" for name in option.names]
            if option.choices:
                words.append(f"-x -a {_fish_quote(' '.join(option.choices))}")
            elif option.values:
                words.append("-r" if option.is_file else "-x")
            words.append(f"-d {_fish_quote(_first_sentence(option.help))}")
            yield " ".join(words)


def _fish_quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _first_sentence(text: str) -> str:
    """Return what fits beside a name: up to the first stop, and no more than a line."""
    for stop in ("; ", ": ", " ("):
        text = text.partition(stop)[0]
    return text if len(text) <= 80 else text[:79].rsplit(" ", 1)[0]
