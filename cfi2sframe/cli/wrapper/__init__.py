# SPDX-License-Identifier: Apache-2.0
"""`cfi2sframe-ld`, `cfi2sframe-cc`, `cfi2sframe-as`: run the real program, then put the section into its output.

A section that only stack tracers read must never break a build: a file that cannot have one stays as it is. Configure
scripts take output of a test link for a failure: the wrappers print nothing, unless the real program cannot be run. The
man page, cfi2sframe-ld(1), has the variables that change that.

- `link` runs both.
- `words` reads the command lines of linkers and drivers, `assembler` those of assemblers.
- `programs` finds and runs the real program, and has messages and a log.
- `insertion` puts the section into the file, in a child process.
"""

import sys

from cfi2sframe.cli import run_process

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn


def run() -> "NoReturn":
    """Run as the program that was called."""
    run_process(_main)


def _main() -> int:
    from cfi2sframe.cli.wrapper.link import main

    return main(sys.argv)
