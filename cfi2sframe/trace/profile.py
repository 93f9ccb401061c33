# SPDX-License-Identifier: Apache-2.0
"""The account of a recording: the share of whole stacks, their depth, and the places where the others end.

The same stacks are followed by frame pointers alone, as the kernel does for `perf record --call-graph fp`.
"""

import json
import os
import struct
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cfi2sframe.abi import S390X, Arch
from cfi2sframe.process.demangle import readable_names
from cfi2sframe.range_map import ADDRESS_MASK
from cfi2sframe.sframe.model import Found
from cfi2sframe.text import counted, printable, shown_name
from cfi2sframe.trace.beyond import BEYOND
from cfi2sframe.trace.frames import MAX_FRAMES, Frame, ReadMemory, TraceEntry
from cfi2sframe.trace.recording import Recording, WalkedSample
from cfi2sframe.trace.space import AddressSpace

#: The most places where walks end, and the most modules, in the text.
_MAX_LINES: Final = 30


class Place(NamedTuple):
    """A frame as other tools know it: file, build-id, the file's own address, function and offset in it.

    The address is inside the call of callers. Unknown fields are empty, or 0.
    """

    module: str
    build_id: str
    vaddr: int
    symbol: str
    offset: int


class End(NamedTuple):
    """A place where walks end before the outermost frame; `detail` only where it has no address of one process."""

    kind: str
    module: str
    symbol: str
    detail: str


class Totals(NamedTuple):
    """Stacks that reach the outermost frame, and the frames of all."""

    outermost_count: int = 0
    frame_count: int = 0

    def plus(self, outermost_count: int, frame_count: int) -> "Totals":
        """Return the totals with another stack."""
        return Totals(self.outermost_count + outermost_count, self.frame_count + frame_count)


