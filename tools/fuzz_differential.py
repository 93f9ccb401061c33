#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compare the rows of random CFI programs with what readelf and llvm-dwarfdump make of them.

fuzz_differential.py [--programs N] [--seed S] [--arch amd64|aarch64|s390x]

GNU as assembles the programs, a few hundred functions per file; `make oracles` fetches the tools. The same seed gives
the same programs. Exit status 1 when something differs.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.fuzz.cfi_programs import MACHINES
from tests.fuzz.differential import Tools, run
from tests.support.oracle.tools import ToolMissingError, find_binutils, find_llvm_dwarfdump

if TYPE_CHECKING:
    from tests.support.oracle.frames import Arch as ArchName

_FUNCTIONS_PER_FILE = 500
_MAX_SHOWN = 20


def tools_for(arch: ArchName) -> Tools:
    """Return the newest tools. Raises `ToolMissingError` without them."""
    binutils = find_binutils("newest")
    # It does not apply the relocations of s390x, but rows count from the function's start anyway.
    llvm = str(find_llvm_dwarfdump("newest").path)
    return Tools(binutils.tool("as", arch), binutils.tool("readelf", arch), llvm)


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1, help="of the first file; the next ones count up")
    parser.add_argument("--arch", choices=list(MACHINES), default="amd64")
    arguments = parser.parse_args()
    try:
        tools = tools_for(arguments.arch)
    except ToolMissingError as error:
        parser.error(str(error))
    begin = time.monotonic()
    functions = rows = seen = 0
    with tempfile.TemporaryDirectory() as folder:
        for number in range(-(-arguments.programs // _FUNCTIONS_PER_FILE)):
            outcome = run(arguments.arch, tools, arguments.seed + number, _FUNCTIONS_PER_FILE, Path(folder))
            functions += outcome.function_count
            rows += outcome.row_count
            for text in outcome.differences[: max(0, _MAX_SHOWN - seen)]:
                print(text)
            seen += len(outcome.differences)
    print(
        f"{arguments.arch}: {functions:,} programs, {rows:,} rows compared, {seen:,} differences, "
        f"{time.monotonic() - begin:.0f} s"
    )
    return 1 if seen else 0


if __name__ == "__main__":
    sys.exit(main())
