# SPDX-License-Identifier: Apache-2.0
"""Registers that SFrame does not follow: CFI's rules for them, and walks that make use of them."""

from __future__ import annotations

import os
import re
import struct
import subprocess
from typing import Final

import pytest

from cfi2sframe.arch import AMD64, S390X, Arch
from cfi2sframe.dwarf.rules import AtCfa, InRegister, NoRule, RegisterRule
from cfi2sframe.elf.load import load
from cfi2sframe.sframe.model import OUTERMOST, FrameState, Rule
from cfi2sframe.trace import Frame, Row, Trace, walk
from cfi2sframe.trace.callee_saved import CfiRules
from cfi2sframe.trace.frame import Located
from tests.support import cfi_asm as asm
from tests.support.needs import need
from tests.support.samples import TEXT_VADDR, cie_of, linked

REGISTERS: Final = {"rbx": 3, "r12": 12, "r13": 13, "r14": 14, "r15": 15}
_FDE: Final = re.compile(r"^[0-9a-f]{8} .* FDE .* pc=([0-9a-f]+)\.\.([0-9a-f]+)$")
_ROW: Final = re.compile(r"^([0-9a-f]{16}) (.*\S)\s*$")


def rows_of_readelf(path: str) -> list[tuple[int, int, dict[str, str]]]:
    """Return (first address, last address, rules by column) of every row that `readelf -wF` prints."""
    text = subprocess.run(
        ["readelf", "-wF", path], check=False, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"}
    ).stdout
    found: list[tuple[int, int, dict[str, str]]] = []
    columns: list[str] = []
    end = 0
    rows: list[tuple[int, dict[str, str]]] = []

    def close() -> None:
        starts = [start for start, _ in rows] + [end]
        found.extend(
            (start, starts[n + 1] - 1, rules) for n, (start, rules) in enumerate(rows) if starts[n + 1] > start
        )
        rows.clear()

    for line in text.splitlines():
        if fde := _FDE.match(line):
            close()
            end = int(fde[2], 16)
        elif line.endswith("cf=1 df=-8 ra=16"):
            close()
            end = 0
        elif line.startswith("   LOC"):
            columns = line.split()[2:]
        elif (row := _ROW.match(line)) and end:
            # A register is followed by its name in brackets.
            words = re.sub(r" \([a-z0-9]+\)", "", row[2]).split()
            rows.append((int(row[1], 16), dict(zip(columns, words[1:], strict=False))))
    close()
    return found


@pytest.mark.oracle
def test_rules_are_those_of_readelf() -> None:
    file = "/lib64/ld-linux-x86-64.so.2"
    need("readelf")
    if not os.path.exists(file):
        pytest.skip("the machine has no dynamic linker of AMD64")
    rules = CfiRules(load(file))
    compared = saved = 0
    for start, last, columns in rows_of_readelf(file):
        for name, number in REGISTERS.items():
            text = columns.get(name, "u")
            wanted = AtCfa(int(text[1:])) if re.fullmatch(r"c[-+]\d+", text) else None
            for address in (start, last):
                rule = rules.rule(address, number)
                if wanted is not None and columns.get("rsp", "u") != "u":
                    # longjmp, once SP is in a register: at no known distance from the CFA of SFrame.
                    assert rule is None
                    continue
                assert rule is not None
                assert (rule if isinstance(rule, AtCfa) else None) == wanted, (hex(address), name, text)
                compared += 1
                saved += wanted is not None
    assert compared > 10_000
    assert saved > 5_000
    assert rules.rule(0, 3) is None


@pytest.mark.parametrize(
    ("arch", "of_sp", "found"),
    [
        (AMD64, (), AtCfa(-16)),
        # What is 16 below DWARF's CFA is 24 below a caller's SP that is 8 above it.
        (AMD64, (asm.val_offset_sf(7, -1),), AtCfa(-24)),
        (AMD64, (asm.val_offset(7, 0),), AtCfa(-16)),
        (AMD64, (asm.register(7, 10),), None),
        (AMD64, (asm.offset(7, 3),), None),
        (S390X, (asm.val_offset(15, 0),), AtCfa(-176)),
        (S390X, (asm.val_offset(15, 20),), AtCfa(-16)),
        (S390X, (asm.offset(15, 5),), AtCfa(-16)),
        (S390X, (asm.register(15, 16),), AtCfa(-16)),
        (S390X, (asm.register(15, 16), asm.def_cfa_register(10)), None),
    ],
)
def test_rules_count_from_the_cfa_of_sframe(
    arch: Arch, of_sp: tuple[asm.Instruction, ...], found: RegisterRule | None
) -> None:
    """A walk knows a frame by its caller's SP."""
    fde = asm.Fde(cie_of(arch), TEXT_VADDR, 16, (asm.offset(12, 2), asm.same_value(13), *of_sp))
    rules = CfiRules(linked(arch, fde))
    assert rules.rule(TEXT_VADDR, 12) == found
    assert rules.rule(TEXT_VADDR, 13) is NoRule.SAME_VALUE