class Profile:
    """The account of the samples that are added; `keeps_stacks`: also how often each stack occurs."""

    def __init__(self, recording: Recording, *, keeps_stacks: bool = False) -> None:
        self.recording = recording
        self.keeps_stacks = keeps_stacks
        self.sample_count = self.without_stack_count = self.other_class_count = 0
        self.by_rows = self.by_fp = self.by_cfi = Totals()
        self.ends: Counter[End] = Counter()
        self.stacks: Counter[tuple[str, bool, str, tuple[Place, ...]]] = Counter()
        self._pids: set[int] = set()
        self._times: tuple[int, int] | None = None

    def add(self, walked: WalkedSample) -> None:
        """Count a sample."""
        sample, trace = walked.sample, walked.trace
        self.sample_count += 1
        self._pids.add(sample.pid)
        first, last = self._times or (sample.time, sample.time)
        self._times = min(first, sample.time), max(last, sample.time)
        if trace is None or sample.frame is None or walked.space is None:
            self.without_stack_count += sample.is_64_bit
            self.other_class_count += not sample.is_64_bit
            return
        is_whole = trace.ending.kind == "outermost"
        self.by_cfi = self.by_cfi.plus(is_whole, len(trace.entries))
        # A reader of sections ends at the first row that none can hold.
        cut = next((number for number, entry in enumerate(trace.entries, 1) if entry.is_beyond_rows), None)
        by_rows = trace.entries[:cut]
        is_whole &= cut is None
        self.by_rows = self.by_rows.plus(is_whole, len(by_rows))
        arch = walked.space.snapshot.arch
        if arch is not S390X:
            self.by_fp = self.by_fp.plus(*_by_frame_pointers(sample.frame, sample.read, walked.space, arch))
        if not is_whole:
            place, (kind, detail) = place_of(by_rows[-1], walked.space), trace.ending
            if cut is not None:
                kind, detail = "no-row", BEYOND
            elif kind == "unreadable-memory" and sample.is_stack_cut:
                # The copy ends there, whatever the function is.
                place, detail = place._replace(symbol=""), f"past the {len(sample.stack):,} bytes that were copied"
            elif kind == "unusable-module":
                detail = detail.removeprefix(f"{place.module}: ")
            elif kind != "unknown-register":
                detail = ""
            self.ends[End(kind, place.module, place.symbol, detail)] += 1
        if self.keeps_stacks:
            places = tuple(place_of(entry, walked.space) for entry in trace.entries)
            self.stacks[walked.command, bool(sample.kernel_pcs), trace.ending.kind, places] += 1

    def __str__(self) -> str:
        first, last = self._times or (0, 0)
        samples, processes = counted(self.sample_count, "sample"), len(self._pids)
        notes = (
            (self.without_stack_count, "{:,} without a user stack (of kernel threads, or of events that record none)"),
            (self.other_class_count, "{:,} of 32-bit programs, which are not walked"),
            (self.recording.lost_count, "records lost for lack of room: {:,}"),
            (not self.recording.has_build_ids, "no build-ids were recorded: files are taken for those that ran"),
            (self.recording.file.is_truncated, "the recording is truncated"),
        )
        lines = [
            f"{samples} in {(last - first) / 1e9:.3f} s, {processes:,} process{'es' * (processes != 1)}",
            *(text.format(number) for number, text in notes if number),
            "",
            "                   reach the outermost frame  frames, mean",
        ]
        by = [("by frame pointers", self.by_fp), ("by SFrame rows", self.by_rows)]
        by += [("and by other CFI", self.by_cfi)] * (self.by_cfi != self.by_rows)
        for name, totals in by:
            mean = f"{totals.frame_count / self.walked_count:.1f}" if totals.frame_count else "-"
            lines.append(f"{name:<18} {self._share(totals.outermost_count):>25}  {mean:>12}")
        names = readable_names(end.symbol for end in self.ends)
        lines += ["", "the others end at"] * bool(self.ends)
        for end, number in _ordered(self.ends)[:_MAX_LINES]:
            function = shown_name(names.get(end.symbol, end.symbol))
            words = (end.kind, os.path.basename(end.module) or "?", function, end.detail)
            lines.append(f"{self._share(number):>8} {number:>8,}  {printable('  '.join(filter(None, words)))}")
        lines += [f"and {counted(len(self.ends) - _MAX_LINES, 'more place')}"] * (len(self.ends) > _MAX_LINES)
        modules = self.recording.modules
        lines += ["", "rows of"]
        lines += [f"{module.source:<10} {printable(module.name)}" for module in modules[:_MAX_LINES]]
        lines += [f"and {counted(len(modules) - _MAX_LINES, 'more file')}"] * (len(modules) > _MAX_LINES)
        return "\n".join(lines)

    @property
    def walked_count(self) -> int:
        """The samples that have a stack."""
        return self.sample_count - self.without_stack_count - self.other_class_count

    def _share(self, number: int) -> str:
        return f"{100 * number / self.walked_count:.1f} %" if self.walked_count else "-"

    def json(self, **origin: str | int) -> str:
        """Return a JSON text. `origin` comes first: what was traced."""
        arch, first, last = self.recording.arch, *(self._times or (0, 0))
        symbols = {end.symbol for end in self.ends} | {p.symbol for _, _, _, stack in self.stacks for p in stack}
        names = readable_names(sorted(symbols))

        def named(symbol: str) -> dict[str, str | None]:
            return {"function": names.get(symbol, symbol) or None, "symbol": symbol or None}

        def frame(place: Place) -> dict[str, str | int | None]:
            offset = place.offset if place.symbol else None
            where = {"module": place.module or None, "build_id": place.build_id or None, "vaddr": place.vaddr}
            return where | named(place.symbol) | {"offset": offset}

        data = {
            **origin,
            "machine": arch and arch.name,
            "samples": self.sample_count,
            "processes": len(self._pids),
            "first_time": first,
            "last_time": last,
            "lost": self.recording.lost_count,
            "truncated": self.recording.file.is_truncated,
            "without_stack": self.without_stack_count,
            "other_class": self.other_class_count,
            "frame_pointers": self.by_fp._asdict() if self.by_fp.frame_count else None,
            "rows": self.by_rows._asdict(),
            "cfi": self.by_cfi._asdict(),
            "ends": [
                {"count": number, "ending": end.kind, "module": end.module or None}
                | named(end.symbol)
                | {"detail": end.detail}
                for end, number in _ordered(self.ends)
            ],
            "modules": [
                {"module": module.name, "source": module.source, "note": module.problem}
                for module in self.recording.modules
            ],
            "stacks": [
                {"count": number, "command": command, "kernel": in_kernel, "ending": ending}
                | {"frames": [frame(place) for place in places]}
                for (command, in_kernel, ending, places), number in _ordered(self.stacks)
            ],
        }
        return json.dumps(data) + "\n"

    def folded(self) -> Iterator[str]:
        """Yield the stacks as flame graphs are made of: thread and frames, the outermost first, and how often."""
        names = readable_names(p.symbol for _, _, _, places in self.stacks for p in places)
        folded: Counter[str] = Counter()
        for (command, in_kernel, _, places), number in self.stacks.items():
            words = [command, *(_word(place, names) for place in reversed(places)), *["[kernel]"] * in_kernel]
            folded[";".join(printable(word).replace(";", ":") for word in words)] += number
        yield from (f"{stack} {number}\n" for stack, number in sorted(folded.items()))


