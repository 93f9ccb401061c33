# SPDX-License-Identifier: Apache-2.0
"""What `readelf --sframe` prints (binutils 2.40: version 1, to 2.45: version 2, later: 2 and 3), against our dump."""

import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from cfi2sframe import convert, load
from cfi2sframe.api import decode
from cfi2sframe.conversion.options import Options
from cfi2sframe.sframe.dump import dump_text
from cfi2sframe.sframe.read import DecodedSection
from tests.support.oracle import known_wrong
from tests.support.oracle.tools import Binutils, Target

_ROW: Final = re.compile(r"    [0-9a-f]{16}  ")
_HEADER: Final = ("Version:", "Flags:", "SFRAME_F", "Num F")


def wrapped(objcopy: str, path: Path, data: bytes, vaddr: int, folder: Path) -> Path:
    """Put a section's bytes into a copy of a file, at their address."""
    raw, copy = folder / "raw.sframe", folder / "wrapped"
    raw.write_bytes(data)
    options = ["--remove-section", ".sframe", "--add-section", f".sframe={raw}"]
    options += ["--set-section-flags", ".sframe=alloc,readonly,data"]
    if vaddr:
        options += ["--change-section-address", f".sframe={vaddr:#x}"]
    # It warns that no segment holds the section; to readelf that makes no difference.
    subprocess.run([objcopy, *options, path, copy], capture_output=True, check=True)
    return copy


def printed(readelf: str, path: Path) -> list[str]:
    """Return the lines that a readelf or objdump prints of a section that it has nothing to complain about."""
    done = subprocess.run([readelf, "--sframe", path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[:500]
    assert not re.search("arning|rror", done.stdout), done.stdout[:500]
    return done.stdout.splitlines()


def in_words_of_dump(lines: Iterable[str], *, fixed_ra: bool = True, is_oldest: bool = False) -> list[str]:
    """Return the lines of a section's meaning with readelf's words for one thing made the dump's.

    An RA that no data word gives is "U" in a flexible row (a padding word): at its fixed offset, where the ABI has one,
    or else not saved. Before 2.41 (`is_oldest`), it is "u" in any row. Wide cells touch one another.
    """
    unsaid, word = ("u" if is_oldest else "U"), ("f" if fixed_ra else "u")
    kept: list[str] = []
    for line in map(str.rstrip, lines):
        if _ROW.match(line):
            kept.append(re.sub(rf"{unsaid}(?=(\[s\])?$)", word, line.replace(" ", "").replace("+-", "-")))
        elif line.startswith("    func idx") or line.lstrip().startswith(_HEADER) or "STARTPC" in line:
            kept.append(line.strip())
    return kept


def check_printed(lines: Iterable[str], section: DecodedSection, *, is_oldest: bool = False) -> None:
    """Compare what a readelf has printed with what `dump` prints of the same section."""
    fixed_ra = section.arch.fixed_ra_offset != 0
    shown = in_words_of_dump(lines, fixed_ra=fixed_ra, is_oldest=is_oldest)
    assert shown == in_words_of_dump(dump_text(section), fixed_ra=fixed_ra)
    assert len(shown) > len(section.functions)


def check_readelf(
    path: Path, options: Options, tools: Binutils, folder: Path, *, target: Target = "amd64", readelf: str = ""
) -> int:
    """Convert a file, have readelf read the result, and compare with the dump; return the number of rows.

    The readelf is that of `tools`, unless the path of another one is given.
    """
    conversion = convert(load(path), **options._asdict())
    if not conversion.data:
        return 0
    vaddr = conversion.section_vaddr
    copy = wrapped(tools.tool("objcopy", target), path, conversion.data, vaddr, folder)
    lines = printed(readelf or tools.tool("readelf", target), copy)
    is_oldest = known_wrong.find("sframe-fixed-ra", "readelf", tools.version) is not None
    check_printed(lines, decode(conversion.data, vaddr), is_oldest=is_oldest)
    return conversion.rows.row_count
