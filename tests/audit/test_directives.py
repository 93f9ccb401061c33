# SPDX-License-Identifier: Apache-2.0
"""Functions whose directives are right or wrong in one way each, assembled by GNU as."""

from pathlib import Path

import pytest

from cfi2sframe.why import Reason
from tests.support.audit import Said, audited, function, said_of
from tests.support.needs import run
from tests.support.oracle.gas import assembled

pytestmark = pytest.mark.oracle

PUSH_BX = "push %rbx; .cfi_adjust_cfa_offset 8"
POP_BX = "pop %rbx; .cfi_adjust_cfa_offset -8"
SAVE_FP = "push %rbp; .cfi_def_cfa_offset 16; .cfi_offset %rbp, -16; mov %rsp, %rbp"
FRAME = f"{SAVE_FP}; .cfi_def_cfa_register %rbp"
#: The CFA minus 8 is saved in an aligned frame: DW_CFA_def_cfa_expression (breg7 24; deref; plus_uconst N).
ALIGNED = (
    "mov %rsp, %rax; .cfi_def_cfa_register %rax; sub $64, %rsp; and $-64, %rsp; mov %rax, 24(%rsp); "
    ".cfi_escape 0x0f, 5, 0x77, 24, 0x06, 0x23, {}; call g; mov 24(%rsp), %rsi; .cfi_def_cfa %rsi, 8; "
    "lea (%rsi), %rsp; .cfi_def_cfa_register %rsp; ret"
)

#: GCC's, where FP is saved at *(rbp) and the CFA at *(rbp - 8); a directive may follow `leave`.
REALIGNED = (
    "lea 8(%rsp), %r10; .cfi_def_cfa %r10, 0; and $-64, %rsp; push -8(%r10); push %rbp; mov %rsp, %rbp; "
    ".cfi_escape 0x10, 6, 2, 0x76, 0; push %r10; .cfi_escape 0x0f, 3, 0x76, 0x78, 0x06; call g; mov -8(%rbp), %r10; "
    ".cfi_def_cfa %r10, 0; leave; {} lea -8(%r10), %rsp; .cfi_def_cfa %rsp, 8; ret"
)

#: `test_compilers` has all that compilers usually write.
RIGHT = {
    "a push": f"{PUSH_BX}; call g; {POP_BX}; ret",
    "a frame pointer": f"{FRAME}; sub $32, %rsp; call g; leave; .cfi_def_cfa %rsp, 8; ret",
    "a frame pointer whose rule outlives it in the red zone": f"{FRAME}; pop %rbp; .cfi_def_cfa %rsp, 8; ret",
    "a frame whose size is in a register": (
        "mov $4096, %eax; sub %rax, %rsp; .cfi_def_cfa_offset 4104; call g; mov $4096, %eax; add %rax, %rsp; "
        ".cfi_def_cfa_offset 8; ret"
    ),
    "a sum that is a difference": (
        "add $-128, %rsp; .cfi_def_cfa_offset 136; call g; sub $-128, %rsp; .cfi_def_cfa_offset 8; "
        "add $-4096, %rsp; .cfi_def_cfa_offset 4104; call g; sub $-4096, %rsp; .cfi_def_cfa_offset 8; "
        "mov $-64, %rax; add %rax, %rsp; .cfi_def_cfa_offset 72; call g; mov $64, %eax; add %rax, %rsp; "
        ".cfi_def_cfa_offset 8; ret"
    ),
    "sums by lea": (
        "mov %rsp, %rbx; mov $-64, %rax; lea (%rax,%rbx), %rbx; .cfi_def_cfa %rbx, 72; nop; mov $-64, %rax; "
        "lea 8(%rsp,%rax), %rax; .cfi_def_cfa %rax, 64; nop; mov $-64, %rdx; lea (%rsp,%rdx), %rcx; "
        ".cfi_def_cfa %rcx, 72; nop; .cfi_def_cfa %rsp, 8; ret"
    ),
    "a CFA that is saved": ALIGNED.format(8),
    "a stack that is realigned": REALIGNED.format(".cfi_restore %rbp;"),
    "FP by the value of an expression": (
        "mov %rbp, %rbx; .cfi_escape 0x16, 6, 2, 0x73, 0; xor %ebp, %ebp; mov %rbx, %rbp; ret"
    ),
    "a frame of many numbers": (
        "push %rbp; .cfi_def_cfa_offset 16; .cfi_offset %rbp, -16; sub $1024, %rsp; .cfi_def_cfa_offset 1040; "
        "xor %ebp, %ebp; mov $7, %eax; "
        + "".join(f"mov %rax, {8 * place}(%rsp); " for place in range(100))
        + "add $1024, %rsp; .cfi_def_cfa_offset 16; pop %rbp; .cfi_def_cfa_offset 8; .cfi_restore %rbp; ret"
    ),
    "the end of the stack": ".cfi_undefined %rip; xor %ebp, %ebp; push %rax; call g; hlt",
    "RA in a register": (
        "pop %rdx; .cfi_def_cfa_offset 0; .cfi_register %rip, %rdx; push %rdx; .cfi_def_cfa_offset 8; "
        ".cfi_offset %rip, -8; ret"
    ),
}

