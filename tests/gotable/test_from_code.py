# SPDX-License-Identifier: Apache-2.0
"""Functions for which Go's table has no rule, and instructions may have one, with `--from code`."""

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import account, load
from cfi2sframe.abi import AARCH64_LE, AMD64, Arch
from cfi2sframe.abi.rule import Rule
from cfi2sframe.api import convert, verify
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import emit
from cfi2sframe.why import Reason
from tests.support.conversion.sums import convert_checked
from tests.support.conversion.variants import decode_made
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, cie_of, debug_frame, eh_frame
from tests.support.gotable.go_programs import go_build
from tests.support.gotable.go_table import SP_WRITE, GoFunction, GoTable, go_file

FROM_CODE: Final = Options(source="code", level=1)

#: push rbp; mov rbp, rsp; mov rsp, [rdi]; call rsi; mov rsp, rbp; pop rbp; ret
KEEPS_FP = bytes.fromhex("55 4889e5 488b27 ffd6 4889ec 5d c3")
#: mov rsp, [rdi]; call rsi; mov rsp, [rsp]; nop; push rbp; pop rbp; ret. Seen from the push on, it returns.
KEEPS_NOTHING = bytes.fromhex("488b27 ffd6 488b2424 90 55 5d c3")
#: test edi, edi; je to the push; call rsi; mov rsp, [rdi]; call rsi; mov rsp, [rsp]; ret; push rbp; pop rbp; ret
RETURNS_BEFORE = bytes.fromhex("85ff 740c ffd6 488b27 ffd6 488b2424 c3 55 5d c3")
#: str x30, [sp, #-48]!; stur x29, [sp, #-8]; sub x29, sp, #8; mov x20, sp; ldr x1, [x0]; mov sp, x1; blr x2;
#: mov sp, x20; ldp x29, x30, [sp, #-8]; add sp, sp, #48; ret
FP_BELOW_SP = bytes.fromhex(
    "fe0f1df8 fd831ff8 fd2300d1 f4030091 010040f9 3f000091 40003fd6 9f020091 fdfb7fa9 ffc30091 c0035fd6"
)
#: mov rdx, rsp; and rsp, -16; mov [rsp], rdx; call rsi; mov rdx, [rsp]; mov rsp, rdx; ret. From the call to the load
#: there is no rule, and after it, rdx has the CFA, which version 2 cannot say.
REALIGNED = bytes.fromhex("4889e2 4883e4f0 48891424 ffd6 488b1424 4889d4 c3")
#: push rbp; pop rbp; ret
PLAIN = bytes.fromhex("55 5d c3")


def go_image(
    *codes: bytes,
    flags: int = SP_WRITE,
    name: str = "f",
    arch: Arch = AMD64,
    has_debug_frame: bool = False,
    eh_frame_size: int = 0,
) -> ElfImage:
    """Return a file whose table has a function for each of `codes`, without depths that are true.

    Of .debug_frame each of them has an FDE of one row; .eh_frame has one for so many bytes, 64 below the CFA.
    """
    starts = list(accumulate(map(len, codes), initial=0))
    functions = [
        GoFunction(at, ((len(code), 0),), name if at == 0 else f"f{at}", flags)
        for at, code in zip(starts, codes, strict=False)
    ]
    more: list[asm.Section] = []
    if has_debug_frame:
        cie = cie_of(arch, augmentation="")
        fdes = [asm.Fde(cie, TEXT_VADDR + start, end - start, ()) for start, end in pairwise(starts)]
        more.append(debug_frame(arch, *fdes))
    if eh_frame_size:
        more.append(eh_frame(arch, asm.Fde(cie_of(arch), TEXT_VADDR, eh_frame_size, (asm.def_cfa_offset(64),))))
    return load(go_file(arch, GoTable(tuple(functions), starts[-1]), *more, code=b"".join(codes)), "go")


