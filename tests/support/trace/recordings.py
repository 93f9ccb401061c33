# SPDX-License-Identifier: Apache-2.0
"""Recordings of perf made field by field after perf_event_open(2), for any ABI: as files, and as pipes."""

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from cfi2sframe.abi import AMD64, S390X, Arch
from cfi2sframe.trace import Frame
from tests.support.trace.core_files import BIAS, BUILD_ID, MODELS, PAGE, TEXT_SIZE, TEXT_VADDR, moved, stack_load
from tests.support.trace.stacks import Stack, make_stack

MMAP, LOST, COMM, EXIT, FORK, SAMPLE, MMAP2 = 1, 2, 3, 4, 7, 9, 10
ATTR, BUILD, ROUND, AUXTRACE, FEATURE, COMPRESSED, COMPRESSED2 = 64, 67, 68, 71, 80, 81, 83
IP, TID, TIME, PERIOD, REGS, STACK_USER, IDENTIFIER = 1, 2, 4, 1 << 8, 1 << 12, 1 << 13, 1 << 16
MACHINES: Final = {"AMD64": b"x86_64", "AArch64": b"aarch64", "AArch64 BE": b"aarch64_be", "s390x": b"s390x"}
#: The bits that perf asks for, and where in them are SP, FP, RA (but on AMD64) and PC.
REGISTERS: Final = {"AMD64": 0xFF0FFF, "AArch64": (1 << 33) - 1, "AArch64 BE": (1 << 33) - 1, "s390x": (1 << 34) - 1}
PID: Final = 77


class Event(NamedTuple):
    """An event that was recorded: struct perf_event_attr, with ids."""

    sample_type: int = IP | TID | TIME | PERIOD | REGS | STACK_USER
    registers: int | None = None
    ids: tuple[int, ...] = ()
    name: str = "cpu-clock"
    read_format: int = 0
    branch_type: int = 0

    def attr(self, arch: Arch) -> bytes:
        """Return the 128 bytes."""
        registers = REGISTERS[arch.name] if self.registers is None else self.registers
        # sample_id_all
        flags = 1 << (18 if arch.byte_order == "<" else 63 - 18)
        head = (
            1,
            128,
            0,
            1000,
            self.sample_type,
            self.read_format,
            flags,
            0,
            0,
            0,
            0,
            self.branch_type,
            registers,
            1 << 15,
        )
        return struct.pack(arch.byte_order + "IIQQQQQIIQQQQI", *head).ljust(128, b"\0")


class Recording(NamedTuple):
    """A recording as stored. `records` come in their order in the file, without what the container adds."""

    arch: Arch
    records: tuple[bytes, ...]
    events: tuple[Event, ...] = (Event(),)
    build_ids: Mapping[str, bytes] = {}
    release: bytes = b"6.1.0"
    machine: bytes | None = None

    def _features(self) -> dict[int, bytes]:
        order = self.arch.byte_order
        machine = MACHINES[self.arch.name] if self.machine is None else self.machine
        texts = {4: self.release, 6: machine}
        found = {n: struct.pack(order + "I", len(t) + 1) + t + b"\0" for n, t in texts.items() if t}
        described = b"".join(
            e.attr(self.arch)
            + struct.pack(order + "II", len(e.ids), len(e.name) + 1)
            + e.name.encode()
            + b"\0"
            + struct.pack(f"{order}{len(e.ids)}Q", *e.ids)
            for e in self.events
        )
        found[12] = struct.pack(order + "II", len(self.events), 128) + described
        if self.build_ids:
            found[2] = b"".join(build(self.arch, *item) for item in self.build_ids.items())
        return dict(sorted(found.items()))

    def file(self) -> bytes:
        """Return the bytes of perf.data: header, ids and events, records, features."""
        order, features, data = self.arch.byte_order, self._features(), b"".join(self.records)
        ids = b"".join(struct.pack(f"{order}{len(e.ids)}Q", *e.ids) for e in self.events)
        attrs, at = b"", 104
        for event in self.events:
            attrs += event.attr(self.arch) + struct.pack(order + "QQ", at, 8 * len(event.ids))
            at += 8 * len(event.ids)
        start = at + len(attrs)
        bits = sum(1 << number for number in features)
        magic = b"PERFILE2" if order == "<" else b"2ELIFREP"
        head = struct.pack(order + "13Q", 0, 104, 144, at, len(attrs), start, len(data), 0, 0, bits, 0, 0, 0)
        table, place = b"", start + len(data) + 16 * len(features)
        for feature in features.values():
            table += struct.pack(order + "QQ", place, len(feature))
            place += len(feature)
        return magic + head[8:] + ids + attrs + data + table + b"".join(features.values())

    def pipe(self) -> bytes:
        """Return the bytes that perf writes to a pipe."""
        order = self.arch.byte_order
        magic = b"PERFILE2" if order == "<" else b"2ELIFREP"
        head = [magic + struct.pack(order + "Q", 16)]
        for event in self.events:
            ids = struct.pack(f"{order}{len(event.ids)}Q", *event.ids)
            head.append(record(self.arch, ATTR, event.attr(self.arch) + ids))
        head += [
            record(self.arch, FEATURE, struct.pack(order + "Q", number) + data)
            for number, data in self._features().items()
            if number != 2
        ]
        head += [build(self.arch, *item) for item in self.build_ids.items()]
        return b"".join([*head, *self.records])


