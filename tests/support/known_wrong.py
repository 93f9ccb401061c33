# SPDX-License-Identifier: Apache-2.0
"""The one list of answers of outside tools that are known to be wrong.

A test that compares with such a tool marks the case as a strict expected failure: a tool that was
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
        "sframe-relocations",
        "readelf",
        ("2.40", "2.44"),
        "the relocations of an object's .sframe are not applied: every function starts at 0",
    ),
    KnownWrong(
        "sframe-fixed-ra",
        "readelf",
        ("2.40",),
        "an RA at the fixed offset of the header is printed as unchanged",
    ),
    KnownWrong(
        "sframe-shared-rows-of-the-other-byte-order",
        "readelf",
        ("2.44", "2.47"),
        "libsframe flips the rows of a foreign byte order in place, function by function, so that shared ones come out "
        "as they were: the section is refused, or an assertion fails. A readelf that is itself big-endian reads it",
    ),
    KnownWrong(
        "sframe-of-remember-nested.s",
        "gas",
        ("2.40", "2.44", "2.47"),
        "one slot for remembered states: after the inner restore_state the outer one restores the inner state",
    ),
    KnownWrong(
        "sframe-of-same-pc-offset-then-register.s",
        "gas",
        ("2.40", "2.44", "2.47"),
        "def_cfa_register takes the offset of the row before: fp+8, where def_cfa_offset at the same PC made it rbp+16",
    ),
    KnownWrong(
        "sframe-of-ra-undefined.s",
        "gas",
        ("2.40", "2.44"),
        "an outermost frame is described as an ordinary one: RA at c-8, which is undefined by the CFI",
    ),
    KnownWrong(
        "sframe-of-ra-undefined-later.s",
        "gas",
        ("2.40", "2.44"),
        "an outermost frame is described as an ordinary one: RA at c-8, which is undefined by the CFI",
    ),
    KnownWrong(
        "sframe-of-ra-in-register.s",
        "gas",
        ("2.44",),
        "RA is in a register, which version 2 cannot express here; the row has c-8",
    ),
    KnownWrong(
        "sframe-of-fp-undefined.s",
        "gas",
        ("2.40", "2.44"),
        "FP is undefined, which no row can express; the row has it unchanged",
    ),
    KnownWrong(
        "sframe-of-cfa-other-register.s",
        "gas",
        ("2.40",),
        "CFA is rbx+16, which version 1 cannot express; the row has sp+16",
    ),
    KnownWrong(
        "sframe-of-window-save-opcode.s",
        "gas",
        ("2.40",),
        "opcode 0x2d is taken for AArch64's negate_ra_state: the row has a signed RA",
    ),
    KnownWrong(
        "sframe-of-aarch64/ra-undefined.s",
        "gas",
        ("2.40", "2.44"),
        "an outermost frame is described as an ordinary one: RA in x30, which is undefined by the CFI",
    ),
    KnownWrong(
        "sframe-of-aarch64/cfa-other-register.s",
        "gas",
        ("2.40",),
        "CFA is x19+16, which version 1 cannot express; the row has sp+16",
    ),
    KnownWrong(
        "sframe-of-aarch64/fp-without-ra.s",
        "gas",
        ("2.40",),
        "FP is at c-16 and RA in x30, which version 1 cannot express; the row has RA at c-16",
    ),
    KnownWrong(
        "sframe-of-s390x/cfa-offset-unaligned.s",
        "gas",
        ("2.47",),
        "CFA is r15+164, which is no multiple of 8 bytes from 160 and cannot be expressed; the row has sp+160",
    ),
    KnownWrong(
        "plt-got",
        "ld",
        ("2.47",),
        "the rows of .plt.got start with sp+16; they are called, and push nothing: sp+8",
    ),
    KnownWrong(
        "sframe-kept-gc-sections",
        "ld",
        ("2.40", "2.44"),
        "--gc-sections takes .sframe for unused and leaves it out, the assembler's as well as any other",
    ),
    KnownWrong(
        "sframe-of-stubs-plain",
        "ld",
        ("2.40", "2.44", "2.47"),
        ".plt.got stubs have sp+16, where nothing was pushed (none in 2.40); 2.44 gives PLT0, which is no repeating "
        "block, a block size; the masks of 2.40 match wrong addresses of a block",
    ),
    KnownWrong(
        "sframe-of-stubs-shared",
        "ld",
        ("2.40", "2.44", "2.47"),
        "as for sframe-of-stubs-plain",
    ),
    KnownWrong(
        "sframe-of-stubs-nopie",
        "ld",
        ("2.40", "2.44"),
        "as for sframe-of-stubs-plain; there is no .plt.got",
    ),
    KnownWrong(
        "sframe-of-stubs-gc-sections",
        "ld",
        ("2.47",),
        "--gc-sections loses the rows of all stubs",
    ),
    KnownWrong(
        "linked-sframe-of-s390x/cfa-offset-unaligned.s",
        "gas",
        ("2.47",),
        "CFA is sp+164, which no row can express; the row has sp+160",
    ),
    KnownWrong(
        "sframe-of-partial-links",
        "ld",
        ("2.40", "2.44"),
        "cannot read the .sframe of its own -r output: an assertion fails, and there is no output",
    ),
    KnownWrong(
        "sframe-merged",
        "mold",
        ("1", "2"),
        "older than its support of SFrame: .sframe sections are concatenated, each with its header",
    ),
    KnownWrong(
        "aarch64-lazy.c",
        "glibc",
        ("2.36",),
        "the CFI of _dl_runtime_resolve has CFA at sp+0 at its entry and RA at c+8: the 16 bytes that PLT0 pushed are "
        "left out, so every tracer by CFI takes up its caller with an SP that is 16 too low",
    ),
    KnownWrong(
        "backtrace-plt-resolution",
        "glibc",
        ("2.44",),
        "reads version 2 only, which cannot express the CFA of its own _dl_runtime_resolve (rbx + offset)",
    ),
    *(
        KnownWrong(
            f"backtrace-{place}",
            "glibc",
            ("2.44",),
            "reads version 2 only, which cannot express the last instructions of _Unwind_RaiseException and "
            "_Unwind_Resume (CFA by rcx); std::terminate() is called within them",
        )
        for place in ("terminate-noexcept", "terminate-destructor", "abort-destructor")
    ),
    KnownWrong(
        "backtrace-context",
        "glibc",
        ("2.44",),
        "looks up the return address itself: that of a function started by makecontext() is the first byte of "
        "__start_context, which was never called; DWARF looks at the byte before, where no function is, and stops",
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
