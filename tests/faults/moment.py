# SPDX-License-Identifier: Apache-2.0
"""Runs the program, and lets something happen to a file at a moment of the run.

    python -m tests.faults.moment CALL NUMBER ACTION FILE MARK WORD...

The moment is right before the call number NUMBER of the function CALL, which is `MODULE:NAME`, or `pread`: then every
file counts as a large one. The action is `cut` (to nothing), `grow`, or `swap` (FILE.other takes its place). MARK is
created too: without it the moment has not come.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cfi2sframe.cli import main
from cfi2sframe.elf import load

if TYPE_CHECKING:
    from types import FrameType

_GROWTH = 4096


def _act(action: str, path: str) -> None:
    if action == "cut":
        os.truncate(path, 0)
    elif action == "grow":
        with open(path, "ab") as file:
            file.write(bytes(_GROWTH))
    elif action == "swap":
        os.rename(f"{path}.other", path)
    else:
        raise ValueError(action)


class _Moment:
    def __init__(self, call: str, number: int, action: str, path: str, mark: str) -> None:
        self._call = call
        self._left = number
        self._action = action
        self._path = path
        self._mark = mark

    def watch(self, frame: FrameType, event: str, argument: object) -> None:
        if event == "c_call":
            is_it = self._call == "pread" and argument is os.pread
        elif event == "call":
            is_it = f"{frame.f_globals.get('__name__')}:{frame.f_code.co_qualname}" == self._call
        else:
            return
        if not is_it:
            return
        self._left -= 1
        if not self._left:
            sys.setprofile(None)
            _act(self._action, self._path)
            with open(self._mark, "wb"):
                pass


if __name__ == "__main__":
    _call, _number, _action, _path, _mark, *_words = sys.argv[1:]
    if _call == "pread":
        # Where each read is tried, blocks of zeros would be most of them.
        vars(load)["_LARGE_SIZE"] = 0
    sys.setprofile(_Moment(_call, int(_number), _action, _path, _mark).watch)
    _status = main(_words)
    sys.setprofile(None)
    sys.exit(_status)
