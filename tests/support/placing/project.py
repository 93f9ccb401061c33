# SPDX-License-Identifier: Apache-2.0
"""A C and C++ program of some size: the sources of `programs/project`, some of them compiled several times."""

from pathlib import Path
from typing import Final, NamedTuple

_FOLDER: Final = Path(__file__).resolve().parent / "programs" / "project"
_PART_COUNTS: Final = {"c": 6, "cc": 3}


class Unit(NamedTuple):
    """What makes one object: a name for it, the source, and the compiler's flags."""

    name: str
    source: Path
    flags: tuple[str, ...]


def units(*, with_cpp: bool = True) -> list[Unit]:
    """Return the program's units; the last has main()."""
    parts = [
        Unit(f"part{part}.{suffix}", _FOLDER / f"part.{suffix}", (f"-DPART={part}",))
        for suffix, count in _PART_COUNTS.items()
        for part in range(count)
        if with_cpp or suffix == "c"
    ]
    return [*parts, Unit("main.c", _FOLDER / "main.c", ("-DWITH_CPP",) if with_cpp else ())]
