# SPDX-License-Identifier: Apache-2.0
"""One step and whole walks, per ABI and version, on stacks whose right trace is known."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X
from cfi2sframe.sframe.model import Found, FrameRow, FrameState, Function, FunctionBody, Rule
from cfi2sframe.trace import Ending, Frame, Row, caller_of, walk
from cfi2sframe.trace.frames import strip_pac
from tests.support.raw_sframe import RawFunction
from tests.support.trace.stacks import Model, find_row, make_stack, raw_section, words_row

if TYPE_CHECKING:
    from cfi2sframe.abi import Arch

VERSIONS_BY_ARCH: Final = [
    pytest.param(arch, version, id=f"{arch.name}-{version}")
    for arch in (AMD64, AARCH64_LE, AARCH64_BE, S390X)
    for version in (1, 2, 3)
    if version >= arch.first_version
]


@st.composite
def models(draw: st.DrawFn, arch: Arch) -> list[Model]:
    """Frames as a compiler might have made them."""
    found: list[Model] = []
    for number in range(draw(st.integers(0, 12))):
        keeps_ra = number == 0 and arch is not AMD64 and draw(st.booleans())
        # AArch64's default rows cannot hold an FP without its RA.
        may_save_fp = not (keeps_ra and arch is not S390X)
        saves_fp = may_save_fp and draw(st.booleans())
        may_use_fp = number == 0 or found[-1].saves_fp
        least = 0 if keeps_ra else 64
        found.append(
            Model(
                16 * draw(st.integers(least // 16, 500)),
                saves_fp,
                base_is_fp=saves_fp and may_use_fp and draw(st.booleans()),
                keeps_ra=keeps_ra,
                is_signed=arch.ra_may_be_signed and draw(st.booleans()),
            )
        )
    return found


@pytest.mark.parametrize(("arch", "version"), VERSIONS_BY_ARCH)
@given(data=st.data())
def test_a_walk_finds_every_frame(arch: Arch, version: int, data: st.DataObject) -> None:
    stack = make_stack(arch, version, data.draw(models(arch)))
    trace = walk(stack.frames[0], stack.find_row, stack.read, arch)
    assert [e.frame for e in trace.entries] == list(stack.frames)
    assert trace.ending.kind == ("no-row" if version == 1 else "outermost")
    cfas = [entry.cfa for entry in trace.entries]
    assert cfas == [f.sp - arch.sp_offset_from_cfa for f in stack.frames[1:]] + [None]


@pytest.mark.parametrize(("arch", "version"), VERSIONS_BY_ARCH)
@given(data=st.data())
def test_a_walk_ends_where_memory_does(arch: Arch, version: int, data: st.DataObject) -> None:
    """Without one RA of the stack, the trace has the frames up to the one that needs it, and no other."""
    stack = make_stack(arch, version, data.draw(models(arch).filter(lambda m: any(not f.keeps_ra for f in m))))
    gone = data.draw(st.sampled_from(sorted(address for address, word in stack.memory.items() if not is_fp(word))))
    del stack.memory[gone]
    trace = walk(stack.frames[0], stack.find_row, stack.read, arch)
    assert trace.ending.kind == "unreadable-memory"
    assert f"0x{gone:x}" in trace.ending.detail
    assert [e.frame for e in trace.entries] == [f for f in stack.frames if f.sp <= gone + 56 - 160 * (arch is S390X)][
        : len(trace.entries)
    ]
    assert trace.entries[-1].frame.sp <= gone < stack.frames[len(trace.entries)].sp + 160


@pytest.mark.parametrize(("arch", "version"), VERSIONS_BY_ARCH)
@given(data=st.data())
def test_a_walk_goes_on_without_fp(arch: Arch, version: int, data: st.DataObject) -> None:
    """Without one FP of the stack, all frames are found, unless the next one is based on it."""
    drawn = data.draw(models(arch).filter(lambda m: any(f.saves_fp for f in m)))
    stack = make_stack(arch, version, drawn)
    gone = data.draw(st.sampled_from(sorted(address for address, word in stack.memory.items() if is_fp(word))))
    first = stack.frames.index(next(f for f in stack.frames[1:] if f.fp == stack.memory[gone]))
    del stack.memory[gone]
    trace = walk(stack.frames[0], stack.find_row, stack.read, arch)
    expected = list(stack.frames)
    for number in range(first, len(expected)):
        if number > first and drawn[number - 1].saves_fp:
            break
        expected[number] = expected[number]._replace(fp=None)
    if first < len(drawn) and drawn[first].base_is_fp:
        expected = expected[: first + 1]
        assert trace.ending.kind == "unknown-register"
    else:
        assert trace.ending.kind == ("no-row" if version == 1 else "outermost")
    assert [e.frame for e in trace.entries] == expected


def is_fp(word: int) -> bool:
    """Tell a saved FP of a made-up stack from a return address."""
    return not 0x100000 <= word & 0xFFFF_FFFF_FFFF < 0x1000_0000


def memory_of(words: dict[int, int], arch: Arch) -> dict[int, bytes]:
    return {address: struct.pack(arch.byte_order + "Q", word) for address, word in words.items()}


def take(
    frame: Frame, state: FrameState, words: dict[int, int], arch: Arch = AMD64, *, is_signal_frame: bool = False
) -> Frame | Ending:
    """Take one step in a memory of a few words."""
    memory = memory_of(words, arch)
    body = FunctionBody((0,), (state,), is_signal_frame=is_signal_frame)
    found = Found(Function(frame.pc, 1, body), FrameRow(0, state), 3, arch)
    return caller_of(frame, found, lambda address, _: memory.get(address))


CFA_SP_16: Final = Rule(AMD64.sp_register, 16, deref=False)
AT_CFA_8: Final = Rule(None, -8, deref=True)
TOP: Final = Frame(0x1000, 0x8000, 0x9000)


@pytest.mark.parametrize(
    ("cfa", "words", "sp"),
    [
        (Rule(3, 24, deref=False), {}, 0x8218),  # CFA = rbx + 24
        (Rule(6, -8, deref=True), {0x8FF8: 0x9100}, 0x9100),  # CFA = *(rbp - 8)
        (Rule(7, 160, deref=True), {0x80A0: 0x9200}, 0x9200),  # CFA = *(rsp + 160)
    ],
)
def test_flexible_cfa(cfa: Rule, words: dict[int, int], sp: int) -> None:
    frame = TOP._replace(registers={3: 0x8200})
    assert take(frame, FrameState(cfa, AT_CFA_8), {**words, sp - 8: 0x77}) == Frame(
        0x77, sp, 0x9000, is_return_address=True
    )


def test_flexible_ra_and_fp() -> None:
    """RA = *(rsp + 168), FP = *(rsp + 120): the frame of a signal handler's return."""
    state = FrameState(Rule(7, 160, deref=True), Rule(7, 168, deref=True), Rule(7, 120, deref=True))
    words = {0x80A0: 0x2000, 0x80A8: 0x4444, 0x8078: 0x5555}
    assert take(TOP, state, words, is_signal_frame=True) == Frame(0x4444, 0x2000, 0x5555)
    in_registers = FrameState(CFA_SP_16, Rule(1, 0, deref=False), Rule(8, 0, deref=False))
    frame = TOP._replace(registers={1: 0x66, 8: 0x88})
    assert take(frame, in_registers, {}) == Frame(0x66, 0x8010, 0x88, is_return_address=True)


