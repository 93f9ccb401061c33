# SPDX-License-Identifier: Apache-2.0
"""What the tests of recipes share: clean folders, the programs of this package in PATH, and what a result owes."""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.support.consumer.walk import Sampler, check_walks
from tests.support.needs import Result, attempt, need

ROOT: Final = Path(__file__).resolve().parents[2]
CONTRIB: Final = ROOT / "contrib"
PROJECT: Final = CONTRIB / "project"
#: Its sources.
SOURCES: Final = [str(PROJECT / "main.c"), str(PROJECT / "words.c")]
#: The package's programs, and where each begins.
PROGRAMS: Final = {
    "cfi2sframe": "cfi2sframe.cli:run",
    "cfi2sframe-as": "cfi2sframe.cli.wrapper:run",
    "cfi2sframe-ld": "cfi2sframe.cli.wrapper:run",
    "cfi2sframe-cc": "cfi2sframe.cli.wrapper:run",
}
#: The time in archives, in seconds since 1970.
EPOCH: Final = "1735689600"
_BUILT: Final = shutil.ignore_patterns(
    ".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "*.egg-info", "testdata", "fuzz"
)


def install_programs(folder: Path) -> Path:
    """Write the package's programs as an installation would; return their folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, entry in PROGRAMS.items():
        module, function = entry.split(":")
        path = folder / name
        path.write_text(
            f"#!{sys.executable}\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n"
            f"from {module} import {function}\nif __name__ == '__main__':\n    sys.exit({function}())\n"
        )
        path.chmod(0o755)
    return folder


def environment(programs: Path, **variables: str) -> dict[str, str]:
    """Return a clean environment with the package's programs first in PATH."""
    kept = {name: os.environ[name] for name in ("HOME", "TMPDIR", "RUSTUP_HOME", "CARGO_HOME") if name in os.environ}
    path = os.pathsep.join([str(programs), os.environ["PATH"]])
    return {**kept, "PATH": path, "LC_ALL": "C.UTF-8", "CFI2SFRAME_PROGRESS": "never", **variables}


def run(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """Run a program that must succeed."""
    result = attempt(*command, cwd=cwd, env=env)
    line = shlex.join(str(word) for word in command)
    assert result.status == 0, f"{line}: {result.status}\n{result.out}\n{result.err}"
    return result


def copy_of_the_tree(target: Path) -> Path:
    """Copy the project without what is built: builds write into the tree, which may be read-only."""
    shutil.copytree(ROOT, target, ignore=_BUILT)
    return target


def shell_script(path: Path, text: str) -> Path:
    """Write a program in shell; return its path."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def wrapper_folder(programs: Path, folder: Path, *names: str) -> Path:
    """Make a folder for GCC's `-B` in which wrappers have the names of tools, `ld` unless others are named."""
    folder.mkdir()
    for name in names or ("ld",):
        (folder / name).symlink_to(programs / f"cfi2sframe-{name}")
    return folder


def copy_recipe(name: str, target: Path) -> Path:
    """Copy a recipe, and the C project beside it, into `contrib` of a clean folder; return its example."""
    for part in (name, PROJECT.name):
        shutil.copytree(CONTRIB / part, target / "contrib" / part)
    return target / "contrib" / name / "example"


def build_example(folder: Path, env: Mapping[str, str]) -> Result:
    """Build an example where it lies, by its command in the README of contrib/."""
    example = folder.relative_to(folder.parents[2])
    (command,) = re.findall(rf"^ {{4}}(cd {example} && .+)$", (CONTRIB / "README.md").read_text(), re.MULTILINE)
    return run("sh", "-c", command, cwd=folder.parents[2], env=env)


def check_section(path: Path, *, more_functions_than: int = 1) -> None:
    """Check that a file's section agrees with its CFI, and that a segment leads to it."""
    from cfi2sframe import load, verify
    from cfi2sframe.api import decode_existing
    from cfi2sframe.constants.elf import PT_GNU_SFRAME

    image = load(str(path))
    assert PT_GNU_SFRAME in {segment.type for segment in image.segments}, path
    result = verify(image, decode_existing(image))
    assert result.is_clean, result.differences[:3]
    assert result.function_count > more_functions_than


def check_pair(sampler: Sampler, program: Path, library: Path) -> None:
    """Check the sections of a program and its library, and walk the stacks of its run."""
    check_section(program)
    check_section(library)
    check_walks(sampler, program, libraries=library.parent)


def has_section(path: Path) -> bool:
    """Whether a file has an .sframe section."""
    from cfi2sframe import load

    return load(str(path)).sframe_section is not None


def lists_section(path: Path) -> bool:
    """Whether a file with debug information that was split off has the section's header, without bytes."""
    from cfi2sframe import load
    from cfi2sframe.constants.elf import SHT_NOBITS

    return [section.type for section in load(str(path)).sections if section.name == ".sframe"] == [SHT_NOBITS]


def gdb_session(path: Path, debug_folder: Path) -> str:
    """Return what gdb says when it reads a file, with separate debug information in a folder; skip without gdb."""
    need("gdb")
    # Where the first line of a function is, is known from debug information only.
    words = ["-iex", f"set debug-file-directory {debug_folder}", "-ex", "info functions", str(path)]
    done = attempt("gdb", "-batch", "-nx", *words)
    text = done.out + done.err
    assert "Non-debugging symbols" not in text.partition("File ")[0], text
    assert "File " in text, text
    return text
