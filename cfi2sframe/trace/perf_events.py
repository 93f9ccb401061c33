# SPDX-License-Identifier: Apache-2.0
"""What a recording of perf says, in the order of time: mappings, names, forks and ends of processes, and samples.

Processors write their records independently. perf marks rounds: what follows the end of a round is not older than what
came before the end of the round before. So two rounds are in memory.
"""

import os
import struct
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final, NamedTuple

from cfi2sframe.abi import ARCHES, Arch
from cfi2sframe.abi.record import SAVED_PC
from cfi2sframe.constants import perf as c
from cfi2sframe.errors import InputError
from cfi2sframe.range_map import ADDRESS_END
from cfi2sframe.trace.frames import Frame, frame_of
from cfi2sframe.trace.perf_file import NEEDED, EventKind, PerfFile, PerfRecord
from cfi2sframe.trace.snapshot import FileMapping

#: The machines as uname(2) calls them, by the names of ABIs.
_MACHINES: Final = {"x86_64": "AMD64", "aarch64": "AArch64", "aarch64_be": "AArch64 BE", "s390x": "s390x"}
#: What ends the records other than samples, in this order.
_ID_FIELDS: Final = (
    *(c.PERF_SAMPLE_TID, c.PERF_SAMPLE_TIME, c.PERF_SAMPLE_ID, c.PERF_SAMPLE_STREAM_ID, c.PERF_SAMPLE_CPU),
    c.PERF_SAMPLE_IDENTIFIER,
)
#: The words at the start of a sample, in this order; IP is that of the kernel, if it was there.
_SAMPLE_FIELDS: Final = (
    *(c.PERF_SAMPLE_IDENTIFIER, c.PERF_SAMPLE_IP, c.PERF_SAMPLE_TID, c.PERF_SAMPLE_TIME, c.PERF_SAMPLE_ADDR),
    *(c.PERF_SAMPLE_ID, c.PERF_SAMPLE_STREAM_ID, c.PERF_SAMPLE_CPU, c.PERF_SAMPLE_PERIOD),
)


_USER_PART: Final = c.PERF_SAMPLE_TID | c.PERF_SAMPLE_REGS_USER | c.PERF_SAMPLE_STACK_USER


class Mapped(NamedTuple):
    """A process has mapped a file, or memory without one. It hides what was there before."""

    pid: int
    mapping: FileMapping
    is_executable: bool


class Named(NamedTuple):
    """A thread has a name. `is_exec`: its process has started a program, and has no mapping of the one before."""

    pid: int
    tid: int
    name: str
    is_exec: bool


class Forked(NamedTuple):
    """A thread was made; where `pid` is not `parent_pid`, a process with its parent's mappings."""

    pid: int
    parent_pid: int
    tid: int
    parent_tid: int


class Exited(NamedTuple):
    """A thread has ended."""

    pid: int
    tid: int


class Lost(NamedTuple):
    """The kernel had no room for records."""

    record_count: int


class Sample(NamedTuple):
    """A moment of a thread. `time` counts nanoseconds on the recording's clock.

    `frame` is the topmost one of user space; None where it had none (a thread of the kernel), or where the program is
    not of 64 bits (`is_64_bit`). `stack` has bytes from its SP on; `is_stack_cut`: as many as were asked for.
    `kernel_pcs` are the kernel's, the innermost first. `event` is the event's name; empty if it is not known.
    """

    time: int
    pid: int
    tid: int
    period: int
    event: str
    frame: Frame | None
    is_64_bit: bool
    stack: bytes
    is_stack_cut: bool
    kernel_pcs: tuple[int, ...]

    def read(self, address: int, size: int) -> bytes | None:
        """Return bytes of the stack; None where they were not copied."""
        start = address - self.frame.sp if self.frame else -1
        return self.stack[start : start + size] if 0 <= start <= len(self.stack) - size else None


Event = Mapped | Named | Forked | Exited | Lost | Sample