def described(image: ElfImage) -> list[tuple[int, int]]:
    """Return the ranges of functions, counted from the code's start."""
    section = decode_made(image, FROM_CODE)
    return [(f.start_vaddr - TEXT_VADDR, f.end_vaddr - TEXT_VADDR) for f in section.functions]


@pytest.mark.parametrize("has_debug_frame", [False, True], ids=["table alone", "and .debug_frame"])
def test_what_instructions_prove(*, has_debug_frame: bool) -> None:
    """FP has the CFA on the other stack. `.debug_frame` is not asked: Go's keeps one rule through such functions."""
    image = go_image(KEEPS_FP, KEEPS_NOTHING, has_debug_frame=has_debug_frame)
    size = len(KEEPS_FP)
    conversion = convert_checked(image, FROM_CODE)
    assert described(image) == [(0, size)]
    rows = decode_made(image, FROM_CODE)
    cfas = [found.state.cfa for at in range(size) if (found := rows.find(TEXT_VADDR + at)) and found.state]
    expected = {0: Rule(7, 8, deref=False), 1: Rule(7, 16, deref=False), 7: Rule(6, 16, deref=False)}
    expected |= {12: Rule(7, 16, deref=False), 13: Rule(7, 8, deref=False)}
    assert cfas == [expected[max(start for start in expected if start <= at)] for at in range(size)]
    ((entry, why),) = conversion.skips
    assert (entry.start_vaddr, why.reason) == (TEXT_VADDR + size, Reason.CFA_UNDEFINED)
    counts = account(conversion)
    assert (counts.from_code_size, counts.without_cfi_size, counts.left_out_size) == (size, 0, len(KEEPS_NOTHING))
    assert account(convert_checked(image)).described_size == 0


def test_fp_below_sp_on_aarch64() -> None:
    """Go's functions save FP right below SP, and their signal handlers have another stack."""
    size = len(FP_BELOW_SP)
    made = decode_made(go_image(FP_BELOW_SP, arch=AARCH64_LE), FROM_CODE)
    states = [found.state for at in range(0, size, 4) if (found := made.find(TEXT_VADDR + at)) and found.state]
    at_sp, at_fp = (Rule(31, 48, deref=False), Rule(29, 56, deref=False))
    cfas = [Rule(31, 0, deref=False), *[at_sp] * 5, *[at_fp] * 2, *[at_sp] * 2, Rule(31, 0, deref=False)]
    assert [state.cfa for state in states] == cfas
    below, slot = Rule(29, 0, deref=True), Rule(None, -56, deref=True)
    assert [state.fp for state in states] == [*[None] * 3, *[below] * 3, *[slot] * 2, below, None, None]


def test_the_rest_keeps_its_reason() -> None:
    """Only what reaches a return from the function's start has rows: no return that is swept within it proves any."""
    image = go_image(RETURNS_BEFORE)
    conversion = convert_checked(image, FROM_CODE)
    assert described(image) == [(0, 4), (16, len(RETURNS_BEFORE))]
    (entry,) = conversion.in_parts
    assert entry.section.kind == "gopclntab"
    assert {(m.kind, m.message) for m in account(conversion).missing} == {("in part", Reason.CFA_UNDEFINED.value)}
    assert verify(conversion).is_clean


def test_cfi_comes_first() -> None:
    image = go_image(PLAIN, PLAIN, eh_frame_size=len(PLAIN))
    made = decode_made(image, FROM_CODE)
    states = [found.state for at in range(6) if (found := made.find(TEXT_VADDR + at)) is not None]
    assert [state and state.cfa and state.cfa.offset for state in states] == [64, 64, 64, 8, 16, 8]


def test_no_depths_no_claim() -> None:
    """Functions that have rules keep these, whatever their instructions are."""
    image = go_image(KEEPS_FP, flags=0)
    assert decode_made(image, FROM_CODE).functions == decode_made(image, Options(level=1)).functions
    assert account(convert_checked(image, FROM_CODE)).from_code_size == 0


