# SPDX-License-Identifier: Apache-2.0
"""A decoded section as text, in the form of the newest `readelf --sframe`, or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable  # noqa: TC003 - part of a NamedTuple's fields
from typing import TYPE_CHECKING, Any, NamedTuple

from cfi2sframe.rules import rule_text
from cfi2sframe.sframe import constants as s

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from cfi2sframe.arch import Arch
    from cfi2sframe.sframe.decode import DecodedFunction, DecodedRow, DecodedSection
    from cfi2sframe.sframe.model import FrameState, Rule

_FLAG_NAMES = (
    (s.SFRAME_F_FDE_SORTED, "SFRAME_F_FDE_SORTED"),
    (s.SFRAME_F_FRAME_POINTER, "SFRAME_F_FRAME_POINTER"),
    (s.SFRAME_F_FDE_FUNC_START_PCREL, "SFRAME_F_FDE_FUNC_START_PCREL"),
)


def _same_address(vaddr: int) -> int:
    return vaddr


def dump_text(
    decoded: DecodedSection, name: str = ".sframe", show_address: Callable[[int], int] = _same_address
) -> Iterator[str]:
    """Yield the lines of the dump; `name` is the section's.

    `show_address` maps a virtual address to the number shown (in objects: the offset in its section).
    """
    header = decoded.header
    yield f"Contents of the SFrame section {name}:"
    yield "  Header :"
    yield ""
    yield f"    Version: SFRAME_VERSION_{header.version}"
    flags = _flag_names(header.flags)
    yield f"    Flags: {flags[0]}{',' if flags[1:] else ''}"
    for position, flag in enumerate(flags[1:], 2):
        yield f"{'':11}{flag}{',' if position < len(flags) else ''}"
    if header.fixed_fp_offset:
        yield f"    CFA fixed FP offset: {header.fixed_fp_offset}"
    if header.fixed_ra_offset:
        yield f"    CFA fixed RA offset: {header.fixed_ra_offset}"
    yield f"    Num FDEs: {header.fde_count}"
    yield f"    Num FREs: {header.fre_count}"
    yield ""
    yield "  Function Index :"
    for function in decoded.functions:
        yield ""
        yield from _function_lines(function, decoded, show_address)
    yield ""


def _flag_names(flags: int) -> list[str]:
    names = [name for flag, name in _FLAG_NAMES if flags & flag]
    unknown = flags & ~sum(flag for flag, _ in _FLAG_NAMES)
    if unknown:
        names.append(f"0x{unknown:x}")
    return names or ["NONE"]


def _function_lines(
    function: DecodedFunction, decoded: DecodedSection, show_address: Callable[[int], int]
) -> Iterator[str]:
    start = show_address(function.start_vaddr)
    attributes = ("S" if function.is_signal_frame else "") + ("F" if function.is_flexible else "")
    line = f"    func idx [{function.index}]: pc = 0x{start:x}, size = {function.size} bytes"
    if attributes:
        line += f', attr = "{attributes}"'
    if function.uses_b_key:
        line += ", pauth = B key"
    yield line
    yield f"    {'STARTPC[m]' if function.is_pcmask else 'STARTPC':<16}{'CFA':<10}{'FP':<10}RA           "
    for row in function.rows:
        pc = row.row.start_delta + (0 if function.is_pcmask else start)
        if row.row.state.cfa is None:
            yield f"    {pc:016x}  RA undefined"
            continue
        cfa, fp, ra = row_texts(row, decoded)
        yield f"    {pc:016x}  {cfa:<9} {fp:<9} {ra:<13}"


def row_texts(row: DecodedRow, decoded: DecodedSection) -> tuple[str, str, str]:
    """Return CFA, FP and RA of a row as `readelf` prints them: `u` is unchanged, `f` is at the ABI's fixed offset."""
    state, arch = row.row.state, decoded.arch
    cfa = _rule_text(state.cfa, arch)
    fp = _saved_text(state.fp, decoded)
    if state.ra is None:
        ra = "u"
    elif decoded.header.fixed_ra_offset and state.ra == (None, decoded.header.fixed_ra_offset, True):
        ra = "f"
    else:
        ra = _saved_text(state.ra, decoded)
    return cfa, fp, ra + ("[s]" if state.mangled_ra else "")


def _saved_text(rule: Rule | None, decoded: DecodedSection) -> str:
    if rule is not None and rule.register is not None and decoded.header.version < s.SFRAME_VERSION_3:
        # s390x stores the register's number and nothing else.
        return f"r{rule.register}"
    return _rule_text(rule, decoded.arch)


def _rule_text(rule: Rule | None, arch: Arch) -> str:
    if rule is None:
        return "u"
    if rule.register is None:
        # readelf shows no load here: an offset from the CFA is always where the value is saved.
        return rule_text(None, rule.offset, deref=True)
    base = {arch.sp_register: "sp", arch.fp_register: "fp"}.get(rule.register, f"r{rule.register}")
    return rule_text(base, rule.offset, deref=rule.deref)


