# SPDX-License-Identifier: Apache-2.0
"""The traces of a core or a process, as text and as JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi2sframe.demangle import readable_names
from cfi2sframe.printable import counted, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.trace.frames import Frame, Row, Trace
    from cfi2sframe.trace.space import AddressSpace


class Traced(NamedTuple):
    """The traces of a core or a process, in its order of threads, and the address space that they are in.

    As text it is what `cfi2sframe trace` prints.
    """

    space: AddressSpace
    threads: tuple[Trace, ...]

    def __repr__(self) -> str:
        return f"<Traced: {counted(len(self.threads), 'thread')}>"

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        for number, (thread, frames) in enumerate(self._frames_of_threads()):
            if number:
                yield ""
            yield f"thread {thread.thread_id}"
            for frame in frames:
                line = f"#{frame['index']:<3} 0x{frame['pc']:016x}"
                if frame["function"] is not None:
                    line += f" {printable(frame['function'])}+0x{frame['offset']:x}"
                if frame["module"] is not None:
                    line += f" in {printable(frame['module'])}"
                yield f"{line} ({_row_text(frame['row'])})"
            yield f"end: {thread.ending.kind}: {printable(thread.ending.detail)}"
        for module in self.space.modules:
            if module.note and not isinstance(module.file, str):
                yield f"note: {printable(module.name)}: {printable(module.note)}"

    def json(self, **origin: str | int) -> str:
        """Return a JSON text with a line for each frame. `origin` names what was traced.

        Python's encoder is ten times slower when it indents, and the text of all frames is several times their size.
        """
        encode = json.JSONEncoder().encode
        threads: list[str] = []
        for thread, frames in self._frames_of_threads():
            head = {"id": thread.thread_id, "ending": thread.ending.kind, "ending_detail": thread.ending.detail}
            lines = ",".join(f"\n    {encode(frame)}" for frame in frames)
            threads.append(f'\n  {encode(head)[:-1]}, "frames": [{lines}]}}')
        notes = [
            {"module": module.name, "text": text}
            for module in self.space.modules
            if (text := module.file if isinstance(module.file, str) else module.note)
        ]
        whole = {"schema": 1, **origin, "machine": self.space.arch.name, "notes": notes}
        return f'{encode(whole)[:-1]}, "threads": [{",".join(threads)}\n]}}\n'

    def _frames_of_threads(self) -> Iterator[tuple[Trace, Iterator[dict[str, Any]]]]:
        """Yield each thread's trace, and its frames as plain data."""
        symbol_at, module_at = self.space.symbol_at, self.space.module_at
        symbols = (symbol_at(entry.frame.lookup_pc) for thread in self.threads for entry in thread.entries)
        names = readable_names(symbol.name for symbol in symbols if symbol is not None)

        def data(index: int, frame: Frame, row: Row | None, cfa: int | None) -> dict[str, Any]:
            symbol, module = symbol_at(frame.lookup_pc), module_at(frame.lookup_pc)
            return {
                "index": index,
                "pc": frame.pc,
                "sp": frame.sp,
                "fp": frame.fp,
                "cfa": cfa,
                "module": module and module.name,
                "function": symbol and names.get(symbol.name, symbol.name),
                "symbol": symbol and symbol.name,
                "offset": symbol and symbol.offset + frame.is_return_address,
                "row": row and _row(row),
            }

        return ((thread, (data(n, *entry) for n, entry in enumerate(thread.entries))) for thread in self.threads)


def _row(row: Row) -> dict[str, Any]:
    if row.found is None:
        return {"source": row.source, "version": None, "kind": None, "type": None, "signal": True}
    body = row.found.function.body
    return {
        "source": row.source,
        "version": row.found.version,
        "kind": "flexible" if body.is_flexible else "default",
        "type": "pcmask" if body.is_pcmask else "pcinc",
        "signal": body.is_signal_frame,
    }


def _row_text(row: dict[str, Any] | None) -> str:
    if row is None:
        return "no row"
    if row["source"] == "trampoline":
        return "signal trampoline"
    words = [f"v{row['version']}", row["kind"], *["pcmask"] * (row["type"] == "pcmask"), *["signal"] * row["signal"]]
    return f"{' '.join(words)}, {row['source']}"
