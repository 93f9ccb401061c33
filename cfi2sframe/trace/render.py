# SPDX-License-Identifier: Apache-2.0
"""Traces as text for people, and as plain data for JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cfi2sframe.report.text import printable
from cfi2sframe.trace.symbols import demangled

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.trace.frame import Row, TraceEntry
    from cfi2sframe.trace.run import ThreadTrace, Traced
    from cfi2sframe.trace.space import AddressSpace


def trace_lines(traced: Traced) -> Iterator[str]:
    """Yield the lines of all traces: a head per thread, a line per frame, and how the trace ended."""
    for number, thread in enumerate(traced.threads):
        if number:
            yield ""
        yield f"thread {thread.id}"
        for index, entry in enumerate(thread.trace.entries):
            yield _entry_line(index, entry, traced.space)
        yield f"end: {thread.trace.ending.kind}: {printable(thread.trace.ending.detail)}"
    for module in traced.space.modules:
        if module.note and not isinstance(module.file, str):
            yield f"note: {printable(module.name)}: {printable(module.note)}"


def _entry_line(index: int, entry: TraceEntry, space: AddressSpace) -> str:
    line = f"#{index:<3} 0x{entry.frame.pc:016x}"
    symbol = _symbol(entry, space)
    if symbol is not None:
        line += f" {printable(demangled(symbol[0]))}+0x{symbol[1]:x}"
    if entry.located.module is not None:
        line += f" in {printable(entry.located.module)}"
    if entry.recovered:
        names = ", ".join(space.arch.register_name(number) for number in entry.recovered)
        return f"{line} ({_row_text(entry.located.row)}; {names} by CFI)"
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


def _symbol(entry: TraceEntry, space: AddressSpace) -> tuple[str, int] | None:
    """Return the function's linkage name and the PC's distance from its start."""
    found = space.symbol_at(entry.frame.lookup_pc)
    return None if found is None else (found.name, found.offset + entry.frame.is_return_address)


def trace_data(traced: Traced, *, file: str | None = None, pid: int | None = None) -> dict[str, Any]:
    """Return all traces as JSON-ready data, of a core `file` or of the process `pid`."""
    origin: dict[str, Any] = {"pid": pid} if file is None else {"file": file}
    return {
        "schema": 1,
        **origin,
        "machine": traced.space.arch.name,
        "threads": [_thread_data(thread, traced.space) for thread in traced.threads],
        "notes": [
            {"module": module.name, "text": module.note if not isinstance(module.file, str) else module.file}
            for module in traced.space.modules
            if module.note or isinstance(module.file, str)
        ],
    }


def _thread_data(thread: ThreadTrace, space: AddressSpace) -> dict[str, Any]:
    return {
        "id": thread.id,
        "frames": [_entry_data(index, entry, space) for index, entry in enumerate(thread.trace.entries)],
        "ending": thread.trace.ending.kind,
        "ending_detail": thread.trace.ending.detail,
    }


def _entry_data(index: int, entry: TraceEntry, space: AddressSpace) -> dict[str, Any]:
    symbol = _symbol(entry, space)
    return {
        "index": index,
        "pc": entry.frame.pc,
        "sp": entry.frame.sp,
        "fp": entry.frame.fp,
        "cfa": entry.cfa,
        "module": entry.located.module,
        "function": None if symbol is None else demangled(symbol[0]),
        "symbol": None if symbol is None else symbol[0],
        "offset": None if symbol is None else symbol[1],
        "row": _row_data(entry.located.row),
        "recovered": [space.arch.register_name(number) for number in entry.recovered],
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
