# SPDX-License-Identifier: Apache-2.0
"""Samples of perf: struct perf_event_attr decides which fields their records have (perf_event_open(2))."""

from typing import Final, NamedTuple

from cfi2sframe.abi import ARCHES, Arch
from cfi2sframe.abi.record import SAVED_PC
from cfi2sframe.constants import perf as c
from cfi2sframe.errors import InputError
from cfi2sframe.trace.frames import Frame, frame_of
from cfi2sframe.trace.perf_file import NEEDED, EventKind, PerfFile, PerfRecord

#: The machines as uname(2) calls them, by the names of ABIs. Kernels of either byte order may have the same name.
_MACHINES: Final = {"x86_64": "AMD64", "aarch64": "AArch64", "aarch64_be": "AArch64", "s390x": "s390x"}
#: The words that end the records other than samples, in this order.
_ID_FIELDS: Final = (
    *(c.PERF_SAMPLE_TID, c.PERF_SAMPLE_TIME, c.PERF_SAMPLE_ID, c.PERF_SAMPLE_STREAM_ID, c.PERF_SAMPLE_CPU),
    c.PERF_SAMPLE_IDENTIFIER,
)
#: The words at the start of a sample, in this order; IP is in the kernel, if that was running.
_SAMPLE_FIELDS: Final = (
    *(c.PERF_SAMPLE_IDENTIFIER, c.PERF_SAMPLE_IP, c.PERF_SAMPLE_TID, c.PERF_SAMPLE_TIME, c.PERF_SAMPLE_ADDR),
    *(c.PERF_SAMPLE_ID, c.PERF_SAMPLE_STREAM_ID, c.PERF_SAMPLE_CPU, c.PERF_SAMPLE_PERIOD),
)
_USER_PART: Final = c.PERF_SAMPLE_REGS_USER | c.PERF_SAMPLE_STACK_USER | c.PERF_SAMPLE_TID


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


