# SPDX-License-Identifier: Apache-2.0
"""Damaged and hostile cores, files and sections: every one ends in a named ending or a clear error, and soon."""

import os
import re
import struct
from pathlib import Path
from typing import Final, get_args

import pytest

from cfi2sframe.abi import AARCH64_BE, AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.errors import InputError
from cfi2sframe.sframe.model import Found
from cfi2sframe.trace import AddressSpace, Ending, FileStore, LoadedCfa, trace_core
from cfi2sframe.trace.frames import NT_PRSTATUS, EndingKind
from cfi2sframe.trace.store import ModuleFile
from tests.support.elf.elf_asm import Section, Symbol, note
from tests.support.elf.samples import loaded_file
from tests.support.trace.core_files import (
    BIAS,
    MODELS,
    NT_AUXV,
    NT_FILE,
    PAGE,
    TEXT_VADDR,
    CoreFile,
    Load,
    mapped_files,
    moved,
    plain_core,
    program,
    program_mappings,
    status,
    written_program,
)
from tests.support.trace.stacks import PAC, make_stack

pytestmark = pytest.mark.fuzz

#: How both threads of an ordinary core end.
OUTERMOST: Final = [("outermost", "RA is undefined")] * 2
ARCHES: Final = [pytest.param(arch, id=arch.name) for arch in (AMD64, AARCH64_LE, AARCH64_BE, S390X)]


@pytest.fixture
def path(tmp_path: Path) -> str:
    """The path of a program for AMD64."""
    return written_program(tmp_path)


def endings_of(core: CoreFile, executable: str | None = None) -> list[tuple[str, str]]:
    """Return how the traces end."""
    return [thread.ending for thread in trace_core(core.assemble(), executable=executable).threads]


@pytest.mark.parametrize("arch", ARCHES)
def test_a_core_with_nothing_wrong(arch: Arch, tmp_path: Path) -> None:
    stack = make_stack(arch, 3, MODELS)
    traced = trace_core(plain_core(arch, written_program(tmp_path, arch, stack.section)).assemble())
    assert [thread.thread_id for thread in traced.threads] == [77, 78]
    assert [thread.ending for thread in traced.threads] == OUTERMOST
    for thread in traced.threads:
        assert [e.frame[:3] for e in thread.entries] == [moved(f)[:3] for f in stack.frames]


def test_the_mask_of_authentication_codes(tmp_path: Path) -> None:
    """All above 48 bits, but where the core has a mask of code addresses, which follows that of data."""
    models = [model._replace(is_signed=True) for model in MODELS]
    path = written_program(tmp_path, AARCH64_LE, make_stack(AARCH64_LE, 3, models).section)
    core = plain_core(AARCH64_LE, path, models)
    assert endings_of(core) == OUTERMOST
    masks = struct.pack("<QQ", 0, 0xFF << 48)
    for size in (0, 8, 15):
        assert endings_of(core._replace(notes=note(b"LINUX", 0x406, masks[:size]))) == OUTERMOST
    masked = core._replace(notes=note(b"LINUX", 0x406, masks))
    left = (PAC & 0xFF << 56) + BIAS + TEXT_VADDR + PAGE + 0x3F
    assert endings_of(masked)[0] == ("no-module", f"no file is known at 0x{left:x}")


def test_notes_of_each_size(path: str) -> None:
    """The list of files is as long as its count says, or is none; of pairs and masks, whole ones count."""
    core = plain_core(AMD64, path)
    files = mapped_files("<", core.mapped)
    names_start = 16 + 24 * len(core.mapped)

    def endings(data: bytes, kind: int = NT_FILE) -> list[tuple[str, str]]:
        mapped = core.mapped if kind != NT_FILE else ()
        return endings_of(core._replace(mapped=mapped, notes=note(b"CORE", kind, data)))

    assert endings(files) == OUTERMOST
    unknown = f"no file is known at 0x{core.frames[0][1].pc:x}"
    for size in (0, 8, 15, 16, names_start - 1):
        assert endings(files[:size])[0] == ("no-module", f"{unknown}; the core does not list its files (NT_FILE)")
    # There is room for the mappings, but not for a name of each.
    assert endings(files[:names_start])[0] == ("no-module", unknown)
    for count in (1 << 61, (1 << 64) - 1):
        assert endings(struct.pack("<Q", count) + files[8:])[0][0] == "no-module"
    # The first mapping loses its name; those after it have the name of the next one, which is the same file's.
    assert endings(struct.pack("<Q", len(core.mapped) + 1) + files[8:]) == OUTERMOST
    auxv = struct.pack("<QQQQ", 6, PAGE, 0, 0)
    for size in range(len(auxv) + 1):
        assert endings(auxv[:size], NT_AUXV) == OUTERMOST


