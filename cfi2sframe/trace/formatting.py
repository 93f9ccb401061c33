# SPDX-License-Identifier: Apache-2.0
"""Format traces as text, or as plain data for JSON."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi2sframe.demangle import readable_names
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cfi2sframe.trace.frame import Row, TraceEntry
    from cfi2sframe.trace.run import ThreadTrace, Traced
    from cfi2sframe.trace.space import AddressSpace, Module


class _Shown(NamedTuple):
    """A frame, its function's demangled name and its linkage name, both None where unknown."""

    entry: TraceEntry
    function: str | None
    symbol: str | None
    offset: int | None


# The frames of a trace share few names, but these may be long.
_printable = lru_cache(maxsize=1024)(printable)


def _readable_names(traced: Traced) -> dict[str, str]:
    """Return the readable forms of the mangled names in some traces."""
    frames = (entry.frame for thread in traced.threads for entry in thread.trace.entries)
    found = (traced.space.symbol_at(frame.lookup_pc) for frame in frames)
    return readable_names(symbol.name for symbol in found if symbol is not None)


def _shown(thread: ThreadTrace, space: AddressSpace, names: Mapping[str, str]) -> Iterator[_Shown]:
    """Yield a thread's frames with their names."""
    for entry in thread.trace.entries:
        found = space.symbol_at(entry.frame.lookup_pc)
        if found is None:
            yield _Shown(entry, None, None, None)
        else:
            offset = found.offset + entry.frame.is_return_address
            yield _Shown(entry, names.get(found.name, found.name), found.name, offset)


def trace_lines(traced: Traced) -> Iterator[str]:
    """Yield the lines of all traces: a head per thread, a line per frame, and how the trace ended."""
    space = traced.space
    names = _readable_names(traced)
    for number, thread in enumerate(traced.threads):
        if number:
            yield ""
        yield f"thread {thread.id}"
        for index, frame in enumerate(_shown(thread, space, names)):
            yield _frame_line(index, frame)
        yield f"end: {thread.trace.ending.kind}: {_printable(thread.trace.ending.detail)}"
    for module in space.modules:
        for text in _notes(module):
            yield f"note: {printable(module.name)}: {printable(text)}"


def _notes(module: Module) -> list[str]:
    """Return the notes on a module that is used."""
    if isinstance(module.file, str):
        return []
    return [text for text in (module.note, module.file.trouble) if text]


def _frame_line(index: int, shown: _Shown) -> str:
    entry = shown.entry
    line = f"#{index:<3} 0x{entry.frame.pc:016x}"
    if shown.function is not None:
        line += f" {_printable(shown.function)}+0x{shown.offset:x}"
    if entry.located.module is not None:
        line += f" in {_printable(entry.located.module)}"
    return f"{line} ({_row_text(entry.located.row)})"


def _row_text(row: Row | None) -> str:
    if row is None:
        return "no row"
    if row.source == "trampoline":
        return "signal trampoline"
    words = [f"v{row.version}", "flexible" if row.is_flexible else "default"]
    if row.is_pcmask:
        words.append("pcmask")
    if row.is_signal_frame:
        words.append("signal")
    return f"{' '.join(words)}, {row.source}"


def trace_data(traced: Traced, *, file: str | None = None, pid: int | None = None) -> dict[str, Any]:
    """Return all traces as JSON-ready data, of a core `file` or of the process `pid`."""
    origin: dict[str, Any] = {"pid": pid} if file is None else {"file": file}
    names = _readable_names(traced)
    threads = [_thread_data(thread, traced.space, names) for thread in traced.threads]
    return {
        "schema": 1,
        **origin,
        "machine": traced.space.arch.name,
        "threads": threads,
        "notes": [
            {"module": module.name, "text": text}
            for module in traced.space.modules
            for text in ([module.file] if isinstance(module.file, str) else _notes(module))
        ],
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


def _thread_data(thread: ThreadTrace, space: AddressSpace, names: Mapping[str, str]) -> dict[str, Any]:
    ending = thread.trace.ending
    return {
        "id": thread.id,
        "frames": [_frame_data(index, frame) for index, frame in enumerate(_shown(thread, space, names))],
        "ending": ending.kind,
        "ending_detail": ending.detail,
    }


def _frame_data(index: int, shown: _Shown) -> dict[str, Any]:
    entry = shown.entry
    return {
        "index": index,
        "pc": entry.frame.pc,
        "sp": entry.frame.sp,
        "fp": entry.frame.fp,
        "cfa": entry.cfa,
        "module": entry.located.module,
        "function": shown.function,
        "symbol": shown.symbol,
        "offset": shown.offset,
        "row": _row_data(entry.located.row),
    }


def _row_data(row: Row | None) -> dict[str, Any] | None:
    if row is None:
        return None
    is_default = row.source != "trampoline"
    return {
        "source": row.source,
        "version": row.version,
        "kind": ("flexible" if row.is_flexible else "default") if is_default else None,
        "type": ("pcmask" if row.is_pcmask else "pcinc") if is_default else None,
        "signal": row.is_signal_frame,
    }