class SampleReader:
    """Reads the samples of a recording. `arch` is known after the first one that has registers."""

    def __init__(self, file: PerfFile) -> None:
        self.arch: Arch | None = None
        self._file = file
        self._names: dict[int, str] | None = None

    def time_of(self, record: PerfRecord) -> int:
        """Return the time of any record, 0 without one. Raises `InputError`."""
        return self._words(record)[1].get(c.PERF_SAMPLE_TIME, 0)

    def _words(self, record: PerfRecord) -> tuple[EventKind, dict[int, int]]:
        """Return the kind of a record's event, and the words that all records may have, by field.

        In a sample, the other fields follow.
        """
        kinds, is_sample = self._file.kinds, record.type == c.PERF_RECORD_SAMPLE
        if not kinds:
            raise InputError("the recording describes no event", "records", record.offset)
        kind = kinds[-1]
        if kind.sample_type & c.PERF_SAMPLE_IDENTIFIER:
            if is_sample or kind.has_ids:
                # The first word of a sample, the last of others. What perf adds itself has the id 0.
                (number,) = record.take("Q", 0 if is_sample else len(record.body) - 8)
                kind = kinds.get(number, kind)
        elif any(other != kind for other in kinds.values()):
            raise InputError("its events have different fields and no identifiers; record one event, or a newer perf")
        names = [f for f in (_SAMPLE_FIELDS if is_sample else _ID_FIELDS) if f & kind.sample_type]
        if not (is_sample or kind.has_ids):
            return kind, {}
        words = record.take(f"{len(names)}Q", 0 if is_sample else len(record.body) - 8 * len(names))
        return kind, dict(zip(names, words, strict=True))

    def sample(self, record: PerfRecord) -> Sample:
        """Return the sample that a record has. Raises `InputError`."""
        kind, words = self._words(record)
        kept = kind.sample_type
        # Two words of 32 bits, the process first.
        halves = divmod(words.get(c.PERF_SAMPLE_TID, 0), 1 << 32)
        pid, tid = halves if record.byte_order == ">" else halves[::-1]
        if kept & c.PERF_SAMPLE_READ:
            form = kind.read_format
            count = record.take("Q")[0] if form & c.PERF_FORMAT_GROUP else 1
            value_size = 8 + 8 * (form & c.PERF_FORMAT_VALUES).bit_count()
            record.skip(8 * (form & c.PERF_FORMAT_TIMES).bit_count() + count * value_size)
        in_kernel: tuple[int, ...] = (words.get(c.PERF_SAMPLE_IP, 0),)
        if kept & c.PERF_SAMPLE_CALLCHAIN:
            pcs = record.take(f"{record.take('Q')[0]}Q")
            pcs = pcs[: pcs.index(c.PERF_CONTEXT_USER)] if c.PERF_CONTEXT_USER in pcs else pcs
            in_kernel = tuple(pc for pc in pcs if pc < c.PERF_CONTEXT_MAX)
        if kept & c.PERF_SAMPLE_RAW:
            record.skip(record.take("I")[0])
        if kept & c.PERF_SAMPLE_BRANCH_STACK:
            (count,) = record.take("Q")
            branch_size = 24 + 8 * (kind.branch_type & c.PERF_SAMPLE_BRANCH_COUNTERS != 0)
            record.skip(8 * (kind.branch_type & c.PERF_SAMPLE_BRANCH_HW_INDEX != 0) + count * branch_size)
        frame, abi, stack = self._user_part(kind, record)
        is_in_kernel = record.misc & c.PERF_RECORD_MISC_CPUMODE_MASK != c.PERF_RECORD_MISC_USER
        event = words.get(c.PERF_SAMPLE_ID, words.get(c.PERF_SAMPLE_IDENTIFIER, -1))
        return Sample(
            *(words.get(c.PERF_SAMPLE_TIME, 0), pid, tid, words.get(c.PERF_SAMPLE_PERIOD) or 1),
            self._event_name(event),
            frame,
            abi in (0, c.PERF_SAMPLE_REGS_ABI_64),
            stack,
            len(stack) >= kind.stack_size // 8 * 8,
            in_kernel if is_in_kernel else (),
        )

    def _user_part(self, kind: EventKind, record: PerfRecord) -> tuple[Frame | None, int, bytes]:
        """Return the topmost frame of user space, the kernel's number of its ABI, and its stack.

        Raises `InputError` where no event has these.
        """
        if kind.sample_type & _USER_PART != _USER_PART:
            if all(other.sample_type & _USER_PART != _USER_PART for other in self._file.kinds.values()):
                raise InputError(f"its samples have no registers and stack of user space; {NEEDED}")
            return None, 0, b""
        (abi,) = record.take("Q")
        if not abi:
            return None, 0, b""
        values = record.take(f"{kind.registers.bit_count()}Q")
        frame = self._frame(kind.registers, values) if abi == c.PERF_SAMPLE_REGS_ABI_64 else None
        (stack,) = record.take(f"{record.take('Q')[0]}s")
        # The kernel copies less than the room where the stack ends.
        return frame, abi, stack[: record.take("Q")[0]] if stack else b""

    def _frame(self, registers: int, values: tuple[int, ...]) -> Frame:
        """Return a frame from the registers whose bits are set. Raises `InputError` where needed ones are missing."""
        arch = self.arch = self.arch or _arch_in(self._file, registers)
        numbers = [bit for bit in range(64) if registers >> bit & 1]
        places = arch.perf_words
        words = {places[n]: value for n, value in zip(numbers, values, strict=True) if n < len(places)}
        needed = {SAVED_PC, arch.sp_register, arch.fp_register, *([] if arch.fixed_ra_offset else [arch.ra_register])}
        if not needed <= words.keys():
            raise InputError(f"its samples lack registers of user space; {NEEDED}")
        return frame_of(words, arch)

    def _event_name(self, number: int) -> str:
        """Return the name of an event by its id; without the id, that of the first event."""
        if self._names is None:
            self._names = {}
            listed = PerfRecord(self._file.features.get(c.HEADER_EVENT_DESC, b""), self._file.byte_order)
            try:
                count, attr_size = listed.take("II")
                for _ in range(count):
                    listed.skip(attr_size)
                    id_count, size = listed.take("II")
                    name = listed.take(f"{size}s")[0].split(b"\0")[0].decode("utf-8", "replace")
                    self._names |= dict.fromkeys((*listed.take(f"{id_count}Q"), *[-1] * (not self._names)), name)
            except InputError:
                # A name is only shown.
                pass
        return self._names.get(number) or self._names.get(-1, "")


def _arch_in(file: PerfFile, registers: int) -> Arch:
    """Return the ABI of a recording's machine: by its name, or, where the end of the file is missing, by its registers.

    Raises `InputError`.
    """
    machine = file.text_of(c.HEADER_ARCH)
    for arch in ARCHES:
        is_named = _MACHINES.get(machine) == arch.name.split()[0]
        is_alike = not machine and registers.bit_length() == len(arch.perf_words)
        if arch.byte_order == file.byte_order and (is_named or is_alike):
            return arch
    raise InputError(f"SFrame is not defined for {machine or 'its machine'}")
