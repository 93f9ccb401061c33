# SPDX-License-Identifier: Apache-2.0
"""The verb `lookup`: print the rows of section and CFI at some addresses, given as addr2line takes them."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

from cfi2sframe.cli.messages import EXIT_DIFFERENCE, EXIT_SUCCESS, PROGRAM, say, worst
from cfi2sframe.cli.options import add_debug_file, add_source, debug_file_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import Result, add_output, printing_of
from cfi2sframe.conversion.convert import read_cfi
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.debug_file import with_debug_file
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import ElfError, ErrorKind, RequestError, UnfitError, with_file_name
from cfi2sframe.existing import Presence, existing_section
from cfi2sframe.files.find import open_source
from cfi2sframe.files.source import STANDARD_INPUT, named_source
from cfi2sframe.process.demangle import readable_names
from cfi2sframe.process.guard import limited
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.text import counted, printable
from cfi2sframe.trace.store import ModuleFile
from cfi2sframe.verification.lookup import HeldRow, Lookup

_NUMBER: Final = re.compile(r"0x[0-9a-fA-F]{1,16}|[0-9]{1,20}")
_ADDRESS: Final = re.compile(r"(?:0[xX])?[0-9a-fA-F]{1,16}")
_AGREES: Final = {"agree": True, "differ": False}


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} lookup FILE [ADDRESS | SYMBOL[+OFFSET]]... [OPTION]...",
        "Print what the .sframe section of FILE and its CFI say of each address: the row, the function or FDE that\n"
        "has it, and whether they agree. Without addresses, they are read from standard input, one a line.",
        f"examples:\n  {PROGRAM} lookup program main+0x10\n  {PROGRAM} lookup program 1151 1160\n"
        f"  {PROGRAM} lookup in.o .text.unlikely+0x8\n  nm program | {PROGRAM} lookup program\n\n"
        "exit status: 0 no difference; 1 a difference; 2 usage; 3 FILE cannot be used, or lacks a symbol.\n",
    )
    group = parser.add_argument_group("what to look up")
    group.add_argument("file", metavar="FILE", help="ELF file")
    text = "hexadecimal, with or without 0x; a symbol of this name comes first; in an object, an offset in .text"
    group.add_argument("addresses", metavar="ADDRESS", nargs="*", help=text)
    add_source(group, ("eh_frame", "debug_frame", "gopclntab", "code"))
    add_debug_file(group)
    add_output(parser, ("text", "json"))


def run(arguments: argparse.Namespace) -> int:
    """Look all addresses up; return the worst status."""
    if arguments.file == STANDARD_INPUT and not arguments.addresses:
        raise RequestError("standard input cannot have both FILE and addresses")
    source = named_source(arguments.file)
    printing, debug_file = printing_of(arguments, [source]), debug_file_of(arguments)
    statuses, answers, failures = [EXIT_SUCCESS], [], []
    with with_file_name(source.name), open_source(source) as data, printing.open() as out:
        file = ElfImage(data, source.name)
        with limited(stored_size(data)), with_debug_file(file, debug_file) as image:
            lookup = _Addresses(image, arguments.source)
            for word in arguments.addresses or _words():
                vaddrs = lookup.named(word)
                if not vaddrs:
                    failed = Result[None](source, reason=f"no symbol or address {word!r}", kind=ErrorKind.UNUSABLE)
                    say("error", failed.reason, source.name)
                    statuses.append(failed.exit_status)
                    failures.append(failed.failure)
                for answer in (lookup.at(word, vaddr) for vaddr in vaddrs):
                    statuses.append(EXIT_DIFFERENCE if answer["agrees"] is False else EXIT_SUCCESS)
                    if printing.format == "json":
                        answers.append(answer)
                        continue
                    out.write(_text(answer))
                    # A program may be waiting for the answer.
                    out.flush()
        if printing.format == "json":
            files = [{"file": source.name, "addresses": answers}]
            out.write(json.dumps({"schema": SCHEMA_VERSION, "files": files, "failures": failures}, indent=1) + "\n")
    return worst(statuses)


def _words() -> Iterator[str]:
    """Yield the first word of each line of standard input."""
    return (words[0].decode(errors="replace") for line in sys.stdin.buffer if (words := line.split()))


class _Addresses:
    """Looks the words of a user up in an image."""

    def __init__(self, image: ElfImage, kind: CfiKind | None) -> None:
        self._image = image
        existing = existing_section(image)
        section = None if existing.presence in (Presence.ABSENT, Presence.EMPTY) else existing.or_raise()
        entries = None
        # A file without CFI was stripped.
        with suppress(UnfitError):
            entries = read_cfi(image, kind).entries
        self._lookup = Lookup(image, entries, section)
        functions = sorted((vaddr, symbol.size, symbol.name) for vaddr, symbol in image.functions().items())
        self._module = ModuleFile(image, "file", "", functions)
        #: Local functions may share a name.
        self._named: dict[str, dict[int, None]] = {}
        for table in image.symbol_tables:
            with suppress(ElfError):
                for symbol in image.symbols(table):
                    if symbol.vaddr is not None and symbol.name and image.may_execute(symbol.vaddr):
                        self._named.setdefault(symbol.name, {})[symbol.vaddr] = None
        for code in image.sections if image.is_relocatable else ():
            if code.is_code:
                self._named.setdefault(code.name, {})[code.vaddr] = None

    def named(self, word: str) -> list[int]:
        """Return the addresses that a word stands for, which may be none."""
        name, _, offset = word.rpartition("+")
        for base, distance in ((word, "0"), (name, offset)):
            if base in self._named and _NUMBER.fullmatch(distance):
                return [vaddr + int(distance, 16 if "x" in distance else 10) for vaddr in self._named[base]]
        origin = self._named.get(".text", {0: None}) if self._image.is_relocatable else {0: None}
        return [start + int(word, 16) for start in origin] if _ADDRESS.fullmatch(word) else []

    def at(self, word: str, vaddr: int) -> dict[str, Any]:
        """Return the answer for an address, as data."""
        answer = self._lookup.at(vaddr)
        symbol, distance = self._module.symbol_at(vaddr) or ("", None)
        return {
            "asked": word,
            "place": self._image.place_text(vaddr),
            "symbol": symbol,
            "function": readable_names([symbol]).get(symbol, symbol),
            "offset": distance,
            "section": self._data(answer.section),
            "cfi": self._data(answer.cfi),
            "agrees": _AGREES.get(answer.verdict),
            "verdict": answer.verdict,
            "difference": answer.difference,
        }

    def _data(self, held: HeldRow | None) -> dict[str, Any] | None:
        if held is None:
            return None
        source, vaddr, size, start, row = held
        return {"source": source, "address": self._image.place(vaddr).offset, "size": size, "start": start, "row": row}


def _text(answer: dict[str, Any]) -> str:
    """Return an answer as lines: the place, the rows of section and CFI, and whether they agree."""
    function = f" {answer['function']}+0x{answer['offset']:x}" if answer["function"] else ""
    lines = [f"{answer['place']}{function}"]
    for held, noun in ((answer["section"], "function"), (answer["cfi"], "FDE")):
        if held is not None:
            owner = "stub" if held["source"] == "PLT stub" else noun
            start = "no row" if held["start"] is None else f"row +0x{held['start']:x}"
            place = f"{owner} at 0x{held['address']:x}, {counted(held['size'], 'byte')}, {start}"
            lines.append(f"  {held['source']:<12} {held['row']:<32} {place}")
    lines.append(f"  {': '.join(filter(None, (answer['verdict'], answer['difference'])))}")
    return "".join(f"{printable(line)}\n" for line in lines)
