# SPDX-License-Identifier: Apache-2.0
"""Effects of instructions held to an emulator, which executes them one by one: one harness for all ABIs."""

import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import pytest

from cfi2sframe.abi import AMD64, S390X
from cfi2sframe.elf.disassembler import open_disassembler
from cfi2sframe.instructions import aarch64, amd64, s390x
from cfi2sframe.instructions.effects import JUMP, NOTHING, Abi, Effect, Flow, Op
from cfi2sframe.instructions.s390x_text import FLOATS

#: All memory that there is; registers point to the window in its midst.
MEMORY_SIZE: Final = 1 << 28
CODE_VADDR: Final = 1 << 27
_WINDOW_VADDR: Final = 1 << 26
_WINDOW_SIZE: Final = 1 << 13
_MASK: Final = (1 << 64) - 1
#: How often an instruction is executed.
_RUNS: Final = 4


class Target(NamedTuple):
    """What the harness knows of an ABI; `open` returns an emulator, its numbers of registers by DWARF's, and PC's.

    An instruction whose mnemonic or text is in `not_executed` leaves the program, waits, or is unknown to the emulator.
    One whose text has `elsewhere` may store to an address that is no sum of one register and a number.
    """

    abi: Abi
    open: Callable[[Any], tuple[Any, dict[int, int], int]]
    not_executed: re.Pattern[str]
    elsewhere: re.Pattern[str]


def _open_amd64(uc: Any) -> tuple[Any, dict[int, int], int]:  # noqa: ANN401
    from unicorn import x86_const as names

    emulator = uc.Uc(uc.UC_ARCH_X86, uc.UC_MODE_64)
    emulator.mem_map(0, MEMORY_SIZE)
    numbers = {number: getattr(names, f"UC_X86_REG_{AMD64.registers[number].upper()}") for number in range(16)}
    return emulator, numbers, names.UC_X86_REG_RIP


def _open_aarch64(uc: Any) -> tuple[Any, dict[int, int], int]:  # noqa: ANN401
    from unicorn import arm64_const as names

    emulator = uc.Uc(uc.UC_ARCH_ARM64, uc.UC_MODE_ARM)
    emulator.ctl_set_cpu_model(names.UC_CPU_ARM64_MAX)
    emulator.mem_map(0, MEMORY_SIZE)
    # CPACR_EL1 (FPEN, ZEN) and CPTR_EL3 (EZ): without them, vectors trap. CRn, CRm, op0, op1, op2, value.
    for register in ((1, 0, 3, 0, 2, 0x330000), (1, 1, 3, 6, 2, 0x100)):
        emulator.reg_write(names.UC_ARM64_REG_CP_REG, register)
    named = {29: names.UC_ARM64_REG_X29, 30: names.UC_ARM64_REG_X30, 31: names.UC_ARM64_REG_SP}
    return emulator, {n: names.UC_ARM64_REG_X0 + n for n in range(29)} | named, names.UC_ARM64_REG_PC


def _open_s390x(uc: Any) -> tuple[Any, dict[int, int], int]:  # noqa: ANN401
    from unicorn import s390x_const as names

    emulator = uc.Uc(uc.UC_ARCH_S390X, uc.UC_MODE_BIG_ENDIAN)
    emulator.mem_map(0, MEMORY_SIZE)
    numbers = {number: getattr(names, f"UC_S390X_REG_R{number}") for number in range(16)}
    numbers |= {number: getattr(names, f"UC_S390X_REG_{S390X.registers[number].upper()}") for number in FLOATS}
    # LCTLG of control register 0 from where r1 points to, and its bits for floating point and vector registers. Then
    # addresses of 64 bits, and problem state, in which privileged instructions are refused.
    emulator.mem_write(_WINDOW_VADDR, (0x60000).to_bytes(8, "big"))
    emulator.mem_write(CODE_VADDR, bytes.fromhex("eb001000002f"))
    emulator.reg_write(numbers[1], _WINDOW_VADDR)
    emulator.reg_write(names.UC_S390X_REG_PSWM, 0x1_8000_0000)
    emulator.emu_start(CODE_VADDR, CODE_VADDR + 6, count=1)
    emulator.reg_write(names.UC_S390X_REG_PSWM, 0x1_8000_0000 | 1 << 48)
    return emulator, numbers, names.UC_S390X_REG_PC


