# SPDX-License-Identifier: Apache-2.0
"""A section that was read as text, in the form of the newest `readelf --sframe`, or as JSON."""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.abi.rule import rule_text
from cfi2sframe.constants import sframe as s
from cfi2sframe.sframe.model import FrameRow, FrameState, Function, Rule
from cfi2sframe.sframe.read import DecodedSection, Record, Words
from cfi2sframe.text import printable

_FLAG_NAMES = (
    (s.SFRAME_F_FDE_SORTED, "SFRAME_F_FDE_SORTED"),
    (s.SFRAME_F_FRAME_POINTER, "SFRAME_F_FRAME_POINTER"),
    (s.SFRAME_F_FDE_FUNC_START_PCREL, "SFRAME_F_FDE_FUNC_START_PCREL"),
)


class Shown(NamedTuple):
    """The way to show a virtual address: a number, in objects an offset; and a place, such as `.text+0x10`.

    `name` and `wants` take the start and the size of a function: they return its name, and whether to show it. `code`
    returns lines with the instructions of `[start, end)`.
    """

    number: Callable[[int], int] = lambda vaddr: vaddr
    place: Callable[[int], str] = hex
    name: Callable[[int, int], str] = lambda _vaddr, _size: ""
    wants: Callable[[int, int], bool] = lambda _vaddr, _size: True
    code: Callable[[int, int], Iterable[str]] = lambda _start, _end: ()


_AS_IT_IS: Final = Shown()


def dump_text(section: DecodedSection, name: str = ".sframe", shown: Shown = _AS_IT_IS) -> Iterator[str]:
    """Yield the lines of the dump; `name` is the section's."""
    header = section.header
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
    texts: dict[FrameState, str] = {}
    for index, function in enumerate(section):
        if not shown.wants(function.start_vaddr, function.size):
            continue
        yield ""
        texts.update({state: _state_text(state, section) for state in {*function.body.states}.difference(texts)})
        yield from _function_lines(index, function, texts, shown)
    yield ""


def _flag_names(flags: int) -> list[str]:
    names = [name for flag, name in _FLAG_NAMES if flags & flag]
    unknown = flags & ~sum(flag for flag, _ in _FLAG_NAMES)
    if unknown:
        names.append(f"0x{unknown:x}")
    return names or ["NONE"]


def _function_lines(index: int, function: Function, texts: dict[FrameState, str], shown: Shown) -> Iterator[str]:
    start, body = shown.number(function.start_vaddr), function.body
    attributes = ("S" if body.is_signal_frame else "") + ("F" if body.is_flexible else "")
    line = f"    func idx [{index}]: pc = {shown.place(function.start_vaddr)}, size = {function.size} bytes"
    if attributes:
        line += f', attr = "{attributes}"'
    if body.uses_b_key:
        line += ", pauth = B key"
    label = shown.name(function.start_vaddr, function.size)
    yield f"{line} <{printable(label)}>" if label else line
    yield f"    {'STARTPC[m]' if body.is_pcmask else 'STARTPC':<16}{'CFA':<10}{'FP':<10}RA           "
    origin = 0 if body.is_pcmask else start
    # The rows of a block that repeats come before all of its code.
    edges = [0 if body.is_pcmask else delta for delta in body.starts] + [function.size]
    yield from shown.code(function.start_vaddr, function.start_vaddr + edges[0])
    for start_delta, state, (first, last) in zip(body.starts, body.states, pairwise(edges), strict=True):
        yield f"    {origin + start_delta:016x}  {texts[state]}"
        yield from shown.code(function.start_vaddr + first, function.start_vaddr + last)


