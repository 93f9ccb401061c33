#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Write what is made from the command line's parsers into data/: the man page, the shells' completions.

generate.py [--check]    with --check nothing is written, and the exit status is 1 if a file is not current
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from commands import command_line
from completions import completion
from manpage import man_page

SHARE = Path(__file__).resolve().parents[1] / "data" / "share"


def main(arguments: list[str]) -> int:
    """Write the files, or compare them."""
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    line = command_line()
    files = {
        SHARE / "man" / "man1" / "cfi2sframe.1": man_page(line),
        SHARE / "bash-completion" / "completions" / "cfi2sframe": completion("bash"),
        SHARE / "zsh" / "site-functions" / "_cfi2sframe": completion("zsh"),
        SHARE / "fish" / "vendor_completions.d" / "cfi2sframe.fish": completion("fish"),
    }
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text("utf-8") != text]
    for path in stale:
        shown = os.path.relpath(path)
        if arguments:
            print(f"{shown} is not current: run make generated", file=sys.stderr)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(files[path], "utf-8")
        print(shown)
    return 1 if arguments and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
