# SPDX-License-Identifier: Apache-2.0
"""Random CFI through the whole program: the section agrees with it, and verification notices any damage."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cfi2sframe import Options, convert, load
from cfi2sframe.api import verify
from cfi2sframe.arch import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.dwarf.rules import (
    AtCfa,
    AtExpression,
    CfaExpression,
    InRegister,
    IsExpression,
    NoRule,
    RaSigning,
    RegisterOffset,
    RegisterRule,
    RowState,
    ValueAtCfa,
)
from cfi2sframe.errors import SFrameError
from cfi2sframe.sframe.decode import DecodedFunction, DecodedSection, decode_section
from cfi2sframe.sframe.lookup import Lookup
from cfi2sframe.sframe.model import OUTERMOST, FrameState, Rule
from tests.support import cfi_asm as asm
from tests.support import cfi_strategies as cfi
from tests.support.samples import TEXT_VADDR, Code, cie_of, linked_file, push_fp
from tests.support.sums import convert_checked

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe import Conversion
    from cfi2sframe.elf.image import ElfImage

ARCH_OF = {"amd64": AMD64, "aarch64": AARCH64_LE, "s390x": S390X}
#: Steps after which every row can be expressed: with others, most sections would be empty.
PLAIN: frozenset[cfi.Operation] = frozenset(
    (
        *("advance", "def_cfa", "def_cfa_register", "def_cfa_offset", "offset", "remember_state", "restore_state"),
        *("restore", "same_value", "negate_ra_state"),
    )
)


class Drawn(NamedTuple):
    """An image of random CFI and the options to convert it with."""

    image: ElfImage
    arch: Arch
    options: Options


@st.composite
def files(draw: st.DrawFn, max_steps: int = 10, *, may_overlap: bool = True) -> Drawn:
    """Draw a linked file of a few functions, maybe overlapping ones."""
    machine = draw(st.sampled_from(cfi.MACHINES))
    arch = ARCH_OF[machine.name]
    operations = draw(st.sampled_from((None, PLAIN, PLAIN)))
    fdes: list[asm.Fde] = []
    position = TEXT_VADDR
    for _ in range(draw(st.integers(1, 4))):
        program = draw(cfi.programs(machine, max_steps, operations))
        augmentation = draw(st.sampled_from(("zR", "zR", "zRS", "zRB" if arch is AARCH64_LE else "zR")))
        cie = program.cie._replace(augmentation=augmentation)
        fdes.append(program.fde._replace(cie=cie, pc_begin=position))
        step = draw(
            st.sampled_from(
                (
                    program.fde.size,
                    program.fde.size,
                    program.fde.size + 8,
                    program.fde.size // 2 if may_overlap else program.fde.size,
                )
            )
        )
        position += step // machine.code_align * machine.code_align
    end = max(fde.pc_begin + fde.size for fde in fdes)
    data = linked_file(arch, draw(st.permutations(fdes)), codes=(Code(size=end - TEXT_VADDR + 16),))
    version = draw(st.integers(arch.first_version, 3))
    return Drawn(load(data, "random"), arch, Options(version, draw(st.integers(0, 2)) if version == 2 else 2))


@given(files())
def test_conversions_verify(drawn: Drawn) -> None:
    """For any CFI, the section has its rules or leaves the function out with a reason."""
    conversion = convert_checked(drawn.image, drawn.options)
    if conversion.data:
        result = verify(drawn.image, decode_section(conversion.data, conversion.section_vaddr), drawn.options)
        assert result.differences == ()
        assert result.left_out_count >= len(conversion.left_out)


@given(files(max_steps=4))
def test_conversions_are_deterministic(drawn: Drawn) -> None:
    again = load(bytes(drawn.image.data), "again")
    assert convert_checked(drawn.image, drawn.options).data == convert_checked(again, drawn.options).data


# Values instead of rules: registers and memory are made up, both sides are evaluated


def _mixed(number: int) -> int:
    """Return a number of 64 bits that depends on every bit of another (splitmix64's finisher)."""
    number = (number + 0x9E3779B97F4A7C15) % (1 << 64)
    number = (number ^ number >> 30) * 0xBF58476D1CE4E5B9 % (1 << 64)
    number = (number ^ number >> 27) * 0x94D049BB133111EB % (1 << 64)
    return number ^ number >> 31


def register_value(number: int) -> int:
    return _mixed(number)


def memory(vaddr: int) -> int:
    return _mixed(vaddr % (1 << 64) ^ 0xABCDEF)


def read_leb(code: bytes, position: int, *, signed: bool) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = code[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return (value - (1 << shift) if signed and byte & 0x40 else value), position


BINARY: dict[int, Callable[[int, int], int]] = {
    0x1A: lambda left, right: left & right,
    0x1C: lambda left, right: left - right,
    0x1E: lambda left, right: left * right,
    0x22: lambda left, right: left + right,
    0x24: lambda left, right: left << min(right, 64),
    0x2A: lambda left, right: int(left >= right),
}


def evaluate(code: bytes, byte_order: str, initial: list[int]) -> int | None:
    """Evaluate a DWARF expression over the made-up state; None where it is damaged or beyond this evaluator."""
    stack, position = list(initial), 0
    try:
        while position < len(code):
            position = step(code, position, byte_order, stack)
            stack[-1:] = [value % (1 << 64) for value in stack[-1:]]
        return stack[-1]
    except (IndexError, ValueError):
        return None


def step(code: bytes, position: int, byte_order: str, stack: list[int]) -> int:
    """Apply one operation and return the offset past it; ValueError where it is unknown here."""
    opcode, position = code[position], position + 1
    if 0x30 <= opcode <= 0x4F:
        stack.append(opcode - 0x30)
    elif 0x70 <= opcode <= 0x8F or opcode == 0x92:
        number = opcode - 0x70
        if opcode == 0x92:
            number, position = read_leb(code, position, signed=False)
        offset, position = read_leb(code, position, signed=True)
        stack.append(register_value(number) + offset)
    elif opcode == 0x06:
        stack.append(memory(stack.pop()))
    elif opcode == 0x12:
        stack.append(stack[-1])
    elif opcode == 0x23:
        amount, position = read_leb(code, position, signed=False)
        stack.append(stack.pop() + amount)
    elif opcode == 0x03:
        if position + 8 > len(code):
            raise ValueError
        stack.append(int.from_bytes(code[position : position + 8], "little" if byte_order == "<" else "big"))
        position += 8
    elif opcode in BINARY:
        right, left = stack.pop(), stack.pop()
        stack.append(BINARY[opcode](left, right))
    elif opcode != 0x96:
        raise ValueError
    return position


class Values(NamedTuple):
    """The caller's CFA, RA, FP and SP (None: cannot be known), and whether the RA is signed."""

    cfa: int | None
    ra: int | None
    fp: int | None
    sp: int | None
    is_signed: bool


def rule_value(rule: RegisterRule, cfa: int | None, arch: Arch, own: int) -> int | None:
    """Return the value that a rule gives a register; `own` is the register's value here."""
    if cfa is None or rule is NoRule.UNDEFINED:
        return None
    match rule:
        case NoRule():
            return own
        case AtCfa(offset):
            return memory(cfa + offset)
        case ValueAtCfa(offset):
            return (cfa + offset) % (1 << 64)
        case InRegister(register):
            return register_value(register)
        case AtExpression(expression):
            address = evaluate(expression, arch.byte_order, [cfa])
            return None if address is None else memory(address)
        case IsExpression(expression):
            return evaluate(expression, arch.byte_order, [cfa])


def dwarf_values(state: RowState, arch: Arch) -> Values | None:
    """Evaluate a row of the DWARF table; None in the outermost frame."""
    if state.ra is NoRule.UNDEFINED:
        return None
    cfa = None
    if isinstance(state.cfa, RegisterOffset):
        cfa = (register_value(state.cfa.register) + state.cfa.offset) % (1 << 64)
    elif isinstance(state.cfa, CfaExpression):
        cfa = evaluate(state.cfa.expression, arch.byte_order, [])
    sp = None if cfa is None else (cfa + arch.sp_offset_from_cfa) % (1 << 64)
    # s390x saves SP, and what is saved is CFA - 160 by the ABI's definition; made-up memory knows nothing of that.
    if state.sp is not NoRule.UNSPECIFIED and not (arch is S390X and isinstance(state.sp, AtCfa)):
        sp = rule_value(state.sp, cfa, arch, register_value(arch.sp_register))
    return Values(
        cfa,
        rule_value(state.ra, cfa, arch, register_value(arch.ra_register)),
        rule_value(state.fp, cfa, arch, register_value(arch.fp_register)),
        sp,
        state.signing is RaSigning.SIGNED,
    )


def sframe_values(state: FrameState, arch: Arch) -> Values | None:
    """Evaluate a row of SFrame; None in the outermost frame."""
    if state.cfa is None:
        return None

    def value(rule: Rule, cfa: int) -> int:
        base = cfa if rule.register is None else register_value(rule.register)
        total = (base + rule.offset) % (1 << 64)
        return memory(total) if rule.deref else total

    cfa = value(state.cfa, 0)
    ra = register_value(arch.ra_register) if state.ra is None else value(state.ra, cfa)
    fp = register_value(arch.fp_register) if state.fp is None else value(state.fp, cfa)
    return Values(cfa, ra, fp, (cfa + arch.sp_offset_from_cfa) % (1 << 64), state.mangled_ra)


@given(files())
def test_rows_give_the_values_that_dwarf_gives(drawn: Drawn) -> None:
    """CFA, RA, FP and SP of the caller, computed from a row of either side, are the same numbers."""
    conversion = convert_checked(drawn.image, drawn.options)
    if not conversion.data:
        return
    lookup = Lookup(decode_section(conversion.data, conversion.section_vaddr))
    # Joined functions name only the FDE that they begin in.
    described = convert(drawn.image, drawn.options._replace(level=1)).function_entries
    for number, start, end in conversion.code_map.pieces.records:
        entry = conversion.cfi.entries[number]
        begin = entry.fde.pc_begin_vaddr
        rows = entry.program.table.rows
        points = {start, end - 1, *(begin + row.start_delta for row in rows)}
        for pc in points:
            if not start <= pc < end:
                continue
            found = lookup.find(pc)
            assert (found is not None) == (number in described)
            if found is not None:
                assert found.row is not None
                truth = [row.state for row in rows if row.start_delta <= pc - begin][-1]
                assert sframe_values(found.row.row.state, drawn.arch) == dwarf_values(truth, drawn.arch)


# Damage


def meaning(decoded: DecodedSection) -> list[tuple[object, ...]]:
    """Return the rules of a section in one form, however they are stored."""
    return sorted(function_meaning(f, decoded) for f in decoded.functions)


def function_meaning(function: DecodedFunction, decoded: DecodedSection) -> tuple[object, ...]:
    rows: list[tuple[int, str]] = []
    is_signed = False
    for start, state in (row.row for row in function.rows):
        is_signed |= state.mangled_ra and state.cfa is not None
        # In the outermost frame there is no RA to be signed.
        text = repr(OUTERMOST if state.cfa is None else state)
        if not rows or rows[-1][1] != text:
            rows.append((start, text))
    return (
        function.start_vaddr,
        function.size,
        # Version 1 repeats no block: with one row, both PC types have the same at every address.
        function.is_pcmask and (decoded.header.version > 1 or len(rows) > 1),
        function.repeat_size,
        function.is_signal_frame,
        function.uses_b_key and is_signed,
        tuple(rows),
        # Not rules, but how readers find them: verification looks at these too.
        [row.row.start_delta for row in function.rows] != sorted({row.row.start_delta for row in function.rows}),
    )


def judged(drawn: Drawn, conversion: Conversion, data: bytes) -> str:
    """Say what becomes of a changed section: refused, the same in meaning, found to be wrong, or unseen."""
    try:
        decoded = decode_section(data, conversion.section_vaddr)
    except SFrameError:
        return "refused"
    if not verify(drawn.image, decoded, drawn.options).is_clean:
        return "found"
    original = decode_section(conversion.data, conversion.section_vaddr)
    return "the same" if meaning(decoded) == meaning(original) else "unseen"


@settings(max_examples=150)
@given(files(max_steps=6, may_overlap=False), st.data())
def test_every_change_of_a_byte_is_noticed(drawn: Drawn, data: st.DataObject) -> None:
    """A section with one byte changed cannot be decoded, or does not verify, or still has the same rules.

    Where FDEs overlap, the truth is open, and so is what a change does.
    """
    conversion = convert_checked(drawn.image, drawn.options)
    assume(conversion.data)
    offset = data.draw(st.integers(4, len(conversion.data) - 1))
    old = conversion.data[offset]
    near = st.sampled_from([old ^ 1 << bit for bit in range(8)] + [(old + 1) % 256, (old - 1) % 256, 0])
    new = data.draw(near | st.integers(0, 255))
    changed = conversion.data[:offset] + bytes((new,)) + conversion.data[offset + 1 :]
    assert judged(drawn, conversion, changed) != "unseen"


@given(st.sampled_from((AMD64, AARCH64_LE, S390X)), st.sampled_from((1, 2, 3)))
@example(AMD64, 3)
@settings(max_examples=8)
def test_every_change_of_every_bit_is_accounted_for(arch: Arch, version: int) -> None:
    """The same for each bit of a small section: no bit is without meaning but those that the format leaves unused."""
    if version < arch.first_version:
        return
    data = linked_file(arch, (push_fp(arch), asm.Fde(cie_of(arch), TEXT_VADDR + 0x40, 16)))
    drawn = Drawn(load(data, "small"), arch, Options(version))
    conversion = convert_checked(drawn.image, drawn.options)
    outcomes: dict[str, list[tuple[int, int]]] = {}
    for offset in range(len(conversion.data)):
        for bit in range(8):
            changed = bytearray(conversion.data)
            changed[offset] ^= 1 << bit
            outcomes.setdefault(judged(drawn, conversion, bytes(changed)), []).append((offset, bit))
    assert "unseen" not in outcomes
    assert set(outcomes["the same"]) == unused_bits(conversion, version, arch)


def unused_bits(conversion: Conversion, version: int, arch: Arch) -> set[tuple[int, int]]:
    """Return the bits that change nothing: the frame pointer flag, undefined bits, the key where no RA is signed."""
    unused = set()
    if version < 3:
        unused.add((3, 1))  # SFRAME_F_FRAME_POINTER is the user's word
    for index, function in enumerate(conversion.plan.functions):
        if version == 3:
            info = 28 + 2 * 16 + function.fre_offset + 2
            unused |= {(info, bit) for bit in (5, 6)} | {(info + 1, bit) for bit in (5, 6, 7)}
        else:
            info = 28 + index * (20 if version == 2 else 17) + 16
            unused |= {(info, bit) for bit in (5, 6, 7)}
            if version == 1 and function.body.row_count == 1:
                unused.add((info, 4))  # the PC type, where the one row holds everywhere
            if version == 2:
                unused |= {(info + byte, bit) for byte in (2, 3) for bit in range(8)}
    assert arch.first_version <= version
    return unused
