# SPDX-License-Identifier: Apache-2.0
"""Rows from instructions as the last source: what is derived, who holds an address, what is counted and compared.

The analysis itself is replaced; `tests/instructions/` has its tests.
"""

from collections.abc import Sequence

import pytest

from cfi2sframe import account, load
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.api import convert, verify
from cfi2sframe.constants.elf import STT_FUNC
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.conversion.sources import UnreadSource, read_programs
from cfi2sframe.conversion.uncovered import as_cfi
from cfi2sframe.dwarf.fdes import RowFunction
from cfi2sframe.dwarf.rules import CfaRule, NoRule, RaSigning, RowState, table_of_rows
from cfi2sframe.elf.cfi import CfiKind
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import check as check_emitted
from cfi2sframe.emit import emit
from cfi2sframe.errors import ElfError, InputError, UnfitError
from cfi2sframe.instructions import derive as door
from cfi2sframe.instructions.derive import Derived
from cfi2sframe.instructions.states import Underived
from cfi2sframe.jobs.conversion import refusal_of
from cfi2sframe.jobs.records import Conditions
from cfi2sframe.range_map import Span, united
from cfi2sframe.report.coverage import coverage_data
from cfi2sframe.why import Reason
from tests.support.conversion.sums import check_sums, convert_checked
from tests.support.conversion.variants import decode_made
from tests.support.dwarf import cfi_asm as asm
from tests.support.dwarf.rules import at_cfa, is_expression, register_offset
from tests.support.elf.samples import CODE, TEXT_VADDR, Code, cie_of, linked_file
from tests.support.stubs.handmade import lazy_stubs, push_and_leave

FROM_CODE = Options(source="code")
ARCHES = (AMD64, AARCH64_LE, S390X)
#: An instruction that fills space, and one that does not, both of 4 bytes.
NOP = {AMD64.name: b"\x0f\x1f\x40\x00", AARCH64_LE.name: b"\x1f\x20\x03\xd5", S390X.name: b"\x47\0\0\0"}
ADD = {AMD64.name: b"\x48\x83\xc0\x01", AARCH64_LE.name: b"\0\x04\0\x91", S390X.name: b"\xa7\x2a\0\1"}
#: The offset of the CFA from SP at a function's entry.
ENTRY = {"AMD64": 8, "s390x": 160}


def code_of(arch: Arch, layout: str) -> bytes:
    """Return code of 16 bytes for each letter: code for `c`, padding for `p`."""
    return b"".join({"c": ADD, "p": NOP}[letter][arch.name] * 4 for letter in layout)


def file_of(arch: Arch, layout: str, *fdes: tuple[int, int], symbols: tuple[asm.Symbol, ...] = ()) -> ElfImage:
    """Return a library with code (see `code_of`), and FDEs at (start, size), counted in letters."""
    entries = [asm.Fde(cie_of(arch), TEXT_VADDR + 16 * start, 16 * size, ()) for start, size in fdes]
    code = code_of(arch, layout)
    data = linked_file(arch, entries, codes=(Code(size=len(code), data=code),), symbols=symbols)
    return load(data, "sample")


def at(letter: int) -> int:
    return TEXT_VADDR + 16 * letter