TARGETS: Final = {
    "amd64": Target(
        amd64.ABI,
        _open_amd64,
        # A call's effect leaves out that it pushes its return address; of some others the emulator is not right.
        re.compile(
            r"(.* )?(call|syscall|sysenter|int\w?|in|out|(in|out)s[bwd]|hlt|u?iretq?|cpuid|rdtscp?|rd[mp].*|[sl]ahf"
            r"|xsave.*|xrstor.*|.* ret|pop [fg]s|k[a-z]+"
            # It takes the first bytes of transactions for a move, and of XOP for a pop.
            r"|xabort|xbegin"
            r"|v(prot[bwdq]|psh[al][bwdq]|pcmov|pperm|pcomu?[bwdq]|pmac\w+|pmadcs\w+|frcz\w+))"
        ),
        re.compile(r"\[[^\]]*(\*| \+ r)|[fg]s:|s[bwdq] |maskmov|xsave|fx?save|fn?st?env|v?scatter|^\w+ \[e"),
    ),
    "aarch64": Target(
        aarch64.ABI,
        _open_aarch64,
        re.compile(
            r"svc|hvc|smc|brk|hlt|udf|eret.*|drps|dcps.|wf.*|msr|sys.*|at|tlbi|ic|dc|hint|sb|t(?:start|commit|cancel)"
        ),
        re.compile(r"\[[^\]]*, [xwz]\d|\[z|\]!, "),
    ),
    "s390x": Target(
        s390x.ABI,
        _open_s390x,
        # What unicorn 2.1 does not survive.
        re.compile(r"sqxbr"),
        # Two registers in the address; as many bytes as registers say, to where registers point.
        re.compile(
            r"\(%r\d+, ?%r|^(mvcle?|mvclu|mvst|mvck|mvcos|tre|tro[ot]|trt[ot]|kimd|klmd|kmac|km|kmc|kmf|kmo|kmctr|kma"
            r"|pcc|ppno|prno|cu\d\d|cuutf|cutfu|csst) "
        ),
    ),
}


class Expected(NamedTuple):
    """What an effect says of registers that change, and of bytes that are stored: address, size and value.

    None is in place of a value that it does not tell.
    """

    registers: dict[int, int | None]
    stores: list[tuple[int, int, int | None]]


def _extended(value: int, size: int, *, is_signed: bool) -> int:
    """Return the number in the low bytes of another one."""
    value &= (1 << 8 * size) - 1
    return value - (1 << 8 * size) if is_signed and value >> (8 * size - 1) else value


def expect(effect: Effect, before: dict[int, int], read: Callable[[int, int], int | None]) -> Expected:
    """Apply the steps of an effect to numbers; `before` has all registers, `read(vaddr, size)` a number in memory."""
    expected = Expected({}, [])
    changed = expected.registers
    for op, register, source, offset, size, _, scale, is_signed in effect.steps:
        old = changed[register] if register in changed else before.get(register)
        value = 0 if source == NOTHING else changed[source] if source in changed else before.get(source)
        if op is Op.STORE:
            assert old is not None, "a store to an address that this instruction has just made unknown"
            is_told = source != NOTHING and size == 8
            expected.stores.append((old + offset & _MASK, size, value if is_told else None))
            continue
        if op is Op.COMPARE:
            continue
        new = None
        if op is Op.NUMBER:
            new = offset
        elif op is Op.SIGN_EXTEND and old is not None:
            new = _extended(old, 4, is_signed=True)
        elif value is not None:
            if op is Op.MOVE:
                new = value + offset
            elif op is Op.LOAD:
                new = read(value + offset & _MASK, 8)
            elif op is Op.ADD and old is not None:
                new = old + _extended(value, size, is_signed=is_signed) * scale
        changed[register] = None if new is None else new & _MASK
    return expected


class Executed(NamedTuple):
    """What an instruction has done: registers by DWARF's numbers, and the window's bytes."""

    pc: int
    registers: dict[int, int]
    window: bytes


