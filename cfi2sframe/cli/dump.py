# SPDX-License-Identifier: Apache-2.0
"""The verb `dump`: print decoded sections."""

import argparse
import json
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from cfi2sframe.cli.messages import EXIT_SUCCESS, EXIT_UNUSABLE, PROGRAM, say, worst
from cfi2sframe.cli.options import add_inputs, add_option, address, is_one_file, process_count, sources_of
from cfi2sframe.cli.parsers import describe
from cfi2sframe.cli.results import add_output, each_result, printing_of
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import is_section
from cfi2sframe.errors import InputError, RequestError
from cfi2sframe.existing import existing_section
from cfi2sframe.process.demangle import readable_names
from cfi2sframe.report import SCHEMA_VERSION
from cfi2sframe.sframe.dump import Shown, dump_json, dump_text
from cfi2sframe.sframe.read import read_damaged
from cfi2sframe.text import printable
from cfi2sframe.trace.store import ModuleFile, functions_of


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the verb's arguments to its parser."""
    describe(
        parser,
        f"{PROGRAM} dump FILE... [--function NAME]... [-o OUT] [OPTION]...",
        "Print the .sframe section of each ELF file, or the raw bytes of a section, in the form of readelf --sframe.\n"
        "Any version, either byte order. FP and RA: u unchanged, f at the ABI's fixed offset, c+N saved at CFA+N,\n"
        "(base+N) loaded from there; [s] after RA: signed.",
        f"examples:\n  {PROGRAM} dump lib.so --function main\n"
        f"  {PROGRAM} dump out.sframe --section-address 0x30000 --format json\n"
        f"  {PROGRAM} dump debian/tmp -o sections.json\n\n"
        "exit status: 0 success; 2 usage; 3 a file has no section, or cannot be used.\n",
    )
    text = "ELF file, raw bytes of a section, or directory; - is standard input"
    add_inputs(parser, text, has_processes=False)
    group = parser.add_argument_group("what to print")
    text = "print only the function with this name, or at this address (0x...); repeatable"
    add_option(group, "--function NAME", text, action="append", default=[])
    add_option(group, "--disassemble", "print the instructions after the row that is in force there")
    add_option(group, "--section-address ADDR", "address of the raw bytes of a section (default 0)", type=address)
    add_output(parser, ("text", "json"))


def run(arguments: argparse.Namespace) -> int:
    """Dump the sections of all files; return the worst file's exit status."""
    sources = sources_of(arguments, with_archives=True)
    printing = printing_of(arguments, sources)
    is_json, is_list = printing.format == "json", not is_one_file(sources)
    if arguments.disassemble and is_json:
        raise RequestError("--disassemble is only valid for text")
    question = partial(
        _dump_of,
        section_vaddr=arguments.section_address,
        wanted=arguments.function,
        is_json=is_json,
        disassembles=arguments.disassemble,
    )
    statuses, failures, count = [EXIT_SUCCESS], [], 0
    with printing.open() as out:
        # Sections are written one by one: together they may not fit into memory.
        out.write(f'{{"schema": {SCHEMA_VERSION}, "files": [' if is_json else "")
        for result in each_result(sources, question, process_count(arguments.jobs)):
            dump, outcome = result.answer, result
            if dump is not None:
                before = f"\nFile: {printable(result.source.name)}\n" if is_list and not is_json else ""
                out.write(f"{',' if is_json and count else before}{dump.text}")
                count += 1
                if dump.error is not None:
                    # The rest of the section is a failure.
                    outcome = result._replace(reason=dump.error.detail, kind=dump.error.kind)
            statuses.append(outcome.exit_status)
            if outcome.has_failed:
                out.flush()
                say("error", outcome.reason, outcome.source.name)
                failures.append(outcome.failure)
        out.write(f'\n], "failures": {json.dumps(failures)}}}\n' if is_json else "")
        if not count and worst(statuses) == EXIT_SUCCESS:
            say("error", "none of these files has an .sframe section")
            return EXIT_UNUSABLE
    return worst(statuses)


