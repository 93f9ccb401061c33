# SPDX-License-Identifier: Apache-2.0
"""One step and whole walks, per ABI and version, on stacks whose right trace is known."""

import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.sframe.model import Found, FrameRow, FrameState, Function, FunctionBody, Rule
from cfi2sframe.trace import Ending, Frame, caller_of, frames, walk
from cfi2sframe.trace.frames import strip_pac
from tests.support.sframe.raw_sframe import RawFunction
from tests.support.trace.stacks import Model, find_row, make_stack, raw_section, words_row

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


@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, AARCH64_BE, S390X], ids=lambda arch: arch.name)
def test_the_caller_of_a_null_pointer_is_where_the_call_has_left_it(arch: Arch) -> None:
    ra, sp = 0x401234, 0x7000
    nowhere = Ending("no-module", "")
    frame = Frame(0x10, sp, 0x7100, ra=ra if arch is not AMD64 else None)
    memory = {sp: ra} if arch is AMD64 else {}

    def read(address: int, size: int) -> bytes | None:
        return struct.pack("<Q", memory[address]) if address in memory and size == 8 else None

    def walked(frame: Frame) -> list[tuple[int, int, bool]]:
        entries = walk(frame, lambda _: nowhere, read, arch).entries
        return [(entry.frame.lookup_pc, entry.frame.sp, entry.is_null_call) for entry in entries]

    assert walked(frame) == [(0x10, sp, True), (ra - 1, sp + (8 if arch is AMD64 else 0), False)]
    for other in (frame._replace(pc=1 << 16), frame._replace(is_return_address=True)):
        assert walked(other) == [(other.lookup_pc, sp, False)]


#: Calls, as assemblers write them, and what is none.
CALLS: Final = {
    "AMD64": (
        "ffd0",
        "41ffd3",
        "ff5008",
        "41ff542408",
        "ff1510000000",
        "ff14c5e8030000",
        "e801020304",
        "ff94c800010000",
    ),
    "AArch64": ("00003fd6", "ff0f3fd7", "01000094", "ffffff97"),
    "s390x": ("0de1", "4de01000", "a7e50010", "c0e500000010"),
}
NO_CALLS: Final = {
    "AMD64": ("ffe0", "c3", "9090", "ff30"),
    "AArch64": ("00001fd6", "c0035fd6"),
    "s390x": ("07fe", "a7f40010"),
}


