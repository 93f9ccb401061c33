# SPDX-License-Identifier: Apache-2.0
"""Tables of jumps of AMD64 (`values`, `surroundings`), and where functions begin (`entries`, `references`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe.arch import AMD64
from cfi2sframe.code.code_reasons import CodeReason
from tests.support.code.assembled import assembled

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.oracle

#: Two cases, of which one has a frame of its own; they are reached by the table only.
CASES: Final = """
        .Lfirst:
        pop rbx
        .cfi_def_cfa_offset 8
        ret
        .Lsecond:
        .cfi_def_cfa_offset 16
        push rax
        .cfi_def_cfa_offset 24
        add rsp, 16
        .cfi_def_cfa_offset 8
        ret
        endf
"""
START: Final = """
        func f
        push rbx
        .cfi_def_cfa_offset 16
"""
DISTANCES: Final = ".section .rodata\n.p2align 4\n.Ltable: .long .Lfirst - .Ltable, .Lsecond - .Ltable\n"
#: What follows a table, and is not of it: distances from elsewhere, into the midst of the code.
OTHER_WORDS: Final = ".Lother: .long f - .Lother + 1, f - .Lother + 1, f - .Lother + 1, f - .Lother + 1\n"
JUMP: Final = """
        lea rdx, [rip+.Ltable]
        movsxd rax, dword ptr [rdx+rdi*4]
        add rax, rdx
        jmp rax