def test_the_first_thread_has_no_registers(path: str) -> None:
    """It is no thread, and says nothing of a signal; the others are traced."""
    core = plain_core(AMD64, path)
    threads = b"".join(note(b"CORE", NT_PRSTATUS, status(AMD64, *each)) for each in core.frames)
    for size in (0, 13, 35, 111, 112):
        short = note(b"CORE", NT_PRSTATUS, bytes(size))
        assert endings_of(core._replace(frames=(), notes=short + threads)) == OUTERMOST


def test_functions_and_labels() -> None:
    """Sizes that are unknown, names for one address, labels in functions, and marks that are no names."""
    symbols = (
        *(Symbol("outer", 0x1000, 0x100), Symbol("label", 0x1000, 0, 0x10), Symbol("$x", 0x1030, 0, 0x10)),
        *(Symbol("object", 0x1040, 8, 0x11), Symbol("sized", 0x1200, 0x10), Symbol("unsized", 0x1200)),
        *(Symbol("open", 0x1300), Symbol("last", 0x1400), Symbol("absent", 0, 0, 0x12, "")),
    )
    text = Section(".text", bytes(0x500), 1, 6, 0x1000)
    file = FileStore().read(loaded_file(AMD64, (text,), symbols=symbols), "file")
    wanted: dict[int, tuple[str, int] | None] = dict.fromkeys((0xFFF, 0x1100, 0x1210, 0x1500))
    wanted |= {0x1000 + n: ("outer", n) for n in (0, 0x20, 0x30, 0x44)}
    wanted |= {0x1208: ("sized", 8), 0x1350: ("open", 0x50), 0x14FF: ("last", 0xFF)}
    assert {vaddr: file.symbol_at(vaddr) for vaddr in wanted} == wanted


@pytest.mark.parametrize("arch", ARCHES)
def test_truncated_cores(arch: Arch, tmp_path: Path) -> None:
    """At every few bytes: a trace with a named ending, or an error of the project's."""
    stack = make_stack(arch, 3, MODELS)
    data = plain_core(arch, written_program(tmp_path, arch, stack.section)).assemble()
    store = FileStore()
    endings = set[str]()
    for size in range(0, len(data), 4):
        try:
            traced = trace_core(data[:size], store=store)
        except InputError:
            endings.add("error")
            continue
        for trace in traced.threads:
            assert trace.ending.kind in get_args(EndingKind)
            assert len(trace.entries) <= len(stack.frames)
            endings.add(trace.ending.kind)
    # Cut in the headers, in the notes after the first thread, in the stack.
    assert endings == {"error", "no-module", "unreadable-memory"} | ({"unknown-register"} & endings)


def test_code_that_is_of_no_mapping(path: str) -> None:
    """Programs may move their code to huge pages, which are of no file."""
    core = plain_core(AMD64, path)
    core = core._replace(mapped=core.mapped[:2])
    assert endings_of(core) == OUTERMOST
    between = core._replace(frames=((1, core.frames[0][1]._replace(pc=BIAS + 0x80000)),))
    assert endings_of(between)[0][0] == "no-row"
    with pytest.raises(InputError, match="no thread"):
        endings_of(core._replace(frames=()))