@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, AARCH64_BE, S390X], ids=lambda arch: arch.name)
def test_the_caller_of_a_wild_pointer_is_where_a_call_precedes_the_return_address(arch: Arch) -> None:
    """Where nothing can be executed; code that a program has made may be at any other PC."""
    ra, sp, pc = 0x401234, 0x7000, 0xDEADBEEF000
    name = arch.name.split()[0]
    for code in (*CALLS[name], *NO_CALLS[name]):
        frame = Frame(pc, sp, 0x7100, ra=None if arch is AMD64 else ra)
        # Padding that is no end of a call.
        memory = {ra - n: b"\x90" for n in range(1, 16)}
        memory |= {ra - len(code) // 2 + n: bytes([byte]) for n, byte in enumerate(bytes.fromhex(code))}
        memory |= {sp + n: bytes([byte]) for n, byte in enumerate(struct.pack("<Q", ra))}

        def read(address: int, size: int, memory: dict[int, bytes] = memory) -> bytes | None:
            found = [memory.get(address + n, b"") for n in range(size)]
            return b"".join(found) if all(found) else None

        for ending in (Ending("no-code", ""), Ending("no-module", "")):
            entries = walk(frame, {frame.pc: ending, ra - 1: ending}.__getitem__, read, arch).entries
            is_called = ending.kind == "no-code" and code in CALLS[name]
            assert [entry.is_null_call for entry in entries] == ([True, False] if is_called else [False]), code
            assert not is_called or entries[1].frame.lookup_pc == ra - 1


@pytest.mark.parametrize(("arch", "version"), VERSIONS_BY_ARCH)
@given(data=st.data())
def test_a_walk_finds_every_frame(arch: Arch, version: int, data: st.DataObject) -> None:
    stack = make_stack(arch, version, data.draw(models(arch)))
    trace = walk(stack.frames[0], stack.find, stack.read, arch)
    assert [e.frame for e in trace.entries] == list(stack.frames)
    assert trace.ending.kind == ("no-row" if version == 1 else "outermost")
    cfas = [entry.cfa for entry in trace.entries]
    assert cfas == [f.sp - arch.sp_offset_from_cfa for f in stack.frames[1:]] + [None]


@pytest.mark.parametrize(("arch", "version"), VERSIONS_BY_ARCH)
@given(data=st.data())
def test_a_walk_without_a_word_of_the_stack(arch: Arch, version: int, data: st.DataObject) -> None:
    """Without an RA it ends at the frame that needs it; without an FP only where the next row is based on it."""
    drawn = data.draw(models(arch).filter(lambda m: any(f.saves_fp or not f.keeps_ra for f in m)))
    stack = make_stack(arch, version, drawn)
    gone = data.draw(st.sampled_from(sorted(stack.memory)))
    word = stack.memory.pop(gone)
    trace = walk(stack.frames[0], stack.find, stack.read, arch)
    frames, count = [entry.frame for entry in trace.entries], len(trace.entries)
    if word & 0xFFFF_FFFF_FFFF in {frame.pc for frame in stack.frames}:
        assert trace.ending == Ending("unreadable-memory", f"RA is saved at 0x{gone:x}, which cannot be read")
        assert frames == list(stack.frames[:count])
        return
    first = next(number for number, frame in enumerate(stack.frames) if frame.fp == word and number)
    lasts = next((n for n in range(first, len(drawn)) if drawn[n].saves_fp), len(drawn))
    without = [f._replace(fp=None) if first <= n <= lasts else f for n, f in enumerate(stack.frames)]
    assert frames == without[:count]
    if first < len(drawn) and drawn[first].base_is_fp:
        assert (count, trace.ending.kind) == (first + 1, "unknown-register")
    else:
        assert (count, trace.ending.kind) == (len(without), "no-row" if version == 1 else "outermost")


def take(
    frame: Frame, state: FrameState, words: dict[int, int], arch: Arch = AMD64, *, is_signal_frame: bool = False
) -> Frame | Ending:
    """Take one step in a memory of a few words."""
    memory = {address: struct.pack(arch.byte_order + "Q", word) for address, word in words.items()}
    body = FunctionBody((0,), (state,), is_signal_frame=is_signal_frame)
    found = Found(Function(frame.pc, 1, body), FrameRow(0, state), 3, arch)
    return caller_of(frame, found, lambda address, _: memory.get(address))


def sp_plus(offset: int, arch: Arch = AMD64) -> Rule:
    return Rule(arch.sp_register, offset - arch.sp_offset_from_cfa, deref=False)


AT_CFA_8: Final = Rule(None, -8, deref=True)
TOP: Final = Frame(0x1000, 0x8000, 0x9000, registers={3: 0x8200, 1: 0x66, 8: 0x88})
CALLED: Final = Frame(0x1000, 0x8000, None, is_return_address=True)


def called(pc: int, sp: int, fp: int | None = 0x9000) -> Frame:
    return Frame(pc, sp, fp, is_return_address=True)


@pytest.mark.parametrize(
    ("frame", "state", "words", "caller"),
    [
        (TOP, FrameState(Rule(3, 24, deref=False), AT_CFA_8), {0x8210: 7}, called(7, 0x8218)),
        (TOP, FrameState(Rule(6, -8, deref=True), AT_CFA_8), {0x8FF8: 0x9100, 0x90F8: 7}, called(7, 0x9100)),
        (TOP, FrameState(Rule(7, 160, deref=True), AT_CFA_8), {0x80A0: 0x9200, 0x91F8: 7}, called(7, 0x9200)),
        (
            TOP,
            FrameState(sp_plus(16), Rule(1, 0, deref=False), Rule(8, 0, deref=False)),
            {},
            called(0x66, 0x8010, 0x88),
        ),
        # FP cannot be had: it needs an unknown register, or is where no memory is. That matters only to what needs it.
        (TOP, FrameState(sp_plus(16), AT_CFA_8, Rule(2, 0, deref=True)), {0x8008: 1}, called(1, 0x8010, None)),
        (TOP, FrameState(sp_plus(16), AT_CFA_8, Rule(None, -16, deref=True)), {0x8008: 1}, called(1, 0x8010, None)),
        (CALLED, FrameState(sp_plus(16), AT_CFA_8), {0x8008: 2}, called(2, 0x8010, None)),
        # The return from a handler, to another stack.
        (
            TOP,
            FrameState(Rule(7, 160, deref=True), Rule(7, 168, deref=True), Rule(7, 120, deref=True)),
            {0x80A0: 0x2000, 0x80A8: 0x4444, 0x8078: 0x5555},
            Frame(0x4444, 0x2000, 0x5555),
        ),
        (
            CALLED,
            FrameState(Rule(6, 16, deref=False), AT_CFA_8),
            {},
            Ending("unknown-register", "CFA needs rbp, whose value in this frame is not known"),
        ),
    ],
)
def test_flexible_steps(frame: Frame, state: FrameState, words: dict[int, int], caller: Frame | Ending) -> None:
    is_signal_frame = isinstance(caller, Frame) and not caller.is_return_address
    assert take(frame, state, words, is_signal_frame=is_signal_frame) == caller


@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, AARCH64_BE, S390X], ids=lambda arch: arch.name)
def test_the_stack_has_to_grow(arch: Arch) -> None:
    """Only what has made no call yet may have its caller's SP, where calls push nothing; or its RA in a register."""
    leaf = TOP._replace(ra=0x4444)
    saved = Rule(None, 0, deref=True)
    for offset, frame, grows in ((-8, TOP, False), (0, TOP, arch is not AMD64), (0, CALLED, False), (8, CALLED, True)):
        words = {0x8000 + offset - arch.sp_offset_from_cfa: 0x4444}
        caller = take(frame, FrameState(sp_plus(offset, arch), saved), words, arch)
        assert isinstance(caller, Frame) or caller.kind == "stack-does-not-grow"
        assert isinstance(caller, Frame) == grows
    if arch is not AMD64:
        assert take(leaf, FrameState(sp_plus(0, arch)), {}, arch) == called(0x4444, 0x8000)
        ending = take(CALLED, FrameState(sp_plus(0, arch)), {}, arch)
        assert isinstance(ending, Ending)
        assert ending.kind == "unknown-register"