def test_an_fp_that_is_not_known_is_missed_where_it_is_needed() -> None:
    """The row's FP cannot be had: it needs an unknown register, or is where no memory is."""
    caller = Frame(1, 0x8010, None, is_return_address=True)
    for fp in (Rule(3, 0, deref=True), Rule(None, -16, deref=True)):
        assert take(TOP, FrameState(CFA_SP_16, AT_CFA_8, fp), {0x8008: 1}) == caller
    from_sp = FrameState(CFA_SP_16, AT_CFA_8)
    assert take(caller, from_sp, {0x8018: 2}) == Frame(2, 0x8020, None, is_return_address=True)
    from_fp = FrameState(Rule(6, 16, deref=False), AT_CFA_8)
    ending = Ending("unknown-register", "CFA needs rbp, whose value in this frame is not known")
    assert take(caller, from_fp, {0x8018: 2}) == ending


def test_the_stack_has_to_grow() -> None:
    for offset in (-8, 0):
        state = FrameState(Rule(7, offset, deref=False), AT_CFA_8)
        ending = take(TOP, state, {0x8000 + offset - 8: 0x1234})
        assert isinstance(ending, Ending)
        assert ending.kind == "stack-does-not-grow"
    state = FrameState(Rule(7, -8, deref=False), AT_CFA_8)
    assert isinstance(take(TOP, state, {0x7FF0: 0x1234}, is_signal_frame=True), Frame)