def test_files_that_are_missing_or_others(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also pipes and devices, which a list of mapped files may name: reading one could wait for ever."""
    os.mkfifo(tmp_path / "pipe")
    for name in (str(tmp_path / "pipe"), "/dev/zero", str(tmp_path), "/proc/kmsg"):
        assert endings_of(plain_core(AMD64, name))[0] == ("unusable-module", f"{name}: not a regular file, or empty")
    # No kernel lists names like this one, and the current directory is not what a core means.
    monkeypatch.chdir(tmp_path)
    name = os.path.basename(path)
    assert endings_of(plain_core(AMD64, name))[0] == ("unusable-module", f"{name}: No such file or directory")
    other = written_program(tmp_path, S390X, b"", "other")
    assert "the file is for s390x" in endings_of(plain_core(AMD64, other))[0][1]
    late = plain_core(AMD64, path)
    beyond = tuple(m._replace(file_offset=m.file_offset + (1 << 20)) for m in late.mapped)
    assert "none of its mappings holds a segment" in endings_of(late._replace(mapped=beyond))[0][1]
    # The process's own copy of the headers tells which build it ran.
    core = plain_core(AMD64, path)
    seen = core._replace(loads=(*core.loads, Load(BIAS, program(AMD64, b"", bytes(20))[:PAGE])))
    problem = "another build was mapped: the file's notes (build-id) are not those in memory; see --sysroot"
    assert endings_of(seen)[0] == ("unusable-module", f"{path}: {problem}")
    assert endings_of(core._replace(loads=(*core.loads, Load(BIAS, Path(path).read_bytes()[:PAGE])))) == OUTERMOST


def test_a_core_without_a_list_of_files(path: str) -> None:
    """As qemu writes: only the program that the user names is known, where AT_PHDR says that it is."""
    core = plain_core(AMD64, path)._replace(mapped=())
    kind, detail = endings_of(core)[0]
    assert kind == "no-module"
    assert detail.endswith("; the core does not list its files (NT_FILE)")
    assert endings_of(core, path) == OUTERMOST


def test_a_program_that_has_been_moved(path: str) -> None:
    """The file that the user names stands for the one whose mapping has the program headers; it keeps its name."""
    core = plain_core(AMD64, "/gone")
    assert endings_of(core)[0][0] == "unusable-module"
    traced = trace_core(core.assemble(), executable=path)
    assert [thread.ending for thread in traced.threads] == OUTERMOST
    assert [module.name for module in traced.space.modules] == ["/gone"]
    assert endings_of(core._replace(auxv=()), path)[0][0] == "unusable-module"


def _without_place(text: str) -> str:
    """Return the message about a bug without its source line and the request to report it."""
    return re.sub(r" at [\w.]+:\d+; please report it", "", text)


def test_an_unforeseen_error_costs_one_module(tmp_path: Path, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug that one file meets is named, and the threads in other files are traced."""
    bad = written_program(tmp_path, AMD64, make_stack(AMD64, 3, MODELS).section + b"\0", "bad")
    core = plain_core(AMD64, path)
    frames = ((1, core.frames[0][1]._replace(pc=(BIAS << 1) + TEXT_VADDR + 0x40)), *core.frames)
    core = core._replace(frames=frames, mapped=(*core.mapped, *program_mappings(bad, BIAS << 1)))
    assert endings_of(core)[1:] == OUTERMOST
    read = FileStore.read

    def failing(store: FileStore, data: bytes, name: str, root: str) -> ModuleFile:
        if name == bad:
            raise OverflowError("too wild")
        return read(store, data, name, root)

    monkeypatch.setattr(FileStore, "read", failing)
    (kind, detail), *others = endings_of(core)
    assert (kind, others) == ("unusable-module", OUTERMOST)
    assert _without_place(detail) == f"{bad}: internal error: OverflowError: too wild"


def test_an_unforeseen_error_costs_one_thread(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread keeps its topmost frame, and the next one is traced."""
    core = plain_core(AMD64, path)
    core = core._replace(frames=((1, core.frames[0][1]._replace(pc=0x77)), *core.frames))
    look_up = AddressSpace.look_up

    def failing(space: AddressSpace, address: int) -> Found | LoadedCfa | Ending:
        if address == 0x77:
            raise KeyError(address)
        return look_up(space, address)

    monkeypatch.setattr(AddressSpace, "look_up", failing)
    traced = trace_core(core.assemble())
    assert [t.ending.kind for t in traced.threads] == ["internal-error", "outermost", "outermost"]
    assert [e.frame.pc for e in traced.threads[0].entries] == [0x77]
    lines = [_without_place(line) for line in str(traced).splitlines()]
    assert "end: internal-error: internal error: KeyError: 119" in lines