WRONG = {
    "a CFA that is saved, by another offset": (
        ALIGNED.format(16),
        [Said(16, "CFA", "breg7 24; deref; plus_uconst 16", "rax+8")],
    ),
    "FP from the stack that was realigned, after leave": (
        REALIGNED.format(""),
        [Said(29, "FP", "exp(breg6 0)", "unchanged")],
    ),
    "a wrong offset": (
        "sub $24, %rsp; .cfi_def_cfa_offset 24; call g; add $24, %rsp; .cfi_def_cfa_offset 8; ret",
        [Said(4, "CFA", "rsp+24", "rsp+32")],
    ),
    "a wrong offset from FP, where SP leads to the CFA, too": (
        f"{SAVE_FP}; .cfi_def_cfa %rbp, 24; pop %rbp; .cfi_def_cfa %rsp, 8; ret",
        [Said(4, "CFA", "rbp+24", "rbp+16")],
    ),
    "a register that does not lead to the CFA, as FP does and SP does not": (
        f"{FRAME}; sub %rdi, %rsp; .cfi_def_cfa %rbx, 16; nop; .cfi_def_cfa %rbp, 16; leave; .cfi_def_cfa %rsp, 8; ret",
        [Said(7, "CFA", "rbx+16", "rbp+16")],
    ),
    "FP saved without a directive": (
        "push %rbp; .cfi_def_cfa_offset 16; mov %rdi, %rbp; call g; pop %rbp; .cfi_def_cfa_offset 8; ret",
        [Said(4, "FP", "unchanged", "c-16")],
    ),
    "a rule for a register that is not set yet": (
        "push %rbp; .cfi_def_cfa %rbp, 16; .cfi_offset %rbp, -16; mov %rsp, %rbp; pop %rbp; .cfi_def_cfa %rsp, 8; ret",
        [Said(1, "CFA", "rbp+16", "rsp+16")],
    ),
    "RA at another slot": (
        (
            "push %rax; .cfi_def_cfa_offset 16; .cfi_offset %rip, -16; call g; pop %rax; .cfi_def_cfa_offset 8; "
            ".cfi_offset %rip, -8; ret"
        ),
        [Said(1, "RA", "c-16", "c-8")],
    ),
    "RA popped, and still at its slot by the CFI": (
        (
            "pop %rdx; .cfi_def_cfa_offset 0; push %rax; .cfi_def_cfa_offset 8; call g; pop %rax; "
            ".cfi_def_cfa_offset 0; jmp *%rdx"
        ),
        [Said(2, "RA", "c-8", "rdx")],
    ),
    "FP from the stack, though its slot has been used again": (
        (
            f"{SAVE_FP}; pop %rbp; .cfi_def_cfa_offset 8; push %rax; .cfi_def_cfa_offset 16; call g; pop %rax; "
            ".cfi_def_cfa_offset 8; ret"
        ),
        [Said(6, "FP", "c-16", "unchanged")],
    ),
    "FP at a slot that signal handlers may overwrite": (
        (
            "sub $200, %rsp; .cfi_def_cfa_offset 208; mov %rbp, (%rsp); .cfi_offset %rbp, -208; "
            "mov %rdi, %rbp; call g; mov (%rsp), %rbp; add $200, %rsp; .cfi_def_cfa_offset 8; ret"
        ),
        [Said(30, "FP", "c-208", "unchanged")],
    ),
}

