# SPDX-License-Identifier: Apache-2.0
"""Format traces as text, or as plain data for JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi2sframe.demangle import readable_names
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cfi2sframe.trace.frames import Row, TraceEntry
    from cfi2sframe.trace.run import ThreadTrace, Traced
    from cfi2sframe.trace.space import AddressSpace


class _Function(NamedTuple):
    """A frame's function: its demangled name, its linkage name, and how far the PC is from its start."""

    name: str | None = None
    symbol: str | None = None
    offset: int | None = None


# The frames of a trace share few names, but these may be long.
_printable = lru_cache(maxsize=1024)(printable)


def _readable_names(traced: Traced) -> dict[str, str]:
    """Return the readable forms of the mangled names in some traces."""
    frames = (entry.frame for thread in traced.threads for entry in thread.trace.entries)
    found = (traced.space.symbol_at(frame.lookup_pc) for frame in frames)
    return readable_names(symbol.name for symbol in found if symbol is not None)


def _functions(
    thread: ThreadTrace, space: AddressSpace, names: Mapping[str, str]
) -> Iterator[tuple[TraceEntry, _Function]]:
    for entry in thread.trace.entries:
        found = space.symbol_at(entry.frame.lookup_pc)
        if found is None:
            yield entry, _Function()
        else:
            offset = found.offset + entry.frame.is_return_address
            yield entry, _Function(names.get(found.name, found.name), found.name, offset)


def trace_lines(traced: Traced) -> Iterator[str]:
    """Yield the lines of all traces: a head per thread, a line per frame, and how the trace ended."""
    names = _readable_names(traced)
    for number, thread in enumerate(traced.threads):
        if number:
            yield ""
        yield f"thread {thread.id}"
        for index, (entry, function) in enumerate(_functions(thread, traced.space, names)):
            line = f"#{index:<3} 0x{entry.frame.pc:016x}"
            if function.name is not None:
                line += f" {_printable(function.name)}+0x{function.offset:x}"
            if entry.module is not None:
                line += f" in {_printable(entry.module)}"
            yield f"{line} ({_row_text(entry.row)})"
        yield f"end: {thread.trace.ending.kind}: {_printable(thread.trace.ending.detail)}"
    for module in traced.space.modules:
        for text in module.notes:
            yield f"note: {printable(module.name)}: {printable(text)}"


def _row_text(row: Row | None) -> str:
    if row is None:
        return "no row"
    if row.found is None:
        return "signal trampoline"
    body = row.found.function.body
    words = [f"v{row.found.version}", "flexible" if body.is_flexible else "default"]
    words += ["pcmask"] * body.is_pcmask + ["signal"] * body.is_signal_frame
    return f"{' '.join(words)}, {row.source}"


def trace_data(traced: Traced, *, file: str | None = None, pid: int | None = None) -> dict[str, Any]:
    """Return all traces as JSON-ready data, of a core `file` or of the process `pid`."""
    names = _readable_names(traced)
    threads = [
        {
            "id": thread.id,
            "frames": [
                _frame_data(index, entry, function)
                for index, (entry, function) in enumerate(_functions(thread, traced.space, names))
            ],
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


def _frame_data(index: int, entry: TraceEntry, function: _Function) -> dict[str, Any]:
    return {
        "index": index,
        "pc": entry.frame.pc,
        "sp": entry.frame.sp,
        "fp": entry.frame.fp,
        "cfa": entry.cfa,
        "module": entry.module,
        "function": function.name,
        "symbol": function.symbol,
        "offset": function.offset,
        "row": None if entry.row is None else _row_data(entry.row),
    }


def _row_data(row: Row) -> dict[str, Any]:
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
    import json

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