class _Dump(NamedTuple):
    """The text of a section, as far as it can be read, and the error after that."""

    text: str
    error: InputError | None


def _dump_of(
    data: FileData, name: str, *, section_vaddr: int | None, wanted: Sequence[str], is_json: bool, disassembles: bool
) -> _Dump:
    """Return the section of a file, or the raw bytes of one at an address, as text; only `wanted` functions, if any.

    Raises `UnfitError` when there is no section, and `InputError` when nothing of it can be read, or it has none of the
    `wanted` functions.
    """
    image = None if is_section(data) else ElfImage(data, name)
    error: InputError | None
    if image is None:
        section, error = read_damaged(bytes(data), section_vaddr or 0)
    elif section_vaddr is not None:
        raise RequestError("--section-address is only valid for raw bytes; an ELF file has its section's address")
    else:
        existing = existing_section(image)
        section, error = existing.or_raise() if existing.section is None else existing.section, existing.error
    if image is None and disassembles:
        raise RequestError("--disassemble is only valid for an ELF file; raw bytes come without their code")
    shown = _shown_in(image, wanted)
    if image is not None and disassembles:
        shown = shown._replace(code=_code_of(image))
    if wanted and not any(map(shown.wants, section.starts, section.sizes)):
        raise error or InputError(f"no function {' or '.join(wanted)} in the section")
    if is_json:
        return _Dump("\n" + "".join(dump_json(section, shown, file=name)), error)
    return _Dump("".join(f"{line}\n" for line in dump_text(section, shown=shown)), error)


def _shown_in(image: ElfImage | None, wanted: Sequence[str]) -> Shown:
    """Return how addresses and functions are shown: in objects, as offsets in sections.

    If any are `wanted`, only functions with these names, or at these addresses as they are shown.
    """
    functions = [] if image is None else functions_of(image)
    names = readable_names(name for _, _, name in functions)
    spans = [(vaddr, size) for vaddr, size, own in functions if {own, names.get(own)}.intersection(wanted)]
    addresses = [address(text) for text in wanted if text[:1].isdigit()]

    def shown_offset(vaddr: int) -> int:
        return vaddr if image is None else image.place(vaddr).offset

    def wants(vaddr: int, size: int) -> bool:
        is_named = any(start < vaddr + size and vaddr < start + max(length, 1) for start, length in spans)
        return not wanted or is_named or any(0 <= number - shown_offset(vaddr) < size for number in addresses)

    if image is None:
        return Shown(wants=wants)
    module = ModuleFile(image, "file", "", functions)

    def name(vaddr: int, size: int) -> str:
        linkage_name, distance = module.symbol_at(vaddr) or ("", 0)
        first = [names.get(linkage_name, linkage_name) + (f"+0x{distance:x}" if distance else "")] * bool(linkage_name)
        # -O2 joins functions.
        inner = functions[bisect_right(functions, (vaddr + 1,)) : bisect_left(functions, (vaddr + size,))]
        return ", ".join([*first, *(names.get(own, own) for _, _, own in inner)])

    return Shown(shown_offset, image.place_text, name, wants)


def _code_of(image: ElfImage) -> Callable[[int, int], Iterator[str]]:
    """Return a function that disassembles addresses to lines in the form of objdump."""
    from cfi2sframe.instructions.decoder import Decoder

    decoder = Decoder(image, (), "--disassemble reads code")

    def lines(start: int, end: int) -> Iterator[str]:
        for vaddr, size, mnemonic, operands in decoder.disassemble(start, end):
            stored, start = decoder.read(vaddr, vaddr + size).hex(" "), vaddr + size
            yield f"{image.place(vaddr).offset:8x}:\t{stored:<21}\t{mnemonic:<6} {operands}".rstrip()
        if start < end:
            yield f"{image.place(start).offset:8x}:\t(bad)"

    return lines
