# SPDX-License-Identifier: Apache-2.0
"""Stubs that linkers write: at every byte, the row found is the stack depth measured and the one the CFI gives."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from cfi2sframe import convert, load, verify
from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode, decode_existing
from cfi2sframe.conversion.convert import Conversion
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import Function, FunctionBody
from cfi2sframe.stubs.scan import scan_stubs
from cfi2sframe.why import Reason
from tests.support.instructions.execution import MEMORY_SIZE, TARGETS
from tests.support.oracle import known_wrong
from tests.support.oracle.tools import find_binutils
from tests.support.placing.embedded import linked_program, without_section_headers
from tests.support.stubs.handmade import depth_at
from tests.support.stubs.linked import FOREIGN_VARIANTS, VARIANTS, Shape, Variant, label, link

pytestmark = pytest.mark.oracle

_STACK_SIZE: Final = 0x10000
#: A stub that runs longer has lost its way.
_MAX_STEPS: Final = 100


class Measured(NamedTuple):
    """An executed instruction: its size in bytes, and every distance of the CFA from SP that it was met with."""

    size: int
    depths: frozenset[int]


def measure(image: ElfImage, ranges: Iterable[range], entries: Iterable[int]) -> dict[int, Measured]:
    """Execute stubs from each entry until they leave the ranges; skip the test where there is no emulator."""
    unicorn = pytest.importorskip("unicorn", reason="no unicorn: make venv")
    (target,) = (target for target in TARGETS.values() if target.abi.arch is image.arch)
    emulator, numbers, _ = target.open(unicorn)
    covered, sp_register = tuple(ranges), numbers[image.arch.sp_register]
    sizes: dict[int, int] = {}
    depths: dict[int, set[int]] = {}
    entry_sp, entry_depth = MEMORY_SIZE - _STACK_SIZE // 2, {"AMD64": 8, "s390x": 160}.get(image.arch.name, 0)

    def on_instruction(emulator: Any, pc: int, size: int, _user: object) -> None:  # noqa: ANN401
        if not any(pc in each for each in covered):
            emulator.emu_stop()
            return
        sizes[pc] = size
        depths.setdefault(pc, set()).add(entry_depth + entry_sp - emulator.reg_read(sp_register))

    for segment in image.loads:
        content = image.data[segment.file_offset : segment.file_offset + segment.file_size]
        emulator.mem_write(segment.vaddr, bytes(content))
    emulator.hook_add(unicorn.UC_HOOK_CODE, on_instruction)
    for entry in entries:
        emulator.reg_write(sp_register, entry_sp)
        # The word at SP, which is the return address of AMD64, leads nowhere.
        emulator.mem_write(MEMORY_SIZE - _STACK_SIZE, bytes(_STACK_SIZE))
        with suppress(unicorn.UcError):  # at an address that only the dynamic loader would have put there
            emulator.emu_start(entry, 0, count=_MAX_STEPS)
    return {pc: Measured(sizes[pc], frozenset(found)) for pc, found in depths.items()}


#: The thunk of lld's retpolines is entered from the first block with 16 bytes more than from the other stubs.
AMBIGUOUS: Final = {("lld", "retpoline"): range(0x20, 0x30)}


@pytest.fixture(scope="module", params=VARIANTS, ids=label)
def variant(request: pytest.FixtureRequest) -> Variant:
    assert isinstance(request.param, Variant)
    return request.param


@pytest.fixture(scope="module")
def image(variant: Variant, tmp_path_factory: pytest.TempPathFactory) -> ElfImage:
    return link(variant, tmp_path_factory.mktemp("plt"))


@pytest.fixture(scope="module")
def conversion(image: ElfImage) -> Conversion:
    return convert(image)


def _ranges(image: ElfImage) -> dict[str, range]:
    return {
        s.name: range(s.vaddr, s.end_vaddr)
        for s in image.sections
        if s.is_code and s.name.startswith((".plt", ".iplt"))
    }


def _entries(ranges: Mapping[str, range], shapes: Mapping[str, Shape]) -> list[int]:
    """Where code outside enters: each stub's start. A first block is entered by stubs or through their slots."""
    return [
        pc
        for name, covered in ranges.items()
        for pc in range(covered.start + shapes[name].header_size, covered.stop, shapes[name].block_size)
    ]


def _rows(conversion: Conversion) -> Callable[[int], int | None]:
    """Return a function that gives the CFA's distance from SP at an address, as a stack tracer finds it."""
    lookup = decode(conversion.data, conversion.section_vaddr)
    sp = conversion.target.arch.sp_register

    def depth(pc: int) -> int | None:
        found = lookup.find(pc)
        cfa = None if found is None or found.row is None else found.row.state.cfa
        if cfa is None:
            return None
        assert cfa.register == sp
        return cfa.offset

    return depth


def _check_measured(image: ElfImage, conversion: Conversion, shapes: Mapping[str, Shape]) -> int:
    """Compare the row at every byte of every executed instruction; return the count of those bytes."""
    ranges = _ranges(image)
    assert set(ranges) == set(shapes)
    measured = measure(image, ranges.values(), _entries(ranges, shapes))
    depth = _rows(conversion)
    wrong = [
        (hex(pc), set(what.depths), depth(byte))
        for pc, what in measured.items()
        for byte in range(pc, pc + what.size)
        if depth(byte) != (next(iter(what.depths)) if len(what.depths) == 1 else None)
    ]
    assert not wrong
    return sum(what.size for what in measured.values())