def _state_text(state: FrameState, section: DecodedSection) -> str:
    """Return CFA, FP and RA of a row as `readelf` prints them: `u` is unchanged, `f` is at the ABI's fixed offset."""
    if state.cfa is None:
        return "RA undefined"
    cfa, fp, ra = _rule_text(state.cfa, section.arch), _saved_text(state.fp, section), _saved_text(state.ra, section)
    fixed = section.header.fixed_ra_offset
    if fixed and state.ra == (None, fixed, True):
        ra = "f"
    ra += "[s]" if state.mangled_ra else ""
    return f"{cfa:<9} {fp:<9} {ra:<13}"


def _saved_text(rule: Rule | None, section: DecodedSection) -> str:
    if rule is not None and rule.register is not None and section.version < s.SFRAME_VERSION_3:
        # s390x stores the register's number and nothing else.
        return f"r{rule.register}"
    return _rule_text(rule, section.arch)


def _rule_text(rule: Rule | None, arch: Arch) -> str:
    if rule is None:
        return "u"
    if rule.register is None:
        # readelf shows no load here: a value is always saved at an offset from the CFA.
        return rule_text(None, rule.offset, deref=True)
    base = {arch.sp_register: "sp", arch.fp_register: "fp"}.get(rule.register, f"r{rule.register}")
    return rule_text(base, rule.offset, deref=rule.deref)


def dump_json(section: DecodedSection, shown: Shown = _AS_IT_IS, **origin: str | int) -> Iterator[str]:
    """Yield the section as JSON, in pieces of text: a line for the header, and one for each function.

    `origin` comes first. A rule is `{"base", "offset", "load"}`, or null: unchanged or undefined.
    """
    yield json.dumps({**origin, **_header_data(section), "functions": []}).removesuffix("]}")
    separator = "\n"
    for function, record in zip(section, section.records, strict=True):
        if shown.wants(function.start_vaddr, function.size):
            yield separator + json.dumps(_function_data(function, record, section, shown))
            separator = ",\n"
    yield "\n]}"


def _header_data(section: DecodedSection) -> dict[str, Any]:
    header = section.header
    return {
        "version": header.version,
        "flags": _flag_names(header.flags) if header.flags else [],
        "abi": section.arch.name,
        "byte_order": "little" if header.byte_order == "<" else "big",
        "section_address": section.vaddr,
        "section_size": len(section.data),
        "fixed_fp_offset": header.fixed_fp_offset,
        "fixed_ra_offset": header.fixed_ra_offset,
        "auxiliary_header_size": header.auxhdr_size,
        "fde_count": header.fde_count,
        "fre_count": header.fre_count,
        "fre_size": header.fre_size,
    }


def _function_data(function: Function, record: Record, section: DecodedSection, shown: Shown) -> dict[str, Any]:
    body = function.body
    return {
        "address": shown.number(function.start_vaddr),
        "place": shown.place(function.start_vaddr),
        "function": shown.name(function.start_vaddr, function.size),
        "size": function.size,
        "pc_type": "mask" if body.is_pcmask else "inc",
        "repeat_size": record.repeat_size,
        "fde_type": "flexible" if body.is_flexible else "default",
        "fre_type": f"addr{s.FRE_START_SIZE[record.fre_type]}",
        "signal_frame": body.is_signal_frame,
        "pauth_key": "b" if body.uses_b_key else "a",
        "rows": [
            _row_data(row, words, section.arch) for row, words in zip(function, section.words_of(record), strict=True)
        ],
    }


def _row_data(row: FrameRow, words: Words, arch: Arch) -> dict[str, Any]:
    state = row.state
    return {
        "start": row.start_delta,
        "outermost": state.cfa is None,
        "cfa": _rule_data(state.cfa, arch),
        "ra": _rule_data(state.ra, arch),
        "fp": _rule_data(state.fp, arch),
        "mangled_ra": state.mangled_ra,
        "word_size": words.size,
        "words": list(words.words),
    }


def _rule_data(rule: Rule | None, arch: Arch) -> dict[str, Any] | None:
    if rule is None:
        return None
    base = "cfa" if rule.register is None else arch.register_name(rule.register)
    return {"base": base, "offset": rule.offset, "load": rule.deref}
