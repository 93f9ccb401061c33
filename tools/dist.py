#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build sdist, wheel and their bill of materials into a folder: dist.py DIR. The same bytes for the same sources.

The time in the archives is SOURCE_DATE_EPOCH, or the last commit's. Nothing is fetched: the build backend is imported
from the environment that runs this.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sbom import write_bill
from share import write_share

ROOT = Path(__file__).resolve().parents[1]


def source_date() -> str:
    """Return the time that the archives carry, in seconds since 1970. Ends the program where nothing tells it."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    if given:
        return given
    command = ["git", "log", "-1", "--format=%ct"]
    try:
        return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        sys.exit(f"{Path(sys.argv[0]).name}: no git here: set SOURCE_DATE_EPOCH")


def main(arguments: list[str]) -> int:
    """Build both archives, and the bill of materials."""
    if len(arguments) != 1:
        print("usage: dist.py DIR", file=sys.stderr)
        return 2
    os.environ["SOURCE_DATE_EPOCH"] = source_date()
    from flit_core import buildapi

    folder = Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.chdir(ROOT)
    write_share(ROOT / "data" / "share")
    sdist, wheel = (folder / build(str(folder)) for build in (buildapi.build_sdist, buildapi.build_wheel))
    for path in (sdist, wheel, write_bill(sdist, wheel, int(os.environ["SOURCE_DATE_EPOCH"]))):
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
