# SPDX-License-Identifier: Apache-2.0
"""The one list of answers of outside tools that are known to be wrong.

A test that compares with such a tool marks the case as a strict expected failure, so that a tool that was
mended, or a list that has grown old, turns the run red.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest


class KnownWrong(NamedTuple):
    """A wrong answer; each version that it was seen in covers what starts with it: `14` covers `14.0.6`."""

    case: str
    tool: str
    versions: tuple[str, ...]
    reason: str


KNOWN_WRONG: tuple[KnownWrong, ...] = (
    KnownWrong(
        "remember-state-keeps-cfa",
        "llvm-dwarfdump",
        ("14",),
        "restore_state brings back the registers and leaves the CFA; DWARF 5, 6.4.2.4 restores every rule",
    ),
    KnownWrong(
        "aarch64-negate-ra-state-twice",
        "llvm-dwarfdump",
        ("14",),
        "the second negate_ra_state leaves the pseudo register at 1",
    ),
    KnownWrong(
        "s390x-relocations",
        "llvm-dwarfdump",
        ("14", "23"),
        "R_390_PC32 of an object is not applied, so pc_begin is the address of its own field",
    ),
    KnownWrong(
        "register-after-cfa-expression",
        "llvm-dwarfdump",
        ("23",),
        "def_cfa_register behind def_cfa_expression (invalid by DWARF 5, 6.4.2.2) starts with offset 0; "
        "the pops that follow in libgcrypt's code fit the offset from before the expression",
    ),
    KnownWrong(
        "signal-frame-expressions",
        "gas",
        ("2.47",),
        "warns that a signal frame with a CFA expression gets no SFrame FDE, and emits one without rows",
    ),
)


def find(case: str, tool: str, version: str) -> KnownWrong | None:
    """The entry for a case and a tool of this version, if there is one."""
    for entry in KNOWN_WRONG:
        if entry.case == case and entry.tool == tool and any(_covers(v, version) for v in entry.versions):
            return entry
    return None


def expect_failure(request: pytest.FixtureRequest, case: str, tool: str, version: str) -> None:
    """Turn the running test into a strict expected failure when the list has an entry for it."""
    entry = find(case, tool, version)
    if entry is not None:
        request.applymarker(
            pytest.mark.xfail(strict=True, raises=AssertionError, reason=f"{tool} {version}: {entry.reason}")
        )


def _covers(listed: str, version: str) -> bool:
    return version == listed or version.startswith(listed + ".")
