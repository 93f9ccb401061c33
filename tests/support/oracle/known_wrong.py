# SPDX-License-Identifier: Apache-2.0
"""The one list of answers of outside tools that are known to be wrong.

A test that compares with such a tool marks the case as a strict expected failure: a tool that was
mended, or a list that has grown old, turns the run red.
"""

from typing import Final, NamedTuple

import pytest


class KnownWrong(NamedTuple):
    """A wrong answer to some cases; a version that it was seen in covers what starts with it: `14` covers `14.0.6`.

    `shows` is a pattern of what the failed assertion says; any will do for a tool that CI does not build.
    """

    tool: str
    versions: str
    cases: str
    reason: str
    shows: str = ""


# fmt: off
KNOWN_WRONG: Final = (
    KnownWrong("readelf", "2.40", "sframe-fixed-ra",
               "an RA at the fixed offset of the header is printed as unchanged"),
    KnownWrong("readelf", "2.44 2.47", "sframe-shared-rows-of-the-other-byte-order",
               "libsframe flips the rows of a foreign byte order in place, function by function, so that shared ones "
               "come out as they were: the section is refused, or an assertion fails. A readelf that is itself "
               "big-endian reads it", "SFrame decode failure"),
    KnownWrong("gas", "2.40 2.44 2.47", "sframe-of-remember-nested.s",
               "one slot for remembered states: after the inner restore_state the outer one restores the inner state",
               r"gas cfa=r7\+(16|24) .*, we cfa=r7\+(24|16) "),
    KnownWrong("gas", "2.40 2.44 2.47", "sframe-of-same-pc-offset-then-register.s",
               "def_cfa_register takes the offset of the row before: fp+8, where def_cfa_offset at the same PC made it "
               "rbp+16", r"gas cfa=r6\+8 .*, we cfa=r6\+16 "),
    KnownWrong("gas", "2.40 2.44",
               "sframe-of-ra-undefined.s sframe-of-ra-undefined-later.s sframe-of-aarch64/ra-undefined.s",
               "an outermost frame is described as an ordinary one: RA at c-8 or in x30, which the CFI has undefined",
               r"gas has it, we have not|gas .* ra=(c-8|u) fp=u, we None"),
    KnownWrong("gas", "2.44", "sframe-of-ra-in-register.s",
               "RA is in a register, which version 2 cannot express here; the row has c-8", "ra=c-8 fp=u, we None"),
    KnownWrong("gas", "2.40 2.44", "sframe-of-fp-undefined.s",
               "FP is undefined, which no row can express; the row has it unchanged", "fp=u, we None"),
    KnownWrong("gas", "2.40", "sframe-of-cfa-other-register.s sframe-of-aarch64/cfa-other-register.s",
               "CFA is rbx+16 or x19+16, which version 1 cannot express; the row has sp+16",
               r"gas cfa=r(7|31)\+16 .*, we None"),
    KnownWrong("gas", "2.40", "sframe-of-window-save-opcode.s",
               "opcode 0x2d is taken for AArch64's negate_ra_state: the row has a signed RA",
               "gas has it, we have not"),
    KnownWrong("gas", "2.40", "sframe-of-aarch64/fp-without-ra.s",
               "FP is at c-16 and RA in x30, which version 1 cannot express; the row has RA at c-16",
               "ra=c-16 fp=u, we None"),
    KnownWrong("gas", "2.47",
               "sframe-of-s390x/cfa-offset-unaligned.s linked-sframe-of-s390x/cfa-offset-unaligned.s",
               "CFA is r15+164, which is no multiple of 8 bytes from 160 and cannot be expressed; the row has sp+160",
               r"gas cfa=r15\+160 .*, we None"),
    KnownWrong("ld", "2.47", "plt-got",
               "the rows of .plt.got start with sp+16; they are called, and push nothing: sp+8",
               r"cfa=r7\+16 .* != .*cfa=r7\+8 "),
    KnownWrong("ld", "2.40 2.44", "sframe-kept-gc-sections",
               "--gc-sections takes .sframe for unused and leaves it out, the assembler's as well as any other",
               "theirs has no .sframe"),
    KnownWrong("ld", "2.40 2.44", "sframe-of-partial-links",
               "cannot read the .sframe of its own -r output: an assertion fails, and there is no output",
               "assertion fail .*elf-sframe"),
    KnownWrong("mold", "1 2", "sframe-merged",
               "older than its support of SFrame: .sframe sections are concatenated, each with its header",
               "sfh_fre_len does not reach the section's end"),
    KnownWrong("glibc", "2.36", "aarch64-lazy.c",
               "the CFI of _dl_runtime_resolve has CFA at sp+0 at its entry and RA at c+8: the 16 bytes that PLT0 "
               "pushed are left out, so every tracer by CFI takes up its caller with an SP that is 16 too low"),
    KnownWrong("glibc", "2.44", "backtrace-plt-resolution",
               "reads version 2 only, which cannot express the CFA of its own _dl_runtime_resolve (rbx + offset)"),
    KnownWrong("glibc", "2.44",
               "backtrace-terminate-noexcept backtrace-terminate-destructor backtrace-abort-destructor",
               "reads version 2 only, which cannot express the last instructions of _Unwind_RaiseException and "
               "_Unwind_Resume (CFA by rcx); std::terminate() is called within them"),
    KnownWrong("glibc", "2.44", "backtrace-context",
               "looks up the return address itself: that of a function started by makecontext() is the first byte of "
               "__start_context, which was never called; DWARF looks at the byte before, where no function is, and "
               "stops"),
)
# fmt: on


def find(case: str, tool: str, version: str) -> KnownWrong | None:
    """The entry for a case and a tool of this version, if there is one."""
    for entry in KNOWN_WRONG:
        is_version = any(f"{version}.".startswith(f"{each}.") for each in entry.versions.split())
        if entry.tool == tool and case in entry.cases.split() and is_version:
            return entry
    return None


def expect_failure(request: pytest.FixtureRequest, case: str, tool: str, version: str) -> None:
    """Turn the running test into a strict expected failure when the list has an entry for it."""
    entry = find(case, tool, version)
    if entry is not None:
        expected = pytest.RaisesExc(AssertionError, match=entry.shows)
        request.applymarker(pytest.mark.xfail(strict=True, raises=expected, reason=f"{tool} {version}: {entry.reason}"))
