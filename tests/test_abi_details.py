# SPDX-License-Identifier: Apache-2.0
"""The rows of each hand-written source of AArch64 and s390x in each version; relocations of objects; modules."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.api import decode_existing, verify
from cfi2sframe.cli import main
from cfi2sframe.reasons import SkipReason
from tests.support.targets import AARCH64, S390, TARGETS, Target, label, run

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.sframe.model import FrameState
    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = pytest.mark.oracle

Form = Literal["default", "flexible"]


class Said(NamedTuple):
    """How a function is described, and the row that matters, as `CFA RA FP` with `!` where RA is signed."""

    form: Form
    row: str


class Case(NamedTuple):
    """A source, and what each version makes of it: a description, or the reason why there is none."""

    target: Target
    source: str
    old: Said | SkipReason
    newest: Said | SkipReason
    start_delta: int
    marks: str = ""


RA_UNDEFINED: Final = Said("default", "outermost")
CASES: Final = (
    Case(AARCH64, "frame-record.s", Said("default", "x29+32 c-24 c-32"), Said("default", "x29+32 c-24 c-32"), 8),
    Case(AARCH64, "large-frame.s", Said("default", "sp+65536 - -"), Said("default", "sp+65536 - -"), 4),
    Case(AARCH64, "ra-without-fp.s", Said("default", "sp+16 c-16 -"), Said("default", "sp+16 c-16 -"), 4),
    Case(AARCH64, "fp-without-ra.s", SkipReason.FP_WITHOUT_RA, Said("flexible", "sp+16 - c-16"), 4),
    Case(AARCH64, "cfa-other-register.s", SkipReason.CFA_BASE_REGISTER, Said("flexible", "x19+16 - -"), 8),
    Case(AARCH64, "ra-in-register.s", SkipReason.RA_IN_REGISTER, Said("flexible", "sp+0 x9 -"), 4),
    Case(AARCH64, "ra-undefined.s", RA_UNDEFINED, RA_UNDEFINED, 0),
    Case(AARCH64, "negate-ra-state.s", Said("default", "sp+16 c-8 c-16!"), Said("default", "sp+16 c-8 c-16!"), 8),
    Case(AARCH64, "negate-ra-state-remember.s", Said("default", "sp+0 - -!"), Said("default", "sp+0 - -!"), 16),
    Case(AARCH64, "pauth-b-key.s", Said("default", "sp+16 c-8 c-16!"), Said("default", "sp+16 c-8 c-16!"), 8, "B"),
    Case(AARCH64, "window-save.s", Said("default", "sp+0 - -!"), Said("default", "sp+0 - -!"), 4),
    Case(AARCH64, "negate-ra-state-with-pc.s", SkipReason.PAUTH_WITH_PC, SkipReason.PAUTH_WITH_PC, 4),
    Case(AARCH64, "sve-vg-expression.s", SkipReason.CFA_EXPRESSION, SkipReason.CFA_EXPRESSION, 4),
    Case(AARCH64, "signal-frame.s", SkipReason.OFFSET_RANGE, Said("flexible", "x29+0 c+8 c"), 0, "S"),
    Case(S390, "frame-record.s", Said("default", "r11+320 c-48 c-72"), Said("default", "r11+320 c-48 c-72"), 14),
    Case(S390, "large-frame.s", Said("default", "r15+65696 - -"), Said("default", "r15+65696 - -"), 6),
    Case(S390, "backchain.s", Said("default", "r15+320 c-48 -"), Said("default", "r15+320 c-48 -"), 14),
    Case(S390, "fp-without-ra.s", Said("default", "r15+160 - c-72"), Said("default", "r15+160 - c-72"), 6),
    Case(S390, "saves-in-fprs.s", Said("default", "r15+160 f2 f0"), Said("flexible", "r15+160 f2 f0"), 8),
    Case(S390, "fp-in-fpr.s", Said("default", "r15+160 - f0"), Said("flexible", "r15+160 - f0"), 4),
    Case(S390, "ra-in-gpr.s", Said("default", "r15+160 r1 -"), Said("flexible", "r15+160 r1 -"), 4),
    Case(S390, "cfa-other-register.s", SkipReason.CFA_BASE_REGISTER, Said("flexible", "r10+160 - -"), 4),
    Case(S390, "cfa-offset-unaligned.s", SkipReason.OFFSET_RANGE, SkipReason.OFFSET_RANGE, 4),
    Case(S390, "val-offset-sp.s", Said("default", "r15+160 - -"), Said("default", "r15+160 - -"), 0),
    Case(S390, "val-offset-sp-other.s", Said("default", "r15+312 - -"), Said("default", "r15+312 - -"), 4),
    Case(S390, "sp-is-cfa.s", Said("default", "r15+264 c-264 -"), Said("default", "r15+264 c-264 -"), 4),
    Case(S390, "ra-column.s", Said("default", "r15+160 r0 -"), Said("flexible", "r15+160 r0 -"), 0),
    Case(S390, "ra-undefined.s", RA_UNDEFINED, RA_UNDEFINED, 0),
    Case(S390, "signal-frame.s", Said("default", "r15+160 - -"), Said("default", "r15+160 - -"), 0, "S"),
)


def _text(state: FrameState, target: Target) -> str:
    if state.cfa is None:
        return "outermost"
    rules = [state.cfa.equation(target.arch)]
    for rule in (state.ra, state.fp):
        text = "-" if rule is None else rule.equation(target.arch)
        # Saved at an offset from the CFA, or in a register as it is.
        rules.append(text.removeprefix("*(").removesuffix(")").removesuffix("+0") if rule else text)
    return " ".join(rules) + ("!" if state.mangled_ra else "")


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.target.name}-{case.source}")
@pytest.mark.parametrize("version", [1, 2, 3])
def test_rows_of_a_source(
    version: int, case: Case, binutils: Callable[[BinutilsVersion], Binutils], tmp_path: Path
) -> None:
    target = case.target
    if version < target.arch.first_version:
        return
    made = tmp_path / "made.o"
    run([binutils("newest").tool("as", target.name), target.source(case.source), "-o", made])
    conversion = convert(load(str(made)), version=version, errata=2 if version == 2 else None)
    expected = case.newest if version == 3 else case.old
    if version == 1 and expected is RA_UNDEFINED:
        expected = SkipReason.RA_UNDEFINED
    if isinstance(expected, SkipReason):
        whole = [skip for _, skip in conversion.skips]
        whys = [hole.why for _, parts in conversion.in_parts for hole in parts.holes] if case.start_delta else whole
        assert [(why.reason, why.start_delta) for why in whys][:1] == [(expected, case.start_delta)]
        return
    (function,) = conversion.section.functions
    body = function.body
    assert ("flexible" if body.is_flexible else "default") == expected.form
    at = [row.state for row in body.rows if row.start_delta == case.start_delta]
    assert [_text(state, target) for state in at] == [expected.row]
    marks = ("B" if body.uses_b_key else "") + ("S" if body.is_signal_frame else "")
    assert marks == (case.marks if version == 3 else case.marks.replace("S", ""))


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
    run([tools.tool("as", target.name), source, "-o", made])
    relocations = run([tools.tool("readelf", target.name), "-rW", made])
    assert {"PC32": "32 ", "PC64": "64 ", "ABS64": "64 ", "ABS32": "32 "}[kind] in relocations
    assert main([str(made), "-o", str(converted)]) == 0
    assert main(["verify", str(converted)]) == 0
    # Where addresses have 32 bits.
    run([tools.tool("ld", target.name), "-e", "f", "-Ttext=0x10000", "-o", linked, converted])
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


@pytest.mark.parametrize("target", TARGETS, ids=label)
def test_a_kernel_module(target: Target, binutils: Callable[[BinutilsVersion], Binutils], tmp_path: Path) -> None:
    """Objects joined by `ld -r`, without the program's own start-up code: converted, and found right."""
    tools = binutils("newest")
    parts = []
    for number, name in enumerate(("leaf.s", "frame-record.s", "large-frame.s")):
        renamed = tmp_path / f"{number}.s"
        text = target.source(name).read_text().replace("\t.text\n", f'\t.section .text.{number}, "ax"\n')
        renamed.write_text(re.sub(r"\bf\b", f"f{number}", text))
        run([tools.tool("as", target.name), renamed, "-o", tmp_path / f"{number}.o"])
        parts.append(tmp_path / f"{number}.o")
    module = tmp_path / "module.ko"
    run([tools.tool("ld", target.name), "-r", "--unique=.text.*", "-o", module, *parts])
    assert main(["--in-place", str(module)]) == 0
    assert main(["verify", str(module)]) == 0
    image = load(str(module))
    functions = decode_existing(image).functions
    names = [image.place(function.start_vaddr).section_name for function in functions]
    assert sorted(names) == [".text.0", ".text.1", ".text.2"]