def record(arch: Arch, kind: int, body: bytes, misc: int = 0) -> bytes:
    """Return a record with its header."""
    return struct.pack(arch.byte_order + "IHH", kind, misc, 8 + len(body)) + body


def build(arch: Arch, path: str, build_id: bytes) -> bytes:
    """Return struct build_id_event, with the size of the build-id."""
    body = struct.pack(arch.byte_order + "i", -1) + build_id.ljust(20, b"\0") + bytes([len(build_id), 0, 0, 0])
    return record(arch, BUILD, body + path.encode() + b"\0", 1 << 15)


def of_time(arch: Arch, kind: int, body: bytes, time: int, *, misc: int = 0, number: int | None = None) -> bytes:
    """Return a record that ends as sample_id_all has it: TID, TIME, and IDENTIFIER if there is a number."""
    end = struct.pack(arch.byte_order + "IIQ", PID, PID, time)
    return record(
        arch, kind, body + end + (b"" if number is None else struct.pack(arch.byte_order + "Q", number)), misc
    )


def mapped(
    arch: Arch,
    time: int,
    path: str,
    *,
    start: int = BIAS + TEXT_VADDR,
    size: int = TEXT_SIZE,
    offset: int = 2 * PAGE,
    pid: int = PID,
    build_id: bytes = b"",
) -> bytes:
    """Return a MMAP2 record, by default of the code of `core_files.program`."""
    order = arch.byte_order
    where = bytes([len(build_id), 0, 0, 0]) + build_id.ljust(20, b"\0") if build_id else bytes(24)
    name = path.encode() + b"\0"
    body = struct.pack(order + "iIQQQ", pid, PID, start, size, offset) + where + struct.pack(order + "II", 5, 2)
    return of_time(arch, MMAP2, body + name.ljust(-(-len(name) // 8) * 8, b"\0"), time, misc=1 << 14 if build_id else 2)


def sample(
    arch: Arch,
    time: int,
    frame: Frame | None,
    stack: bytes = b"",
    *,
    pid: int = PID,
    tid: int = PID,
    abi: int = 2,
    number: int | None = None,
    before: bytes = b"",
    misc: int = 2,
) -> bytes:
    """Return a sample of `Event`; `number`: of one with IDENTIFIER. `before` are its fields before the registers."""
    order = arch.byte_order
    body = b"" if number is None else struct.pack(order + "Q", number)
    body += struct.pack(order + "QIIQQ", frame.pc if frame else 0, pid, tid, time, 1000) + before
    if frame is None:
        return record(arch, SAMPLE, body + bytes(8) + bytes(8), misc)
    body += struct.pack(order + "Q", abi) + registers(arch, frame)
    body += struct.pack(order + "Q", len(stack)) + stack
    return record(arch, SAMPLE, body + (struct.pack(order + "Q", len(stack)) if stack else b""), misc)


def registers(arch: Arch, frame: Frame) -> bytes:
    """Return the registers that perf asks for, by asm/perf_regs.h: those of the frame, the others 0x99."""
    words = [0x99] * REGISTERS[arch.name].bit_count()
    if arch is AMD64:
        words[6], words[7], words[8] = frame.fp or 0, frame.sp, frame.pc
    elif arch is S390X:
        words[11], words[14], words[15], words[33] = frame.fp or 0, frame.ra or 0, frame.sp, frame.pc
    else:
        words[29], words[30], words[31], words[32] = frame.fp or 0, frame.ra or 0, frame.sp, frame.pc
    return struct.pack(f"{arch.byte_order}{len(words)}Q", *words)


class Recorded(NamedTuple):
    """A stack as a sample has it."""

    stack: Stack
    frame: Frame
    data: bytes

    @property
    def pcs(self) -> list[int]:
        """The PCs that a trace has to find."""
        return [moved(frame).pc for frame in self.stack.frames]


def recorded(arch: Arch) -> Recorded:
    """Return the stack of an ordinary core's threads (`core_files.plain_core`)."""
    stack = make_stack(arch, 3, MODELS)
    return Recorded(stack, moved(stack.frames[0]), stack_load(stack).data)


def plain_recording(arch: Arch, path: str, times: Sequence[int] = (30, 40)) -> Recording:
    """Return a recording of a made-up program, with nothing wrong: its name, its code, and samples."""
    made = recorded(arch)
    order = arch.byte_order
    named = of_time(arch, COMM, struct.pack(order + "II", PID, PID) + b"program\0", 10, misc=1 << 13)
    samples = [sample(arch, time, made.frame, made.data) for time in times]
    return Recording(arch, (named, mapped(arch, 20, path), *samples), build_ids={path: BUILD_ID})
