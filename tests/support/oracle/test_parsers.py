# SPDX-License-Identifier: Apache-2.0
"""The parsers of other tools' output, on short outputs of real runs and against the tools themselves."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING, Literal

import pytest

from tests.support import known_wrong
from tests.support.oracle.frames import (
    Arch,
    Expression,
    NoCfa,
    OracleOutputError,
    OracleRow,
    RegisterOffset,
    Rule,
    register_number,
)
from tests.support.oracle.llvm_frames import parse_llvm_frames
from tests.support.oracle.llvm_sframe import LlvmFunction, LlvmRow, parse_llvm_sframe
from tests.support.oracle.readelf_frames import parse_readelf_frames
from tests.support.oracle.readelf_sframe import OracleSframeRow, parse_readelf_sframe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.support.oracle.tools import Binutils, BinutilsVersion, Tool

# GNU readelf 2.40 -wF on an AMD64 object.
READELF_AMD64 = """\
Contents of the .eh_frame section:


00000000 0000000000000014 00000000 CIE "zR" cf=1 df=-8 ra=16
   LOC           CFA      ra
0000000000000000 rsp+8    c-8

00000018 000000000000001c 0000001c FDE cie=00000000 pc=0000000000000000..0000000000000006
   LOC           CFA      rbp   ra
0000000000000000 rsp+8    u     c-8
0000000000000001 rsp+16   c-16  c-8
0000000000000004 rbp+16   c-16  c-8

0000004c 0000000000000010 00000050 FDE cie=00000000 pc=0000000000000007..0000000000000008

00000060 0000000000000014 00000000 CIE "zRS" cf=1 df=-8 ra=16
   LOC           CFA      ra
0000000000000000 rsp+8    c-8

00000078 0000000000000010 0000001c FDE cie=00000060 pc=0000000000000008..0000000000000009

0000008c 0000000000000030 00000090 FDE cie=00000000 pc=0000000000000009..0000000000000022
   LOC           CFA      rbx   rbp   r13   r14   r15   ra
0000000000000017 r10+0    u     exp   u     u     u     c-8
000000000000001c exp      r12 (r12) exp   s     v-24  vexp  c-8

000000c0 ZERO terminator

Contents of the .eh_frame_hdr section:

  Version:                 1
  0xffffffffffe7f46c (offset: 0x2c180) -> 0x753c fde=[    b0]
"""

# llvm-dwarfdump 14.0.6 --eh-frame on the same object.
LLVM_AMD64 = """\
a.o:	file format elf64-x86-64

.debug_frame contents:


.eh_frame contents:

00000000 00000014 00000000 CIE
  Format:                DWARF32
  Version:               1
  Augmentation:          "zR"
  Code alignment factor: 1
  Data alignment factor: -8
  Return address column: 16
  Augmentation data:     1B

  DW_CFA_def_cfa: RSP +8
  DW_CFA_offset: RIP -8

  CFA=RSP+8: RIP=[CFA-8]

00000038 00000010 0000003c FDE cie=00000000 pc=00000006...00000007
  Format:       DWARF32
  DW_CFA_undefined: RIP

  0x6: CFA=RSP+8: RIP=undefined

0000008c 00000030 00000090 FDE cie=00000000 pc=00000009...00000022
  Format:       DWARF32

  0xe: CFA=R10: RIP=[CFA-8]
  0x1c: CFA=DW_OP_breg6 RBP-8, DW_OP_deref: RBX=R12, RBP=[DW_OP_breg6 RBP+0], R13=same, R14=CFA-24, \
R15=DW_OP_breg6 RBP+16, RIP=[CFA-8]

000000c0 00000010 000000c4 FDE cie=00000000 pc=00000030...00000040
  Format:       DWARF32
"""

# llvm-dwarfdump 23.1.4 --eh-frame on an AArch64 object.
LLVM_AARCH64 = """\
.eh_frame contents:

