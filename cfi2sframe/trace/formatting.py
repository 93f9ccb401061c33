# SPDX-License-Identifier: Apache-2.0
"""Format traces as plain data for JSON, and these as text."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from cfi2sframe.demangle import readable_names
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cfi2sframe.trace.frames import Row, TraceEntry
    from cfi2sframe.trace.run import ThreadTrace, Traced
    from cfi2sframe.trace.space import AddressSpace

# The frames of a trace share few names, but these may be long.
_printable = lru_cache(maxsize=1024)(printable)


def _readable_names(traced: Traced) -> dict[str, str]:
    """Return the readable forms of the mangled names in some traces."""
    frames = (entry.frame for thread in traced.threads for entry in thread.trace.entries)
    found = (traced.space.symbol_at(frame.lookup_pc) for frame in frames)
    return readable_names(symbol.name for symbol in found if symbol is not None)


def trace_lines(traced: Traced) -> Iterator[str]:
    """Yield the lines of all traces: a head per thread, a line per frame, and how the trace ended."""
    names = _readable_names(traced)
    for number, thread in enumerate(traced.threads):
        if number:
            yield ""
        yield f"thread {thread.id}"
        for frame in _frames(thread, traced.space, names):
            line = f"#{frame['index']:<3} 0x{frame['pc']:016x}"
            if frame["function"] is not None:
                line += f" {_printable(frame['function'])}+0x{frame['offset']:x}"
            if frame["module"] is not None:
                line += f" in {_printable(frame['module'])}"
            yield f"{line} ({_row_text(frame['row'])})"
        yield f"end: {thread.trace.ending.kind}: {_printable(thread.trace.ending.detail)}"
    for module in traced.space.modules:
        for text in module.notes:
            yield f"note: {printable(module.name)}: {printable(text)}"


def _row_text(row: dict[str, Any] | None) -> str:
    if row is None:
        return "no row"
    if row["source"] == "trampoline":
        return "signal trampoline"
    words = [f"v{row['version']}", row["kind"], *["pcmask"] * (row["type"] == "pcmask"), *["signal"] * row["signal"]]
    return f"{' '.join(words)}, {row['source']}"


def trace_data(traced: Traced, *, file: str | None = None, pid: int | None = None) -> dict[str, Any]:
    """Return all traces as JSON-ready data, of a core `file` or of the process `pid`."""
    names = _readable_names(traced)
    threads = [
        {
            "id": thread.id,
            "frames": list(_frames(thread, traced.space, names)),
            "ending": thread.trace.ending.kind,
            "ending_detail": thread.trace.ending.detail,
        }
        for thread in traced.threads
    ]
    notes = [
        {"module": module.name, "text": text}
        for module in traced.space.modules
        for text in ([module.file] if isinstance(module.file, str) else module.notes)
    ]
    origin: dict[str, Any] = {"pid": pid} if file is None else {"file": file}
    return {"schema": 1, **origin, "machine": traced.space.arch.name, "threads": threads, "notes": notes}


def _frames(thread: ThreadTrace, space: AddressSpace, names: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    return (_frame(index, entry, space, names) for index, entry in enumerate(thread.trace.entries))


def _frame(index: int, entry: TraceEntry, space: AddressSpace, names: Mapping[str, str]) -> dict[str, Any]:
    frame = entry.frame
    found = space.symbol_at(frame.lookup_pc)
    return {
        "index": index,
        "pc": frame.pc,
        "sp": frame.sp,
        "fp": frame.fp,
        "cfa": entry.cfa,
        "module": entry.module,
        "function": found and names.get(found.name, found.name),
        "symbol": found and found.name,
        "offset": found and found.offset + frame.is_return_address,
        "row": entry.row and _row(entry.row),
    }


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


def json_lines(data: dict[str, Any]) -> Iterator[str]:
    """Yield what `trace_data` returns as the lines of a JSON text: one for each frame.

    Python's encoder is ten times slower when it indents, and the text of all frames is several times their size.
    """
    encode = json.JSONEncoder().encode
    rest = {key: value for key, value in data.items() if key != "threads"}
    yield encode(rest).removesuffix("}") + ', "threads": ['
    for number, thread in enumerate(data["threads"]):
        head = {key: value for key, value in thread.items() if key != "frames"}
        yield ("," if number else "") + "\n  " + encode(head).removesuffix("}") + ', "frames": ['
        for index, frame in enumerate(thread["frames"]):
            yield ("," if index else "") + "\n    " + encode(frame)
        yield "]}"
    yield "\n]}\n"