_PART = ("CFA", "rsp+16", "rsp+8")


def local(body: str, name: str) -> str:
    """Return a function that no other file can call."""
    return function(body, name).replace(f"\t.globl {name}\n", "")


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str, tmp_path: Path) -> None:
    result = audited(assembled(function(RIGHT[name]), tmp_path))
    assert said_of(result) == []
    assert not result.undecided
    assert result.agreed_count > 0


def test_a_function_whose_address_is_loaded_is_no_label(tmp_path: Path) -> None:
    """Nothing tells where the jump leads: labels are tried, with the frame of the jump."""
    jumps = f"{PUSH_BX}; lea g(%rip), %rdi; call h; mov (%rbx), %rax; jmp *%rax"
    source = function("push %rax; .cfi_adjust_cfa_offset 8; pop %rax; .cfi_adjust_cfa_offset -8; ret", "g")
    assert said_of(audited(assembled(function(jumps) + source, tmp_path))) == []


def test_a_cold_part_that_begins_with_a_landing_pad(tmp_path: Path) -> None:
    """GCC puts a nop with the rows of an entry before a pad that is first; only the unwinder leads to the pad."""
    pad = "nop; .cfi_def_cfa %rbp, 16; .cfi_offset %rbp, -16; mov %rax, %rbx; call g; mov %rbx, %rdi; call h"
    for source in (pad, "nop; .cfi_def_cfa_offset 160; lea 32(%rsp), %rdi; call g; call h"):
        result = audited(assembled(local(source, "f"), tmp_path))
        assert said_of(result) == []
        assert result.undecided[Reason.NO_PATH.value] > 0
    # A fault after endbr64, which an entry has, is found.
    late = audited(assembled(function("endbr64; .cfi_def_cfa_offset 16; push %rbx; pop %rbx; ret"), tmp_path))
    assert said_of(late)[0][:2] == (4, "CFA")


def test_what_is_called_or_exported_is_a_function_whatever_its_first_row_says(tmp_path: Path) -> None:
    wrong = ".cfi_def_cfa_offset 16; nop; ret"
    for callers, shown in (("", []), (function("call g; ret"), [Said(0, "CFA", "rsp+16", "rsp+8")])):
        assert said_of(audited(assembled(callers + local(wrong, "g"), tmp_path)))[:1] == shown
    for source, form, count in (
        (local(wrong, "g"), "-shared", 0),
        (function(wrong, "g"), "-shared", 1),
        (function(wrong, "g"), "-eg", 0),
    ):
        run("ld", form, "-o", tmp_path / "linked", assembled(source, tmp_path))
        assert said_of(audited(tmp_path / "linked"))[:1] == [Said(0, "CFA", "rsp+16", "rsp+8")][:count]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (f"{PUSH_BX}; call g; .cfi_adjust_cfa_offset -8; pop %rbx; ret", [Said(6, "CFA", "rsp+8", "rsp+16")]),
        # The row has but this instruction, or the rule before was another kind: the call may not come back.
        (f"{PUSH_BX}; call g; .cfi_adjust_cfa_offset -8; pop %rbx; .cfi_def_cfa_offset 24; ret", []),
        (f"{PUSH_BX}; .cfi_escape 0x0f, 2, 0x77, 16; call g; .cfi_def_cfa %rsp, 8; pop %rbx; ret", []),
        (f"{PUSH_BX}; call g; .cfi_adjust_cfa_offset -8; sysret; ret", []),
    ],
)
def test_a_row_that_begins_an_instruction_early(body: str, said: list[Said], tmp_path: Path) -> None:
    result = audited(assembled(function(body), tmp_path))
    assert said_of(result) == said
    assert (Reason.NO_PATH.value in result.undecided) == (not said)


