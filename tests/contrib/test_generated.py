# SPDX-License-Identifier: Apache-2.0
"""What is made from the parsers and the package: man page, completions, reference. Each has every option."""

import argparse
import os
import re
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cfi2sframe.cli.parsers import VERBS, verb_parser
from tests.support.contrib import ROOT, run
from tests.support.needs import attempt, need

MAN_PAGE = "man/man1/cfi2sframe.1"
#: The completion of each shell.
FILES = {
    "bash": "bash-completion/completions/cfi2sframe",
    "zsh": "zsh/site-functions/_cfi2sframe",
    "fish": "fish/vendor_completions.d/cfi2sframe.fish",
}
#: What prints what a shell offers: the arguments are the file and the verb.
SCRIPTS = {
    "bash": """
source "$1"
COMP_WORDS=(cfi2sframe "$2" -); COMP_CWORD=2; COMP_LINE="cfi2sframe $2 -"; COMP_POINT=${#COMP_LINE}; COMP_TYPE=9
_shtab_cfi2sframe cfi2sframe -
printf "%s\\n" "${COMPREPLY[@]}"
""",
    "zsh": """
fpath=(${1:h} $fpath); autoload -Uz compinit; compinit -u -D
[[ $_comps[cfi2sframe] = _cfi2sframe ]] || exit
source "$1"; name=_shtab_cfi2sframe_${2}_options; print -l -- ${(P)name}
""",
    "fish": """
complete -c cfi2sframe -e; source $argv[1]
complete -C "cfi2sframe $argv[2] --"; complete -C "cfi2sframe $argv[2] -"
""",
}


REFERENCE: Any = runpy.run_path(str(ROOT / "tools" / "reference.py"))


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("share")
    env = {"PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    run(sys.executable, ROOT / "tools" / "share.py", folder, env=env)
    return folder


def option_names(verb: str) -> set[str]:
    """Return what the verb's own parser knows."""
    actions = verb_parser(verb)._actions  # argparse has no public way to ask
    return {name for action in actions if action.help != argparse.SUPPRESS for name in action.option_strings}


@pytest.mark.parametrize("name", [MAN_PAGE, *FILES.values()])
def test_what_pip_installs_is_that_of_the_code(share: Path, name: str) -> None:
    """`pip install .` generates nothing. Releases of shtab write other scripts."""
    stored = (ROOT / "data" / "share" / name).read_text()
    if name == MAN_PAGE:
        assert stored == (share / name).read_text(), "make generated"
    for verb in VERBS:
        assert all(option.lstrip("-") in stored.replace("\\-", "-") for option in option_names(verb)), verb


def test_fish_offers_files_of_the_verb_that_may_be_left_out(share: Path, tmp_path: Path) -> None:
    need("fish")
    (tmp_path / "program").touch()
    script = 'complete -c cfi2sframe -e; source $argv[1]; complete -C "cfi2sframe $argv[2] prog"'
    for words in ("--in-place", "", "verify", "coverage --compare old"):
        lines = run("fish", "--no-config", "-c", script, share / FILES["fish"], words, cwd=tmp_path).out.splitlines()
        assert lines == ["program"], words


def test_the_man_page(share: Path) -> None:
    need("man", "mandoc")
    lint = attempt("mandoc", "-T", "lint", "-W", "warning", share / MAN_PAGE).out.splitlines()
    assert [line for line in lint if "missing date" not in line] == []
    env = {"PATH": os.environ["PATH"], "MANWIDTH": "1000", "LC_ALL": "C.UTF-8"}
    text = run("man", "-l", share / MAN_PAGE, env=env).out
    synopsis = text.partition("\nSYNOPSIS\n")[2].partition("\n\n")[0].splitlines()
    assert len(synopsis) == 3
    assert {line[: line.index("cfi2sframe")] for line in synopsis} == {" " * 7}
    for verb in VERBS:
        assert re.search(rf"^{verb.upper()}$", text, re.MULTILINE), verb
        for name in option_names(verb) - {"-h", "--help"}:
            assert re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text), (verb, name)


@pytest.mark.sampled
@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("shell", FILES)
def test_a_shell_offers_every_option(share: Path, shell: str, verb: str) -> None:
    need(shell)
    words = {"bash": ["--norc", "-ec"], "zsh": ["-fc"], "fish": ["--no-config", "-c"]}[shell]
    name = [] if shell == "fish" else [shell]
    lines = run(shell, *words, SCRIPTS[shell], *name, share / FILES[shell], verb).out.splitlines()
    # zsh writes alternatives and explanations into a line, fish an explanation after a tab.
    heads = (re.split(r"[\[\t]", line)[0] for line in lines)
    offered = {name for head in heads for name in re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", head)}
    wanted = option_names(verb)
    # fish offers the long name where there is one.
    assert {name for name in wanted if name.startswith("--") or shell != "fish"} <= offered
    assert offered <= wanted


@pytest.mark.parametrize("name", ["command-line.md", "python.md"])
def test_the_reference_is_that_of_the_code(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == REFERENCE["pages"]()[name], "make generated"


def test_what_is_promised_is_there() -> None:
    """A name that goes away breaks programs of users; README says how it goes."""
    promised, found = REFERENCE["read_promises"](), REFERENCE["promises"]()
    promised = {owner: names for owner, names in promised.items() if not owner.startswith("keys of ")}
    assert {owner: gone for owner in promised if (gone := promised[owner] - found.get(owner, set()))} == {}
    assert promised == found, "make generated"


@pytest.mark.sampled
@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_has_every_option(verb: str) -> None:
    section = (ROOT / "docs" / "command-line.md").read_text().partition(f"\n## {verb}\n")[2].partition("\n## ")[0]
    heads = re.findall(r"^- (`.+?`): ", section, re.MULTILINE)
    names = {name for head in heads for name in re.findall(r"`(--?[\w-]+)", head)}
    assert names == option_names(verb) - {"-h", "--help"}


@pytest.mark.parametrize("module", REFERENCE["MODULES"].values(), ids=list(REFERENCE["MODULES"]))
def test_the_reference_has_every_public_name(module: ModuleType) -> None:
    page = (ROOT / "docs" / "python.md").read_text()
    headings = set(re.findall(r"^### (\w+)$", page, re.MULTILINE))
    modules = {name for name in module.__all__ if isinstance(getattr(module, name), ModuleType)}
    assert all(f"\n## cfi2sframe.{name}\n" in page for name in modules)
    assert set(module.__all__) - modules - {"__version__"} <= headings


def test_the_site_is_made_without_a_warning(tmp_path: Path) -> None:
    """A broken link, a page that no list of pages names, a docstring that is no markup would be one."""
    for name in ("sphinx", "myst_parser", "furo"):
        if find_spec(name) is None:
            pytest.skip(f"no {name}: make docs")
    words: list[str | Path] = [
        "--conf-dir",
        ROOT / "docs",
        "--fail-on-warning",
        "--keep-going",
        "--nitpicky",
        "--quiet",
    ]
    run(sys.executable, "-m", "sphinx", *words, "-d", tmp_path / "trees", ROOT, tmp_path / "site")
    assert (tmp_path / "site" / "README.html").exists()
