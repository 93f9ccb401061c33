# SPDX-License-Identifier: Apache-2.0
"""AArch64 and s390x: relocations of objects, and kernel modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import load
from cfi2sframe.api import decode_existing, verify
from cfi2sframe.cli import main
from tests.support.needs import run
from tests.support.targets import AARCH64, S390, TARGETS, Target, label

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = pytest.mark.oracle


#: An encoding of FDE addresses, and how an assembler writes such a field; each takes another relocation.
ENCODINGS: Final = {
    "PC32": (0x1B, ".long g - .", ".long 8"),
    "PC64": (0x1C, ".quad g - .", ".quad 8"),
    "ABS64": (0x00, ".quad g", ".quad 8"),
    "ABS32": (0x03, ".long g", ".long 8"),
}
#: A CIE as assemblers write it, then an FDE for the 8 bytes of `g`: CFA = SP + 32 (s390x: + 320) from byte 4 on.
FRAME: Final = """\
	.section .eh_frame, "a"
	.balign 8
1:	.long 3f - 2f
2:	.long 0
	.byte 1
	.string "zR"
	.uleb128 {code_alignment}
	.sleb128 -8
	.byte {ra}
	.uleb128 1
	.byte {encoding}
	.byte 0x0c
	.uleb128 {sp}, {entry}
	.balign 4
3:	.long 5f - 4f
4:	.long 4b - 1b
	{start}
	{size}
	.uleb128 0
	.byte 0x40 + 4 / {code_alignment}
	.byte 0x0e
	.uleb128 {offset}
	.balign 4
5:
"""
CODE: Final = {
    AARCH64: ("nop\n\tret", {"code_alignment": 4, "ra": 30, "sp": 31, "entry": 0, "offset": 32}),
    S390: ("nop\n\tnopr\n\tbr %r14", {"code_alignment": 1, "ra": 14, "sp": 15, "entry": 160, "offset": 320}),
}


@pytest.mark.parametrize("kind", ENCODINGS)
@pytest.mark.parametrize("target", TARGETS, ids=label)
def test_relocations_of_objects(
    target: Target, kind: str, binutils: Callable[[BinutilsVersion], Binutils], tmp_path: Path
) -> None:
    """Applied to the CFI, and written for our own section in a way that a linker understands."""
    tools = binutils("newest")
    encoding, start, size = ENCODINGS[kind]
    code, numbers = CODE[target]
    text = f"\t.text\n\t.globl f, g\nf:\t{code}\ng:\t{code}\n"
    source, made, converted, linked = (tmp_path / name for name in ("a.s", "a.o", "b.o", "b"))
    source.write_text(text + FRAME.format(encoding=encoding, start=start, size=size, **numbers))
    run(tools.tool("as", target.name), source, "-o", made)
    relocations = run(tools.tool("readelf", target.name), "-rW", made)
    assert {"PC32": "32 ", "PC64": "64 ", "ABS64": "64 ", "ABS32": "32 "}[kind] in relocations
    assert main([str(made), "-o", str(converted)]) == 0
    assert main(["verify", str(converted)]) == 0
    # Where addresses have 32 bits.
    run(tools.tool("ld", target.name), "-e", "f", "-Ttext=0x10000", "-o", linked, converted)
    image = load(str(linked))
    (function,) = decode_existing(image).functions
    assert (function.start_vaddr, function.size) == (0x10008, 8)
    lookup = decode_existing(image)
    offsets = []
    for pc in (0x10008, 0x1000C):
        found = lookup.find(pc)
        assert found is not None
        assert found.row is not None
        assert found.row.state.cfa is not None
        offsets.append(found.row.state.cfa.offset)
    assert offsets == [numbers["entry"], numbers["offset"]]
    assert verify(image, decode_existing(image)).is_clean
