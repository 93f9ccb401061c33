# SPDX-License-Identifier: Apache-2.0
"""Runs the program, and truncates a file right before one of the reads by which large files are read.

    python -m tests.faults.moment NUMBER FILE MARK WORD...

Every file counts as a large one. MARK is created too: without it there was no read of this number.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cfi2sframe.cli import main
from cfi2sframe.elf import load

if TYPE_CHECKING:
    from types import FrameType


class _Moment:
    def __init__(self, number: int, path: str, mark: str) -> None:
        self._left = number
        self._path = path
        self._mark = mark

    def watch(self, _: FrameType, event: str, argument: object) -> None:
        if event != "c_call" or argument is not os.pread:
            return
        self._left -= 1
        if not self._left:
            sys.setprofile(None)
            os.truncate(self._path, 0)
            with open(self._mark, "wb"):
                pass


if __name__ == "__main__":
    _number, _path, _mark, *_words = sys.argv[1:]
    # Of files that are large indeed, blocks of zeros would be most of what is read.
    vars(load)["_LARGE_SIZE"] = 0
    sys.setprofile(_Moment(int(_number), _path, _mark).watch)
    _status = main(_words)
    sys.setprofile(None)
    sys.exit(_status)