def test_the_row_at_every_executed_byte_is_the_measured_depth(
    image: ElfImage, conversion: Conversion, variant: Variant
) -> None:
    count = _check_measured(image, conversion, variant.shapes)
    # Each stub was executed: at least the jump of each.
    assert count >= 6 * len(_entries(_ranges(image), variant.shapes))


def test_every_byte_of_every_stub_has_a_row(image: ElfImage, conversion: Conversion, variant: Variant) -> None:
    depth = _rows(conversion)
    bare = {pc for covered in _ranges(image).values() for pc in covered if depth(pc) is None}
    ambiguous = AMBIGUOUS.get((variant.linker, variant.name), range(0))
    plt = _ranges(image).get(".plt", range(0))
    assert bare == {plt.start + offset for offset in ambiguous}
    left_out = conversion.stubs_left_out
    assert [(skip.start_vaddr, skip.size, skip.reason) for skip in left_out] == (
        [(plt.start + ambiguous.start, len(ambiguous), Reason.DEPTH_CONFLICT)] if ambiguous else []
    )


def test_without_section_headers_the_same_is_found(image: ElfImage, conversion: Conversion, variant: Variant) -> None:
    if "static" in variant.name:
        pytest.skip("nothing in a static program without section headers leads to its stubs")
    if (variant.linker, variant.name) == ("lld", "retpoline-now"):
        pytest.skip("GOT slots are empty: nothing leads to the stubs")
    bare = load(without_section_headers(bytes(image.data)), "bare")
    assert not bare.sections
    pcs = [pc for covered in _ranges(image).values() for pc in covered]
    found = scan_stubs(bare, 3).functions
    assert [depth_at(found, pc) for pc in pcs] == [depth_at(stubs_of(conversion), pc) for pc in pcs]


def stubs_of(conversion: Conversion) -> list[Function]:
    """Return the functions of stubs that a conversion made."""
    return [
        Function(start, end - start, rows)
        for start, end, origin, rows in conversion.pieces
        if origin is None and isinstance(rows, FunctionBody)
    ]


def test_joined_stubs_agree_with_their_instructions(image: ElfImage, conversion: Conversion) -> None:
    """Joined at -O2, the default, stubs may fill exactly the range of an FDE that the version cannot express."""
    assert verify(image, decode(conversion.data, conversion.section_vaddr)).is_clean


@pytest.mark.parametrize("foreign", FOREIGN_VARIANTS, ids=label)
def test_stubs_of_other_architectures(foreign: Variant, tmp_path: Path) -> None:
    image = link(foreign, tmp_path)
    assert image.arch is not AMD64
    conversion = convert(image)
    assert not conversion.stubs_left_out
    depth = _rows(conversion)
    assert all(depth(pc) is not None for covered in _ranges(image).values() for pc in covered)
    count = _check_measured(image, conversion, foreign.shapes)
    # Each stub was executed up to its jump.
    assert count >= 12 * len(_entries(_ranges(image), foreign.shapes))


GNU_WITH_SFRAME: Final = [
    pytest.param(variant, name, id=f"{label(variant)}-{name}")
    for variant in VARIANTS
    if variant.linker == "newest" and variant.name != "static"
    for name in variant.shapes
]


@pytest.mark.parametrize(("gnu", "section_name"), GNU_WITH_SFRAME)
def test_rows_of_stubs_equal_those_of_gnu_ld(
    gnu: Variant, section_name: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    tools = find_binutils("newest")
    if section_name == ".plt.got":
        known_wrong.expect_failure(request, "plt-got", "ld", tools.version)
    linked = link(gnu._replace(options=(*gnu.options, "-Wa,--gsframe")), tmp_path)
    covered = _ranges(linked)[section_name]
    theirs = [
        (f.start_vaddr, f.size, f.body.repeat_size, list(f))
        for f in decode_existing(linked).functions
        if f.start_vaddr in covered
    ]
    ours = [
        (f.start_vaddr, f.size, f.body.repeat_size, list(f.body.rows))
        for f in stubs_of(convert(linked))
        if f.start_vaddr in covered
    ]
    assert theirs == ours


def test_jumps_that_the_linker_has_not_filled_in_lead_nowhere() -> None:
    """Of IFUNCs in a static program, GNU ld leaves the jump to PLT0 with a distance of 0: to the next stub's entry."""
    image = load(linked_program(kind="static-pie").read_bytes())
    (plt,) = image.sections_named(".plt")
    code = image.section_bytes(plt)
    unfilled = [at for at in range(16, plt.size - 16, 16) if code[at + 11 : at + 16] == b"\xe9\0\0\0\0"]
    if not unfilled:
        pytest.skip("this linker fills them in")
    section = convert(image).section
    for at in range(16, plt.size, 16):
        found = section.find(plt.vaddr + at)
        assert found is not None
        assert code[at] == 0 or (found.cfa and found.cfa.offset) == 8
