# SPDX-License-Identifier: Apache-2.0
"""The traces of a core file or a process, of all of its threads or one, as text and as JSON."""

import json
import signal
from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

from cfi2sframe.errors import ChangedError, CostError, reason_of
from cfi2sframe.process.demangle import readable_names
from cfi2sframe.text import counted, printable
from cfi2sframe.trace.frames import NULL_END, Ending, Frame, Trace, TraceEntry
from cfi2sframe.trace.snapshot import Death
from cfi2sframe.trace.space import AddressSpace
from cfi2sframe.trace.store import ModuleFile


class Traced(NamedTuple):
    """The traces of a core or a process, in its order of threads, and the address space that they are in.

    As text it is what `cfi2sframe trace` prints.
    """

    space: AddressSpace
    threads: tuple[Trace, ...]

    def __repr__(self) -> str:
        return f"<Traced: {counted(len(self.threads), 'thread')}>"

    def __str__(self) -> str:
        death = self.space.snapshot.death
        lines = ["", *_death_text(death)] if death is not None else []
        for thread, frames in self._threads():
            lines += ["", f"thread {thread.thread_id}", *map(_frame_text, frames)]
            lines.append(f"end: {thread.ending.kind}: {printable(thread.ending.detail)}")
        return "\n".join(lines[1:])

    def json(self, **origin: str | int) -> str:
        """Return a JSON text. `origin` comes first: what was traced."""
        snapshot = self.space.snapshot
        data = {
            **origin,
            "machine": snapshot.arch.name,
            "death": snapshot.death and snapshot.death._asdict(),
            "warning": snapshot.warning,
            "threads": [
                {
                    "id": thread.thread_id,
                    "ending": thread.ending.kind,
                    "ending_detail": thread.ending.detail,
                    "frames": list(frames),
                }
                for thread, frames in self._threads()
            ],
        }
        return json.dumps(data) + "\n"

    def _threads(self) -> Iterator[tuple[Trace, Iterator[dict[str, Any]]]]:
        """Yield each thread's trace, and its frames as plain data."""
        symbols = (self.space.symbol_at(entry.named_pc) for thread in self.threads for entry in thread.entries)
        names = readable_names(symbol[0] for symbol in symbols if symbol)
        for thread in self.threads:
            yield thread, (self._frame(index, entry, names) for index, entry in enumerate(thread.entries))

    def _frame(self, index: int, entry: TraceEntry, names: dict[str, str]) -> dict[str, Any]:
        frame = entry.frame
        module = self.space.module_at(frame.lookup_pc)
        file = module.file if module else None
        name, distance = self.space.symbol_at(entry.named_pc) or (None, None)
        return {
            "index": index,
            "pc": frame.pc,
            "sp": frame.sp,
            "fp": frame.fp,
            "cfa": entry.cfa,
            "module": module and module.name,
            "build_id": (file and file.build_id.hex()) or None,
            "vaddr": module.vaddr_of(frame.pc) if module and file else None,
            "function": name and names.get(name, name),
            "symbol": name,
            "offset": None if distance is None else distance + frame.pc - entry.named_pc,
            "row": _row(entry, file),
        }


def _row(entry: TraceEntry, file: ModuleFile | None) -> dict[str, Any] | None:
    """Return as plain data the row that gave a frame's caller, or what stood in for a row."""
    row: dict[str, Any] = {"source": None, "version": None, "kind": None, "type": None, "signal": entry.is_signal}
    if entry.is_trampoline:
        return row | {"source": "trampoline"}
    if entry.is_null_call:
        return row | {"source": "null call" if entry.frame.pc < NULL_END else "wild call"}
    if entry.found is None:
        return None
    body = entry.found.function.body
    return row | {
        "source": "CFI alone" if entry.is_beyond_rows else file and file.source,
        "version": entry.found.version,
        "kind": "flexible" if body.is_flexible else "default",
        "type": "pcmask" if body.is_pcmask else "pcinc",
    }


#: The texts for callers that were found without a row, by their sources.
_INSTEAD: Final = {
    "trampoline": "signal trampoline",
    "null call": "call through a null pointer",
    "wild call": "call through a wild pointer",
}


def _frame_text(frame: dict[str, Any]) -> str:
    row, text = frame["row"], f"#{frame['index']:<3} 0x{frame['pc']:016x}"
    if frame["function"] is not None:
        text += f" {printable(frame['function'])}+0x{frame['offset']:x}"
    text += " <signal handler called>" if row and row["signal"] else ""
    if frame["module"] is not None:
        text += f" in {printable(frame['module'])}"
        text += "" if frame["vaddr"] is None else f"+0x{frame['vaddr']:x}"
    if row is None or row["version"] is None:
        text += f" ({_INSTEAD[row['source']] if row else 'no row'})"
    else:
        words = [
            f"v{row['version']}",
            row["kind"],
            *["pcmask"] * (row["type"] == "pcmask"),
            *["signal"] * row["signal"],
        ]
        text += f" ({' '.join(words)}, {row['source']})"
    return f"{text} [{frame['build_id']}]" if frame["build_id"] else text


def _death_text(death: Death) -> Iterator[str]:
    if death.command:
        yield f"command: {printable(death.command)}"
    if death.signal:
        name = signal.Signals(death.signal).name if death.signal in set(signal.Signals) else str(death.signal)
        code = "" if death.code is None else f", code {death.code}"
        address = "" if death.address is None else f", address 0x{death.address:x}"
        yield f"signal: {name}{code}{address}, thread {death.thread_id}"


def trace_threads(space: AddressSpace, threads: Iterable[tuple[int, Frame]]) -> Traced:
    """Trace threads, given by id and topmost frame. An unforeseen error costs one thread."""
    traces: list[Trace] = []
    for thread_id, frame in threads:
        try:
            trace = space.walk(frame)
        except (ChangedError, CostError):
            # Files are looked at apart, so it is the core that has changed, or all that costs too much.
            raise
        except Exception as error:  # noqa: BLE001 - the last handler of a thread
            trace = Trace((TraceEntry(frame),), Ending("internal-error", reason_of(error)))
        traces.append(trace._replace(thread_id=thread_id))
    return Traced(space, tuple(traces))