00000000 00000010 00000000 CIE
  Augmentation:          "zR"
  Code alignment factor: 4
  Data alignment factor: -8
  Return address column: 30

  DW_CFA_def_cfa: WSP +0

  CFA=WSP

00000014 00000020 00000018 FDE cie=00000000 pc=00000000...00000010
  0x4: CFA=WSP+32: W29=[CFA-32], W30=[CFA-24], reg34=1
  0x18: CFA=DW_OP_breg31 WSP+16, DW_OP_bregx VG+0, DW_OP_mul, DW_OP_plus: B8=[CFA-8]
"""

# GNU readelf 2.47.50 --sframe on an object of its own assembler; two functions, then one of a linked program.
READELF_SFRAME_V3 = """\
Contents of the SFrame section .sframe:
  Header :

    Version: SFRAME_VERSION_3
    Flags: SFRAME_F_FDE_SORTED,
           SFRAME_F_FDE_FUNC_START_PCREL
    CFA fixed RA offset: -8
    Num FDEs: 3
    Num FREs: 7

  Function Index :

    func idx [0]: pc = 0x0, size = 21 bytes, attr = "F"
    STARTPC         CFA       FP        RA
    0000000000000005  r10+0     u         f
    000000000000000f  (fp-8)    (fp+0)    U

    func idx [1]: pc = 0x15, size = 1 bytes, attr = "S"
    STARTPC         CFA       FP        RA

    func idx [2]: pc = 0x16, size = 2 bytes, attr = "F"
    STARTPC         CFA       FP        RA
    0000000000000016  sp+8      r12+0     r3+0
    0000000000000017  RA undefined

    func idx [3]: pc = 0x1030, size = 32 bytes
    STARTPC[m]      CFA       FP        RA
    0000000000000000  sp+8      u         f
    000000000000000b  sp+16     u         f
"""

# GNU readelf 2.44 --sframe on an AArch64 object.
READELF_SFRAME_V2 = """\
Contents of the SFrame section .sframe:
  Header :

    Version: SFRAME_VERSION_2
    Flags: NONE
    Num FDEs: 2
    Num FREs: 5

  Function Index :

    func idx [0]: pc = 0x0, size = 16 bytes
    STARTPC         CFA       FP        RA
    0000000000000004  sp+32     c-32      c-24[s]

    func idx [1]: pc = 0x0, size = 4 bytes, pauth = B key
    STARTPC         CFA       FP        RA
    0000000000000000  sp+0      u         u[s]
"""

# llvm-readelf 23 --sframe on an AArch64 program of this project, shortened.
LLVM_SFRAME = """\
SFrame section '.sframe' {
  Header {
    Version: V2 (0x2)
    Num FDEs: 2
    Num FREs: 3
  }
  Function Index [
    FuncDescEntry [0] {
      PC: 0x6020
      Size: 0x20
      Num FREs: 2
      Info {
        FDE Type: PCInc (0x0)
      }
      Repetitive block size (unused): 0x0
      FREs [
        Frame Row Entry {
          Start Address: 0x6020
          Return Address Signed: No
          Base Register: SP (0x1)
          CFA Offset: 0
        }
        Frame Row Entry {
          Start Address: 0x6024
          Return Address Signed: Yes
          Base Register: FP (0x0)
          CFA Offset: 16
          RA Offset: -8
          FP Offset: -16
        }
      ]
    }
    FuncDescEntry [1] {
      PC: 0x6040
      Size: 0x100
      Num FREs: 1
      Info {
        FDE Type: PCMask (0x1)
      }
      Repetitive block size: 0x10
      FREs [
        Frame Row Entry {
          Start Address: 0x0
          Return Address Signed: No
          Base Register: SP (0x1)
          CFA Offset: 0
        }
      ]
    }
  ]
}
"""

# GNU readelf 2.40 --sframe on a program of its own assembler and linker.
READELF_SFRAME_V1 = """\
Contents of the SFrame section .sframe:
  Header :

    Version: SFRAME_VERSION_1
    Flags: SFRAME_F_FDE_SORTED
    Num FDEs: 1
    Num FREs: 1

  Function Index :

    func idx [0]: pc = 0x12b0, size = 5 bytes
    STARTPC         CFA       FP        RA
    00000000000012b0  sp+8      u         u
