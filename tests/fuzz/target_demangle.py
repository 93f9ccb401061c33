# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a C++ name, or as a list of the grammar's words (what does not begin with `_Z`)."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from cfi2sframe.demangle import CPU_SECONDS, Demangler
from tests.fuzz.harness import expect

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Words of the Itanium C++ ABI's grammar. A byte of the input is one of them.
WORDS: Final = (
    *("1A", "1f", "2op", "N", "E", "I", "J", "S_", "S0_", "S1_", "S2_", "St", "Sa", "Ss", "T_", "T0_", "TL0__", "Dp"),
    *("sp", "cv", "P", "R", "O", "K", "F", "M", "A2_", "A_", "X", "L", "Li1E", "Lb1E", "i", "v", "c", "z", "Dn", "Da"),
    *("Dt", "DT", "sr", "st", "sZ", "fp_", "fL0p_", "pl", "qu", "cl", "il", "tl", "nw", "_", "Z", "Zs_", "d_", "Ut_"),
    *("UlvE_", "C1", "D0", "TV", "TI", "GV", "Th1_", "Tc", "B1A", "L_Z", "_Z", "fl", "fr", "sPE", "DO", "Dv4_", "U1A"),
    *("on", "ix", "dt", "at", "sz", "te", "tw", "gs", "Tn", "Ty", "Tk", "Q", "W1A", "F1A", "H", ".1", ".isra.0"),
)
#: Of CPU time, beyond what the process that reads names may take: the time until the kernel notices, and its start.
_ALLOWANCE: Final = 0.5
_MAX_TEXT_SIZE: Final = 1 << 16


def name_of(data: bytes) -> str:
    """Return the name that an input stands for."""
    if data.startswith(b"_Z"):
        return data.decode("utf-8", "surrogateescape")
    return "_Z" + "".join(WORDS[byte % len(WORDS)] for byte in data)


def run(data: bytes) -> None:
    """Read a name: the answer is bounded, in size and time."""
    name = name_of(data)
    before = os.times()
    with Demangler() as demangler:
        readable = demangler.readable(name)
    after = os.times()
    seconds = sum(after[:4]) - sum(before[:4])
    expect(readable == name or len(readable) <= _MAX_TEXT_SIZE, f"{len(readable)} characters")
    expect(seconds <= CPU_SECONDS + _ALLOWANCE, f"{seconds:.1f} s")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield names of each kind, and those that are known to double with each level."""
    from tests.test_demangle import HOSTILE, conversions, packs, substitutions

    for kind, name in HOSTILE.items():
        yield kind.replace(" ", "-"), name.encode()
    for number, name in enumerate(
        (
            "_ZNSt6vectorIiSaIiEE9push_backERKi",
            "_ZZ3foovENKUlT_E_clIiEEDaS_",
            "_ZN1AIJiiEEC2IJcEEEDpOT_",
            "_ZTv0_n12_N1A1fEv",
            "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE",
            "_Z1fIiEDTplfp_Li1EET_",
            substitutions(3),
            conversions(3),
            packs(2, 3),
        )
    ):
        yield f"name-{number}", name.encode()
    yield "words", bytes(range(len(WORDS)))
