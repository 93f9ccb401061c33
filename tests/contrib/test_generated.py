# SPDX-License-Identifier: Apache-2.0
"""The man page and the completions: readable by those who read them, and whole."""

from __future__ import annotations

import os
import re
import sys
from typing import TYPE_CHECKING

import pytest

from cfi2sframe.cli.parsers import VERBS, verb_parser
from tests.contrib.support import ROOT, attempt, run
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

PAGE = "man/man1/cfi2sframe.1"
BASH = "bash-completion/completions/cfi2sframe"
ZSH = "zsh/site-functions/_cfi2sframe"
FISH = "fish/vendor_completions.d/cfi2sframe.fish"
PYTHON = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    run(sys.executable, ROOT / "tools" / "share.py", folder, env=PYTHON)
    return folder


def option_names(verb: str) -> set[str]:
    """Return what the verb's own parser knows."""
    parser = verb_parser(verb)
    return {name for name in parser._option_string_actions if not is_hidden(parser, name)}


def is_hidden(parser: object, name: str) -> bool:
    action = parser._option_string_actions[name]  # type: ignore[attr-defined]
    return bool(action.help == "==SUPPRESS==")


def test_man_page_reads_without_warnings(share: Path) -> None:
    need("mandoc")
    result = attempt("mandoc", "-T", "lint", "-W", "warning", share / PAGE)
    problems = [line for line in result.out.splitlines() if "missing date" not in line]
    assert problems == []


def test_man_page_has_every_option(share: Path) -> None:
    need("man")
    text = run("man", "-l", share / PAGE, env={"PATH": os.environ["PATH"], "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"}).out
    for verb in VERBS:
        assert re.search(rf"^{verb.upper()}$", text, re.MULTILINE), verb
        for name in option_names(verb) - {"-h", "--help"}:
            assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), (verb, name)


def bash_choices(share: Path, *words: str) -> set[str]:
    """Return what bash would offer for the last word, files aside."""
    need("bash")
    script = (
        'cd "$2"; source "$1"; shift 2; COMP_WORDS=(cfi2sframe "$@"); COMP_CWORD=$#; COMP_LINE="cfi2sframe $*"; '
        'COMP_POINT=${#COMP_LINE}; COMP_TYPE=9; _shtab_cfi2sframe cfi2sframe "${@: -1}"; '
        'printf "%s\\n" "${COMPREPLY[@]}"'
    )
    return set(run("bash", "--norc", "-ec", script, "bash", share / BASH, share / "man", *words).out.split())


@pytest.mark.parametrize("verb", VERBS)
def test_bash_offers_every_option(share: Path, verb: str) -> None:
    assert bash_choices(share, verb, "-") == option_names(verb)


def test_zsh_loads_and_lists_every_option(share: Path) -> None:
    need("zsh")
    script = (
        'fpath=($1 $fpath); autoload -Uz compinit; compinit -u -D; print $_comps[cfi2sframe]; source "$1/_cfi2sframe"; '
        "for verb in ${@[2,-1]}; do "
        "print -- $verb; name=_shtab_cfi2sframe_${verb}_options; print -l -- ${(P)name}; done"
    )
    out = run("zsh", "-fc", script, "zsh", (share / ZSH).parent, *VERBS).out
    assert out.startswith("_cfi2sframe\n")
    for verb in VERBS:
        body = out.partition(f"\n{verb}\n")[2]
        listed = set()
        for line in body.splitlines():
            if line in VERBS:
                break
            head = line.partition("[")[0]
            listed |= {name.rstrip("+=") for name in re.findall(r"--?[A-Za-z][\w-]*", head)}
        assert option_names(verb) <= listed, verb


def fish_choices(share: Path, line: str) -> set[str]:
    """Return what fish would offer at the end of a line."""
    need("fish")
    script = "complete -c cfi2sframe -e; source $argv[1]; complete -C $argv[2]"
    out = run("fish", "--no-config", "-c", script, share / FISH, line).out
    return {row.partition("\t")[0] for row in out.splitlines()}


@pytest.mark.parametrize("verb", VERBS)
def test_fish_offers_every_option(share: Path, verb: str) -> None:
    # fish offers the long name where there is one.
    offered = fish_choices(share, f"cfi2sframe {verb} --") | fish_choices(share, f"cfi2sframe {verb} -")
    names = option_names(verb)
    assert {name for name in names if name.startswith("--")} <= offered
    assert {name for name in offered if name in names or name.startswith("--")} <= names
