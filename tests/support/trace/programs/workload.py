# SPDX-License-Identifier: Apache-2.0
"""A program that alternates between C and Python, in two threads, until it is killed; it prints when it has started."""

import bisect
import ctypes
import functools
import hashlib
import json
import re
import signal
import sys
import threading
import zlib
from types import FrameType

TURNS = 200
CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))


@CALLBACK
def _compare(left, right):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN202 - ctypes calls it
    return left[0] - right[0]


def _depth(count: int) -> int:
    return 0 if count == 0 else 1 + _depth(count - 1)


def _sort_in_c() -> int:
    """Python calls libffi calls qsort calls libffi calls Python."""
    numbers = (ctypes.c_int * 40)(*(index * 37 % 101 for index in range(40)))
    ctypes.CDLL(None).qsort(numbers, len(numbers), ctypes.sizeof(ctypes.c_int), _compare)
    return numbers[7]


def _words(seed: int) -> list[str]:
    text = json.dumps([{f"key{number}": [number, str(number), number * 1.5]} for number in range(seed % 7 + TURNS)])
    words = re.findall(r"[a-z]+\d+", zlib.decompress(zlib.compress(text.encode())).decode())
    words.sort(key=lambda word: (len(word), hashlib.sha256(word.encode()).hexdigest()))
    return words


def _round(seed: int) -> int:
    words = _words(seed)
    try:
        words.remove("none of them")
    except ValueError:
        total = functools.reduce(lambda left, right: (left * 31 + right) % 1_000_003, map(len, words))
    else:
        total = 0
    return total + _depth(100) + sum(_sort_in_c() for _ in range(8)) + bisect.bisect_left(words, "key7", key=str)


def _work() -> None:
    number = 0
    while True:
        number += 1
        _round(number)


def _handle(_number: int, _frame: FrameType | None) -> None:
    _depth(20)


def main() -> None:
    """Work in the main thread and in another one, interrupted by a timer."""
    signal.signal(signal.SIGALRM, _handle)
    signal.setitimer(signal.ITIMER_REAL, 0.003, 0.003)
    threading.Thread(target=_work, daemon=True).start()
    sys.stdout.write("working\n")
    sys.stdout.flush()
    _work()


if __name__ == "__main__":
    main()