@pytest.mark.parametrize("name", ["runtime.asyncPreempt", "runtime.sigpanic"])
@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE], ids=lambda arch: arch.name)
def test_calls_that_a_signal_handler_fakes_prove_nothing(arch: Arch, name: str) -> None:
    """The handler has pushed more than a call does, so SP at the entry is not what it is after a call."""
    leaf = {AMD64.name: PLAIN, AARCH64_LE.name: bytes.fromhex("1f2003d5 c0035fd6")}[arch.name]
    image = go_image(leaf, leaf, name=name, arch=arch)
    conversion = convert_checked(image, FROM_CODE)
    assert described(image) == [(len(leaf), 2 * len(leaf))]
    assert [entry.program.cie.is_signal_frame for entry, _ in conversion.skips] == [True]


@pytest.mark.parametrize("has_debug_frame", [False, True], ids=["table alone", "and .debug_frame"])
def test_verify(*, has_debug_frame: bool) -> None:
    """A converted file is judged without being told how it was; another row is wrong, and one that nothing proves."""
    image = go_image(KEEPS_FP, RETURNS_BEFORE, KEEPS_NOTHING, has_debug_frame=has_debug_frame)
    conversion = convert_checked(image, FROM_CODE)
    written = load(b"".join(map(bytes, emit(conversion).chunks)), "written")
    for source in (None, FROM_CODE.source):
        found = verify(written, source=source)
        assert (found.is_clean, found.point_count, found.judged.none) == (True, found.judged.none, 9)
    section = conversion.section
    (first, *others), size = section.bodies, len(KEEPS_FP) + len(RETURNS_BEFORE)
    (state, *states) = first.states
    wrong = first._replace(states=(state._replace(cfa=Rule(7, 16, deref=False)), *states))
    planted = section._replace(bodies=(wrong, *others))
    assert [(d.kind, d.vaddr) for d in verify(image, planted).differences] == [("wrong", TEXT_VADDR)]
    extra = section._replace(
        starts=(*section.starts, TEXT_VADDR + size),
        sizes=(*section.sizes, len(KEEPS_NOTHING)),
        bodies=(*section.bodies, section.bodies[-1]),
    )
    assert {(d.kind, d.vaddr - TEXT_VADDR) for d in verify(image, extra).differences} >= {("wrong", size)}


@pytest.mark.parametrize("version", [2, 3])
def test_verify_a_function_that_begins_with_what_the_version_cannot_express(version: int) -> None:
    image = go_image(REALIGNED)
    written = load(b"".join(map(bytes, emit(convert(image, source="code", version=version)).chunks)), "written")
    found = verify(written)
    assert (found.is_clean, found.judged.none) == (True, 4 if version == 3 else 2)


@pytest.mark.oracle
@pytest.mark.parametrize("flags", [(), ("-ldflags=-s -w",)], ids=["with .debug_frame", "stripped"])
def test_a_program_of_go(flags: tuple[str, ...], tmp_path: Path) -> None:
    """Time is told on the thread's stack, and whoever profiles a program is there often; others leave their stack."""
    source = 'package main\nimport "time"\nfunc main() { println(time.Now().Unix()) }\n'
    image = load(str(go_build(tmp_path, source, *flags)))
    conversion = convert_checked(image, FROM_CODE)
    before = {m.symbol: m.size for m in account(convert(image)).missing}
    after = {m.symbol: m.size for m in account(conversion).missing}
    clocks = {name for name in before if name.removesuffix(".abi0") in ("runtime.nanotime1", "time.now")}
    assert len(clocks) == 2
    assert not clocks & after.keys()
    for name in ("runtime.systemstack", "runtime.mcall", "runtime.morestack", "gogo"):
        (found,) = (each for each in before if each.removesuffix(".abi0") == name)
        assert after[found] == before[found]
    assert verify(conversion).is_clean