def place_of(entry: TraceEntry, space: AddressSpace) -> Place:
    """Return the place of a frame."""
    module = space.module_at(entry.named_pc)
    if module is None or module.file is None:
        start, name = (module.start, module.name) if module else (0, "")
        return Place(name, "", (entry.named_pc - start) & ADDRESS_MASK, "", 0)
    vaddr = module.vaddr_of(entry.named_pc)
    return Place(module.name, module.file.build_id.hex(), vaddr, *(module.file.symbol_at(vaddr) or ("", 0)))


def perf_text(walked: WalkedSample) -> str:
    """Return a sample as `perf script` prints it, with linkage names: what reads that, reads this."""
    sample = walked.sample
    event = sample.event or "samples"
    seconds = f"{sample.time // 1_000_000_000}.{sample.time // 1000 % 1_000_000:06}"
    head = f"{walked.command} {sample.tid:5} {seconds:>12}: {sample.period:10} {event}: "
    lines = [f"{pc:16x} [unknown] ([kernel])" for pc in sample.kernel_pcs]
    if walked.trace is not None and walked.space is not None:
        for place in (place_of(entry, walked.space) for entry in walked.trace.entries):
            symbol = f"{place.symbol}+0x{place.offset:x}" if place.symbol else "[unknown]"
            lines.append(f"{place.vaddr:16x} {symbol} ({place.module or '[unknown]'})")
    return "\n\t".join(map(printable, [head, *lines])) + "\n\n"


def _ordered(counts: Counter[Any]) -> list[tuple[Any, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _word(place: Place, names: dict[str, str]) -> str:
    return names.get(place.symbol, place.symbol) or f"[{os.path.basename(place.module) or 'unknown'}]"


def _by_frame_pointers(frame: Frame, read: ReadMemory, space: AddressSpace, arch: Arch) -> tuple[bool, int]:
    """Follow the records that frame pointers lead to: the caller's FP, and after it the return address.

    Return whether the last frame is the outermost one, and the number of frames.
    """
    fp, lookup_pc, number, least = frame.fp, frame.lookup_pc, 1, frame.sp
    form = struct.Struct(arch.byte_order + "QQ")
    while number < MAX_FRAMES and fp is not None and fp >= least and not fp % 8:
        data = read(fp, form.size)
        if data is None:
            break
        least, (fp, ra) = fp + form.size, form.unpack(data)
        if not ra:
            return True, number
        number, lookup_pc = number + 1, ra - 1
    row = space.find(lookup_pc)
    return isinstance(row, Found) and row.is_outermost, number
