# SPDX-License-Identifier: Apache-2.0
"""A workload for a converted Python: C calls Python calls C, deep and through extension modules."""

import functools
import hashlib
import json
import re
import sys
import time

TURNS = 300


def _depth(count: int) -> int:
    return 0 if count == 0 else 1 + _depth(count - 1)


def _round() -> int:
    text = json.dumps([{f"key{number}": [number, str(number), number * 1.5]} for number in range(TURNS)])
    words = re.findall(r"[a-z]+\d+", text)
    words.sort(key=lambda word: (len(word), hashlib.sha256(word.encode()).hexdigest()))
    total = functools.reduce(lambda left, right: (left * 31 + right) % 1_000_003, map(len, words))
    return total + len(json.loads(text, object_hook=len)) + _depth(150) + int(words[7][3:])


def main() -> None:
    """Repeat one round for the seconds of CPU time that the argument gives."""
    end = time.process_time() + float(sys.argv[1])
    first = _round()
    while time.process_time() < end:
        if _round() != first:
            sys.exit("a round differs")
    sys.stdout.write(f"result {first}\n")
    if sys.argv[2:]:
        files = [getattr(module, "__file__", None) or "" for module in sys.modules.values()]
        sys.stdout.write(" ".join(sorted(file for file in files if file.endswith(".so"))) + "\n")


if __name__ == "__main__":
    main()
