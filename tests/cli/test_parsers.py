# SPDX-License-Identifier: Apache-2.0
"""The grammar of the command line: help, version, and options that a verb does not have."""

import os
from pathlib import Path

import pytest

from cfi2sframe import __version__
from cfi2sframe.cli.parsers import VERBS
from tests.support.cli import run


def test_help_and_version_take_words(tmp_path: Path) -> None:
    assert run("help").out == run("--help").out
    assert run("--version") == run("--version", tmp_path) == (0, f"cfi2sframe {__version__}\n".encode(), ())


@pytest.mark.parametrize("verb", VERBS)
def test_a_help_is_a_screen_with_examples_and_statuses(verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    status, out, err = run(verb, "--help")
    assert (status, err, run("help", verb).out) == (0, (), out)
    assert run("help", "help") == run("help")
    assert out.startswith(f"usage: cfi2sframe {'[convert]' if verb == 'convert' else verb} ".encode())
    lines = out.decode().splitlines()
    assert len(lines) <= 54
    assert lines[lines.index("examples:") + 1].startswith("  cfi2sframe ")
    assert sum(line.startswith("exit status: 0 ") for line in lines) == 1


@pytest.mark.parametrize("columns", ["60", "80", "90", "", "0"])
@pytest.mark.parametrize("verb", [*VERBS, "help"])
def test_a_help_is_as_wide_as_the_terminal(verb: str, columns: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Examples, which cannot be broken, take 80 columns."""
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((70, 24)))
    lines = run("help", verb).out.decode().splitlines()
    text = [line for line in lines if not line.lstrip().startswith(("cfi2sframe", "usage:"))]
    assert max(map(len, lines)) < max(80, int(columns or 0))
    assert max(map(len, text)) in range(int(columns or 0) - 10 or 60, int(columns or 0) or 70)


def test_no_arguments_and_help() -> None:
    status, out, err = run()
    assert (status, out) == (2, b"")
    status, help_text, nothing = run("--help")
    assert (status, nothing) == (0, ())
    assert help_text.decode().splitlines() == list(err)
    assert run("-h").out == help_text
    assert b"examples:" in help_text
    assert b"exit status:" in help_text


def test_an_option_of_another_verb_names_that_verb() -> None:
    assert run("audit", "--for", "ld").err == (
        "cfi2sframe: error: unrecognized arguments: --for; it is an option of convert, verify, coverage, size",
    )
    assert "it is an option of convert" in run("dump", "--strict").err[0]


def test_the_option_of_the_program_is_known_to_its_verbs() -> None:
    assert run("--verison").err[0].endswith("--verison; did you mean --version?")
    assert run("verify", "--version").err[0].endswith("--version; cfi2sframe --version prints it")
