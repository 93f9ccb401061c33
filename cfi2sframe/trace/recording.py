# SPDX-License-Identifier: Apache-2.0
"""The samples of a recording of perf, each with the trace of its stack in the address space of that moment."""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants.perf import HEADER_OSRELEASE
from cfi2sframe.elf.contents import FileData
from cfi2sframe.errors import InputError
from cfi2sframe.trace.frames import Trace
from cfi2sframe.trace.perf_events import Events, Exited, Forked, Lost, Mapped, Named, Sample
from cfi2sframe.trace.perf_file import PerfFile
from cfi2sframe.trace.snapshot import FileMapping, Memory, Snapshot
from cfi2sframe.trace.space import VDSO, AddressSpace, Module
from cfi2sframe.trace.store import FileStore

_SECOND: Final = 1_000_000_000


class Wanted(NamedTuple):
    """Which samples are walked: those of a process, of a thread, by number from 1 on, or by time.

    Numbers and seconds on the recording's clock are ranges with both ends; None is no limit.
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
            and all((low is None or low <= it) and (high is None or it <= high) for it, (low, high) in ranges)
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
        #: How many records the kernel had no room for; known at the end.
        self.lost_count = 0
        self._store = store or FileStore()
        self._sysroot = sysroot
        self._wanted = wanted or Wanted()
        self._events = Events(self.file)
        self._mappings: dict[int, tuple[FileMapping, ...]] = {}
        self._commands: dict[int, str] = {}
        self._spaces: dict[int, AddressSpace] = {}
        self._modules: dict[str, Module] = {}

    @property
    def arch(self) -> Arch | None:
        """The ABI; None before the first sample with registers."""
        return self._events.arch

    @property
    def has_build_ids(self) -> bool:
        """Whether files can be told from those that ran, by build-ids that were recorded."""
        return self._events.has_build_ids

    @property
    def modules(self) -> list[Module]:
        """The modules in which frames were found so far, by name; of several builds with one name, the last."""
        for space in self._spaces.values():
            self._keep(space)
        return sorted(self._modules.values(), key=lambda module: module.name)

    def __iter__(self) -> Iterator[WalkedSample]:
        """Yield the samples that are wanted, in the order of time."""
        number = 0
        for event in self._events:
            if isinstance(event, Sample):
                number += 1
                if self._wanted.has(number, event):
                    yield self._walked(number, event)
            elif isinstance(event, Mapped):
                self._map(event)
            elif isinstance(event, Named):
                self._commands[event.tid] = event.name
                if event.is_exec:
                    self._change(event.pid, ())
            elif isinstance(event, Forked):
                self._commands[event.tid] = self._commands.get(event.parent_tid, "")
                if event.pid != event.parent_pid:
                    self._change(event.pid, self._mappings.get(event.parent_pid, ()))
            elif isinstance(event, Exited):
                if event.pid == event.tid:
                    self._change(event.pid, self._mappings.get(event.pid, ()))
            elif isinstance(event, Lost):
                self.lost_count += event.record_count
        if not number:
            raise InputError("the recording has no samples")

    def _walked(self, number: int, sample: Sample) -> WalkedSample:
        command = self._commands.get(sample.tid) or self._commands.get(sample.pid) or f":{sample.tid}"
        if sample.frame is None or self.arch is None:
            return WalkedSample(number, sample, command, None, None)
        space = self._spaces.get(sample.pid)
        if space is None:
            space = self._spaces[sample.pid] = self._space(sample.pid, self.arch)
        return WalkedSample(number, sample, command, space, space.walk(sample.frame, sample.read))

    def _space(self, pid: int, arch: Arch) -> AddressSpace:
        # Memory without a file has names, too: //anon, [heap].
        named = (m for m in self._mappings.get(pid, ()) if m.path.startswith("/") or m.path == VDSO)
        files = [m for m in named if not m.path.startswith("//")]
        vdso = [(m.start, data) for m in files if m.path == VDSO for data in [self._own_vdso(m)] if data]
        open_file = partial(self._store.open, root=self._sysroot)
        return AddressSpace(Snapshot(arch, files, Memory(vdso).read), self._store, open_file, self._sysroot)

    def _own_vdso(self, mapping: FileMapping) -> bytes:
        """Return this machine's vDSO, if the recording's kernel is the same, by its build-id or its name."""
        if not mapping.build_id and self.file.text_of(HEADER_OSRELEASE) != os.uname().release:
            return b""
        with suppress(OSError, StopIteration), open("/proc/self/maps", "rb") as maps:
            line = next(line for line in maps if line.endswith(VDSO.encode() + b"\n"))
            start, end = (int(word, 16) for word in line.split()[0].split(b"-"))
            with open("/proc/self/mem", "rb", buffering=0) as memory:
                memory.seek(start)
                return memory.read(end - start)
        return b""

    def _map(self, event: Mapped) -> None:
        """Add a mapping: of those that it hides in part, the other parts stay."""
        new = event.mapping if event.is_executable else event.mapping._replace(path="")
        kept: list[FileMapping] = []
        for old in self._mappings.get(event.pid, ()):
            if old.end <= new.start or new.end <= old.start:
                kept.append(old)
                continue
            if old.start < new.start:
                kept.append(old._replace(end=new.start))
            if new.end < old.end:
                kept.append(old._replace(start=new.end, file_offset=old.file_offset + new.end - old.start))
        if new.path:
            kept.append(new)
        self._change(event.pid, tuple(kept))

    def _change(self, pid: int, mappings: tuple[FileMapping, ...]) -> None:
        self._mappings[pid] = mappings
        space = self._spaces.pop(pid, None)
        if space is not None:
            self._keep(space)

    def _keep(self, space: AddressSpace) -> None:
        self._modules |= {module.name: module for module in space.used.values()}
