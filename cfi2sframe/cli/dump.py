# SPDX-License-Identifier: Apache-2.0
"""The verb `dump`: print decoded sections."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli.answers import is_one_file
from cfi2sframe.cli.common import exit_status_of, fail, fail_early, is_section, read_section, say, starts_section, worst
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.inputs import add_inputs, sources_of
from cfi2sframe.cli.options import address
from cfi2sframe.cli.outputs import add_output, check_output, format_of, output_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.errors import Cfi2SFrameError, ErrorKind, OutputError, RequestError, kind_of, reason_of
from cfi2sframe.files import Source, Unusable, open_source
from cfi2sframe.files.records import ELF_MAGIC
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.decode import DecodedSection
    from cfi2sframe.sframe.dump import ByteCounters


#: Enough of a file (bytes) to tell what it is.
_HEAD_SIZE: Final = 64


class _Section(NamedTuple):
    """A section to print, and the image of the file that it is in; None for the raw bytes of a section."""

    name: str
    section: DecodedSection
    image: ElfImage | None

    def show_address(self, vaddr: int) -> int:
        """Return the number to print for a virtual address; in objects, the offset in its section."""
        return vaddr if self.image is None else self.image.place(vaddr).offset


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} dump FILE... [--section-address ADDR] [-o OUT] [OPTION]...",
        "Print the .sframe section of each ELF file, or the raw bytes of a section, in the form of readelf --sframe.\n"
        "Any version, either byte order. FP and RA: u unchanged, f at the ABI's fixed offset, c+N saved at CFA+N,\n"
        "(base+N) loaded from there; [s] after RA: signed.",
        f"examples:\n  {PROGRAM} dump lib.so\n  {PROGRAM} dump out.sframe --section-address 0x30000 --json\n"
        f"  {PROGRAM} dump -r debian/tmp -o sections.json\n",
    )
    text = "an ELF file, the bytes of a section, a folder or a static archive; - is standard input"
    add_inputs(parser, text, is_writing=False, has_processes=False)
    parser.add_argument_group("the section").add_argument(
        "--section-address", type=address, metavar="ADDR", help="the address of the raw bytes of a section (default 0)"
    )
    add_output(parser, ("text", "json"))


def execute(arguments: argparse.Namespace) -> int:
    """Dump the sections of all files; return the worst file's exit status."""
    try:
        check_output(arguments)
        found = list(sources_of(arguments))
        if arguments.section_address is not None and not all(_is_raw(item) for item in found):
            raise RequestError("--section-address belongs to raw bytes; an ELF file has its section's address")
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except OSError as error:
        return fail(error, arguments.files_from)
    try:
        with output_of(arguments) as out:
            return _dump(found, arguments, out)
    except OutputError as error:
        return fail(error, "")


def _is_raw(item: Source | Unusable) -> bool:
    """Whether the user has named what is, or what may be, the bytes of a section."""
    return isinstance(item, Unusable) or item.path == "-" or is_section(item.path)


def _dump(found: Sequence[Source | Unusable], arguments: argparse.Namespace, out: TextIO) -> int:
    """Print what is found; a file that cannot be used does not stop the others."""
    is_json = format_of(arguments) == "json"
    is_list = not is_one_file(found)
    statuses, count = [EXIT_SUCCESS], 0
    for item in found:
        for opened in _opened(item, arguments.section_address):
            if isinstance(opened, Unusable):
                say("error", opened.reason, opened.name)
                statuses.append(exit_status_of(opened.kind))
                continue
            if is_list:
                out.write(_between(opened.name, count, is_json=is_json))
            out.writelines(_json(opened) if is_json else _text(opened))
            if is_json:
                out.write("}" if is_list else "\n")
            count += 1
    if is_json and is_list:
        out.write("\n]\n" if count else "[]\n")
    if not count and statuses == [EXIT_SUCCESS]:
        say("error", "none of these files has an .sframe section")
        return EXIT_UNUSABLE
    return worst(statuses)


def _between(name: str, number: int, *, is_json: bool) -> str:
    """Return what stands before the section of a file among several."""
    if not is_json:
        return f"\nFile: {printable(name)}\n"
    import json

    return f'{"," if number else "["}\n{{"file": {json.dumps(name)}, "section": '


def _text(opened: _Section) -> Iterator[str]:
    from cfi2sframe.sframe.dump import dump_text

    return (f"{line}\n" for line in dump_text(opened.section, show_address=opened.show_address))


def _json(opened: _Section) -> Iterator[str]:
    from cfi2sframe.sframe.dump import dump_json

    return dump_json(opened.section, opened.show_address, _counters(opened.image))


def _opened(item: Source | Unusable, section_vaddr: int | None) -> Iterator[_Section | Unusable]:
    """Yield the sections of a source, or why there is none; a file without one is named only if the user named it."""
    if isinstance(item, Unusable):
        yield item
        return
    try:
        if item.path == "-":
            yield _of_standard_input(item.name, section_vaddr)
            return
        if is_section(item.path):
            with open(item.path, "rb") as file:
                yield _section_of(item.name, read_section(file), section_vaddr)
            return
        for image in open_source(item):
            result = image if isinstance(image, Unusable) else _section_in(image)
            is_named = item.kind == "elf" and not item.is_in_folder
            if is_named or not isinstance(result, Unusable) or result.kind is not ErrorKind.UNFIT:
                yield result
    except (Cfi2SFrameError, OSError) as error:
        yield Unusable(item.name, reason_of(error), kind_of(error))


def _of_standard_input(name: str, section_vaddr: int | None) -> _Section | Unusable:
    from cfi2sframe.elf.load import load

    stream = sys.stdin.buffer
    head = stream.read(_HEAD_SIZE)
    if starts_section(head):
        return _section_of(name, head + stream.read(), section_vaddr)
    # What is no ELF file is not read to its end, which it may not have.
    return _section_in(load(head + stream.read() if head.startswith(ELF_MAGIC) else head, name))


def _section_of(name: str, data: bytes, vaddr: int | None) -> _Section:
    from cfi2sframe.budget import Budget
    from cfi2sframe.sframe.decode import decode_section
    from cfi2sframe.sframe.dump import check_size

    section = decode_section(data, vaddr or 0)
    check_size(section, Budget(section.section_size))
    return _Section(name, section, None)


def _section_in(image: ElfImage) -> _Section | Unusable:
    from cfi2sframe.api import decode_existing
    from cfi2sframe.sframe.dump import check_size

    try:
        section = decode_existing(image)
        check_size(section, image.budget)
    except Cfi2SFrameError as error:
        return Unusable(image.name, error.detail, error.kind)
    return _Section(image.name, section, image)


def _counters(image: ElfImage | None) -> ByteCounters | None:
    """Return what counts the kinds of bytes in a range; None without CFI, which says where functions end."""
    from cfi2sframe.api import byte_counters

    if image is None:
        return None
    try:
        return byte_counters(image)
    except Cfi2SFrameError:
        return None