def pushed_at(image: ElfImage, options: Options) -> dict[int, int | None]:
    """Return, for each letter of the code, the bytes that its row says were pushed; None: no row."""
    lookup, entry = decode_made(image, options), ENTRY.get(image.arch.name, 0)
    result: dict[int, int | None] = {}
    for letter in range((image.code_ranges[0].end_vaddr - TEXT_VADDR) // 16):
        state = None if (found := lookup.find(at(letter))) is None else found.state
        result[letter] = None if state is None or state.cfa is None else state.cfa.offset - entry
    return result


def derived(arch: Arch, start: int, end: int, *rows: tuple[int, int | None]) -> RowFunction:
    """Return a function of rows (start, bytes pushed); without any, of a leaf's. None: what no version can express."""
    ra = at_cfa(arch.fixed_ra_offset) if arch.fixed_ra_offset else NoRule.UNSPECIFIED
    states = []
    for row_start, pushed in rows or ((0, 0),):
        cfa: CfaRule = is_expression(b"\x30\x31\x1a")
        if pushed is not None:
            cfa = register_offset(arch.sp_register, ENTRY.get(arch.name, 0) + pushed)
        states.append((row_start, RowState(cfa, ra, NoRule.UNSPECIFIED, NoRule.UNSPECIFIED, RaSigning.NONE)))
    return RowFunction(start, end - start, table_of_rows(states))


def give(
    monkeypatch: pytest.MonkeyPatch,
    *functions: RowFunction,
    left_out: Sequence[tuple[int, int]] = (),
    error: InputError | None = None,
) -> list[tuple[Span, ...]]:
    """Have the analysis give these functions, or raise an error; return what is covered whenever it is asked."""
    asked: list[tuple[Span, ...]] = []

    def derive(_: ElfImage, covered: Sequence[Span], _entered_at_start: Sequence[Span]) -> Derived:
        asked.append(tuple(covered))
        if error is not None:
            raise error
        return Derived(functions, tuple(Underived(*gap, Reason.NOT_REACHED) for gap in left_out))

    monkeypatch.setattr(door, "derive", derive)
    return asked


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_code_without_cfi_gets_rows(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    image = file_of(arch, "ccccpcc", (0, 2), (5, 1))
    asked = give(monkeypatch, derived(arch, at(2), at(4), (0, 0), (16, 16)), left_out=[(at(6), at(7))])
    conversion = convert_checked(image, FROM_CODE)
    assert asked == [((at(0), at(2)), (at(5), at(6)))]
    # Derived functions reach over the padding after them, as others do.
    assert pushed_at(image, FROM_CODE) == {0: 0, 1: 0, 2: 0, 3: 16, 4: 16, 5: 0, 6: None}
    assert verify(conversion).is_clean
    counts = account(conversion)
    assert (counts.default_size, counts.from_code_size, counts.padding_size, counts.without_cfi_size) == (
        48,
        32,
        16,
        16,
    )
    assert pushed_at(image, Options()) == {0: 0, 1: 0, 2: None, 3: None, 4: None, 5: 0, 6: None}


def test_nothing_is_derived_for_stubs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor for those that are left out, such as a first block that nothing enters."""
    stubs = (Code(at(9), 0, ".plt", lazy_stubs(2)), Code(at(20), 0, ".plt.sec", push_and_leave()))
    entries, text = [asm.Fde(cie_of(AMD64), at(0), 16)], Code(data=code_of(AMD64, "cc"))
    asked = give(monkeypatch)
    conversion = convert_checked(load(linked_file(AMD64, entries, codes=(text, *stubs))), FROM_CODE)
    assert [stub.start_vaddr for stub in conversion.stubs_left_out] == [at(20)]
    assert united(asked[0]) == [(at(0), at(1)), (at(9), at(12)), (at(20), at(21))]


@pytest.mark.parametrize("source", [None, "eh_frame", "code"])
@pytest.mark.parametrize("layout", ["cccc", "cc", "ccp", "ccpcc", "ccpppppp"])
def test_nothing_is_derived_without_need(source: CfiKind | None, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither without the option nor where everything is covered; long padding is no code either."""
    image = file_of(AMD64, layout, *(((0, 2), (3, 2)) if layout == "ccpcc" else ((0, 2),)))
    asked = give(monkeypatch, derived(AMD64, at(2), at(4)))
    conversion = convert_checked(image, Options(source=source))
    if source == "code":
        assert (asked != []) == (layout == "cccc") == (account(conversion).from_code_size > 0)
    else:
        assert (asked, conversion.cfi.underived) == ([], None)


@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_a_file_without_cfi(arch: Arch, monkeypatch: pytest.MonkeyPatch) -> None:
    image = file_of(arch, "cccc")
    with pytest.raises(UnfitError, match=r"^sample: no call frame information: no \.eh_frame"):
        convert(image)
    give(monkeypatch, derived(arch, at(0), at(3)), left_out=[(at(3), at(4))])
    conversion = convert_checked(image, FROM_CODE)
    assert account(conversion).sources == {"code": 1}
    assert verify(image, decode_made(image, FROM_CODE), source=FROM_CODE.source).is_clean
    assert verify(conversion).is_clean


def test_other_sources_are_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    error = ElfError("a damaged table", ".symtab")
    image = file_of(AMD64, "cccc", (0, 2))
    give(monkeypatch, error=error)
    conversion = convert_checked(image, FROM_CODE)
    assert conversion.data == convert(image).data
    # What is said of it: `test_sources`.
    assert account(conversion).unread == (UnreadSource.of("code", error),)


# Reports


def test_each_byte_has_one_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that are described, described in part, left out and not derived."""
    symbols = (asm.Symbol("f", at(9), 16, STT_FUNC | 0x10), asm.Symbol("g", at(10), 32, STT_FUNC | 0x10))
    image = file_of(AMD64, "ccccccccccccp", (0, 2), symbols=symbols)
    give(
        monkeypatch,
        derived(AMD64, at(2), at(4)),
        derived(AMD64, at(4), at(7), (0, 0), (16, None), (32, 8)),
        derived(AMD64, at(7), at(8), (0, None)),
        left_out=[(at(8), at(10))],
    )
    conversion = convert_checked(image, FROM_CODE)
    coverage = check_sums(conversion, may_join=True)
    assert coverage.sources == {".eh_frame": 1, "code": 2}
    assert {item[1:] for item in coverage.missing_sums if item.kind == "without CFI"} == {
        (Reason.CFA_EXPRESSION.value, 2, 32),
        ("no known entry leads there", 2, 32),
        ("", 1, 32),
    }
    assert coverage.from_code_size == 64
    # Of the FDEs nothing is missing; what has no CFI is no FDE.
    assert (coverage.function_count, coverage.described_count, coverage.left_out_count) == (1, 1, 0)
    assert {item.kind for item in coverage.missing} == {"without CFI"}
    assert conversion.is_whole
    assert (conversion.skips, conversion.in_parts, conversion.described_count) == ((), (), 1)
    assert refusal_of(conversion, account(conversion), Conditions(is_strict=True)) is None
    (f,) = (item for item in coverage_data(coverage)["missing"] if item["symbol"] == "f")
    assert (f["reason"], f["message"]) == ("NOT_REACHED", "no known entry leads there")


# Verification


def test_verify_compares_with_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the section has for such code; only if that is asked for, it has to have all that there could be."""

    def image() -> ElfImage:
        return file_of(AMD64, "ccccpc", (0, 2), (5, 1))

    def differences(options: Options) -> list[tuple[str, int]]:
        return [(d.kind, d.vaddr) for d in verify(image(), made, source=options.source).differences]

    give(monkeypatch, derived(AMD64, at(2), at(4), (0, 0), (16, 16)))
    made = decode_made(image(), FROM_CODE._replace(level=1))
    for options in (FROM_CODE, Options()):
        found = verify(image(), made, source=options.source)
        assert (found.is_clean, found.function_count) == (True, 3)
    # What somebody limits to one source has no other functions.
    assert differences(Options(source="eh_frame")) == [("extra", at(2))]
    # Other rows, other functions, and none.
    for given, expected in (
        ((derived(AMD64, at(2), at(4), (0, 0), (16, 8)),), ("wrong", at(3))),
        ((derived(AMD64, at(3), at(4), (0, 16)),), ("extra", at(2))),
        ((), ("extra", at(2))),
    ):
        give(monkeypatch, *given)
        assert differences(FROM_CODE) == differences(Options()) == [expected]
    # A section that was made without them lacks them.
    made = decode_made(image())
    asked = give(monkeypatch, derived(AMD64, at(2), at(4)))
    assert differences(Options()) == []
    assert asked == []
    assert differences(FROM_CODE) == [("missing", at(2))]


# Objects


LOCAL, GLOBAL, SECTION, TLS = 0x02, 0x12, 0x03, 0x06


@pytest.mark.parametrize(
    ("symbols", "expected"),
    [
        ((asm.Symbol("s", info=SECTION),), ("s", 16)),
        ((asm.Symbol("label", 32, info=LOCAL),), ("label", -16)),
        # The section's own symbol is what linkers expect.
        ((asm.Symbol("label", 32, info=LOCAL), asm.Symbol("s", info=SECTION)), ("s", 16)),
        ((asm.Symbol("other", 8, info=LOCAL), asm.Symbol("label", 32, info=LOCAL)), ("other", 8)),
        ((asm.Symbol("tls", 8, info=TLS), asm.Symbol("label", 32, info=LOCAL)), ("label", -16)),
        # Another definition may take a global symbol's place.
        ((asm.Symbol("f", info=GLOBAL),), None),
        ((asm.Symbol("s", info=SECTION, section=".data"),), None),
        ((), None),
    ],
)
@pytest.mark.parametrize("arch", ARCHES, ids=lambda arch: arch.name)
def test_objects(
    arch: Arch, symbols: tuple[asm.Symbol, ...], expected: tuple[str, int] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function's start is given by a local symbol of its section; without one, it cannot be described."""
    sections = (asm.Section(".text", code_of(arch, "cccc"), 1, CODE, align=16), asm.Section(".data", b""))
    is_little = arch.byte_order == "<"
    image = load(asm.elf_file(arch.elf_machine, sections, little_endian=is_little, symbols=symbols), "in.o")
    vaddr = image.code_ranges[0].start_vaddr
    give(monkeypatch, derived(arch, vaddr + 16, vaddr + 48), left_out=[(vaddr, vaddr + 16)])
    if expected is None:
        with pytest.raises(UnfitError, match="no local symbol gives a linker its place"):
            convert_image(image, FROM_CODE)
        return
    conversion = convert_checked(image, FROM_CODE)
    assert [(each.start_vaddr, each.reason) for each in conversion.cfi.underived or ()] == [(vaddr, Reason.NOT_REACHED)]
    (relocation,) = as_cfi(image, (derived(arch, vaddr + 16, vaddr + 48),)).relocations.values()
    names = [symbol.name for symbol in image.symbols(image.symbol_tables[0])]
    assert (names[relocation.symbol_index], relocation.addend) == expected
    emitted = emit(conversion)
    rewritten = load(b"".join(map(bytes, emitted.chunks)), "out.o")
    check_emitted(emitted, rewritten)
    assert verify(rewritten, source=FROM_CODE.source).is_clean
    assert verify(rewritten).is_clean


def test_functions_keep_their_key_and_share_programs() -> None:
    image = file_of(AARCH64_LE, "cccc")
    made = [derived(AARCH64_LE, at(n), at(n + 1))._replace(uses_b_key=n == 1) for n in (0, 1, 2)]
    entries = read_programs(image, (as_cfi(image, tuple(made)),)).entries
    assert [entry.program.cie.uses_b_key for entry in entries] == [False, True, False]
    assert [entry.program.table for entry in entries] == [each.table for each in made]
    assert len(set(entries.program_of)) == 2