"""


class TestReadelfFrames:
    def test_entries_keep_offsets_and_ranges(self) -> None:
        (section,) = parse_readelf_frames(READELF_AMD64.splitlines(), "amd64")
        assert section.name == ".eh_frame"
        assert [(c.section_offset, c.augmentation, c.data_alignment) for c in section.cies] == [
            (0, "zR", -8),
            (0x60, "zRS", -8),
        ]
        assert [(f.section_offset, f.cie_offset, f.pc_begin_vaddr, f.pc_end_vaddr) for f in section.fdes] == [
            (0x18, 0, 0, 6),
            (0x4C, 0, 7, 8),
            (0x78, 0x60, 8, 9),
            (0x8C, 0, 9, 0x22),
        ]

    def test_rows_name_registers_by_number(self) -> None:
        (section,) = parse_readelf_frames(READELF_AMD64.splitlines(), "amd64")
        assert section.fdes[0].rows == (
            OracleRow(0, RegisterOffset(7, 8), {6: Rule("undefined"), 16: Rule("at_cfa", -8)}),
            OracleRow(1, RegisterOffset(7, 16), {6: Rule("at_cfa", -16), 16: Rule("at_cfa", -8)}),
            OracleRow(4, RegisterOffset(6, 16), {6: Rule("at_cfa", -16), 16: Rule("at_cfa", -8)}),
        )

    def test_fde_without_instructions_has_the_row_of_its_cie(self) -> None:
        (section,) = parse_readelf_frames(READELF_AMD64.splitlines(), "amd64")
        for fde, pc_vaddr in ((section.fdes[1], 7), (section.fdes[2], 8)):
            assert fde.rows == (OracleRow(pc_vaddr, RegisterOffset(7, 8), {16: Rule("at_cfa", -8)}),)

    def test_every_kind_of_rule(self) -> None:
        (section,) = parse_readelf_frames(READELF_AMD64.splitlines(), "amd64")
        assert section.fdes[3].rows[1] == OracleRow(
            0x1C,
            Expression(""),
            {
                3: Rule("register", 12),
                6: Rule("at_expression"),
                13: Rule("same_value"),
                14: Rule("cfa_plus", -24),
                15: Rule("expression"),
                16: Rule("at_cfa", -8),
            },
        )

    @pytest.mark.parametrize("cells", ["rsp+8    u", "rsp+8    u     c-8   c-9", "what     u     c-8"])
    def test_unknown_cells_are_errors(self, cells: str) -> None:
        text = READELF_AMD64.replace("rsp+16   c-16  c-8", cells)
        with pytest.raises(OracleOutputError):
            parse_readelf_frames(text.splitlines(), "amd64")


class TestLlvmFrames:
    def test_entries_and_every_kind_of_rule(self) -> None:
        empty, section = parse_llvm_frames(LLVM_AMD64.splitlines(), "amd64")
        assert (empty.name, empty.fdes) == (".debug_frame", ())
        (cie,) = section.cies
        assert (cie.augmentation, cie.code_alignment, cie.data_alignment, cie.ra_register) == (
            "zR",
            1,
            -8,
            16,
        )
        assert cie.row == OracleRow(0, RegisterOffset(7, 8), {16: Rule("at_cfa", -8)})
        assert section.fdes[0].rows == (OracleRow(6, RegisterOffset(7, 8), {16: Rule("undefined")}),)
        assert section.fdes[1].rows == (
            OracleRow(0xE, RegisterOffset(10, 0), {16: Rule("at_cfa", -8)}),
            OracleRow(
                0x1C,
                Expression("DW_OP_breg6 RBP-8, DW_OP_deref"),
                {
                    3: Rule("register", 12),
                    6: Rule("at_expression", 0, "DW_OP_breg6 RBP+0"),
                    13: Rule("same_value"),
                    14: Rule("cfa_plus", -24),
                    15: Rule("expression", 0, "DW_OP_breg6 RBP+16"),
                    16: Rule("at_cfa", -8),
                },
            ),
        )

    def test_fde_without_rows_is_a_problem(self) -> None:
        _, section = parse_llvm_frames(LLVM_AMD64.splitlines(), "amd64")
        assert [bool(fde.problem) for fde in section.fdes] == [False, False, True]

    def test_aarch64_names_and_pseudo_register(self) -> None:
        (section,) = parse_llvm_frames(LLVM_AARCH64.splitlines(), "aarch64")
        assert section.fdes[0].rows == (
            OracleRow(
                4,
                RegisterOffset(31, 32),
                {29: Rule("at_cfa", -32), 30: Rule("at_cfa", -24), 34: Rule("constant", 1)},
            ),
            OracleRow(
                0x18,
                Expression("DW_OP_breg31 WSP+16, DW_OP_bregx VG+0, DW_OP_mul, DW_OP_plus"),
                {72: Rule("at_cfa", -8)},
            ),
        )

    def test_missing_cfa_is_said(self) -> None:
        text = LLVM_AARCH64.replace("CFA=WSP\n", "CFA=unspecified\n")
        (section,) = parse_llvm_frames(text.splitlines(), "aarch64")
        assert section.cies[0].row == OracleRow(0, NoCfa(), {})

    def test_unknown_rule_is_an_error(self) -> None:
        text = LLVM_AMD64.replace("RIP=undefined", "RIP=[RSP+8]")
        with pytest.raises(OracleOutputError, match="no rule"):
            parse_llvm_frames(text.splitlines(), "amd64")


class TestReadelfSframe:
    def test_version_3(self) -> None:
        section = parse_readelf_sframe(READELF_SFRAME_V3.splitlines())
        assert section.version == 3
        assert section.flags == {"SFRAME_F_FDE_SORTED", "SFRAME_F_FDE_FUNC_START_PCREL"}
        assert (section.cfa_fixed_fp_offset, section.cfa_fixed_ra_offset) == (None, -8)
        assert (section.fde_count, section.fre_count) == (3, 7)
        drap, signal, registers, plt = section.functions
        assert (drap.flexible, drap.signal_frame, drap.size) == (True, False, 21)
        assert drap.rows == (
            OracleSframeRow(5, "r10+0", "u", "f", ra_mangled=False, ra_undefined=False),
            OracleSframeRow(0xF, "(fp-8)", "(fp+0)", "U", ra_mangled=False, ra_undefined=False),
        )
        assert (signal.flexible, signal.signal_frame, signal.rows) == (False, True, ())
        assert registers.rows[1] == OracleSframeRow(0x17, "", "", "", ra_mangled=False, ra_undefined=True)
        assert (plt.pc_type, plt.pc_vaddr, [row.pc_vaddr for row in plt.rows]) == ("PCMASK", 0x1030, [0, 11])
        assert registers.pc_type == "PCINC"

    def test_version_2_with_signed_return_addresses(self) -> None:
        section = parse_readelf_sframe(READELF_SFRAME_V2.splitlines())
        assert (section.version, section.flags, section.cfa_fixed_ra_offset) == (2, frozenset(), None)
        a_key, b_key = section.functions
        assert (a_key.pauth_b_key, b_key.pauth_b_key) == (False, True)
        assert a_key.rows == (OracleSframeRow(4, "sp+32", "c-32", "c-24", ra_mangled=True, ra_undefined=False),)

    def test_negative_offsets_of_the_cfa(self) -> None:
        """As in AArch64's ld.so, between the restoring of SP and the return."""
        text = READELF_SFRAME_V2.replace("sp+32", "sp+-16")
        assert text != READELF_SFRAME_V2
        assert {row.cfa for f in parse_readelf_sframe(text.splitlines()).functions for row in f.rows} == {
            "sp-16",
            "sp+0",
        }

    def test_version_1(self) -> None:
        section = parse_readelf_sframe(READELF_SFRAME_V1.splitlines())
        assert (section.version, section.flags) == (1, frozenset({"SFRAME_F_FDE_SORTED"}))
        assert [(f.number, f.pc_vaddr, f.size) for f in section.functions] == [(0, 0x12B0, 5)]

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("Function Index :", ""),
            ("sp+16     u         f", "sp+16     u"),
            ("size = 32 bytes", "size = many"),
            ("00000000000b  sp+16", "unwind rows: sp+16"),
        ],
    )
    def test_unknown_output_is_an_error(self, before: str, after: str) -> None:
        assert before in READELF_SFRAME_V3
        with pytest.raises(OracleOutputError):
            parse_readelf_sframe(READELF_SFRAME_V3.replace(before, after).splitlines())


