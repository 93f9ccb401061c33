# SPDX-License-Identifier: Apache-2.0
"""Recordings made by hand: for each ABI the frames are those of the stack, whatever the container and its records."""

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.errors import InputError
from cfi2sframe.trace import FileStore, Profile, WalkedSample, Wanted
from cfi2sframe.trace import Recording as Reader
from cfi2sframe.trace.profile import End
from tests.support.trace import recordings as r
from tests.support.trace.core_files import BIAS, BUILD_ID, PAGE, TEXT_VADDR, moved, written_program

ARCHES = (AMD64, AARCH64_LE, AARCH64_BE, S390X)


@pytest.fixture(scope="module")
def store() -> FileStore:
    return FileStore()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return written_program(tmp_path)


def walked(data: bytes, store: FileStore | None = None, wanted: Wanted | None = None) -> list[WalkedSample]:
    return list(Reader(data, store, wanted=wanted))


def endings(data: bytes, store: FileStore | None = None) -> list[str]:
    return [w.trace.ending.kind if w.trace else "no stack" for w in walked(data, store)]


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_frames_of_each_abi(arch: Arch, tmp_path: Path) -> None:
    """By the registers and the bytes of the stack that perf stored, from a file as from a pipe."""
    made = r.recorded(arch)
    recording = r.plain_recording(arch, written_program(tmp_path, arch, made.stack.section))
    for data in (recording.file(), recording.pipe()):
        samples = walked(data)
        assert [w.number for w in samples] == [1, 2]
        for each in samples:
            assert each.trace is not None
            assert [entry.frame.pc for entry in each.trace.entries] == made.pcs
            assert (each.trace.ending.kind, each.command, each.sample.event) == ("outermost", "program", "cpu-clock")


def test_records_count_in_the_order_of_their_times(path: str, store: FileStore) -> None:
    """Within two rounds; the program of a process is the one that it had then."""
    made = r.recorded(AMD64)
    late = [r.sample(AMD64, time, made.frame, made.data) for time in (50, 15, 65, 62)]
    ended = r.record(AMD64, r.ROUND, b"")
    exec_ = r.of_time(AMD64, r.COMM, struct.pack("<II", r.PID, r.PID) + b"other\0\0\0", 60, misc=1 << 13)
    records = (late[0], ended, late[1], r.mapped(AMD64, 20, path), exec_, late[2], ended, late[3], ended)
    samples = walked(r.Recording(AMD64, records).file(), store)
    assert [w.sample.time for w in samples] == [15, 50, 62, 65]
    assert [w.trace.ending.kind for w in samples if w.trace] == ["no-module", "outermost", "no-module", "no-module"]
    assert [w.command for w in samples] == [":77", ":77", "other", "other"]


def test_processes_have_their_parents_mappings_until_they_have_their_own(path: str, store: FileStore) -> None:
    made = r.recorded(AMD64)
    fork = r.of_time(AMD64, r.FORK, struct.pack("<4IQ", 78, r.PID, 78, r.PID, 0), 40)
    thread = r.of_time(AMD64, r.FORK, struct.pack("<4IQ", 78, 78, 79, 78, 0), 41)
    gone = r.mapped(AMD64, 42, "//anon")
    ended = r.of_time(AMD64, r.EXIT, struct.pack("<4IQ", 78, 78, 78, 78, 0), 70)
    samples = [
        r.sample(AMD64, 50 + n, made.frame, made.data, pid=p, tid=t)
        for n, (p, t) in enumerate([(77, 77), (78, 78), (78, 79)])
    ]
    records = (*r.plain_recording(AMD64, path).records[:2], fork, thread, gone, *samples, ended)
    found = walked(r.Recording(AMD64, records).file(), store)
    # What is executable, but of no file, hides the program.
    assert [w.trace.ending.kind for w in found if w.trace] == ["no-module", "outermost", "outermost"]
    assert [w.command for w in found] == ["program"] * 3


def test_what_is_mapped_over_in_part_keeps_its_other_parts(path: str, store: FileStore) -> None:
    """As allocators and loaders do that patch a page of code."""
    records = r.plain_recording(AMD64, path).records
    for start, size, kind in (
        (0x8000, PAGE, "outermost"),
        (0, PAGE, "no-module"),
        (-PAGE, PAGE, "outermost"),
        (0, 1 << 20, "no-module"),
    ):
        over = r.mapped(AMD64, 25, "//anon", start=BIAS + TEXT_VADDR + start, size=size)
        assert endings(r.Recording(AMD64, (*records[:2], over, *records[2:])).file(), store) == [kind] * 2
    # Only the part after it is left, where the caller is.
    made, over = r.recorded(AMD64), r.mapped(AMD64, 25, "//anon", size=PAGE)
    caller = moved(made.stack.frames[1])
    taken = r.sample(AMD64, 30, caller, made.data[caller.sp - made.frame.sp :])
    (found,) = walked(r.Recording(AMD64, (*records[:2], over, taken)).file(), store)
    assert found.space is not None
    module = found.space.module_at(caller.pc)
    assert module is not None
    assert (module.bias, module.start) == (BIAS, BIAS + TEXT_VADDR + PAGE)