@pytest.mark.parametrize(("register", "wrong"), [("rdx", []), ("rbx", ["CFA"])])
def test_a_cfa_in_a_register_that_was_loaded(register: str, wrong: list[str], tmp_path: Path) -> None:
    """As in longjmp, which loads another frame's registers into those that calls change."""
    body = f"mov (%rdi), %{register}; .cfi_def_cfa %{register}, 8; nop; .cfi_def_cfa %rsp, 8; ret"
    result = audited(assembled(function(body), tmp_path))
    assert [each.subject for each in said_of(result)] == wrong
    assert (Reason.NOT_FOLLOWED.value in result.undecided) == (not wrong)
    # Nothing is decided about the RA at a CFA that is not known to be right.
    assert result.tallies["RA"] == (0, 2, 1, 0)


@pytest.mark.parametrize("rest", ["nop", "add $8, %rsp; .cfi_adjust_cfa_offset -8"])
def test_a_branch_to_an_empty_part_is_at_the_start_of_the_next_one(rest: str, tmp_path: Path) -> None:
    """The part is that of the function that gets there with its frame; if none does, the first row is wrong."""
    empty = "test %edi, %edi; jne part; ret"
    owner = f"{PUSH_BX}; {rest}; test %edi, %edi; jne part; add $8, %rsp; .cfi_def_cfa_offset 8; ret"
    part = local(".cfi_def_cfa_offset 16; nop; ret", "part")
    said = said_of(audited(assembled(function(empty) + function(owner, "owner") + part, tmp_path)))
    assert [each[1:] for each in said if each.cfi_rule == "rsp+16"] == ([] if rest == "nop" else [_PART])


def test_a_table_of_jumps_before_that_of_another_function(tmp_path: Path) -> None:
    """Nothing limits the index, so the words of both tables are tried."""
    first = "jmp *t1(,%rdi,8); 1: ret; 2: xor %eax, %eax; ret"
    second = f"{PUSH_BX}; jmp *t2(,%rdi,8); 3: nop; nop; 4: {POP_BX}; ret"
    tables = "\t.section .rodata\n\t.balign 8\nt1:\t.quad 1b, 2b\nt2:\t.quad 3b, 4b\n"
    path = assembled(function(first) + function(second, "g") + tables, tmp_path)
    run("ld", "-e", "f", "-o", tmp_path / "linked", path)
    assert said_of(audited(tmp_path / "linked")) == []


def test_a_call_of_what_jumps_into_a_table_of_functions_comes_back(tmp_path: Path) -> None:
    caller = function(f"{PUSH_BX}; call g; {POP_BX}; ret") + function("jmp *t(,%rdi,8)", "g")
    callees = function("xor %eax, %eax; ret", "h") + function("ret", "i")
    path = assembled(caller + callees + "\t.section .rodata\n\t.balign 8\nt:\t.quad h, i\n", tmp_path)
    run("ld", "-e", "f", "-o", tmp_path / "linked", path)
    assert not audited(tmp_path / "linked").undecided


def test_a_number_does_not_end_a_table_unless_addresses_are_fixed(tmp_path: Path) -> None:
    """The number is the address of the table's second word."""
    jumps = "lea t(%rip), %rdx; movslq (%rdx,%rdi,4), %rax; add %rdx, %rax; jmp *%rax; 1: mov $0x201004, %eax; 2: ret"
    source = function(jumps) + "\t.section .rodata\n\t.balign 4\nt:\t.long 1b - t, 2b - t, 3b - t\n"
    path = assembled(source.replace("2: ret", "ret; 2: nop; ret; 3: nop; ret"), tmp_path)
    for options, undecided in ((("-pie", "--no-dynamic-linker"), 0), ((), 2)):
        placed = ("-e", "f", "--section-start=.rodata=0x201000", "-Ttext=0x202000", *options)
        run("ld", *placed, "-o", tmp_path / "linked", path)
        assert sum(audited(tmp_path / "linked").undecided.values()) == undecided