def arch_in(file: PerfFile, registers: int) -> Arch:
    """Return the ABI of a recording's machine: by its name, or, where the end of the file is missing, by its registers.

    Raises `InputError`.
    """
    machine = file.text_of(c.HEADER_ARCH)
    for arch in ARCHES:
        # Kernels of either byte order may call themselves the same.
        is_named = _MACHINES.get(machine, "").split()[:1] == arch.name.split()[:1]
        if arch.byte_order == file.byte_order and (
            is_named or (not machine and registers.bit_length() == len(arch.perf_words))
        ):
            return arch
    raise InputError(f"SFrame is not defined for {machine or 'its machine'}")


class Events:
    """The events of a recording; iterated once. `arch` is known when the first sample is read."""

    def __init__(self, file: PerfFile) -> None:
        self.file = file
        self.arch: Arch | None = None
        self._names: dict[int, str] | None = None
        #: Whether recorded files can be told from others.
        self.has_build_ids = False
        self._read: dict[int, Callable[[PerfRecord], Event | None]] = {
            c.PERF_RECORD_MMAP: self._mapped,
            c.PERF_RECORD_MMAP2: self._mapped,
            c.PERF_RECORD_COMM: self._named,
            c.PERF_RECORD_FORK: lambda record: Forked(*self._unpack("4I", record, 0)),
            c.PERF_RECORD_EXIT: lambda record: Exited(*self._unpack("I4xI", record, 0)),
            c.PERF_RECORD_LOST: lambda record: Lost(self._unpack("QQ", record, 0)[1]),
            c.PERF_RECORD_LOST_SAMPLES: lambda record: Lost(self._unpack("Q", record, 0)[0]),
            c.PERF_RECORD_SAMPLE: self._sample,
        }

    def __iter__(self) -> Iterator[Event]:
        """Yield the events. Raises `InputError` where the recording is damaged, or has no stacks."""
        waiting: list[tuple[int, int, PerfRecord]] = []
        numbers = count()
        newest = flushed = 0
        for record in self.file.records():
            if record.type == c.PERF_RECORD_FINISHED_ROUND:
                while waiting and waiting[0][0] <= flushed:
                    yield from self._event(heappop(waiting)[2])
                flushed = newest
            elif record.type in self._read:
                time = self._time_of(record)
                newest = max(newest, time)
                heappush(waiting, (time, next(numbers), record))
        while waiting:
            yield from self._event(heappop(waiting)[2])

    def _event(self, record: PerfRecord) -> Iterator[Event]:
        event = self._read[record.type](record)
        if event is not None:
            yield event

    def _unpack(self, form: str, record: PerfRecord, offset: int) -> tuple[Any, ...]:
        try:
            return struct.unpack_from(self.file.byte_order + form, record.body, offset)
        except struct.error:
            raise InputError(f"a record of type {record.type} is too short", "records", record.offset) from None

    def _kind_of(self, record: PerfRecord) -> tuple[EventKind, int]:
        """Return the kind of a record's event, and its id; -1 without one. Raises `InputError`."""
        kinds = self.file.kinds
        if not kinds:
            raise InputError("the recording describes no event", "records", record.offset)
        first = kinds[-1]
        if first.sample_type & c.PERF_SAMPLE_IDENTIFIER:
            is_sample = record.type == c.PERF_RECORD_SAMPLE
            at = 0 if is_sample else len(record.body) - 8
            if is_sample or (first.has_ids and at >= 0):
                number: int = self._unpack("Q", record, at)[0]
                # What perf adds itself has the id 0.
                return kinds.get(number, first), number
        elif any(kind != first for kind in kinds.values()):
            raise InputError("its events have different fields and no identifiers; record one event, or a newer perf")
        return first, -1

    def _time_of(self, record: PerfRecord) -> int:
        kind, _ = self._kind_of(record)
        kept = kind.sample_type
        if not kept & c.PERF_SAMPLE_TIME:
            return 0
        if record.type == c.PERF_RECORD_SAMPLE:
            before = _SAMPLE_FIELDS[: _SAMPLE_FIELDS.index(c.PERF_SAMPLE_TIME)]
            at = 8 * sum(kept & field != 0 for field in before)
        elif kind.has_ids:
            after = _ID_FIELDS[_ID_FIELDS.index(c.PERF_SAMPLE_TIME) :]
            at = len(record.body) - 8 * sum(kept & field != 0 for field in after)
        else:
            return 0
        return int(self._unpack("Q", record, max(at, 0))[0])

    def _mapped(self, record: PerfRecord) -> Mapped | None:
        pid, _, start, size, offset = self._unpack("iIQQQ", record, 0)
        is_executable, name_offset, build_id = not record.misc & c.PERF_RECORD_MISC_MMAP_DATA, 32, b""
        if record.type == c.PERF_RECORD_MMAP2:
            is_executable, name_offset = self._unpack("I", record, 56)[0] & c.PROT_EXEC != 0, 64
            if record.misc & c.PERF_RECORD_MISC_MMAP_BUILD_ID:
                build_id = record.body[36 : 36 + min(record.body[32], 20)]
        if pid < 0 or not size or start + size > ADDRESS_END:
            # The kernel's own.
            return None
        path = os.fsdecode(record.body[name_offset:].split(b"\0")[0])
        build_id = build_id or self.file.build_ids.get(path, b"")
        self.has_build_ids |= bool(build_id)
        return Mapped(pid, FileMapping(start, start + size, offset, path, build_id=build_id), is_executable)

    def _named(self, record: PerfRecord) -> Named:
        pid, tid = self._unpack("II", record, 0)
        name = record.body[8:].split(b"\0")[0].decode("utf-8", "replace")
        return Named(pid, tid, name, record.misc & c.PERF_RECORD_MISC_COMM_EXEC != 0)

    def _sample(self, record: PerfRecord) -> Sample:
        kind, number = self._kind_of(record)
        kept, at = kind.sample_type, 0
        words = dict[int, int]()
        pid = tid = 0
        for field in _SAMPLE_FIELDS:
            if kept & field:
                words[field] = self._unpack("Q", record, at)[0]
                if field == c.PERF_SAMPLE_TID:
                    pid, tid = self._unpack("II", record, at)
                at += 8
        kernel: tuple[int, ...] = ()
        if record.misc & c.PERF_RECORD_MISC_CPUMODE_MASK != c.PERF_RECORD_MISC_USER:
            kernel = (words.get(c.PERF_SAMPLE_IP, 0),)
        if kept & c.PERF_SAMPLE_READ:
            at += self._size_of_read(kind.read_format, record, at)
        if kept & c.PERF_SAMPLE_CALLCHAIN:
            chain = self._counted(record, at, 8)
            at += 8 + len(chain)
            pcs = struct.unpack(f"{self.file.byte_order}{len(chain) // 8}Q", chain)
            in_kernel = pcs[: pcs.index(c.PERF_CONTEXT_USER)] if c.PERF_CONTEXT_USER in pcs else pcs
            kernel = tuple(pc for pc in in_kernel if pc < c.PERF_CONTEXT_MAX) if kernel else ()
        if kept & c.PERF_SAMPLE_RAW:
            at += 4 + self._unpack("I", record, at)[0]
        if kept & c.PERF_SAMPLE_BRANCH_STACK:
            (branches,) = self._unpack("Q", record, at)
            at += 8 + 8 * (kind.branch_type & c.PERF_SAMPLE_BRANCH_HW_INDEX != 0)
            at += branches * (24 + 8 * (kind.branch_type & c.PERF_SAMPLE_BRANCH_COUNTERS != 0))
        frame, abi, stack = self._user_part(kind, record, at)
        return Sample(
            *(words.get(c.PERF_SAMPLE_TIME, 0), pid, tid, words.get(c.PERF_SAMPLE_PERIOD) or 1),
            self._event_name(words.get(c.PERF_SAMPLE_ID, number)),
            frame,
            abi in (0, c.PERF_SAMPLE_REGS_ABI_64),
            stack,
            len(stack) >= kind.stack_size // 8 * 8,
            kernel,
        )

    def _user_part(self, kind: EventKind, record: PerfRecord, at: int) -> tuple[Frame | None, int, bytes]:
        """Return the topmost frame of user space, the kernel's number of its ABI, and its stack.

        Raises `InputError` where no event has these.
        """
        if kind.sample_type & _USER_PART != _USER_PART:
            if all(each.sample_type & _USER_PART != _USER_PART for each in self.file.kinds.values()):
                raise InputError(f"its samples have no registers and stack of user space; {NEEDED}")
            return None, 0, b""
        (abi,) = self._unpack("Q", record, at)
        if not abi:
            return None, 0, b""
        values = self._unpack(f"{kind.registers.bit_count()}Q", record, at + 8)
        frame = self._frame(kind.registers, values) if abi == c.PERF_SAMPLE_REGS_ABI_64 else None
        at += 8 + 8 * len(values)
        stack = self._counted(record, at, 1)
        if stack:
            stack = stack[: self._unpack("Q", record, at + 8 + len(stack))[0]]
        return frame, abi, stack

    def _counted(self, record: PerfRecord, at: int, each_size: int) -> bytes:
        """Return the bytes of a part that begins with the number of its items. Raises `InputError`."""
        (number,) = self._unpack("Q", record, at)
        if number * each_size > len(record.body) - at - 8:
            raise InputError("a sample is too short", "records", record.offset)
        return record.body[at + 8 : at + 8 + number * each_size]

    def _size_of_read(self, form: int, record: PerfRecord, at: int) -> int:
        """Return the bytes of what PERF_SAMPLE_READ adds: values of one event or of a group."""
        times = sum(form & bit != 0 for bit in (c.PERF_FORMAT_TOTAL_TIME_ENABLED, c.PERF_FORMAT_TOTAL_TIME_RUNNING))
        each = 1 + sum(form & bit != 0 for bit in (c.PERF_FORMAT_ID, c.PERF_FORMAT_LOST))
        values = int(self._unpack("Q", record, at)[0]) if form & c.PERF_FORMAT_GROUP else 1
        return 8 * (times + each * values + (form & c.PERF_FORMAT_GROUP != 0))

    def _frame(self, registers: int, values: tuple[int, ...]) -> Frame:
        """Return a frame from the registers whose bits are set. Raises `InputError` where needed ones are missing."""
        arch = self.arch = self.arch or arch_in(self.file, registers)
        numbers = [bit for bit in range(64) if registers >> bit & 1]
        places = arch.perf_words
        words = {places[n]: value for n, value in zip(numbers, values, strict=True) if n < len(places)}
        needed = {SAVED_PC, arch.sp_register, arch.fp_register, *([] if arch.fixed_ra_offset else [arch.ra_register])}
        if not needed <= words.keys():
            raise InputError(f"its samples lack registers of user space; {NEEDED}")
        return frame_of(words, arch)

    def _event_name(self, number: int) -> str:
        """Return the name of an event, by its id, as HEADER_EVENT_DESC lists it."""
        if self._names is None:
            self._names = self._listed_names(self.file.features.get(c.HEADER_EVENT_DESC, b""))
        return self._names.get(number) or self._names.get(-1, "")

    def _listed_names(self, data: bytes) -> dict[int, str]:
        """Return names by ids, and by -1 the first: count, size of each attr; attrs with count of ids, name, ids."""
        names: dict[int, str] = {}
        order = self.file.byte_order
        try:
            event_count, attr_size = struct.unpack_from(order + "II", data)
            at = 8
            for _ in range(event_count):
                id_count, size = struct.unpack_from(order + "II", data, at + attr_size)
                at += attr_size + 8
                name = data[at : at + size].split(b"\0")[0].decode("utf-8", "replace")
                ids = struct.unpack_from(f"{order}{id_count}Q", data, at + size)
                names |= dict.fromkeys((*ids, *[-1] * (not names)), name)
                at += size + 8 * id_count
        except struct.error:
            # A name is only shown.
            pass
        return names
