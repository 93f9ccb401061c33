# SPDX-License-Identifier: Apache-2.0
"""What a folder has that is not for this program is skipped, and told by kind; what is named is not."""

from pathlib import Path
from typing import NamedTuple

import pytest

from cfi2sframe.abi import AMD64
from cfi2sframe.errors import ErrorKind
from cfi2sframe.jobs.job import run_job
from cfi2sframe.jobs.records import Outcome, Request, SkipKind
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import TEXT_VADDR, linked_file, object_file, push_fp
from tests.support.jobs import OBJECT, OF_32_BITS, TRUNCATED, WITHOUT_CFI, convert_one, jobs_for
from tests.support.placing.embedded import as_linked

ET_DYN, ET_CORE = 3, 4
LINKED = as_linked("/bin/true")
LDSO = Path("/lib64/ld-linux-x86-64.so.2")
NO_CFI = (
    "no call frame information: no .eh_frame, .debug_frame or .gopclntab; a separate debug file "
    "(--debug-file) may have some, and convert --from code needs none"
)
CODE = asm.Section(".text", b"\xc3" * 16, 1, 6, TEXT_VADDR)


def module() -> bytes:
    fde = push_fp(AMD64, 0)
    return object_file(AMD64, {".text": (fde,), ".modinfo": (), ".init.text": (fde,)})


class Case(NamedTuple):
    """Bytes, what they are in a folder, and how they fail when they are named (None: they do not)."""

    data: bytes
    kind: SkipKind
    reason: str
    named: ErrorKind | None = None


CASES = {
    "object": Case(
        OBJECT, SkipKind.OBJECT, "a relocatable object; --for ld or kernel-arm64 takes those in directories, too"
    ),
    "module": Case(
        module(), SkipKind.MODULE, "a kernel module; --for ld or kernel-arm64 takes those in directories, too"
    ),
    "debug file": Case(
        linked_file(AMD64, (push_fp(AMD64),)),
        SkipKind.DEBUG_FILE,
        "a separate debug file: its code is in another file",
        ErrorKind.REFUSED,
    ),
    "kernel": Case(
        asm.elf_file(
            62,
            (CODE._replace(addr=0xFFFF_FFFF_8100_0000),),
            file_type=2,
            segments=(asm.Segment(1, 5, (".text",)),),
        ),
        SkipKind.KERNEL,
        "a kernel image",
        ErrorKind.UNFIT,
    ),
    "no CFI": Case(
        asm.elf_file(62, (CODE,), file_type=ET_DYN, segments=(asm.Segment(1, 5, (".text",)),)),
        SkipKind.NO_CFI,
        NO_CFI,
        ErrorKind.UNFIT,
    ),
    "32 bits": Case(
        OF_32_BITS,
        SkipKind.FOREIGN,
        "not a 64-bit ELF file; SFrame is defined for 64-bit ABIs only",
        ErrorKind.UNFIT,
    ),
    "other machine": Case(
        asm.elf_file(243, (CODE,)),
        SkipKind.FOREIGN,
        "SFrame is not defined for EM_RISCV (little-endian)",
        ErrorKind.UNFIT,
    ),
    "core": Case(
        asm.elf_file(62, (CODE,), file_type=ET_CORE),
        SkipKind.FOREIGN,
        "a core dump, which has no CFI of its own; cfi2sframe trace prints its stacks",
        ErrorKind.UNFIT,
    ),
    "payload": Case(
        LINKED + b"payload",
        SkipKind.PAYLOAD,
        "7 bytes appended after the ELF data (an archive, a payload or a signature); adding or removing a section "
        "would move what may be expected at a fixed offset",
        ErrorKind.REFUSED,
    ),
}


def in_folder(folder: Path, data: bytes, request: Request = Request()) -> Outcome:
    path = folder / "file"
    path.write_bytes(data)
    (job,) = jobs_for([folder], request)
    outcome = run_job(job)
    assert (path.read_bytes() == data) == (outcome.status in ("skipped", "unchanged", "failed"))
    return outcome


@pytest.mark.parametrize("name", CASES)
def test_skipped_in_a_folder_and_not_when_named(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    outcome = in_folder(tmp_path, case.data)
    assert (outcome.status, outcome.kind) == ("skipped", None)
    assert (outcome.skip_kind, outcome.reason) == (case.kind, case.reason)
    outcome = convert_one(tmp_path / "file")
    assert (outcome.status, outcome.kind) == ("converted" if case.named is None else "failed", case.named)
    assert outcome.skip_kind is None


@pytest.mark.parametrize("name", ["object", "module"])
def test_objects_are_taken_on_request(tmp_path: Path, name: str) -> None:
    outcome = in_folder(tmp_path, CASES[name].data, Request(reader="ld"))
    assert outcome.status == "converted"


@pytest.mark.parametrize("takes_objects", [True, False])
def test_an_object_without_cfi_is_an_object_first(tmp_path: Path, *, takes_objects: bool) -> None:
    outcome = in_folder(tmp_path, WITHOUT_CFI, Request(reader="ld" if takes_objects else None))
    assert outcome.skip_kind is (SkipKind.NO_CFI if takes_objects else SkipKind.OBJECT)


def test_what_is_damaged_fails_in_a_folder_too(tmp_path: Path) -> None:
    assert in_folder(tmp_path, TRUNCATED).kind is ErrorKind.DAMAGED


def test_a_program_interpreter(tmp_path: Path) -> None:
    """It is converted as any other file."""
    if not LDSO.exists():
        pytest.skip(f"no {LDSO}")
    outcome = in_folder(tmp_path, as_linked(LDSO))
    assert (outcome.status, outcome.warnings) == ("converted", ())