class TestLlvmSframe:
    def test_version_2(self) -> None:
        bare = LlvmRow(0, "SP", 0, None, None, is_signed=False)
        assert parse_llvm_sframe(LLVM_SFRAME.splitlines()) == (
            LlvmFunction(
                *(0x6020, 0x20, False, 0),
                (bare._replace(start=0x6020), LlvmRow(0x6024, "FP", 16, -8, -16, is_signed=True)),
            ),
            LlvmFunction(0x6040, 0x100, True, 0x10, (bare,)),
        )

    @pytest.mark.parametrize(
        ("before", "after"),
        [
            ("Num FDEs: 2", "Num FDEs: 3"),
            ("Num FREs: 3", "Num FREs: 4"),
            ("Num FREs: 2", "Num FREs: 3"),
            ("Size: 0x100", "Size: many"),
        ],
    )
    def test_what_is_missing_is_an_error(self, before: str, after: str) -> None:
        assert before in LLVM_SFRAME
        with pytest.raises(OracleOutputError):
            parse_llvm_sframe(LLVM_SFRAME.replace(before, after).splitlines())

    def test_no_section_is_an_error(self) -> None:
        with pytest.raises(OracleOutputError):
            parse_llvm_sframe([])


class TestRegisterNumbers:
    @pytest.mark.parametrize(
        ("arch", "name", "number"),
        [
            ("amd64", "RSP", 7),
            ("amd64", "xmm16", 67),
            ("amd64", "reg49", 49),
            ("aarch64", "WSP", 31),
            ("aarch64", "reg34", 34),
            ("s390x", "R15D", 15),
            ("s390x", "f2", 17),
            ("s390x", "F8D", 24),
        ],
    )
    def test_spellings(self, arch: Arch, name: str, number: int) -> None:
        assert register_number(arch, name) == number

    def test_unknown_name(self) -> None:
        with pytest.raises(OracleOutputError, match="eip"):
            register_number("amd64", "eip")

    @pytest.mark.oracle
    @pytest.mark.parametrize("arch", ["amd64", "aarch64", "s390x"])
    @pytest.mark.parametrize("printer", ["readelf", "llvm-dwarfdump"])
    def test_names_of_the_tools(
        self,
        arch: Arch,
        printer: str,
        tmp_path: Path,
        binutils: Callable[[BinutilsVersion], Binutils],
        llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
    ) -> None:
        """Each register from 0 to 127 is printed as the place of register 0, and read back as its number."""
        newest = binutils("newest")
        lines = [f".cfi_escape 0x09, 0x00, {number:#x}\n.quad 0" for number in range(128)]
        _assemble(newest.tool("as", arch), tmp_path, "\n".join([".cfi_startproc", *lines, ".cfi_endproc", ""]))
        if printer == "readelf":
            output = _run(newest.tool("readelf", arch), "-wF", str(tmp_path / "a.o"))
            (section,) = parse_readelf_frames(output.splitlines(), arch)
        else:
            output = _run(str(llvm_dwarfdump("newest").path), "--eh-frame", str(tmp_path / "a.o"))
            section = parse_llvm_frames(output.splitlines(), arch)[-1]
        assert [row.registers[0] for row in section.fdes[0].rows] == [Rule("register", n) for n in range(128)]


