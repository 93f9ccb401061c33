# SPDX-License-Identifier: Apache-2.0
"""The samples of a recording of perf, each with the trace of its stack in the address space of that moment.

Processors write their records independently. perf marks rounds: a record after the end of a round is not older than
those before the end of the round before. So two rounds are in memory.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from heapq import heappop, heappush
from itertools import count
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants import perf as c
from cfi2sframe.elf.contents import FileData
from cfi2sframe.errors import InputError
from cfi2sframe.trace.frames import Trace
from cfi2sframe.trace.live import listed_mappings
from cfi2sframe.trace.perf_file import PerfFile, PerfRecord
from cfi2sframe.trace.perf_sample import Sample, SampleReader
from cfi2sframe.trace.snapshot import FileMapping, Memory, Snapshot
from cfi2sframe.trace.space import VDSO, AddressSpace, Module
from cfi2sframe.trace.store import FileStore

_SECOND: Final = 1_000_000_000


class Wanted(NamedTuple):
    """A choice of samples: of a process, of a thread, by number from 1 on, by seconds on the recording's clock.

    Ranges include both ends; None is no limit.
    """

    pid: int | None = None
    thread: int | None = None
    numbers: tuple[float | None, float | None] = (None, None)
    seconds: tuple[float | None, float | None] = (None, None)

    def has(self, number: int, sample: Sample) -> bool:
        """Return whether a sample is wanted."""
        ranges = ((number, self.numbers), (sample.time / _SECOND, self.seconds))
        return (
            self.pid in (None, sample.pid)
            and self.thread in (None, sample.tid)
            and all((low is None or low <= at) and (high is None or at <= high) for at, (low, high) in ranges)
        )


class WalkedSample(NamedTuple):
    """A sample, its number from 1 on, the name of its thread, and its trace in an address space.

    The last two are None where the sample has no registers (`Sample.frame`).
    """

    number: int
    sample: Sample
    command: str
    space: AddressSpace | None
    trace: Trace | None


class Recording:
    """A recording whose samples are read and walked one after the other; iterated once.

    `data` are its bytes, `store` opens the mapped files, below `sysroot`, if that is given. Iterating raises
    `InputError` when it is damaged, or has no registers and stacks.
    """

    def __init__(
        self, data: FileData, store: FileStore | None = None, sysroot: str = "", wanted: Wanted | None = None
    ) -> None:
        self.file = PerfFile(data)
        #: Records that the kernel had no room for; known at the end.
        self.lost_count = 0
        self._store = store or FileStore()
        self._sysroot = sysroot
        self._wanted = wanted or Wanted()
        self._samples = SampleReader(self.file)
        self._has_build_ids = False
        self._apply = {
            **dict.fromkeys((c.PERF_RECORD_MMAP, c.PERF_RECORD_MMAP2), self._mmap),
            c.PERF_RECORD_COMM: self._comm,
            c.PERF_RECORD_FORK: self._fork,
            c.PERF_RECORD_EXIT: self._exit,
            **dict.fromkeys((c.PERF_RECORD_LOST, c.PERF_RECORD_LOST_SAMPLES), self._lost),
        }
        self._mappings: dict[int, tuple[FileMapping, ...]] = {}
        self._commands: dict[int, str] = {}
        self._spaces: dict[int, AddressSpace] = {}
        #: Shared by all address spaces.
        self._modules: dict[str, Module] = {}

    @property
    def arch(self) -> Arch | None:
        """The ABI; None before the first sample with registers."""
        return self._samples.arch

    @property
    def has_build_ids(self) -> bool:
        """True if build-ids were recorded, by which files can be told from those that ran."""
        return self._has_build_ids

    @property
    def modules(self) -> list[Module]:
        """The modules in which frames were found so far, by name; of several builds with one name, the last."""
        return sorted(self._modules.values(), key=lambda module: module.name)

    def __iter__(self) -> Iterator[WalkedSample]:
        """Yield the samples that are wanted, in the order of time."""
        number = 0
        for record in self._by_time():
            if record.type != c.PERF_RECORD_SAMPLE:
                self._apply[record.type](record)
                continue
            number, sample = number + 1, self._samples.sample(record)
            if self._wanted.has(number, sample):
                yield self._walked(number, sample)
        if not number:
            raise InputError("the recording has no samples")

    def _by_time(self) -> Iterator[PerfRecord]:
        """Yield the records that matter here, in the order of time."""
        waiting: list[tuple[int, int, PerfRecord]] = []
        numbers = count()
        newest = flushed = 0
        for record in self.file.records():
            if record.type == c.PERF_RECORD_FINISHED_ROUND:
                while waiting and waiting[0][0] <= flushed:
                    yield heappop(waiting)[2]
                flushed = newest
            elif record.type in self._apply or record.type == c.PERF_RECORD_SAMPLE:
                time = self._samples.time_of(record)
                newest = max(newest, time)
                heappush(waiting, (time, next(numbers), record))
        while waiting:
            yield heappop(waiting)[2]

    def _mmap(self, record: PerfRecord) -> None:
        """Add a mapping: of those that it hides in part, the other parts stay."""
        pid, _, start, size, file_offset = record.take("iIQQQ", 0)
        name_offset, build_id, end = 32, b"", start + size
        is_executable = not record.misc & c.PERF_RECORD_MISC_MMAP_DATA
        if record.type == c.PERF_RECORD_MMAP2:
            name_offset, is_executable = 64, record.take("I", 56)[0] & c.PROT_EXEC != 0
            if record.misc & c.PERF_RECORD_MISC_MMAP_BUILD_ID:
                build_id = record.body[36 : 36 + min(record.body[32], 20)]
        if pid < 0 or not size or end > 1 << 64:
            # The kernel's own.
            return
        path = os.fsdecode(record.body[name_offset:].split(b"\0")[0])
        build_id = build_id or self.file.build_ids.get(path, b"")
        self._has_build_ids |= bool(build_id)
        kept: list[FileMapping] = []
        for old in self._mappings.get(pid, ()):
            if old.start < min(start, old.end):
                kept.append(old._replace(end=min(start, old.end)))
            if max(end, old.start) < old.end:
                first = max(end, old.start)
                kept.append(old._replace(start=first, file_offset=old.file_offset + first - old.start))
        if path and is_executable:
            kept.append(FileMapping(start, end, file_offset, path, build_id=build_id))
        self._change(pid, tuple(kept))

    def _comm(self, record: PerfRecord) -> None:
        pid, tid = record.take("II", 0)
        self._commands[tid] = record.body[8:].split(b"\0")[0].decode("utf-8", "replace")
        if record.misc & c.PERF_RECORD_MISC_COMM_EXEC:
            # The process has started a program, and has none of the mappings of the one before.
            self._change(pid, ())

    def _fork(self, record: PerfRecord) -> None:
        pid, parent_pid, tid, parent_tid = record.take("4I", 0)
        self._commands[tid] = self._commands.get(parent_tid, "")
        if pid != parent_pid:
            self._change(pid, self._mappings.get(parent_pid, ()))

    def _exit(self, record: PerfRecord) -> None:
        pid, tid = record.take("I4xI", 0)
        if pid == tid:
            self._spaces.pop(pid, None)

    def _lost(self, record: PerfRecord) -> None:
        self.lost_count += record.take("Q", 8 * (record.type == c.PERF_RECORD_LOST))[0]

    def _walked(self, number: int, sample: Sample) -> WalkedSample:
        command = self._commands.get(sample.tid) or self._commands.get(sample.pid) or f":{sample.tid}"
        if sample.frame is None or self.arch is None:
            return WalkedSample(number, sample, command, None, None)
        space = self._spaces.get(sample.pid) or self._new_space(sample.pid, self.arch)
        return WalkedSample(number, sample, command, space, space.walk(sample.frame, sample.read))

    def _new_space(self, pid: int, arch: Arch) -> AddressSpace:
        # Memory without a file has names, too: //anon, [heap].
        mappings = self._mappings.get(pid, ())
        files = [m for m in mappings if m.path == VDSO or (m.path[:1] == "/" and m.path[:2] != "//")]
        memory = Memory((m.start, self._own_vdso(m)) for m in files if m.path == VDSO)
        space = self._spaces[pid] = AddressSpace(Snapshot(arch, files, memory.read), self._store, root=self._sysroot)
        space.used = self._modules
        return space

    def _own_vdso(self, mapping: FileMapping) -> bytes:
        """Return this machine's vDSO, if the recording's kernel is the same, by its build-id or its name."""
        if not mapping.build_id and self.file.text_of(c.HEADER_OSRELEASE) != os.uname().release:
            return b""
        with suppress(InputError, OSError, StopIteration), open("/proc/self/mem", "rb", buffering=0) as memory:
            own = next(m for m, _ in listed_mappings(os.getpid()) if m.path == VDSO)
            return os.pread(memory.fileno(), own.end - own.start, own.start)
        return b""

    def _change(self, pid: int, mappings: tuple[FileMapping, ...]) -> None:
        self._mappings[pid] = mappings
        self._spaces.pop(pid, None)
