#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the archives twice, in surroundings that differ in all that must not matter, and compare their bytes.

The second build is of a copy of the files that git tracks, which shows stray files in this tree, too. Exit status 1:
the archives differ, or one of them cannot be built.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from dist import ROOT, source_date

#: Unusual surroundings: time zone, language, hash order; and the umask.
SURROUNDINGS = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "LANG": "tr_TR.UTF-8", "PYTHONHASHSEED": "7"}
UMASK = 0o077


def copy_known_files(target: Path) -> None:
    """Copy the files of this tree that git knows, with other times and modes. Raises what `subprocess.run` does."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
    for name in os.fsdecode(listed).split("\0")[:-1]:
        source, copy = ROOT / name, target / name
        if not source.is_file():
            # Deleted, and not yet committed.
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o700 if os.access(source, os.X_OK) else 0o600)
        os.utime(copy, (1, 1))


def build(tree: Path, folder: Path, umask: int, **surroundings: str) -> dict[str, bytes]:
    """Build a tree's archives, and return the files by name. Raises what `subprocess.run` does."""
    command = [sys.executable, str(tree / "tools" / "dist.py"), str(folder)]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", **surroundings}
    subprocess.run(command, check=True, env=environment, umask=umask, stdout=subprocess.DEVNULL)
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def main() -> int:
    """Compare both builds."""
    os.environ["SOURCE_DATE_EPOCH"] = source_date()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree = folder / "elsewhere" / "and deeper"
        copy_known_files(tree)
        try:
            here = build(ROOT, folder / "here", 0o022)
            there = build(tree, folder / "there", UMASK, **SURROUNDINGS)
        except subprocess.CalledProcessError as error:
            print(f"check_dist.py: {error}", file=sys.stderr)
            return 1
    differing = sorted(name for name in {*here, *there} if here.get(name) != there.get(name))
    for each in differing:
        print(
            f"check_dist.py: {each} depends on where it is built, or has files that git does not know", file=sys.stderr
        )
    if not differing:
        print(f"the same bytes twice: {', '.join(here)}")
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