class Checker:
    """Executes instructions of an ABI, and compares what they do with their effects. Skips without the emulator."""

    def __init__(self, target: Target, effect_of: Callable[[int, int, str, str], Effect | None] | None = None) -> None:
        self.unicorn = pytest.importorskip("unicorn", reason="no unicorn: make venv")
        self.target = target
        self._effect_of = effect_of or target.abi.effect_of
        self._order: Final = "big" if target.abi is s390x.ABI else "little"
        self._emulator, self._numbers, self._pc = target.open(self.unicorn)
        self._at_start = self._emulator.context_save()
        self.disassembler = open_disassembler(target.abi.disassembler, "code is read")
        #: By mnemonic: how often an instruction could be executed.
        self.executed = Counter[str]()

    def check(self, code: bytes, choice: random.Random) -> list[str]:
        """Return what is wrong with the effect of the instruction that some bytes begin with, from random registers."""
        for vaddr, size, name, operands in self.disassembler.disasm_lite(code, CODE_VADDR, 1):
            text = f"{name} {operands}"
            if any(map(self.target.not_executed.fullmatch, (name, text))):
                return []
            effect = self._effect_of(vaddr, size, name, operands)
            if effect is None or effect.flow is Flow.EXECUTE:
                return []
            return [f"{text}: {what}" for _ in range(_RUNS) for what in self._once(code[:size], effect, text, choice)]
        return []

    def moved_sp(self, code: bytes, text: str) -> int | None:
        """Return by how much an instruction moves SP; None where it cannot be executed, or does not go to the next one.

        It is executed twice: one that sets SP to what another register or memory has moves it by no fixed number.
        """
        sp, moves = self.target.abi.arch.sp_register, set[int | None]()
        for seed in range(2):
            choice = random.Random(seed)  # noqa: S311 - the same registers each time
            before = self._registers(text, choice)
            after = self._execute(code, before, choice.randbytes(_WINDOW_SIZE))
            is_next = after is not None and after.pc == CODE_VADDR + len(code)
            moves.add(after.registers[sp] - before[sp] if after is not None and is_next else None)
        return moves.pop() if len(moves) == 1 else None

    def _once(self, code: bytes, effect: Effect, text: str, choice: random.Random) -> Iterator[str]:
        before = self._registers(text, choice)
        window = choice.randbytes(_WINDOW_SIZE)

        def read(vaddr: int, size: int) -> int | None:
            place = vaddr - _WINDOW_VADDR
            return int.from_bytes(window[place:][:size], self._order) if 0 <= place <= _WINDOW_SIZE - size else None

        after = self._execute(code, before, window)
        if after is None:
            return
        self.executed[text.partition(" ")[0]] += 1
        expected = expect(effect, before, read)
        end = CODE_VADDR + len(code)
        yield from _in_registers(effect, expected, before, after, self.target.abi.arch.ra_register, end)
        yield from self._in_memory(text, expected, window, after.window)
        yield from _in_flow(effect, expected, after, end)

    def _registers(self, text: str, choice: random.Random) -> dict[int, int]:
        """Draw values of all registers: those with which memory is addressed lead into the window."""

        def point() -> int:
            return _WINDOW_VADDR + choice.randrange(_WINDOW_SIZE // 4, _WINDOW_SIZE * 3 // 4) & ~15

        # Numbers that the text has, and those beside them, are where comparisons tell.
        near = [int(each, 0) for each in re.findall(r"(?<![\w.])-?(?:0x[0-9a-f]+|\d+)(?![\w.])", text)] or [0]
        kinds: tuple[Callable[[], int], ...] = (
            point,
            lambda: choice.randrange(-64, 64),
            lambda: CODE_VADDR + 2 * choice.randrange(4096),
            lambda: choice.choice(near) + choice.randrange(-1, 2),
            lambda: choice.getrandbits(64),
        )
        only_points = choice.random() < 0.4
        values = {n: point() if only_points else choice.choice(kinds)() & _MASK for n in self._numbers}
        values[self.target.abi.arch.sp_register] = point()
        return values

    def _execute(self, code: bytes, before: dict[int, int], window: bytes) -> Executed | None:
        """Execute one instruction; return None where the emulator cannot, or it is refused."""
        emulator, uc = self._emulator, self.unicorn
        # After flags from POPF, such as that for single steps, no instruction would be executed any more.
        emulator.context_restore(self._at_start)
        emulator.mem_write(CODE_VADDR, code)
        emulator.mem_write(_WINDOW_VADDR, window)
        emulator.ctl_flush_tb()
        for number, value in before.items():
            emulator.reg_write(self._numbers[number], value)
        try:
            emulator.emu_start(CODE_VADDR, _MASK, count=1)
        except uc.UcError as error:
            # A jump is made before there turns out to be no code.
            if error.errno not in (uc.UC_ERR_FETCH_UNMAPPED, uc.UC_ERR_FETCH_PROT):
                return None
        after = {number: emulator.reg_read(name) for number, name in self._numbers.items()}
        if emulator.reg_read(self._pc) == CODE_VADDR and after == before:
            # After an instruction that it could not execute, the emulator sometimes stops before the next one.
            return None
        return Executed(emulator.reg_read(self._pc), after, bytes(emulator.mem_read(_WINDOW_VADDR, _WINDOW_SIZE)))

    def _in_memory(self, text: str, expected: Expected, before: bytes, after: bytes) -> Iterator[str]:
        told: set[int] = set()
        for vaddr, size, value in expected.stores:
            place = vaddr - _WINDOW_VADDR
            told.update(range(place, place + size))
            if value is not None and before != after and 0 <= place <= _WINDOW_SIZE - size:
                stored = int.from_bytes(after[place:][:size], self._order)
                if stored != value:
                    yield f"0x{stored:x} is stored, not 0x{value:x}"
        if before != after and self.target.elsewhere.search(text) is None:
            written = {place for place, (one, other) in enumerate(zip(before, after, strict=True)) if one != other}
            if not written <= told:
                yield f"a byte at SP's window + {min(written - told)} is stored to, which is not told"


def _in_registers(
    effect: Effect, expected: Expected, before: dict[int, int], after: Executed, link: int, end: int
) -> Iterator[str]:
    for register, value in after.registers.items():
        if register in expected.registers:
            wanted = expected.registers[register]
            if wanted is not None and wanted != value:
                yield f"register {register} is 0x{value:x}, not 0x{wanted:x}"
        elif value != before[register] and not (register == link and effect.flow is Flow.CALL and value == end):
            yield f"register {register} has changed to 0x{value:x}"


def _in_flow(effect: Effect, expected: Expected, after: Executed, end: int) -> Iterator[str]:
    aim = expected.registers.get(JUMP)
    known: dict[Flow, set[int | None]] = {
        # An instruction may be interrupted in its midst, to be executed again; or it is a trap of s390x.
        Flow.NEXT: {end, CODE_VADDR, CODE_VADDR + 2},
        Flow.JUMP: {effect.target},
        Flow.CALL: {effect.target if effect.target is not None else aim},
        Flow.BRANCH: {effect.target, end},
        Flow.BRANCH_INDIRECT: {aim, end},
        Flow.STOP: {CODE_VADDR, CODE_VADDR + 2},
    }
    ways = known.get(effect.flow, {aim})
    if after.pc not in ways and not (None in ways and aim is None):
        yield f"control goes to 0x{after.pc:x}"


def shape_of(name: str, operands: str) -> str:
    """Return an instruction's text without numbers, and with SP, FP and RA as the only registers that have names."""
    text = re.sub(r"\bx29\b", "fp", operands)
    text = re.sub(r"\b[re]?([abcd][xlh]|[sd]il?)\b", "r", text)
    text = re.sub(r"(%[racfv]|\b[xwbhsdqvzp]|\b[xyz]?mm|\br)\d+", r"\1", text)
    return f"{name} {re.sub(r'#?-?(?<![a-z])(?:0x[0-9a-f]+|[0-9][0-9.e]*)', '#', text)}"


def examples(checker: Checker, codes: Iterable[bytes], most: int) -> Iterator[bytes]:
    """Yield some instructions of each shape in code; what is none is passed over."""
    counts = Counter[str]()
    alignment = checker.target.abi.arch.instruction_alignment
    for code in codes:
        offset = 0
        while offset < len(code):
            for at, size, name, operands in checker.disassembler.disasm_lite(code[offset:], offset):
                shape = shape_of(name, operands)
                counts[shape] += 1
                if counts[shape] <= most:
                    yield code[at : at + size]
                offset = at + size
            offset += alignment
