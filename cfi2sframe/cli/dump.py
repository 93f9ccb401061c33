# SPDX-License-Identifier: Apache-2.0
"""The verb `dump`: print decoded sections."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from cfi2sframe.cli.answers import failure, is_one_file, is_skipped, read_source
from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM, exit_status_of, say, worst
from cfi2sframe.cli.options import Inputs, Printing, add_inputs, add_option, add_output, address, inputs_of, printing_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.raw_section import is_section, read_section, section_in
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import Cfi2SFrameError, RequestError
from cfi2sframe.files.find import Source, Unusable
from cfi2sframe.guard import limited
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from cfi2sframe.sframe.read import DecodedSection


class DumpRequest(NamedTuple):
    """Files whose sections to print; `section_vaddr` is the address of raw bytes."""

    inputs: Inputs
    printing: Printing = Printing()
    section_vaddr: int | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} dump FILE... [--section-address ADDR] [-o OUT] [OPTION]...",
        "Print the .sframe section of each ELF file, or the raw bytes of a section, in the form of readelf --sframe.\n"
        "Any version, either byte order. FP and RA: u unchanged, f at the ABI's fixed offset, c+N saved at CFA+N,\n"
        "(base+N) loaded from there; [s] after RA: signed.",
        f"examples:\n  {PROGRAM} dump lib.so\n  {PROGRAM} dump out.sframe --section-address 0x30000 --format json\n"
        f"  {PROGRAM} dump debian/tmp -o sections.json\n",
    )
    text = "ELF file, raw bytes of a section, folder or static archive; - is standard input"
    add_inputs(parser, text, has_processes=False)
    group = parser.add_argument_group("the section")
    add_option(group, "--section-address ADDR", "address of the raw bytes of a section (default 0)", type=address)
    add_output(parser, ("text", "json"))


def request_of(arguments: argparse.Namespace) -> DumpRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    inputs = inputs_of(arguments)
    return DumpRequest(inputs, printing_of(arguments, inputs.names), arguments.section_address)


def run(request: DumpRequest) -> int:
    """Dump the sections of all files; return the worst file's exit status."""
    found = request.inputs.find()
    if request.section_vaddr is not None and not all(_may_be_raw(item) for item in found):
        raise RequestError("--section-address is only valid for raw bytes; an ELF file has its section's address")
    is_json, is_list = request.printing.format == "json", not is_one_file(found)
    statuses, count = [EXIT_SUCCESS], 0
    with request.printing.open() as out:
        for item in found:
            for result in _texts_of(item, request):
                if isinstance(result, Unusable):
                    if not is_skipped(item, result):
                        say("error", result.reason, result.name)
                        statuses.append(exit_status_of(result.kind))
                    continue
                name, text = result
                before, after = "", "\n" if is_json else ""
                if is_list and is_json:
                    before, after = f'{"," if count else "["}\n{{"file": {json.dumps(name)}, "section": ', "}"
                elif is_list:
                    before = f"\nFile: {printable(name)}\n"
                out.write(f"{before}{text}{after}")
                count += 1
        if is_json and is_list:
            out.write("\n]\n" if count else "[]\n")
        if not count and statuses == [EXIT_SUCCESS]:
            say("error", "none of these files has an .sframe section")
            return EXIT_UNUSABLE
    return worst(statuses)


def _may_be_raw(item: Source | Unusable) -> bool:
    return isinstance(item, Unusable) or item.path == "-" or section_in(item.path) is not None


def _texts_of(item: Source | Unusable, request: DumpRequest) -> Sequence[tuple[str, str] | Unusable]:
    """Return the sections of a source as text, each with its file's name, or why there is none."""
    if isinstance(item, Unusable):
        return [item]
    from cfi2sframe.api import decode

    is_json = request.printing.format == "json"
    try:
        data = read_section(sys.stdin.buffer) if item.path == "-" else section_in(item.path)
        if data is None:
            return read_source(item, partial(_text_of, is_json=is_json))[1]
        with limited(len(data)):
            if is_section(data):
                return [(item.name, _text(decode(data, request.section_vaddr or 0), None, is_json=is_json))]
            return [_text_of(ElfImage(data, item.name), is_json=is_json)]
    except (Cfi2SFrameError, OSError, MemoryError) as error:
        return [failure(item.name, error)]


def _text_of(image: ElfImage, *, is_json: bool) -> tuple[str, str]:
    from cfi2sframe.api import decode_existing

    return image.name, _text(decode_existing(image), image, is_json=is_json)


def _text(section: DecodedSection, image: ElfImage | None, *, is_json: bool) -> str:
    """Return a section as text. In an object, addresses are offsets in sections; raw bytes have no image."""
    from cfi2sframe.sframe.dump import dump_json, dump_text

    def show_address(vaddr: int) -> int:
        return vaddr if image is None else image.place(vaddr).offset

    if is_json:
        return "".join(dump_json(section, show_address))
    return "".join(f"{line}\n" for line in dump_text(section, show_address=show_address))
