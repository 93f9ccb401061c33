# SPDX-License-Identifier: Apache-2.0
"""The container recipe: its commands are shell that works. The image itself is not built here."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from tests.contrib.support import CONTRIB, check_section, copy_recipe, environment, run
from tests.support.needs import need
from tests.support.walk import check_walks

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.walk import Sampler

pytestmark = pytest.mark.sampled

CONTAINERFILE = CONTRIB / "container" / "example" / "Containerfile"


def commands() -> list[str]:
    """Return the shell of each RUN instruction, its lines joined as a container engine joins them."""
    return re.findall(r"^RUN (.*)$", CONTAINERFILE.read_text().replace("\\\n", ""), re.MULTILINE)


def test_the_shell_is_sound() -> None:
    need("shellcheck")
    assert len(commands()) == 4
    for command in commands():
        script = f"#!/bin/sh\n{command}\n"
        run("sh", "-c", 'printf %s "$1" | shellcheck -', "sh", script)


def test_every_stage_copies_from_one_that_exists() -> None:
    text = CONTAINERFILE.read_text()
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    assert set(re.findall(r"--from=(\S+)", text)) == stages == {"build"}


def test_commands(tmp_path: Path, programs: Path, sampler: Sampler) -> None:
    need("make", "cc", "sh")
    source, out = copy_recipe("container", tmp_path / "src"), tmp_path / "out"
    for command in commands():
        if not command.startswith("apt-get "):
            run("sh", "-c", command.replace("/out", str(out)), cwd=source, env=environment(programs))
    program, library = out / "usr" / "bin" / "words", out / "usr" / "lib" / "words" / "libwords.so"
    check_section(program)
    check_section(library)
    check_walks(sampler, program, libraries=library.parent)
