# SPDX-License-Identifier: Apache-2.0
"""Parts of `make step` and `make stacks`: the assembly of a decoder that runs has no CFI, and rows are right."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
KIT: Final = ROOT / "build" / "step"

pytestmark = [
    pytest.mark.oracle,
    pytest.mark.slow,
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the tracer steps programs of an AMD64 machine"),
    pytest.mark.skipif(not (KIT / ".done").exists(), reason="no build/step: tools/fetch-step build/step brings it"),
]


def output_of(*words: str) -> str:
    """Run a tool, which must find nothing wrong."""
    done = subprocess.run([sys.executable, *words], check=False, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_decoder_is_stepped() -> None:
    text = output_of("tools/step.py", "--only", "dav1d")
    found = re.search(
        r"^([\d,]+) steps in code without CFI, ([\d,]+) at addresses with a row that is right", text, re.MULTILINE
    )
    assert found is not None, text
    steps, right = (int(number.replace(",", "")) for number in found.groups())
    assert steps > 200_000
    assert right > 0.9 * steps


def test_its_stacks_are_whole() -> None:
    text = output_of("tools/stacks.py")
    shares = re.findall(r"in code without CFI: \d+; to the program's start: ([\d.]+) % before, ([\d.]+) % after", text)
    assert len(shares) == 4, text
    assert all(float(before) < 1 and float(after) > 98 for before, after in shares)
    # gdb's are the same wherever it does not guess; the tool fails for others.
    outcomes = re.findall(r"beside gdb, (.+): (\d+), \d+ whole; gdb's: (\d+) the same", text)
    assert len(outcomes) == 8 or "skipped: gdb" in text, text
    assert all(stops == same for kind, stops, same in outcomes if kind == "elsewhere")