class ByteCounters(NamedTuple):
    """What counts bytes from one virtual address up to another: those of padding, and those that no CFI covers."""

    padding: Callable[[int, int], int]
    without_cfi: Callable[[int, int], int]


def dump_data(
    decoded: DecodedSection,
    show_address: Callable[[int], int] = _same_address,
    counts: ByteCounters | None = None,
) -> dict[str, Any]:
    """Return the section as data for JSON. A rule is `{"base", "offset", "load"}`, or null: unchanged or undefined.

    `counts` tells padding from code, and code with CFI from code without; None: that is not known.
    """
    return {
        **_header_data(decoded),
        "functions": [
            {**_function_data(f, show_address, counts), "rows": [_row_data(row, decoded.arch) for row in f.rows]}
            for f in decoded.functions
        ],
    }


def dump_json(
    decoded: DecodedSection,
    show_address: Callable[[int], int] = _same_address,
    counts: ByteCounters | None = None,
) -> Iterator[str]:
    """Yield the text of `json.dumps(dump_data(...), indent=2)` in pieces.

    Functions may share rows, and most rows differ in their starts only, so the rest of a row is formatted once.
    """
    known: dict[tuple[FrameState, int, tuple[int, ...]], str] = {}

    def row_text(row: DecodedRow) -> tuple[str]:
        key = (row.row.state, row.word_size, row.words)
        rest = known.get(key)
        if rest is None:
            rest = known[key] = _json(_row_data(row, decoded.arch), 8).partition(",")[2]
        return (f'        {{\n          "start": {row.row.start_delta},{rest}',)

    def function_text(function: DecodedFunction) -> Iterator[str]:
        fields = {**_function_data(function, show_address, counts), "rows": []}
        return _json_list("    " + _json(fields, 4), map(row_text, function.rows), 4)

    fields = {**_header_data(decoded), "functions": []}
    return _json_list(_json(fields, 0), map(function_text, decoded.functions), 0)


def _json(data: dict[str, Any], indent: int) -> str:
    """Return an object as JSON; its lines except the first are indented by as many spaces."""
    return json.dumps(data, indent=2).replace("\n", "\n" + " " * indent)


def _json_list(whole: str, items: Iterable[Iterable[str]], indent: int) -> Iterator[str]:
    """Yield the text of an object with items put into its last value, which is an empty list in `whole`.

    Each item is the pieces of its text.
    """
    end = "[]\n" + " " * indent + "}"
    separator = "[\n"
    yield whole.removesuffix(end)
    for item in items:
        yield separator
        yield from item
        separator = ",\n"
    yield end if separator == "[\n" else "\n" + " " * (indent + 2) + "]\n" + " " * indent + "}"


def _header_data(decoded: DecodedSection) -> dict[str, Any]:
    header = decoded.header
    return {
        "version": header.version,
        "flags": _flag_names(header.flags) if header.flags else [],
        "abi": decoded.arch.name,
        "byte_order": "little" if header.byte_order == "<" else "big",
        "section_address": decoded.section_vaddr,
        "section_size": decoded.section_size,
        "fixed_fp_offset": header.fixed_fp_offset,
        "fixed_ra_offset": header.fixed_ra_offset,
        "auxiliary_header_size": header.auxhdr_size,
        "fde_count": header.fde_count,
        "fre_count": header.fre_count,
        "fre_size": header.fre_size,
    }


def _function_data(
    function: DecodedFunction,
    show_address: Callable[[int], int],
    counts: ByteCounters | None,
) -> dict[str, Any]:
    start_vaddr, end_vaddr = function.start_vaddr, function.start_vaddr + function.size
    return {
        "address": show_address(start_vaddr),
        "size": function.size,
        "padding": None if counts is None else counts.padding(start_vaddr, end_vaddr),
        "without_cfi": None if counts is None else counts.without_cfi(start_vaddr, end_vaddr),
        "pc_type": "mask" if function.is_pcmask else "inc",
        "repeat_size": function.repeat_size,
        "fde_type": "flexible" if function.is_flexible else "default",
        "fre_type": f"addr{s.FRE_START_SIZE[function.fre_type]}",
        "signal_frame": function.is_signal_frame,
        "pauth_key": "b" if function.uses_b_key else "a",
    }


def _row_data(row: DecodedRow, arch: Arch) -> dict[str, Any]:
    state = row.row.state
    return {
        "start": row.row.start_delta,
        "outermost": state.cfa is None,
        "cfa": _rule_data(state.cfa, arch),
        "ra": _rule_data(state.ra, arch),
        "fp": _rule_data(state.fp, arch),
        "mangled_ra": state.mangled_ra,
        "word_size": row.word_size,
        "words": list(row.words),
    }


def _rule_data(rule: Rule | None, arch: Arch) -> dict[str, Any] | None:
    if rule is None:
        return None
    base = "cfa" if rule.register is None else arch.register_name(rule.register)
    return {"base": base, "offset": rule.offset, "load": rule.deref}
