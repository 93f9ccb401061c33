# SPDX-License-Identifier: Apache-2.0
"""Random functions in GNU assembly with valid call frame information: every directive, and every opcode that has none.

Valid means what DWARF 5, 6.4.2 asks for: what builds on a rule finds one of the right kind, and what restores a state
finds one remembered. Opcodes without a directive go in as `.cfi_escape`, advances among them.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from tests.support.cfi_instructions import sleb128, uleb128

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.oracle.frames import Arch as ArchName

CfaKind = Literal["none", "register", "expression"]


class Machine(NamedTuple):
    """What a function of an architecture may name; registers are DWARF numbers, sizes bytes."""

    name: ArchName
    sp: int
    fp: int
    ra: int
    others: tuple[int, ...]
    data_alignment: int
    instruction_size: int
    code_alignment: int
    nop: str
    initial_offset: int


MACHINES: Final[dict[ArchName, Machine]] = {
    "amd64": Machine("amd64", 7, 6, 16, (0, 3, 10, 12, 13, 14, 15), -8, 1, 1, "nop", 8),
    "aarch64": Machine("aarch64", 31, 29, 30, (0, 9, 16, 19, 28), -8, 4, 4, "nop", 0),
    "s390x": Machine("s390x", 15, 11, 14, (0, 1, 6, 12, 16, 24), -8, 4, 1, "nop 0", 160),
}

#: What the expressions are matters little: they are told apart by the way llvm-dwarfdump spells them.
EXPRESSIONS: Final = (
    b"\x77\x08",  # breg7 8
    b"\x77\x28\x06",  # breg7 40; deref
    b"\x76\x70\x06\x23\x08",  # breg6 -16; deref; plus_uconst 8
    b"\x92\x0c\x80\x7f",  # bregx 12 -128
    b"\x77\x08\x80\x00\x3f\x1a\x3b\x2a\x33\x24\x22",  # the PLT's
    b"\x23\x18",  # plus_uconst 24, on the CFA or on nothing
    b"\x0a\x00\x01\x22",  # const2u 256; plus
)


class _State(NamedTuple):
    """What has to be known of a function so far to go on validly.

    `offset` is the CFA's as the assembler knows it, from directives alone.
    """

    cfa: CfaKind
    offset: int


class Writer:
    """Writes one function after the other; the same seed gives the same text.

    `is_gnu`: with DW_CFA_GNU_negative_offset_extended, which LLVM does not know.
    """

    def __init__(self, machine: Machine, seed: int, *, is_gnu: bool = False) -> None:
        self.is_gnu = is_gnu
        self.machine = machine
        # Numbers that can be had again, not secrets.
        self.random = Random(seed)  # noqa: S311

    def lines(self, count: int, first: int = 0) -> Iterator[str]:
        """Yield the lines of an assembly file of `count` functions."""
        yield ".text"
        for number in range(first, first + count):
            yield from self.function(f"f{number}")

    def function(self, name: str) -> Iterator[str]:
        """Yield the lines of a function."""
        random = self.random
        is_simple = random.random() < 0.15
        yield f"{name}:"
        yield "\t.cfi_startproc simple" if is_simple else "\t.cfi_startproc"
        if random.random() < 0.05:
            yield "\t.cfi_signal_frame"
        if random.random() < 0.03:
            yield "\t.cfi_personality 0x9b, personality"
        if random.random() < 0.03:
            yield f"\t.cfi_return_column {random.choice(self.machine.others)}"
        if self.machine.name == "aarch64" and random.random() < 0.05:
            yield "\t.cfi_b_key_frame"
        self.stack: list[_State] = []
        self.state = _State("none", 0) if is_simple else _State("register", self.machine.initial_offset)
        self.may_restore = False
        for _ in range(random.choice((0, 1, 2, 3, 5, 8, 13, 40))):
            if random.random() < 0.6:
                yield from self._advance()
            yield "\t" + self._directive()
        yield f"\t{self.machine.nop}"
        yield "\t.cfi_endproc"

    def _advance(self) -> Iterator[str]:
        random, machine = self.random, self.machine
        # Instructions before the first advance become the CIE's, which has nothing to restore.
        self.may_restore = True
        kind = random.random()
        if kind < 0.85:
            yield from [f"\t{machine.nop}"] * random.choice((1, 1, 1, 2, 5))
        elif kind < 0.98:
            yield f"\t.skip {machine.instruction_size * random.choice((15, 63, 64, 65, 255, 256, 300))}"
        else:
            yield f"\t.skip {machine.instruction_size * random.choice((65_535, 65_536, 70_000))}"

    def _directive(self) -> str:
        if self.state.cfa == "none":
            return self._define_cfa()
        choices = [self._define_cfa, self._rule, self._rule, self._rule, self._remember, self._escape]
        if self.state.cfa == "register":
            choices += [self._change_cfa, self._change_cfa, self._change_cfa]
        if self.stack:
            choices += [self._restore_state, self._restore_state]
        return self.random.choice(choices)()

    def _define_cfa(self) -> str:
        offset = self._offset()
        register = self._base()
        if offset % 8 == 0 and self.random.random() < 0.3:
            self.state = _State("register", self.state.offset)
            return _escape(b"\x12" + uleb128(register) + sleb128(offset // self.machine.data_alignment))
        self.state = _State("register", offset)
        return f".cfi_def_cfa {register}, {offset}"

    def _change_cfa(self) -> str:
        offset = self._offset()
        match self.random.randrange(4):
            case 0:
                self.state = _State("register", offset)
                return f".cfi_def_cfa_offset {offset}"
            case 1 if self.state.offset + 16 < 1 << 30:
                self.state = _State("register", self.state.offset + 16)
                return ".cfi_adjust_cfa_offset 16"
            case 2:
                return _escape(b"\x13" + sleb128(offset // self.machine.data_alignment))
        return f".cfi_def_cfa_register {self._base()}"

    def _remember(self) -> str:
        self.stack.append(self.state)
        return ".cfi_remember_state"

    def _restore_state(self) -> str:
        self.state = self.stack.pop()
        return ".cfi_restore_state"

    def _rule(self) -> str:
        register, random = self._register(), self.random
        saved = 8 * random.choice((-1, -2, -3, -20, -300, 1, 5, 0, -10_000))
        match random.randrange(11):
            case 0 | 1 | 2:
                return f".cfi_offset {register}, {saved}"
            case 3:
                return f".cfi_register {register}, {random.choice(self.machine.others)}"
            case 4:
                return f".cfi_undefined {register}"
            case 5:
                return f".cfi_same_value {register}"
            case 6:
                return f".cfi_val_offset {register}, {saved}"
            case 7 if self.machine.name == "aarch64":
                return ".cfi_negate_ra_state"
            case 8 if self.state.offset % 8 == 0:
                return f".cfi_rel_offset {register}, {8 * random.choice((0, 1, 2, 9))}"
        return f".cfi_restore {register}" if self.may_restore else f".cfi_same_value {register}"

    def _escape(self) -> str:
        register, random = self._register(), self.random
        name = uleb128(register)
        factored = random.choice((1, 2, 3, 20, 300))
        block = random.choice(EXPRESSIONS)
        choices = [
            b"\x00",
            b"\x05" + name + uleb128(factored),
            b"\x07" + name,
            b"\x08" + name,
            b"\x09" + name + uleb128(random.choice(self.machine.others)),
            b"\x10" + name + uleb128(len(block)) + block,
            b"\x11" + name + sleb128(random.choice((-3, -1, 1, 2, 70))),
            b"\x14" + name + uleb128(factored),
            b"\x15" + name + sleb128(random.choice((-2, 0, 4))),
            b"\x16" + name + uleb128(len(block)) + block,
            b"\x2e" + uleb128(random.choice((0, 16, 4096))),
            # A number with bytes to spare.
            b"\x05" + name + b"\x82\x80\x00",
        ]
        if register < 64:
            choices.append(bytes([0x80 | register]) + uleb128(factored))
        if self.may_restore:
            choices += [b"\x06" + name, bytes([0xC0 | min(register, 63)])]
        if self.machine.name == "aarch64":
            choices.append(b"\x2d")
        if self.is_gnu:
            choices += [b"\x2f" + name + uleb128(factored)] * 3
        if random.random() < 0.2:
            self.state = _State("expression", self.state.offset)
            return _escape(b"\x0f" + uleb128(len(block)) + block)
        return _escape(random.choice(choices))

    def _register(self) -> int:
        machine = self.machine
        return self.random.choice((machine.fp, machine.fp, machine.ra, machine.ra, machine.sp, *machine.others[:2]))

    def _base(self) -> int:
        machine = self.machine
        return self.random.choice((machine.sp, machine.sp, machine.fp, machine.fp, self.random.choice(machine.others)))

    def _offset(self) -> int:
        return self.random.choice((8, 16, 24, 40, 160, 168, 320, 1024, 32_767, 32_768, 40_000, 0, 13, 100_000_000))


def _escape(code: bytes) -> str:
    return ".cfi_escape " + ", ".join(f"0x{byte:02x}" for byte in code)
