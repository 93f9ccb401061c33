# SPDX-License-Identifier: Apache-2.0
"""Widths, offsets and counts: the smallest that hold their numbers, and errors where none does."""

import pytest

from cfi2sframe.arch import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.errors import RequestError
from cfi2sframe.sframe.layout import SectionPlan, plan_section
from cfi2sframe.sframe.model import OUTERMOST, FrameRow, FrameState, Function, FunctionBody, Rule, Section
from cfi2sframe.sframe.rows import PlannedBody, PlannedState, encode_state, plan_state
from tests.support.bodies import body_of_rows, with_functions

BIG = 1 << 31


def at(register: int, offset: int) -> Rule:
    return Rule(register, offset, deref=False)


def load(register: int, offset: int) -> Rule:
    return Rule(register, offset, deref=True)


def saved(offset: int) -> Rule:
    return Rule(None, offset, deref=True)


RA8 = saved(-8)


def plan(arch: Arch, *bodies: FunctionBody, version: int = 3, vaddr: int = 0) -> SectionPlan:
    functions = tuple(Function(0x1000 * (n + 1), 0x1000, body) for n, body in enumerate(bodies))
    section = with_functions(Section(version, arch.abi_id, start_is_pcrel=version > 1), functions)
    return plan_section(section, arch, vaddr)


def planned(arch: Arch, state: FrameState, *, is_flexible: bool = False, version: int = 3) -> PlannedState:
    result = plan_state(state, arch, is_flexible=is_flexible)
    # What follows a row's start in the section is just this.
    body = body_of_rows((FrameRow(0, state),), is_flexible=is_flexible)
    assert plan(arch, body, version=version).bodies[0].data.endswith(b"\0" + encode_state(result, arch))
    return result


def planned_starts(
    *starts: int, version: int = 3, is_flexible: bool = False, is_signal_frame: bool = False, uses_b_key: bool = False
) -> PlannedBody:
    rows = tuple(FrameRow(start, FrameState(at(7, 8), RA8)) for start in starts)
    return plan(AMD64, body_of_rows(rows, is_flexible, is_signal_frame, uses_b_key), version=version).bodies[0]


# Words of default rows


@pytest.mark.parametrize("offset", [BIG, -BIG - 1])
def test_a_number_of_33_bits_is_refused(offset: int) -> None:
    with pytest.raises(RequestError, match=f"^{offset} does not fit a data word of 32 bits$"):
        planned(AMD64, FrameState(at(7, offset), RA8))


@pytest.mark.parametrize(
    ("arch", "state", "info", "words"),
    [
        (AMD64, FrameState(at(7, 8), RA8), 0x03, (8,)),
        (AMD64, FrameState(at(6, 16), RA8), 0x02, (16,)),
        (AMD64, FrameState(at(7, 16), RA8, saved(-16)), 0x05, (16, -16)),
        (AMD64, OUTERMOST, 0x00, ()),
        (AARCH64_LE, FrameState(at(31, 0)), 0x03, (0,)),
        (AARCH64_LE, FrameState(at(31, 16), RA8), 0x05, (16, -8)),
        (AARCH64_LE, FrameState(at(29, 16), RA8, saved(-16)), 0x06, (16, -8, -16)),
        (AARCH64_LE, FrameState(at(31, 0), mangled_ra=True), 0x83, (0,)),
        (AARCH64_LE, OUTERMOST, 0x00, ()),
        (S390X, FrameState(at(15, 160)), 0x03, (0,)),
        (S390X, FrameState(at(15, 320)), 0x03, (20,)),
        (S390X, FrameState(at(15, 0)), 0x03, (-20,)),
        (S390X, FrameState(at(15, 1176)), 0x03, (127,)),
        (S390X, FrameState(at(15, 1184)), 0x23, (128,)),
        (S390X, FrameState(at(11, 160), saved(-48), saved(-72)), 0x06, (0, -48, -72)),
        (S390X, FrameState(at(15, 160), None, saved(-72)), 0x07, (0, 0, -72)),
        (S390X, FrameState(at(15, 160), saved(-48)), 0x05, (0, -48)),
        (S390X, FrameState(at(15, 160), at(17, 0), at(16, 0)), 0x07, (0, 35, 33)),
        (S390X, FrameState(at(15, 160), at(14, 0)), 0x05, (0, 29)),
    ],
)
def test_default_words(arch: Arch, state: FrameState, info: int, words: tuple[int, ...]) -> None:
    assert planned(arch, state, version=2) == PlannedState(info, info >> 5 & 3, words)