@pytest.mark.parametrize("arch", [AARCH64_LE, AARCH64_BE, S390X], ids=lambda arch: arch.name)
def test_ra_in_its_register_is_for_topmost_frames(arch: Arch) -> None:
    state = FrameState(Rule(arch.sp_register, -arch.sp_offset_from_cfa, deref=False))
    assert take(TOP._replace(ra=0x4444), state, {}, arch) == Frame(0x4444, 0x8000, 0x9000, is_return_address=True)
    ending = take(TOP._replace(is_return_address=True), state, {}, arch)
    assert isinstance(ending, Ending)
    assert ending.kind == "ra-not-saved"


@pytest.mark.parametrize("arch", [AARCH64_LE, S390X], ids=lambda arch: arch.name)
def test_a_caller_has_a_stack_frame_of_its_own(arch: Arch) -> None:
    """Only what has made no call yet may have its caller's SP."""
    state = FrameState(Rule(arch.sp_register, -arch.sp_offset_from_cfa, deref=False), Rule(None, 0, deref=True))
    words = {0x8000 - arch.sp_offset_from_cfa: 0x4444}
    assert isinstance(take(TOP, state, words, arch), Frame)
    ending = take(TOP._replace(is_return_address=True), state, words, arch)
    assert isinstance(ending, Ending)
    assert ending.kind == "stack-does-not-grow"


@pytest.mark.parametrize("version", [2, 3])
def test_s390x_values_in_floating_point_registers(version: int) -> None:
    """Version 2 stores a register's number in the offset: RA in f0 (column 16), FP in f2 (column 17)."""
    if version == 2:
        row, info2 = words_row(">", 0, (0, 16 << 1 | 1, 17 << 1 | 1)), 0
    else:
        words = (S390X.sp_register << 3 | 1, 0, 16 << 3 | 1, 0, 17 << 3 | 1, 0)
        row, info2 = words_row(">", 0, words, base_is_fp=True), 1
    section = raw_section(S390X, version, (RawFunction(0x1000, 0x100, row, 1, info2=info2),))
    found = find_row(section, 0x1040)
    assert isinstance(found, Row)
    assert found.found is not None
    assert found.found.state is not None
    frame = Frame(0x1040, 0x8000, 0x9000, 0x1, {16: 0x4444, 17: 0x5555})
    assert take(frame, found.found.state, {}, S390X) == Frame(0x4444, 0x8000, 0x5555, is_return_address=True)
    ending = take(frame._replace(registers={}), found.found.state, {}, S390X)
    assert ending == Ending("unknown-register", "RA needs f0, whose value in this frame is not known")


@given(st.integers(0, (1 << 48) - 1), st.integers(0, 0xFFFF))
def test_authentication_codes_are_stripped(address: int, code: int) -> None:
    user_code, kernel_code = code & ~0x80, code | 0x80
    assert strip_pac(address | user_code << 48, 0xFFFF << 48) == address
    assert strip_pac(address | kernel_code << 48, 0xFFFF << 48) == address | 0xFFFF << 48
    # With 52-bit addresses, and what a process may keep in the topmost byte.
    assert strip_pac(0x000F_1234_5678_9ABC | 0x5A70 << 48, 0xFF70 << 48) == 0x000F_1234_5678_9ABC
