# SPDX-License-Identifier: Apache-2.0
"""Tools that write an ELF file again: strip, objcopy, patchelf and their kin, as commands of tests."""

from pathlib import Path

from tests.support.needs import attempt, need
from tests.support.oracle.tools import find_binutils


def tool(version: str, name: str) -> str:
    """Return the path of a program: of binutils "2.40", "2.44" or "newest", or of the "machine"."""
    return need(name) if version == "machine" else find_binutils(version).tool(name)  # type: ignore[arg-type]


def rewrite(command: str, source: Path, target: Path) -> bool:
    """Run "VERSION TOOL WORDS", where IN, OUT and OUT.debug stand for files; return whether the tool succeeds."""
    version, name, *words = command.split()
    places = {"IN": str(source), "OUT": str(target), "OUT.debug": f"{target}.debug"}
    return attempt(tool(version, name), *(places.get(word, word) for word in words)).status == 0
