# SPDX-License-Identifier: Apache-2.0
"""The verb `dump`: print decoded sections."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.cli.answers import is_one_file
from cfi2sframe.cli.common import exit_status_of, is_section, read_section, say, starts_section, worst
from cfi2sframe.cli.exit_status import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM
from cfi2sframe.cli.inputs import Inputs, add_inputs, inputs_of
from cfi2sframe.cli.options import address
from cfi2sframe.cli.outputs import Printing, add_output, printing_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.elf.constants import ELF_MAGIC
from cfi2sframe.elf.load import stored_size
from cfi2sframe.errors import (
    Cfi2SFrameError,
    ErrorKind,
    InputError,
    RequestError,
    kind_of,
    reason_of,
)
from cfi2sframe.files.find import Source, Unusable
from cfi2sframe.files.read import images_of, open_source
from cfi2sframe.guard import limited
from cfi2sframe.printable import printable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from typing import TextIO

    from cfi2sframe.elf.contents import FileData
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.dump import ByteCounters
    from cfi2sframe.sframe.model import Section


#: Enough of a file (bytes) to tell what it is.
_HEAD_SIZE: Final = 64


class DumpRequest(NamedTuple):
    """Files whose sections to print; `section_vaddr` is the address of raw bytes."""

    inputs: Inputs
    printing: Printing = Printing()
    section_vaddr: int | None = None


class _Printed(NamedTuple):
    """A section as text."""

    name: str
    text: str


class _Section(NamedTuple):
    """A section to print, and the image of the file that it is in; None for the raw bytes of a section."""

    name: str
    section: Section
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
        f"examples:\n  {PROGRAM} dump lib.so\n  {PROGRAM} dump out.sframe --section-address 0x30000 --format json\n"
        f"  {PROGRAM} dump debian/tmp -o sections.json\n",
    )
    text = "ELF file, raw bytes of a section, folder or static archive; - is standard input"
    add_inputs(parser, text, has_processes=False)
    parser.add_argument_group("the section").add_argument(
        "--section-address", type=address, metavar="ADDR", help="address of the raw bytes of a section (default 0)"
    )
    add_output(parser, ("text", "json"))


def request_of(arguments: argparse.Namespace) -> DumpRequest:
    """Return what the arguments ask for. Raises `RequestError` when they contradict one another, and `OSError`."""
    inputs = inputs_of(arguments)
    return DumpRequest(inputs, printing_of(arguments, inputs.names), arguments.section_address)


def run(request: DumpRequest) -> int:
    """Dump the sections of all files; return the worst file's exit status."""
    found = request.inputs.find()
    if request.section_vaddr is not None and not all(_is_raw(item) for item in found):
        raise RequestError("--section-address is only valid for raw bytes; an ELF file has its section's address")
    with request.printing.open() as out:
        return _dump(found, request, out)


def _is_raw(item: Source | Unusable) -> bool:
    """Whether the user has named what is, or what may be, the bytes of a section."""
    return isinstance(item, Unusable) or item.path == "-" or is_section(item.path)


def _dump(found: Sequence[Source | Unusable], request: DumpRequest, out: TextIO) -> int:
    """Print what is found; a file that cannot be used does not stop the others."""
    is_json = request.printing.format == "json"
    is_list = not is_one_file(found)
    statuses, count = [EXIT_SUCCESS], 0
    for item in found:
        # The text of a whole item is made before any of it is printed: what fails then is the output.
        for printed in _printed(item, request.section_vaddr, is_json=is_json):
            if isinstance(printed, Unusable):
                say("error", printed.reason, printed.name)
                statuses.append(exit_status_of(printed.kind))
                continue
            if is_list:
                out.write(_between(printed.name, count, is_json=is_json))
            out.write(printed.text)
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


def _printed(item: Source | Unusable, section_vaddr: int | None, *, is_json: bool) -> list[_Printed | Unusable]:
    """Return the sections of a source as text, or why there is none."""
    if isinstance(item, Unusable):
        return [item]
    printed: list[_Printed | Unusable] = []
    try:
        with _open(item) as data, limited(stored_size(data)):
            printed.extend(
                result if isinstance(result, Unusable) else _Printed(result.name, _text(result, is_json=is_json))
                for result in _sections(item, data, section_vaddr)
            )
    except (Cfi2SFrameError, OSError, MemoryError) as error:
        printed.append(Unusable(item.name, reason_of(error), kind_of(error)))
    return printed


def _text(section: _Section, *, is_json: bool) -> str:
    from cfi2sframe.sframe.dump import dump_json, dump_text

    if is_json:
        return "".join(dump_json(section.section, section.show_address, _counters(section.image)))
    return "".join(f"{line}\n" for line in dump_text(section.section, show_address=section.show_address))


@contextmanager
def _open(item: Source) -> Iterator[FileData]:
    """Give the bytes of a source, or those of a section. Raises `InputError`, `OSError`."""
    if item.path == "-":
        head = sys.stdin.buffer.read(_HEAD_SIZE)
        # What is neither is not read to its end, which it may not have.
        yield head + sys.stdin.buffer.read() if starts_section(head) or head.startswith(ELF_MAGIC) else head
    elif is_section(item.path):
        with open(item.path, "rb") as file:
            yield read_section(file)
    else:
        with open_source(item) as data:
            yield data


def _sections(item: Source, data: FileData, section_vaddr: int | None) -> Iterator[_Section | Unusable]:
    """Yield the sections of a source, or why there is none; a file without one is named only if the user named it."""
    if starts_section(bytes(data[:2])):
        from cfi2sframe.api import decode

        yield _Section(item.name, decode(bytes(data), section_vaddr or 0), None)
        return
    for image in images_of(item, data):
        result = image if isinstance(image, Unusable) else _section_in(image)
        is_named = item.kind == "elf" and not item.is_in_folder
        if is_named or not isinstance(result, Unusable) or result.kind is not ErrorKind.UNFIT:
            yield result


def _section_in(image: ElfImage) -> _Section | Unusable:
    from cfi2sframe.api import decode_existing

    try:
        section = decode_existing(image)
    except (InputError, RequestError) as error:
        return Unusable(image.name, error.detail, error.kind)
    return _Section(image.name, section, image)


def _counters(image: ElfImage | None) -> ByteCounters | None:
    """Return what counts the kinds of bytes in a range; None without CFI, which says where functions end."""
    from cfi2sframe.api import byte_counters

    if image is None:
        return None
    try:
        return byte_counters(image)
    except InputError:
        return None