def test_expressions_are_not_evaluated(tmp_path: Path) -> None:
    body = "push %rbp; .cfi_def_cfa_offset 16; .cfi_escape 0x10, 6, 2, 0x40, 0x1c; xor %ebp, %ebp; pop %rbp; ret"
    result = audited(assembled(function(body), tmp_path))
    assert result.undecided[Reason.NOT_FOLLOWED.value] > 0


@pytest.mark.parametrize("name", WRONG)
def test_wrong(name: str, tmp_path: Path) -> None:
    body, expected = WRONG[name]
    assert said_of(audited(assembled(function(body), tmp_path))) == expected


def test_findings_are_of_their_function(tmp_path: Path) -> None:
    bodies = (RIGHT["a push"], WRONG["a wrong offset"][0], RIGHT["a frame pointer"])
    source = "".join(function(body, f"f{number}") for number, body in enumerate(bodies))
    result = audited(assembled(source, tmp_path))
    assert result.function_count == 3
    assert said_of(result) == WRONG["a wrong offset"][1]
    (finding,) = result.findings
    assert finding.directive == ".cfi_def_cfa_offset 32"
    assert finding.instruction_count == 2


@pytest.mark.parametrize(
    ("name", "directive"),
    {
        "a rule for a register that is not set yet": ".cfi_def_cfa %rsp, 16",
        "FP saved without a directive": ".cfi_offset %rbp, -16",
        "RA at another slot": ".cfi_offset %rip, -8",
        "RA popped, and still at its slot by the CFI": ".cfi_register %rip, %rdx",
        "FP from the stack, though its slot has been used again": ".cfi_restore %rbp",
    }.items(),
)
def test_the_directive_that_corrects_a_rule(name: str, directive: str, tmp_path: Path) -> None:
    (finding,) = audited(assembled(function(WRONG[name][0]), tmp_path)).findings
    assert finding.directive == directive


def test_equal_findings_are_one(tmp_path: Path) -> None:
    """Of one function, or of functions of one size at the same place."""
    twice = "push %rbx; call g; pop %rbx; push %rbx; call g; pop %rbx; ret"
    other = "nop; push %rbx; call g; pop %rbx; ret"
    source = function(twice) + function(twice, "clone") + function(other, "other")
    result = audited(assembled(source, tmp_path))
    assert said_of(result) == [Said(1, "CFA", "rsp+8", "rsp+16"), Said(2, "CFA", "rsp+8", "rsp+16")]
    first, second = result.findings
    assert first.also_places == (".text+0x10",)
    assert (first.instruction_count, second.instruction_count, second.also_places) == (8, 2, ())


# Other ABIs


A64, S390 = "aarch64-linux-gnu-as", "s390x-linux-gnu-as"
PAIR = "stp x29, x30, [sp, #-32]!; .cfi_def_cfa_offset 32; .cfi_offset x29, -32; .cfi_offset x30, -24; mov x29, sp"
BACK = "ldp x29, x30, [sp], #32; .cfi_restore x29; .cfi_restore x30; .cfi_def_cfa_offset 0; ret"
SAVE = "stmg %r11, %r15, 88(%r15); .cfi_offset %r11, -72; .cfi_offset %r14, -48; .cfi_offset %r15, -40; lgr %r1, %r15"
LOAD = (
    "lmg %r11, %r15, 248(%r15); .cfi_restore %r11; .cfi_restore %r14; .cfi_restore %r15; "
    ".cfi_def_cfa_offset 160; br %r14"
)
SIGNED_WITH_B = (
    f"pacibsp; .cfi_negate_ra_state; {PAIR}; bl g; {BACK.removesuffix('; ret')}; autibsp; .cfi_negate_ra_state; ret"
)