def test_build_ids_decide_whether_a_file_is_the_one_that_ran(path: str, tmp_path: Path, store: FileStore) -> None:
    """Those of MMAP2 as those of the header; a file of the right one is found below a directory of builds."""
    for build_id, kind in ((BUILD_ID, "outermost"), (bytes(20), "unusable-module"), (BUILD_ID[:8], "unusable-module")):
        plain = r.plain_recording(AMD64, path)
        new = (plain.records[0], r.mapped(AMD64, 20, path, build_id=build_id), *plain.records[2:])
        for recording in (plain._replace(build_ids={path: build_id}), plain._replace(records=new, build_ids={})):
            assert {*endings(recording.file(), store), *endings(recording.pipe(), store)} == {kind}
    builds = tmp_path / ".build-id" / BUILD_ID.hex()[:2]
    builds.mkdir(parents=True)
    Path(path).rename(builds / BUILD_ID.hex()[2:])
    without = r.plain_recording(AMD64, path).file()
    assert endings(without, FileStore(debug_file=str(tmp_path))) == ["outermost"] * 2
    assert endings(without, FileStore()) == ["unusable-module"] * 2


@pytest.mark.parametrize("kind", [r.COMPRESSED, r.COMPRESSED2])
def test_compressed_records(path: str, store: FileStore, kind: int) -> None:
    """One stream in pieces, which end anywhere; and streams one after the other."""
    zstandard = pytest.importorskip("zstandard")
    recording = r.plain_recording(AMD64, path, range(30, 60))
    data = b"".join(recording.records)
    plain = [w._replace(space=None) for w in walked(recording.file(), store)]
    for streams in (1, 3):
        packed: list[bytes] = []
        for number in range(streams):
            packer = zstandard.ZstdCompressor().compressobj()
            for at in range(len(data) * number // streams, len(data) * (number + 1) // streams, 700):
                end = min(at + 700, len(data) * (number + 1) // streams)
                piece = packer.compress(data[at:end]) + packer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
                packed.append(
                    struct.pack("<Q", len(piece)) * (kind == r.COMPRESSED2)
                    + piece
                    + b"\xff" * 3 * (kind == r.COMPRESSED2)
                )
            tail = packer.flush()
            packed.append(struct.pack("<Q", len(tail)) * (kind == r.COMPRESSED2) + tail)
        records = tuple(r.record(AMD64, kind, piece) for piece in packed)
        assert [w._replace(space=None) for w in walked(recording._replace(records=records).file(), store)] == plain
    broken = r.record(AMD64, r.COMPRESSED, b"none of it is zstd")
    with pytest.raises(InputError, match=r"cannot be decompressed"):
        walked(recording._replace(records=(broken,)).file())


def test_fields_before_the_registers_and_several_events(path: str, store: FileStore) -> None:
    """Each event's samples have their own fields; the identifier tells whose they are."""
    made = r.recorded(AMD64)
    read, chain, raw, branches = 1 << 4, 1 << 5, 1 << 10, 1 << 11
    every = r.Event().sample_type | r.IDENTIFIER
    events = (
        r.Event(every, ids=(5, 6), name="first"),
        # A group: count, time enabled, and of two counters value, id and lost samples.
        r.Event(
            every | read | chain | raw | branches,
            ids=(7,),
            name="second",
            read_format=1 | 4 | 8 | 16,
            # The index, and counters of each branch.
            branch_type=1 << 17 | 1 << 19,
        ),
    )
    fields = struct.pack("<2Q6Q", 2, 0, *range(6))
    kernel = (0xFFFF_FFFF_8000_1000, 0xFFFF_FFFF_8000_2000)
    fields += struct.pack("<6Q", 5, (1 << 64) - 128, *kernel, (1 << 64) - 512, 0x1234)
    fields += struct.pack("<I", 12) + bytes(12) + struct.pack("<QQ6QQQ", 2, 0, *range(6), 7, 8)
    records = (
        r.of_time(AMD64, r.COMM, struct.pack("<II", r.PID, r.PID) + b"program\0", 10, number=0),
        *(r.sample(AMD64, 40 + n, made.frame, made.data, number=n) for n in (5, 6)),
        r.sample(AMD64, 50, made.frame, made.data, number=7, before=fields, misc=1),
        # What comes after the stack does not matter.
    )
    body = r.mapped(AMD64, 20, path)[8:]
    mapping = r.record(AMD64, r.MMAP2, body + struct.pack("<Q", 5), 2)
    samples = walked(r.Recording(AMD64, (*records, mapping), events).file(), store)
    assert [w.trace.ending.kind for w in samples if w.trace] == ["outermost"] * 3
    assert [w.sample.event for w in samples] == ["first", "first", "second"]
    assert [w.sample.kernel_pcs for w in samples] == [(), (), kernel]
    unlike = (r.Event(), r.Event(every & ~r.IDENTIFIER | read))
    with pytest.raises(InputError, match="different fields and no identifiers"):
        walked(r.Recording(AMD64, records, unlike).file())


def test_events_without_stacks_beside_one_that_has_them(path: str, store: FileStore) -> None:
    """Their samples are counted, and not walked; where no event has stacks, the message says how to record them."""
    bare = r.Event(r.IP | r.TID | r.TIME | r.PERIOD | r.IDENTIFIER, ids=(9,), name="bare")
    full = r.Event(r.Event().sample_type | r.IDENTIFIER, ids=(8,))
    made = r.recorded(AMD64)
    body = struct.pack("<QQIIQQ", 9, made.frame.pc, r.PID, r.PID, 40, 1)
    samples = (r.record(AMD64, r.SAMPLE, body, 2), r.sample(AMD64, 50, made.frame, made.data, number=8))
    mapping = r.record(AMD64, r.MMAP2, r.mapped(AMD64, 20, path)[8:] + struct.pack("<Q", 8), 2)
    assert endings(r.Recording(AMD64, (mapping, *samples), (bare, full)).file(), store) == ["no stack", "outermost"]
    with pytest.raises(InputError, match="perf record --call-graph dwarf"):
        walked(r.Recording(AMD64, samples[:1], (bare,)).file())


def test_records_end_with_the_fields_of_their_own_event(path: str, store: FileStore) -> None:
    """The time of a mapping is before that of its CPU, which the first event has not."""
    plain, made = r.Event().sample_type | r.IDENTIFIER, r.recorded(AMD64)
    events = (r.Event(plain, ids=(8,)), r.Event(plain | 1 << 7, ids=(9,)))
    mapping = r.record(AMD64, r.MMAP2, r.mapped(AMD64, 20, path)[8:] + struct.pack("<QQ", 99, 9), 2)
    records = (mapping, r.sample(AMD64, 50, made.frame, made.data, number=8))
    assert endings(r.Recording(AMD64, records, events).file(), store) == ["outermost"]


@pytest.mark.parametrize(("size", "is_cut"), [(1 << 15, True), ((1 << 15) - 8, False)])
def test_a_stack_as_large_as_was_asked_for_is_cut(size: int, *, is_cut: bool) -> None:
    taken = r.sample(AMD64, 30, r.recorded(AMD64).frame, bytes(size))
    assert [w.sample.is_stack_cut for w in walked(r.Recording(AMD64, (taken,)).file())] == [is_cut]


@pytest.mark.parametrize(("count", "more"), [(30, []), (31, ["and 1 more place"])])
def test_the_text_names_thirty_places_where_stacks_end(count: int, more: list[str], path: str) -> None:
    profile = Profile(recording := Reader(r.plain_recording(AMD64, path).file()))
    for each in recording:
        profile.add(each)
    profile.ends.update({End("no-row", path, f"f{number}", ""): 1 for number in range(count)})
    assert [line for line in str(profile).splitlines() if line.startswith("and ")] == more


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="has the vDSO of AMD64")
def test_this_machine_s_vdso_is_read_for_its_own_kernel_only(store: FileStore) -> None:
    made, start = r.recorded(AMD64), 0x7FFF_F000_0000
    records = (r.mapped(AMD64, 20, "[vdso]", start=start, size=2 * PAGE, offset=0), r.sample(AMD64, 30, made.frame))
    for release, is_known in ((os.uname().release, True), (f"{os.uname().release}-other", False)):
        (found,) = walked(r.Recording(AMD64, records, release=release.encode()).file(), store)
        assert found.space is not None
        module = found.space.module_at(start)
        assert module is not None
        assert (module.file is not None) == is_known, module.note


def test_the_account_has_every_sample_once(path: str, store: FileStore) -> None:
    """Those of threads of the kernel and of 32-bit programs, too, and where stacks end that were cut."""
    made = r.recorded(AMD64)
    records = (
        *r.plain_recording(AMD64, path).records,
        r.sample(AMD64, 50, None, misc=1),
        r.sample(AMD64, 60, made.frame, made.data, abi=1),
        r.sample(AMD64, 70, made.frame, made.data[: made.stack.frames[1].sp - made.stack.frames[0].sp]),
        r.sample(AMD64, 80, made.frame, made.data, pid=1, tid=1),
        r.of_time(AMD64, r.LOST, struct.pack("<QQ", 0, 9), 90),
    )
    profile = Profile(recording := Reader(r.Recording(AMD64, records).file(), store), keeps_stacks=True)
    for each in recording:
        profile.add(each)
    assert (profile.sample_count, profile.without_stack_count, profile.other_class_count) == (6, 1, 1)
    assert profile.by_rows == (2, 2 * len(made.pcs) + 2 + 1)
    assert {(end.kind, number) for end, number in profile.ends.items()} == {("unreadable-memory", 1), ("no-module", 1)}
    assert recording.lost_count == 9
    assert str(profile).splitlines()[1:4:2] == [
        "1 without a user stack (of kernel threads, or of events that record none)",
        "records lost for lack of room: 9",
    ]
    assert sum(profile.stacks.values()) == 4


def test_frame_pointers_are_followed_on_the_same_stacks(tmp_path: Path) -> None:
    """A chain of records at which FP points, in any order of frames that CFI would tell."""
    for arch in (AMD64, AARCH64_LE, AARCH64_BE):
        made = r.recorded(arch)
        path = written_program(tmp_path, arch, made.stack.section, arch.name)
        words = [made.frame.sp + 32, made.pcs[1], 0, 0, 0, made.pcs[-1]]
        data = struct.pack(f"{arch.byte_order}6Q", *words)
        plain = r.plain_recording(arch, path)
        for fp, totals in (
            (made.frame.sp, (1, 3)),
            (made.frame.sp + 32, (1, 2)),
            (made.frame.sp + 4, (0, 1)),
            (0, (0, 1)),
        ):
            taken = r.sample(arch, 30, made.frame._replace(fp=fp), data)
            profile = Profile(recording := Reader(plain._replace(records=(*plain.records[:2], taken)).file()))
            for each in recording:
                profile.add(each)
            assert profile.by_fp == totals, (arch, fp)


def wrong(path: str) -> Iterator[tuple[bytes, str]]:
    """Yield recordings that cannot be used, with a part of the message."""
    plain = r.plain_recording(AMD64, path)
    data = plain.file()
    yield b"PERFILE3" + data[8:], "no recording"
    yield data[:50], "header"
    yield data[:40] + struct.pack("<QQ", len(data), 0) + data[56:], "not ended properly"
    yield plain._replace(events=(r.Event(r.IP | r.TID | r.TIME | r.PERIOD),)).file(), "perf record --call-graph dwarf"
    yield plain._replace(events=(r.Event(registers=0xFF00),)).file(), "perf record --call-graph dwarf"
    yield plain._replace(machine=b"", events=(r.Event(registers=0xFFF),)).file(), "not defined for its machine"
    yield plain._replace(machine=b"riscv64").file(), "not defined for riscv64"
    yield plain._replace(machine=b"s390x").file(), "not defined for s390x"
    yield plain._replace(records=()).pipe(), "no samples"
    yield plain._replace(events=()).pipe(), "describes no event"
    yield plain._replace(records=(*plain.records, bytes(8))).file(), "a record of 0 bytes"
    yield plain._replace(records=(r.record(AMD64, r.SAMPLE, bytes(20)),)).file(), "too short"


def test_recordings_that_cannot_be_used(path: str, store: FileStore) -> None:
    for data, message in wrong(path):
        with pytest.raises(InputError, match=message):
            walked(data, store)


def test_truncated_recordings(path: str, store: FileStore) -> None:
    """What is there is used, and the account says that something is missing; or an error says what is wrong."""
    plain = r.plain_recording(AMD64, path)
    for data in (plain.file(), plain.pipe()):
        counts = set[int]()
        for size in range(0, len(data), 8):
            try:
                reader = Reader(data[:size], store)
                counts.add(len(list(reader)))
            except InputError:
                continue
            # Where a record ends, nothing tells that a pipe ends there.
            assert reader.file.is_truncated or data == plain.pipe()
        # What is cut at the end of a file is not its samples.
        assert counts == ({1, 2} if data == plain.file() else {1})