REMEMBER = """
    .cfi_startproc
    .cfi_def_cfa_offset 16
    nop
    .cfi_remember_state
    .cfi_def_cfa_offset 8
    nop
    .cfi_restore_state
    nop
    .cfi_endproc
"""


@pytest.mark.oracle
class TestToolsAgree:
    @pytest.mark.parametrize("llvm_version", ["newest", "machine"])
    @pytest.mark.parametrize("binutils_version", ["2.40", "2.44", "newest"])
    def test_restored_state(
        self,
        llvm_version: Literal["newest", "machine"],
        binutils_version: BinutilsVersion,
        tmp_path: Path,
        request: pytest.FixtureRequest,
        binutils: Callable[[BinutilsVersion], Binutils],
        llvm_dwarfdump: Callable[[Literal["newest", "machine"]], Tool],
    ) -> None:
        tools, dwarfdump = binutils(binutils_version), llvm_dwarfdump(llvm_version)
        known_wrong.expect_failure(request, "remember-state-keeps-cfa", "llvm-dwarfdump", dwarfdump.version)
        _assemble(tools.tool("as"), tmp_path, REMEMBER)
        gnu = _run(tools.tool("readelf"), "-wF", str(tmp_path / "a.o"))
        llvm = _run(str(dwarfdump.path), "--eh-frame", str(tmp_path / "a.o"))
        expected = [RegisterOffset(7, 16), RegisterOffset(7, 8), RegisterOffset(7, 16)]
        assert [row.cfa for row in parse_readelf_frames(gnu.splitlines(), "amd64")[0].fdes[0].rows] == expected
        assert [row.cfa for row in parse_llvm_frames(llvm.splitlines(), "amd64")[-1].fdes[0].rows] == expected

    @pytest.mark.parametrize(("binutils_version", "sframe_version"), [("2.40", 1), ("2.44", 2), ("newest", 3)])
    def test_sframe_of_the_assembler(
        self,
        binutils_version: BinutilsVersion,
        sframe_version: int,
        tmp_path: Path,
        binutils: Callable[[BinutilsVersion], Binutils],
    ) -> None:
        tools = binutils(binutils_version)
        _assemble(tools.tool("as"), tmp_path, REMEMBER, "--gsframe")
        section = parse_readelf_sframe(_run(tools.tool("readelf"), "--sframe", str(tmp_path / "a.o")).splitlines())
        assert section.version == sframe_version
        assert [[row.cfa for row in f.rows] for f in section.functions] == [["sp+16", "sp+8", "sp+16"]]


class TestKnownWrong:
    def test_cases_are_listed_once_per_tool(self) -> None:
        keys = [(entry.case, entry.tool) for entry in known_wrong.KNOWN_WRONG]
        assert len(keys) == len(set(keys))

    def test_version_covers_what_starts_with_it(self) -> None:
        assert known_wrong.find("remember-state-keeps-cfa", "llvm-dwarfdump", "14.0.6") is not None
        assert known_wrong.find("remember-state-keeps-cfa", "llvm-dwarfdump", "140.0.6") is None
        assert known_wrong.find("remember-state-keeps-cfa", "readelf", "14.0.6") is None


def _run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _assemble(assembler: str, directory: Path, source: str, *options: str) -> None:
    (directory / "a.s").write_text(source)
    _run(assembler, *options, str(directory / "a.s"), "-o", str(directory / "a.o"))