# Words of flexible rows


@pytest.mark.parametrize(
    ("arch", "state", "info", "words"),
    [
        # Control: register << 3 | deref << 1 | has a register.
        (AMD64, FrameState(at(3, 16), RA8), 0x04, (0x19, 16)),
        (AMD64, FrameState(load(7, 16), RA8), 0x04, (0x3B, 16)),
        (AMD64, FrameState(at(7, 8), RA8, saved(-16)), 0x0A, (0x39, 8, 0, 2, -16)),
        (AMD64, FrameState(at(7, 8), at(2, 0)), 0x08, (0x39, 8, 0x11, 0)),
        (AMD64, FrameState(at(7, 8), saved(-16), load(6, 0)), 0x0C, (0x39, 8, 2, -16, 0x33, 0)),
        (AMD64, FrameState(load(7, 120), load(7, 112), load(7, 80)), 0x0C, (0x3B, 120, 0x3B, 112, 0x3B, 80)),
        (AMD64, FrameState(load(7, 160), load(7, 168), load(7, 120)), 0x2C, (0x3B, 160, 0x3B, 168, 0x3B, 120)),
        (AMD64, OUTERMOST, 0x00, ()),
        # Registers of 16 and more need the eighth bit of an unsigned byte, of 32 and more a second byte.
        (AMD64, FrameState(at(15, 0), RA8), 0x04, (0x79, 0)),
        (AMD64, FrameState(at(16, 0), RA8), 0x04, (0x81 - 0x100, 0)),
        (AMD64, FrameState(at(31, 0), RA8), 0x04, (0xF9 - 0x100, 0)),
        (AMD64, FrameState(at(32, 0), RA8), 0x24, (0x101, 0)),
        (AMD64, FrameState(at(8191, 0), RA8), 0x24, (0xFFF9 - 0x10000, 0)),
        (AMD64, FrameState(at(8192, 0), RA8), 0x44, (0x10001, 0)),
        (AMD64, FrameState(at((1 << 29) - 1, 0), RA8), 0x44, (0xFFFFFFF9 - (1 << 32), 0)),
        (AARCH64_LE, FrameState(at(31, 0), None, saved(-16)), 0x0A, (0xF9 - 0x100, 0, 0, 2, -16)),
        (AARCH64_LE, FrameState(at(19, 16)), 0x04, (0x99 - 0x100, 16)),
        (AARCH64_LE, FrameState(at(31, 0), at(9, 0), mangled_ra=True), 0x88, (0xF9 - 0x100, 0, 0x49, 0)),
        (S390X, FrameState(at(10, 160)), 0x04, (0x51, 0)),
        (S390X, FrameState(at(10, 320), at(17, 0), at(16, 0)), 0x0C, (0x51, 20, 0x89 - 0x100, 0, 0x81 - 0x100, 0)),
    ],
)
def test_flexible_words(arch: Arch, state: FrameState, info: int, words: tuple[int, ...]) -> None:
    assert planned(arch, state, is_flexible=True) == PlannedState(info, info >> 5 & 3, words)


def test_a_register_of_30_bits_is_refused() -> None:
    with pytest.raises(RequestError, match=r"^4294967297 does not fit a data word of 32 bits$"):
        planned(AMD64, FrameState(at(1 << 29, 0), RA8), is_flexible=True)


# Info bytes of functions