#: CFA = SP + 32, RA = *(CFA - 8).
PLAIN: Final = FrameState(Rule(7, 32, deref=False), Rule(None, -8, deref=True))
#: CFA = rbx + 16.
BY_RBX: Final = FrameState(Rule(3, 16, deref=False), Rule(None, -8, deref=True))


def trace(
    saved: dict[int, RegisterRule | None],
    *,
    with_cfi: bool = True,
    rows: tuple[FrameState, ...] = (PLAIN, PLAIN, BY_RBX),
) -> Trace:
    """Walk a stack of functions at 0x1000, 0x2000, ...; the last row's CFA is known by rbx, which is 0x8100."""
    words = {0x8018: 0x2010, 0x8038: 0x3010, 0x8108: 0x9010, 0x8008: 0x8100, 0x8028: 0x8100}
    located = {0x1000 * (n + 1): Row(state, "file", 3, is_flexible=state is BY_RBX) for n, state in enumerate(rows)}
    located[0x9000] = Row(OUTERMOST, "file", 3)
    return walk(
        Frame(0x1010, 0x8000, 0, registers={3: 0x8100, 12: 0x8100}),
        lambda address: Located("m", address, located[address & ~0xFFF]),
        lambda address, size: struct.pack("<Q", words[address]) if address in words and size == 8 else None,
        AMD64,
        saved_rule=(lambda address, _: saved[address & ~0xFFF]) if with_cfi else None,
    )


@pytest.mark.parametrize(
    "saved",
    [
        {0x1000: NoRule.UNSPECIFIED, 0x2000: NoRule.SAME_VALUE},
        {0x1000: AtCfa(-24), 0x2000: NoRule.UNSPECIFIED},
        {0x1000: NoRule.UNDEFINED, 0x2000: AtCfa(-24)},
        {0x1000: NoRule.UNSPECIFIED, 0x2000: InRegister(12)},
    ],
    ids=["untouched", "saved by the topmost", "saved above", "in another register"],
)
def test_a_register_is_found_where_a_callee_saved_it(saved: dict[int, RegisterRule | None]) -> None:
    found = trace(saved)
    assert [(e.frame.pc, e.recovered) for e in found.entries] == [
        (0x1010, ()),
        (0x2010, ()),
        (0x3010, (3,)),
        (0x9010, ()),
    ]
    assert found.ending.kind == "outermost"
    alone = trace(saved, with_cfi=False)
    assert [e.frame.pc for e in alone.entries] == [0x1010, 0x2010, 0x3010]
    assert alone.ending.kind == "unknown-register"


@pytest.mark.parametrize(
    "saved",
    [
        {0x1000: NoRule.UNSPECIFIED, 0x2000: NoRule.UNDEFINED},
        {0x1000: NoRule.UNSPECIFIED, 0x2000: None},
        {0x1000: AtCfa(-4096), 0x2000: NoRule.SAME_VALUE},
    ],
    ids=["undefined", "no CFI", "unreadable"],
)
def test_a_register_that_cannot_be_found(saved: dict[int, RegisterRule | None]) -> None:
    found = trace(saved)
    assert [e.recovered for e in found.entries] == [(), (), ()]
    assert found.ending.kind == "unknown-register"


def test_a_register_that_callees_may_change_is_not_guessed() -> None:
    """r10 without a rule: who called has no claim to its value."""
    by_r10 = FrameState(Rule(10, 16, deref=False), Rule(None, -8, deref=True))
    found = trace({0x1000: NoRule.UNSPECIFIED, 0x2000: NoRule.UNSPECIFIED}, rows=(PLAIN, PLAIN, by_r10))
    assert found.ending.kind == "unknown-register"
