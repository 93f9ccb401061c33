# SPDX-License-Identifier: Apache-2.0
"""What the instructions of AArch64 stubs do to the frame. They are little-endian, whatever the byte order of data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cfi2sframe.plt.stub_model import Block, Effect, Flow, StubArch

if TYPE_CHECKING:
    from typing import Any

_FP: Final = 29
_RA: Final = 30
_SP: Final = 31
#: AUTIA1716, AUTIB1716 and the forms of BTI, which capstone 4 cannot name, change neither the frame nor the flow.
_HINTS: Final = frozenset({0xD503219F, 0xD50321DF, 0xD503241F, 0xD503245F, 0xD503249F, 0xD50324DF})
_ALL_BITS: Final = 0xFFFFFFFF
_PAGE_BITS: Final = 12


def open_disassembler() -> Any:  # noqa: ANN401 - capstone has no types
    """Return capstone's disassembler for AArch64."""
    import capstone

    # Renamed in capstone 6.
    arch = getattr(capstone, "CS_ARCH_AARCH64", None) or capstone.CS_ARCH_ARM64
    return capstone.Cs(arch, capstone.CS_MODE_LITTLE_ENDIAN)


def understand(insn: Any, offset: int, data: bytes) -> tuple[Effect, bytes] | None:  # noqa: ANN401
    """Return an instruction's effect and the mask of its constant bits, or None when the effect is not known."""
    word = int.from_bytes(data[offset : offset + 4], "little")
    found = _understand(insn.mnemonic, word, offset)
    return None if found is None else (found[0], found[1].to_bytes(4, "little"))


def _understand(name: str, word: int, offset: int) -> tuple[Effect, int] | None:
    if name == "nop":
        return Effect(is_padding=True), _ALL_BITS
    if word in _HINTS:
        return Effect(), _ALL_BITS
    if name == "br":
        return Effect(Flow.LEAVE), _ALL_BITS
    if name == "b" and word >> 26 == 0b000101:
        return Effect(Flow.JUMP, target_delta=offset + _branch_distance(word)), 0xFC000000
    if name == "stp":
        effect = _store_pair(word)
        return None if effect is None else (effect, _ALL_BITS)
    if word & 0x1F in (_FP, _RA, _SP):
        return None
    if name in ("adrp", "adr"):
        return Effect(), 0x9F00001F
    # With an unsigned offset of 12 bits, without writeback: LDR Xt and ADD Xd.
    if (name == "ldr" and word & 0xFFC00000 == 0xF9400000) or (name == "add" and word & 0xFFC00000 == 0x91000000):
        return Effect(), 0xFFC003FF
    return None


def _store_pair(word: int) -> Effect | None:
    """Return the effect of `stp Xt1, Xt2, [sp, #-n]!`, or None for any other instruction."""
    if word & 0xFFC003E0 != 0xA98003E0:
        return None
    distance = ((word >> 15 & 0x7F) ^ 0x40) - 0x40
    if distance >= 0:
        return None
    first, second = word & 0x1F, word >> 10 & 0x1F
    ra_at = 0 if first == _RA else 8 if second == _RA else None
    return Effect(push_size=-8 * distance, ra_at=ra_at)


def _branch_distance(word: int) -> int:
    return 4 * (((word & 0x3FFFFFF) ^ 0x2000000) - 0x2000000)


def branch_delta(data: bytes, offset: int, _size: int) -> int:
    """Return the target of the `b` at `offset`, counted from the start of `data`."""
    return offset + _branch_distance(int.from_bytes(data[offset : offset + 4], "little"))


def words_read(kind: Block, data: bytes, start_vaddr: int) -> frozenset[int]:
    """Return the addresses of the words that a block at an address loads by ADRP and LDR."""
    pages: dict[int, int] = {}
    found = set()
    for insn in kind.instructions:
        word = int.from_bytes(data[insn.offset : insn.offset + 4], "little")
        target, base = word & 0x1F, word >> 5 & 0x1F
        if word & 0x9F000000 == 0x90000000:
            distance = ((word >> 5 & 0x7FFFF) << 2 | word >> 29 & 3) << _PAGE_BITS
            limit = 1 << 20 + _PAGE_BITS
            pages[target] = ((start_vaddr + insn.offset) >> _PAGE_BITS << _PAGE_BITS) + (distance ^ limit) - limit
        elif word & 0xFFC00000 == 0xF9400000 and base in pages:
            found.add(pages[base] + (word >> 10 & 0xFFF) * 8)
    return frozenset(found)


AARCH64_STUBS: Final = StubArch(
    open_disassembler,
    understand,
    branch_delta,
    words_read,
    block_sizes=(16, 24, 32),
    header_sizes=(0, 32, 48),
    # The trampoline of lazy TLS descriptors follows the last stub.
    tail_sizes=(0, 32),
    literal_size=0,
)