"""
TABLES: Final = {
    "a limit by a comparison": f"""{START} cmp edi, 1
        ja .Lfirst
        mov edi, edi
        {JUMP} {CASES} {DISTANCES} {OTHER_WORDS}""",
    "a limit by a comparison the other way": f"""{START} cmp rdi, 2
        jae .Lfirst
        {JUMP} {CASES} {DISTANCES} {OTHER_WORDS}""",
    "a limit by a branch to the jump": f"""{START} cmp rdi, 1
        jbe .Ljump
        jmp .Lfirst
        .Ljump:
        {JUMP} {CASES} {DISTANCES} {OTHER_WORDS}""",
    "a limit by a mask": f"{START} and edi, 1\n {JUMP} {CASES} {DISTANCES} {OTHER_WORDS}",
    "a case that begins with a filler": f"""{START} cmp edi, 1
        ja .Lfirst
        mov edi, edi
        {JUMP}
        .Lthird:
        nop
        jmp .Lfirst
        {CASES}
        .section .rodata
        .p2align 4
        .Ltable: .long .Lthird - .Ltable, .Lsecond - .Ltable
        {OTHER_WORDS}""",
    "a limit by a byte": f"""{START} movzx edi, byte ptr [rsi]
        {JUMP} {CASES} {DISTANCES} .rept 127
        .long .Lfirst - .Ltable, .Lsecond - .Ltable
        .endr
        {OTHER_WORDS}""",
    "a number that counts from another one": f"""{START} lea eax, [rdi-5]
        cmp eax, 1
        ja .Lfirst
        lea rdx, [rip+.Ltable]
        movsxd rax, dword ptr [rdx+rax*4]
        add rax, rdx
        notrack jmp rax
        {CASES} {DISTANCES} {OTHER_WORDS}""",
    "a comparison in memory": f"""{START} cmp dword ptr [rdi], 1
        ja .Lfirst
        mov eax, [rdi]
        lea rdx, [rip+.Ltable]
        movsxd rax, dword ptr [rdx+rax*4]
        add rax, rdx
        jmp rax
        {CASES} {DISTANCES} .Lend: .long 0x7fffffff""",
    "the jump in two steps over another block": f"""{START} cmp edi, 1
        ja .Lfirst
        lea rdx, [rip+.Ltable]
        movsxd rax, dword ptr [rdx+rdi*4]
        test esi, esi
        je .Lsum
        mov rcx, rsi
        .Lsum:
        add rax, rdx
        jmp rax
        {CASES} {DISTANCES} {OTHER_WORDS}""",
    "an address in a register": f"""{START} lea rcx, [rip+.Lsecond]
        test edi, edi
        jne .Lgo
        lea rcx, [rip+.Lfirst]
        .Lgo:
        jmp rcx
        {CASES}""",
    "an array that a register counted from later": f"""{START} lea r8, [rip+.Ltable]
        mov r8, rsi
        movzx ecx, byte ptr [r8+rcx+4]
        {JUMP} {CASES} {DISTANCES} .long 0x7fffffff""",
    "an array that a register counts from after a call": f"""{START} lea rcx, [rip+.Ltable]
        call g
        movzx ecx, byte ptr [rcx+rax+4]
        {JUMP} {CASES}
        func g
        ret
        endf
        {DISTANCES} .long 0x7fffffff""",
    "short words that count from another function": f"""
        func g
        ret
        endf
        {START} lea rcx, [rip+.Ltable]
        movzx eax, word ptr [rcx+rdi*2]
        lea rdx, [rip+g]
        add rax, rdx
        jmp rax
        {CASES} .section .rodata
        .Ltable: .word .Lfirst - g, .Lsecond - g""",
    "two tables, one after the other": f"""{START} test esi, esi
        jne .Lelse
        cmp edi, 1
        ja .Lfirst
        {JUMP}
        .Lelse:
        lea r8, [rip+.Ltable2]
        movsxd rax, dword ptr [r8+rdi*4]
        add rax, r8
        jmp rax
        .Lthird:
        mov eax, 3
        jmp .Lfirst
        {CASES} {DISTANCES}
        .Ltable2: .long .Lthird - .Ltable2, .Lfirst - .Ltable2, 0x7fffffff""",
}


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str, tmp_path: Path) -> None:
    """Each target of a table is reached with the depth of the jump, and nothing else is."""
    assert assembled(AMD64, TABLES[name], tmp_path).problems({}) == []


ABSOLUTE: Final = {
    "words of 8 bytes": f"""{START} cmp edi, 1
        ja .Lfirst
        mov edi, edi
        jmp qword ptr [.Ltable+rdi*8]
        {CASES}
        .section .rodata
        .Ltable: .quad .Lfirst, .Lsecond, f+1""",
    "words loaded before": f"""{START} cmp edi, 1
        ja .Lfirst
        mov rax, [.Ltable+rdi*8]
        jmp rax
        {CASES}
        .section .rodata
        .Ltable: .quad .Lfirst, .Lsecond, f+1""",
    "an address of four bytes": f"""{START} mov ecx, offset .Lsecond
        test edi, edi
        jne .Lgo
        mov ecx, offset .Lfirst
        .Lgo:
        jmp rcx
        {CASES}""",
}


@pytest.mark.parametrize("name", ABSOLUTE)
def test_tables_at_fixed_addresses(name: str, tmp_path: Path) -> None:
    assert assembled(AMD64, ABSOLUTE[name], tmp_path, is_static=True).problems({}) == []


def test_an_index_without_any_limit(tmp_path: Path) -> None:
    """Words are taken up to the first that leads to no instruction."""
    source = f"{START} {JUMP} {CASES} {DISTANCES} .long 0x7fffffff"
    assert assembled(AMD64, source, tmp_path).problems({}) == []


def test_a_table_that_leads_elsewhere(tmp_path: Path) -> None:
    """One wrong word within the limit, and nothing is known of the jump: the rest is not reached."""
    source = f"""{START} cmp edi, 2
        ja .Lend
        {JUMP}
        .Lend:
        pop rbx
        .cfi_def_cfa_offset 8
        ret
        endf
        .Lcases:
        pop rbx
        ret
        .section .rodata
        .Ltable: .long .Lcases - .Ltable, .Lcases - .Ltable, 0x7fffffff"""
    assert assembled(AMD64, source, tmp_path).problems({".Lcases": CodeReason.NOT_REACHED}) == []


#: A function that nothing names but what is put after it.
NAMELESS: Final = """
        func f
        ret
        endf
        .p2align 4, 0x90
        .Lnameless:
        .cfi_startproc
        push rbx
        .cfi_def_cfa_offset 16
        pop rbx
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
"""
ENTRIES: Final = {
    "a symbol without a type": NAMELESS.replace(".Lnameless:", "nameless:"),
    "a word of data": NAMELESS + ".data\n.quad .Lnameless",
    "a call": NAMELESS + "func g\n sub rsp, 8\n .cfi_def_cfa_offset 16\n call .Lnameless\n"
    " add rsp, 8\n .cfi_def_cfa_offset 8\n ret\n endf",
    "a load of the address": NAMELESS + "func g\n lea rax, [rip+.Lnameless]\n ret\n endf",
    "a jump": NAMELESS + "func g\n xor eax, eax\n jmp .Lnameless\n endf",
    "an array of initializers": NAMELESS + '.section .init_array,"aw",%init_array\n.quad .Lnameless',
}


@pytest.mark.parametrize("name", ENTRIES)
def test_entries(name: str, tmp_path: Path) -> None:
    assert assembled(AMD64, ENTRIES[name], tmp_path).problems({}) == []


def test_no_entry(tmp_path: Path) -> None:
    """Without any of these, the same function is never described."""
    source = NAMELESS.replace(".cfi_startproc", "").replace(".cfi_endproc", "")
    source = source.replace(".cfi_def_cfa_offset 16", "").replace(".cfi_def_cfa_offset 8", "")
    assert assembled(AMD64, source, tmp_path).problems({".Lnameless": CodeReason.NOT_REACHED}) == []


@pytest.mark.parametrize("place", ["2", "3", "4"])
def test_an_address_in_the_midst_of_a_function_is_no_entry(place: str, tmp_path: Path) -> None:
    """Data have it, and control that is followed from there contradicts what is known."""
    source = f"""
        func f
        push rbx
        .cfi_def_cfa_offset 16
        mov rbx, rdi
        sub rsp, 32
        .cfi_def_cfa_offset 48
        add rsp, 32
        .cfi_def_cfa_offset 16
        pop rbx
        .cfi_def_cfa_offset 8
        ret
        endf
        .data
        .quad f + {place}"""
    assert assembled(AMD64, source, tmp_path).problems({}) == []


def test_data_among_code(tmp_path: Path) -> None:
    """What looks like the address of a function is one of data: its bytes come to no end that confirms them."""
    source = """
        func f
        ret
        endf
        .p2align 4
        .Ldata:
        .byte 0x50, 0x50, 0xc3, 0, 0, 0, 0, 0
        .data
        .quad .Ldata"""
    problems = assembled(AMD64, source, tmp_path).problems()
    assert problems == []


def test_the_entry_of_the_process(tmp_path: Path) -> None:
    """There is no caller: a row says that the RA is undefined, and nothing else."""
    source = """
        .globl _start
        func _start
        .cfi_undefined rip
        xor ebp, ebp
        call main
        hlt
        endf
        func main
        ret
        endf
    """
    program = assembled(AMD64, source, tmp_path, is_static=True, options=("-e", "_start"))
    rows = program.derived().functions
    assert rows[0].start_vaddr == program.labels["_start"]
    (state,) = rows[0].table.states
    assert (state.cfa, state.ra.name) == (None, "UNDEFINED")  # type: ignore[union-attr]