OTHER_ABIS = {
    "AArch64: a frame": (A64, f"{PAIR}; bl g; {BACK}", []),
    "AArch64: signed": (
        A64,
        (
            f"paciasp; .cfi_negate_ra_state; {PAIR}; bl g; {BACK.removesuffix('; ret')}; autiasp; "
            ".cfi_negate_ra_state; ret"
        ),
        [],
    ),
    "AArch64: the RA is signed, without a directive": (
        A64,
        f"paciasp; {PAIR}; bl g; {BACK.removesuffix('; ret')}; autiasp; ret",
        [Said(4, "signing", "off", "with key A")],
    ),
    "AArch64: the directive of a signature comes too early, and that of its end too late": (
        A64,
        f".cfi_negate_ra_state; paciasp; {PAIR}; bl g; {BACK.removesuffix('; ret')}; autiasp; ret",
        [Said(0, "signing", "with key A", "off")],
    ),
    "AArch64: the B key": (A64, f".cfi_b_key_frame; {SIGNED_WITH_B}", []),
    "AArch64: the B key, without its directive": (A64, SIGNED_WITH_B, [Said(4, "signing", "with key A", "with key B")]),
    "AArch64: the pair without rules": (
        A64,
        (
            "stp x29, x30, [sp, #-16]!; .cfi_def_cfa_offset 16; mov x29, sp; bl g; ldp x29, x30, [sp], #16; "
            ".cfi_def_cfa_offset 0; ret"
        ),
        [Said(8, "FP", "unchanged", "c-16"), Said(8, "RA", "unchanged", "c-8")],
    ),
    "AArch64: the CFA by an expression of SP": (
        A64,
        "sub sp, sp, #32; .cfi_escape 0x0f, 2, 0x8f, 32; nop; add sp, sp, #32; .cfi_def_cfa sp, 0; ret",
        [],
    ),
    "AArch64: a wrong size": (
        A64,
        "sub sp, sp, #48; .cfi_def_cfa_offset 32; str x0, [sp]; add sp, sp, #48; .cfi_def_cfa_offset 0; ret",
        [Said(4, "CFA", "sp+32", "sp+48")],
    ),
    "s390x: a frame": (S390, f"{SAVE}; aghi %r15, -160; .cfi_def_cfa_offset 320; brasl %r14, g; {LOAD}", []),
    "s390x: a frame without a directive": (
        S390,
        f"{SAVE}; aghi %r15, -160; brasl %r14, g; {LOAD}",
        [Said(14, "CFA", "r15+160", "r15+320")],
    ),
}


@pytest.mark.parametrize("name", OTHER_ABIS)
def test_other_abis(name: str, tmp_path: Path) -> None:
    tool, body, expected = OTHER_ABIS[name]
    result = audited(assembled(function(body), tmp_path, tool))
    assert said_of(result) == expected
    assert not result.undecided


@pytest.mark.parametrize("order", ["-mlittle-endian", "-mbig-endian"])
def test_a_table_of_jumps_in_an_object_has_the_byte_order_of_data(order: str, tmp_path: Path) -> None:
    body = "cmp x0, #1; b.hi 3f; adr x1, t; ldr x1, [x1, x0, lsl #3]; br x1; 1: nop; ret; 2: nop; ret; 3: ret"
    path = assembled(function(f"{body}; .balign 8; t: .xword 1b, 2b"), tmp_path, A64, order)
    assert audited(path).agreed_count == 10


def test_a_signature_that_one_of_two_paths_has_made_decides_nothing(tmp_path: Path) -> None:
    result = audited(assembled(function("cbz x0, 1f; paciasp; 1: nop; br x1"), tmp_path, A64))
    assert (said_of(result), result.undecided) == ([], {Reason.NOT_FOLLOWED.value: 2})


def test_a_signed_row_over_what_is_no_instruction(tmp_path: Path) -> None:
    body = ".cfi_negate_ra_state; .inst 0xffffffff; ret"
    result = audited(assembled(local(body, "f"), tmp_path, A64))
    assert (said_of(result), result.decided_count) == ([], 0)