def test_info_bytes() -> None:
    assert planned_starts(0).info == 0
    assert planned_starts(0).info2 == 0
    assert planned_starts(0, uses_b_key=True).info == 0x20
    assert planned_starts(0, is_signal_frame=True).info == 0x80
    assert planned_starts(0, is_signal_frame=True, version=2).info == 0
    assert planned_starts(0, 0x100, uses_b_key=True, is_signal_frame=True).info == 0xA1
    assert planned_starts(0, is_flexible=True).info2 == 1


def test_a_repeating_block_is_pcmask() -> None:
    body = body_of_rows((FrameRow(0, FrameState(at(7, 8), RA8)),), repeat_size=16)
    for version in (1, 2, 3):
        assert (plan(AMD64, body, version=version).bodies[0].info, body.repeat_size) == (0x10, 16)


# Places


@pytest.mark.parametrize(
    ("version", "vaddr", "fields"),
    [
        # From the section's start.
        (1, 0, [0x1000, 0x2000]),
        (1, 0x1800, [-0x800, 0x800]),
        # From the field itself: after the header of 28 bytes, each a record later.
        (2, 0, [0x1000 - 28, 0x2000 - 48]),
        (3, 0, [0x1000 - 28, 0x2000 - 44]),
        (3, 0x1800, [0x1000 - 0x1800 - 28, 0x2000 - 0x1800 - 44]),
    ],
)
def test_starts(version: int, vaddr: int, fields: list[int]) -> None:
    body = body_of_rows((FrameRow(0, FrameState(at(7, 8), RA8)),))
    assert [f.start_field for f in plan(AMD64, body, body, version=version, vaddr=vaddr).functions] == fields


def place(version: int, start: int, vaddr: int, *, start_is_pcrel: bool) -> int:
    body = body_of_rows((FrameRow(0, FrameState(at(7, 8), RA8)),))
    section = with_functions(Section(version, 3, start_is_pcrel=start_is_pcrel), (Function(start, 1, body),))
    return plan_section(section, AMD64, vaddr).functions[0].start_field


@pytest.mark.parametrize(("version", "pcrel"), [(1, False), (2, False), (2, True)])
def test_starts_of_32_bits(version: int, pcrel: bool) -> None:  # noqa: FBT001
    base = 28 if pcrel else 0
    assert place(version, base + BIG - 1, 0, start_is_pcrel=pcrel) == BIG - 1
    assert place(version, base, BIG, start_is_pcrel=pcrel) == -BIG
    for start, vaddr in ((base + BIG, 0), (base, BIG + 1)):
        message = (
            f"^the function at 0x{start:x} is too far from .sframe at 0x{vaddr:x} "
            f"for the 32-bit starts of version {version}; version 3 has 64 bits$"
        )
        with pytest.raises(RequestError, match=message):
            place(version, start, vaddr, start_is_pcrel=pcrel)


@pytest.mark.parametrize(
    ("start", "vaddr", "field"),
    [
        (28 + BIG, 0, BIG),
        (28, 1 << 62, -(1 << 62)),
        # A kernel's addresses against a section at a low one: 64-bit arithmetic wraps.
        (0xFFFFFFFF81000000, 0x1000 - 28, -0x7F001000),
        (0x1000, 0xFFFFFFFF81000000 - 28, 0x7F001000),
    ],
)
def test_starts_of_64_bits_reach_everything(start: int, vaddr: int, field: int) -> None:
    assert place(3, start, vaddr, start_is_pcrel=True) == field


@pytest.mark.parametrize(
    ("version", "is_sorted", "is_pcrel", "flags"),
    [(1, True, False, 1), (2, True, True, 5), (2, False, True, 4), (2, False, False, 0), (3, True, True, 5)],
)
def test_flags(version: int, is_sorted: bool, is_pcrel: bool, flags: int) -> None:  # noqa: FBT001
    section = Section(version, 3, (), (), (), is_sorted, is_pcrel)
    assert plan_section(section, AMD64, 0).flags == flags
