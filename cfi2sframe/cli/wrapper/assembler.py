# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe-as`: assemble, then put the section into the object, in the form that the assembler's linker merges."""

import os
import re
from collections.abc import Sequence
from typing import Final

from cfi2sframe.cli.wrapper.insertion import identity_of, insert_section, is_elf_of_type
from cfi2sframe.cli.wrapper.programs import Role, printed_by, spawn
from cfi2sframe.cli.wrapper.words import expand_response_files, output_of
from cfi2sframe.constants.elf import EM_S390
from cfi2sframe.errors import Cfi2SFrameError, RequestError

_ET_REL: Final = 1
#: GNU as takes long options with one hyphen, too.
_OWN_WORD: Final = re.compile(r"--?gsframe(?:=(?P<choice>yes|no)|-(?P<version>[123]))?")
#: The release at the end of the first line that `ld --version` prints: "2.40", "2.47.50.20261021", "2.41-38.fc41".
_RELEASE: Final = re.compile(r"\b(\d+)\.(\d+)[^\s()]*$")


def assemble(role: Role, program: str, words: Sequence[str], variables: dict[str, str]) -> int:
    """Assemble, and convert an object without a section; return the exit status."""
    is_wanted, version, passed_on = section_wanted(words)
    if not is_wanted and "--gsframe[=" in printed_by([program, "--help"]):
        # Its default may be to write sections.
        passed_on = ("--gsframe=no", *passed_on)
    output = output_of(passed_on)
    before = identity_of(output)
    status = spawn(role, [program, *passed_on], variables)
    if status != 0 or not is_wanted or identity_of(output) == before or not is_elf_of_type(output, _ET_REL):
        return status
    return insert_section(role, output, lambda: _plan(version, program, output))


def section_wanted(words: Sequence[str]) -> tuple[bool, int | None, tuple[str, ...]]:
    """Return whether a section is wanted, in which version if one is named, and the words for the assembler.

    This program takes the words about SFrame, because most assemblers know none, and the others only one version. The
    last one counts.
    """
    expanded = list(expand_response_files(words))
    matches = [_OWN_WORD.fullmatch(word) for word in expanded]
    last = next((match for match in reversed(matches) if match), None)
    if last is None:
        return True, None, tuple(words)
    others = tuple(word for word, match in zip(expanded, matches, strict=True) if match is None)
    return last["choice"] != "no", int(last["version"]) if last["version"] else None, others


def _plan(version: int | None, program: str, output: str) -> tuple[str, ...] | None:
    """Return the options for a version or, if none is named, for the linker beside the assembler.

    Returns None for an object that has a section. Raises `RequestError` where no version is named and no linker known.
    """
    from cfi2sframe.elf.load import load

    try:
        image = load(output)
    except (Cfi2SFrameError, OSError):
        # The conversion will report it or skip it.
        return ()
    if image.sframe_section is not None and image.sframe_section.size:
        return None
    if version is None and re.search("--(sframe-version|for)", os.environ.get("CFI2SFRAME_FLAGS", "")):
        return ()
    directory, name = os.path.split(program)
    beside = os.path.join(directory, re.sub("as$", "ld", name))
    linker = printed_by([beside, "--version"]) if beside != program else ""
    options = options_for_linker(linker, version, is_s390x=image.header.machine == EM_S390)
    if options is None:
        reason = f"no linker is known beside {program} that merges these .sframe sections"
        raise RequestError(f"{reason}; --gsframe-N names a version")
    return options


def options_for_linker(linker: str, version: int | None = None, *, is_s390x: bool = False) -> tuple[str, ...] | None:
    """Return the options for objects that a linker merges, by what its `--version` prints; None where it merges none.

    `version` is that of the section, if it is named: the linker then decides the rest.
    """
    line = linker.partition("\n")[0].rstrip()
    match = _RELEASE.search(line) if line.startswith("GNU ld ") else None
    release = (int(match[1]), int(match[2])) if match else (0, 0)
    if version is None:
        if release >= (2, 46) or re.match(r"mold ([3-9]|\d\d)", line):
            version = 3
        elif release < (2, 40) or is_s390x:
            # GNU ld merges those of s390x since 2.46.
            return None
        else:
            version = 1 if release == (2, 40) else 2
    if version == 1:
        return ("--for", "ld-2.40")
    if version == 2 and (2, 41) <= release < (2, 45):
        return ("--for", "ld-2.41")
    return ("--sframe-version", str(version))
