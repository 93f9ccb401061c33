# SPDX-License-Identifier: Apache-2.0
"""What the instructions of AMD64 stubs do to the stack."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.plt.stub_model import Block, Effect, Flow, StubArch

if TYPE_CHECKING:
    from typing import Any

_WORD_SIZE: Final = 8
#: Instructions without effect on the stack.
_STATELESS: Final = frozenset({"endbr64", "pause", "lfence"})
_TRAPS: Final = frozenset({"int3", "hlt", "ud2"})
_OPERAND_SIZE_PREFIX: Final = 0x66
#: Prefixes that change what a jump checks, but not its target.
_JUMP_PREFIXES: Final = ("bnd ", "notrack ")


def open_disassembler() -> Any:  # noqa: ANN401 - capstone has no types
    """Return capstone's disassembler for x86-64, with operands."""
    import capstone

    disassembler = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64)
    disassembler.detail = True
    return disassembler


def understand(insn: Any, offset: int, _data: bytes) -> tuple[Effect, bytes] | None:  # noqa: ANN401
    """Return an instruction's effect and the mask of its constant bytes, or None when the effect is not known."""
    name = insn.mnemonic
    for prefix in _JUMP_PREFIXES:
        name = name.removeprefix(prefix)
    effect: Effect | None = None
    if name in _STATELESS:
        effect = Effect()
    elif name == "nop":
        effect = Effect(is_padding=True)
    elif name in _TRAPS:
        effect = Effect(Flow.LEAVE, is_padding=True)
    elif name in ("jmp", "call", "ret", "push") and insn.prefix[2] == _OPERAND_SIZE_PREFIX:
        # Processors differ: some truncate the address to 16 bits, some ignore the prefix. Pushes are of 16 bits, which
        # capstone 4 does not say.
        pass
    elif name == "ret" and not insn.operands:
        effect = Effect(Flow.RETURN)
    elif name in ("jmp", "call"):
        effect = _branch(insn, name, offset)
    elif name in ("push", "pop", "mov", "movabs", "add", "sub"):
        effect = _data_effect(insn, name)
    return None if effect is None else (effect, _mask(insn, name))


def _branch(insn: Any, name: str, offset: int) -> Effect | None:  # noqa: ANN401
    from capstone.x86_const import X86_OP_IMM, X86_OP_MEM, X86_OP_REG

    operand = insn.operands[0]
    if operand.type == X86_OP_IMM:
        return Effect(Flow.JUMP if name == "jmp" else Flow.CALL, target_delta=operand.imm - insn.address + offset)
    if name == "call" or operand.size != _WORD_SIZE:
        return None
    if operand.type == X86_OP_REG:
        return Effect(Flow.LEAVE)
    if operand.type == X86_OP_MEM:
        return Effect(Flow.LEAVE, reads_relative=_is_relative(insn, operand))
    return None


def _data_effect(insn: Any, name: str) -> Effect | None:  # noqa: ANN401
    from capstone.x86_const import X86_OP_IMM, X86_OP_MEM, X86_OP_REG

    target = insn.operands[0]
    if name == "push":
        is_relative = target.type == X86_OP_MEM and _is_relative(insn, target)
        return Effect(push_size=_WORD_SIZE, reads_relative=is_relative) if target.size == _WORD_SIZE else None
    is_plain_register = target.type == X86_OP_REG and not _is_frame_register(insn.reg_name(target.reg))
    if name == "pop":
        return Effect(push_size=-_WORD_SIZE) if is_plain_register and target.size == _WORD_SIZE else None
    source = insn.operands[1]
    if name in ("add", "sub"):
        # A step that is no multiple of a word would split the words that the analysis follows.
        is_sp = target.type == X86_OP_REG and insn.reg_name(target.reg) == "rsp"
        if not is_sp or source.type != X86_OP_IMM or source.imm % _WORD_SIZE:
            return None
        return Effect(push_size=source.imm if name == "sub" else -source.imm)
    if is_plain_register:
        return Effect(reads_relative=source.type == X86_OP_MEM and _is_relative(insn, source))
    if target.type == X86_OP_MEM and source.type == X86_OP_REG and target.size == _WORD_SIZE:
        memory = target.mem
        if insn.reg_name(memory.base) == "rsp" and not memory.index and not memory.segment and memory.disp == 0:
            return Effect(overwrites_top=True)
    return None


def _is_frame_register(name: str) -> bool:
    return name in {"rsp", "esp", "sp", "spl", "rbp", "ebp", "bp", "bpl"}


def _is_relative(insn: Any, operand: Any) -> bool:  # noqa: ANN401
    """Whether a memory operand is a word at a fixed distance from the next instruction."""
    return bool(insn.reg_name(operand.mem.base) == "rip" and not operand.mem.index)


def _mask(insn: Any, name: str) -> bytes:  # noqa: ANN401
    """Return a mask of the instruction's bytes, clear where stubs of one kind may differ."""
    from capstone.x86_const import X86_OP_MEM

    mask = bytearray(b"\xff" * insn.size)
    for operand in insn.operands:
        if operand.type == X86_OP_MEM and insn.reg_name(operand.mem.base) == "rip":
            mask[insn.disp_offset : insn.disp_offset + insn.disp_size] = bytes(insn.disp_size)
    if name in ("push", "mov", "movabs", "jmp", "call") and insn.imm_size:
        mask[insn.imm_offset : insn.imm_offset + insn.imm_size] = bytes(insn.imm_size)
    return bytes(mask)


def branch_delta(data: bytes, offset: int, size: int) -> int:
    """Return the target of the direct jump or call of `size` bytes at `offset`, counted from the start of `data`."""
    # The displacement is the last field: one byte in the two-byte jump, else four.
    field = data[offset + size - (1 if size == 2 else 4) : offset + size]
    return offset + size + int.from_bytes(field, "little", signed=True)


def words_read(kind: Block, data: bytes, start_vaddr: int) -> frozenset[int]:
    """Return the addresses of the words that a block at an address reads relative to RIP."""
    found = set()
    for offset, size, effect in kind.instructions:
        if effect.reads_relative:
            field = kind.mask.index(0, offset)
            distance = int.from_bytes(data[field : field + 4], "little", signed=True)
            found.add(start_vaddr + offset + size + distance)
    return frozenset(found)


AMD64_STUBS: Final = StubArch(
    open_disassembler,
    understand,
    branch_delta,
    words_read,
    block_sizes=(8, 16, 24, 32, 48, 64),
    header_sizes=(0, 16, 32, 48, 64),
    tail_sizes=(0,),
    literal_size=0,
)