def test_no_walk_is_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signal frames may lead anywhere, but to one place only once; and a walk ends at a number of frames."""
    state = FrameState(sp_plus(0), Rule(None, 0, deref=True))
    body = FunctionBody((0,), (state,), is_signal_frame=True)
    found = Found(Function(0, 0x2000, body), FrameRow(0, state), 3, AMD64)
    again = walk(TOP, lambda _: found, lambda _, size: bytes.fromhex("0010").ljust(size, b"\0"), AMD64)
    assert (len(again.entries), again.ending) == (2, Ending("loop", "the frame at SP 0x8000 repeats"))
    monkeypatch.setattr(frames, "MAX_FRAMES", 10)
    grows = FrameState(sp_plus(8), Rule(None, 0, deref=True))
    found = Found(Function(0, 0x2000, FunctionBody((0,), (grows,))), FrameRow(0, grows), 3, AMD64)
    long = walk(TOP, lambda _: found, lambda _, size: bytes.fromhex("0010").ljust(size, b"\0"), AMD64)
    assert (len(long.entries), long.ending.kind) == (10, "limit")


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
    assert isinstance(found, Found)
    assert found.state is not None
    frame = Frame(0x1040, 0x8000, 0x9000, 0x1, {16: 0x4444, 17: 0x5555})
    assert take(frame, found.state, {}, S390X) == Frame(0x4444, 0x8000, 0x5555, is_return_address=True)
    ending = take(frame._replace(registers={}), found.state, {}, S390X)
    assert ending == Ending("unknown-register", "RA needs f0, whose value in this frame is not known")


@given(st.integers(0, (1 << 48) - 1), st.integers(0, 0xFFFF))
def test_authentication_codes_are_stripped(address: int, code: int) -> None:
    user_code, kernel_code = code & ~0x80, code | 0x80
    assert strip_pac(address | user_code << 48, 0xFFFF << 48) == address
    assert strip_pac(address | kernel_code << 48, 0xFFFF << 48) == address | 0xFFFF << 48
    # With 52-bit addresses, and what a process may keep in the topmost byte.
    assert strip_pac(0x000F_1234_5678_9ABC | 0x5A70 << 48, 0xFF70 << 48) == 0x000F_1234_5678_9ABC
