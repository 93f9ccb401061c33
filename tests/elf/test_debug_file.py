# SPDX-License-Identifier: Apache-2.0
"""Separate debug files: where they are found, which are refused, and what their CFI counts for."""

import json
import shutil
import signal
import struct
import zlib
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import account, convert, load, verify
from cfi2sframe.abi import AARCH64_LE, AMD64, S390X, Arch
from cfi2sframe.api import decode_existing
from cfi2sframe.cli.parsers import VERBS, verb_parser
from cfi2sframe.elf.debug_file import find_debug_file, with_debug_file
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import InputError, UnfitError
from cfi2sframe.process.guard import limited
from cfi2sframe.sframe.model import Section
from cfi2sframe.trace import FileStore
from tests.support.cli import run
from tests.support.dwarf import cfi_asm as asm
from tests.support.elf.samples import (
    CODE,
    FRAME_VADDR,
    SHF_ALLOC,
    SHT_NOBITS,
    TEXT_VADDR,
    cie_of,
    debug_frame,
    eh_frame,
    loaded_file,
)
from tests.support.gotable.go_programs import go_build
from tests.support.needs import attempt, need
from tests.support.needs import run as run_tool
from tests.support.oracle.targets import AARCH64, TARGETS, Target, label

SOURCE: Final = """
#include <stdlib.h>
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
__attribute__((noinline)) int deep(int n)
{ int x[9] = {n}; qsort(x, 9, 4, compare); return n ? deep(n - 1) + x[0] : 0; }
int main(int argc, char **argv) { return deep(argc); }
"""
#: CFI is in `.debug_frame` only.
FLAGS: Final = ("-O2", "-g", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables", "-Wl,--build-id=sha1")
SHT_NOTE: Final = 7
SHT_PROGBITS: Final = 1


def built(folder: Path, target: Target | None = None, *flags: str) -> Path:
    """Return a program whose C code has no `.eh_frame`."""
    (folder / "p.c").write_text(SOURCE)
    program = folder / "unstripped"
    run_tool(target.compiler if target else need("gcc"), *FLAGS, *flags, folder / "p.c", "-o", program)
    return program


def separated(folder: Path, program: Path, prefix: str = "") -> tuple[Path, Path]:
    """Strip a program; return it and its debug file, which it links to."""
    debug, stripped = folder / "p.debug", folder / "p"
    objcopy = need(f"{prefix}objcopy")
    run_tool(objcopy, "--only-keep-debug", program, debug)
    run_tool(objcopy, "--strip-all", f"--add-gnu-debuglink={debug}", program, stripped)
    return stripped, debug


@pytest.mark.parametrize("target", [None, *TARGETS], ids=lambda target: label(target) if target else "amd64")
@pytest.mark.parametrize("how", ["objcopy", "compressed", "eu-strip", "llvm-objcopy"])
def test_the_section_is_that_of_the_unstripped_file(tmp_path: Path, target: Target | None, how: str) -> None:
    program, prefix = built(tmp_path, target), f"{target.triplet}-" if target else ""
    stripped, debug = separated(tmp_path, program, prefix)
    if how == "compressed":
        run_tool(need(f"{prefix}objcopy"), "--compress-debug-sections", debug)
    elif how == "eu-strip":
        run_tool(need("eu-strip"), "-f", debug, "-o", stripped, program)
    elif how == "llvm-objcopy":
        run_tool(need("llvm-objcopy"), "--only-keep-debug", program, debug)
    whole, bare = convert(program), load(stripped)
    without = account(convert(bare)).described_size if how != "eu-strip" or target is AARCH64 else 0
    with with_debug_file(bare, str(debug)) as both:
        conversion = convert(both)
        coverage = account(conversion)
        assert verify(conversion).is_clean
    assert conversion.section == whole.section
    assert coverage.described_size == account(whole).described_size > without
    assert coverage.sources[".debug_frame of the debug file"] == account(whole).sources[".debug_frame"] >= 3
    assert coverage.debug_file == str(debug)


def test_written_into_the_program_verified_and_told(tmp_path: Path) -> None:
    stripped, debug = separated(tmp_path, built(tmp_path))
    before = debug.read_bytes()
    plain, out, lines = tmp_path / "plain", tmp_path / "out", tmp_path / "lines"
    # The debug file lies beside the program, and is not looked for.
    assert run(stripped, "-o", plain).status == 0
    done = run(stripped, "-o", out, "--debug-file", debug, "-v", "--report", lines)
    assert done.err[0].endswith(f"; debug file: {debug}")
    assert json.loads(lines.read_text())["account"]["debug_file"] == str(debug)
    assert sum(decode_existing(out).sizes) > sum(decode_existing(plain).sizes)
    assert attempt(out).status == attempt(stripped).status
    assert debug.read_bytes() == before
    checked = run("verify", "-v", out, "--debug-file", "auto")
    assert (checked.status, f"0 differences; with {debug}" in checked.err[0]) == (0, True)
    assert run("--check", out, "--debug-file", debug).out.endswith(b"up to date\n")
    found = run("--in-place", "-r", tmp_path, "--debug-file", "auto", "--exclude", "unstripped", "--replace")
    assert (found.status, "separate debug file: 1" in "".join(found.err)) == (0, True)
    text = run("coverage", stripped, "--debug-file", debug).out.decode()
    assert f"Debug file: {debug}." in text.replace("\n", " ").replace("  ", " ")


def test_no_verb_that_takes_it_forgets_it(tmp_path: Path) -> None:
    path, missing = built(tmp_path), tmp_path / "nosuch"
    verbs = [verb for verb in VERBS if "--debug-file" in verb_parser(verb).format_help()]
    given = {"convert": ("--check", path), "trace": ("--pid", "1")}
    found = {verb: run(verb, *given.get(verb, (path,)), "--debug-file", missing).err for verb in verbs}
    message = f"cfi2sframe: {missing}: error: No such file or directory"
    assert found == dict.fromkeys(("convert", "lookup", "verify", "coverage", "size", "audit", "trace"), (message,))
    stripped, debug = separated(tmp_path, path)
    for words in (("audit",), ("size",), ("coverage", "--format", "json")):
        assert run(*words, stripped).out != run(*words, stripped, "--debug-file", debug).out


def test_a_debug_file_is_no_program(tmp_path: Path) -> None:
    """Also that of a converted program, which has a section and a segment without bytes; it serves both programs."""
    program = built(tmp_path)
    _, debug = separated(tmp_path, program)
    converted, of_converted = tmp_path / "converted", tmp_path / "converted.debug"
    assert run(program, "-o", converted).status == 0
    run_tool(need("objcopy"), "--only-keep-debug", converted, of_converted)
    reason = "a separate debug file: name the file that has the code, and this one with --debug-file"
    of_section = "a separate debug file: the bytes of its .sframe section are in the program"
    for words in (("convert", "-o", tmp_path / "o"), ("coverage",), ("audit",), ("verify",), ("dump",)):
        assert run(*words, of_converted).err[0].endswith((reason, of_section))
        assert words[0] in ("verify", "dump") or run(*words, debug).err[0].endswith(reason)
    for each in (program, converted):
        assert find_debug_file(load(each), str(of_converted)) is not None


def test_gdb_finds_it_at_the_same_places(tmp_path: Path) -> None:
    gdb, program = need("gdb"), built(tmp_path)
    stripped, debug = separated(tmp_path, program)
    home, system = tmp_path / "home", tmp_path / "system"
    home.mkdir()
    linked = shutil.move(stripped, home / "p")
    held = tmp_path / "held"
    shutil.move(debug, held)
    build_id = readelf_id(program)
    places = (
        system / ".build-id" / build_id[:2] / f"{build_id[2:]}.debug",
        home / "p.debug",
        home / ".debug" / "p.debug",
        system / str(home).lstrip("/") / "p.debug",
        home / "elsewhere" / "p.debug",
    )
    for number, place in enumerate(places):
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(held, place)
        setting = f"set debug-file-directory {system}"
        words = ("-nx", "-batch", "-iex", "set debuginfod enabled off", "-iex", setting, "-ex", "info line deep")
        session = attempt(gdb, *words, linked).out
        found = find_debug_file(load(linked), str(system))
        assert ("Line" in session) == (found is not None) == (number < 4)
        assert found is None or found.name == str(place)
        place.unlink()


def readelf_id(program: Path) -> str:
    """Return the build-id of a program, as readelf prints it."""
    return run_tool(need("readelf"), "-n", program).partition("Build ID: ")[2].split()[0]


def test_dwz_and_split_dwarf(tmp_path: Path) -> None:
    """The CFI stays in the debug file; what is split off from it has none, and is named for what it is."""
    program = built(tmp_path, None, "-gsplit-dwarf", "-gdwarf-4")
    stripped, debug = separated(tmp_path, program)
    (split,) = (path for path in tmp_path.glob("*.dwo"))
    other, common = tmp_path / "other", tmp_path / "common"
    shutil.copy(debug, other)
    assert attempt(need("dwz"), "-m", common, debug, other).status in (0, 1)
    assert run("coverage", stripped, "--debug-file", debug).status == 0
    for path in (split, *([common] if common.exists() else [])):
        assert "what dwz or -gsplit-dwarf has split off" in run("coverage", stripped, "--debug-file", path).err[0]


def test_go_after_the_fact(tmp_path: Path) -> None:
    """Go's own table stays, and is better than its `.debug_frame`."""
    program = go_build(tmp_path, 'package main\nfunc main() { println("x") }\n')
    stripped, debug = separated(tmp_path, program)
    bare = load(stripped)
    alone = convert(bare)
    with with_debug_file(bare, str(debug)) as both:
        conversion = convert(both)
        assert verify(conversion).is_clean
        counted = account(conversion)
    assert counted.sources[".gopclntab"] == account(alone).sources[".gopclntab"]
    assert counted.described_size >= account(alone).described_size


# Made up


def note(arch: Arch, build_id: bytes) -> asm.Section:
    data = struct.pack(f"{arch.byte_order}III", 4, len(build_id), 3) + b"GNU\0" + build_id
    return asm.Section(".note.gnu.build-id", data, SHT_NOTE, SHF_ALLOC, 0x800, align=4)


def program(
    arch: Arch = AMD64,
    fdes: tuple[asm.Entry, ...] = (),
    build_id: bytes = b"1234",
    *more: asm.Section,
    vaddr: int = TEXT_VADDR,
) -> bytes:
    """Return a program without its `.debug_frame`; none of its code is anything else than zeros."""
    notes = [note(arch, build_id)] if build_id else []
    return loaded_file(arch, (*notes, eh_frame(arch, *fdes), asm.Section(".text", bytes(0x100), 1, CODE, vaddr), *more))


def debug_file(
    arch: Arch = AMD64,
    fdes: tuple[asm.Entry, ...] = (),
    build_id: bytes = b"1234",
    *,
    vaddr: int = TEXT_VADDR,
    tail: bytes = b"",
    file_type: int = 3,
) -> bytes:
    """Return a debug file for `program`."""
    frame = debug_frame(arch, *fdes)
    sections = (
        asm.Section(".eh_frame", b"", SHT_NOBITS, SHF_ALLOC, FRAME_VADDR, nobits_size=8),
        asm.Section(".text", b"", SHT_NOBITS, CODE, vaddr, nobits_size=0x100),
        *([note(arch, build_id)] if build_id else []),
        frame._replace(data=frame.data + tail),
    )
    return loaded_file(arch, sections, file_type=file_type)


def fde(arch: Arch, start: int, size: int, offset: int, *, of_eh_frame: bool = False) -> asm.Fde:
    cie = cie_of(arch, augmentation="zR" if of_eh_frame else "")
    return asm.Fde(cie, TEXT_VADDR + start, size, (asm.def_cfa_offset(offset),))


def attached(tmp_path: Path, image: bytes, debug: bytes) -> ElfImage:
    (tmp_path / "debug").write_bytes(debug)
    loaded = load(image, "p")
    loaded.debug_file = find_debug_file(loaded, str(tmp_path / "debug"))
    return loaded


@pytest.mark.parametrize("arch", [AMD64, AARCH64_LE, S390X], ids=lambda arch: arch.name)
def test_only_for_code_that_the_file_leaves_undescribed(tmp_path: Path, arch: Arch) -> None:
    own = fde(arch, 0x10, 0x10, 168, of_eh_frame=True)
    others = (fde(arch, 0, 0x40, 176), fde(arch, 0x40, 0x300, 184))
    image = attached(tmp_path, program(arch, (own,)), debug_file(arch, others))
    conversion = convert(image)
    assert verify(conversion).is_clean
    cfa = []
    for delta in (0, 0x10, 0x20, 0x40, 0xF0):
        found = conversion.section.find(TEXT_VADDR + delta)
        assert found is not None
        assert found.state is not None
        assert found.state.cfa is not None
        cfa.append(found.state.cfa.offset)
    assert cfa == [176, 168, 176, 184, 184]
    assert list(conversion.cfi.entries.clipped.values()) == [0x240]


@pytest.mark.parametrize(
    ("debug", "reason"),
    [
        (debug_file(build_id=b"4321"), "the debug file of another build: its build-id is 34333231, that of the code"),
        (debug_file(S390X), "a file for s390x; the code is for AMD64"),
        (debug_file(vaddr=TEXT_VADDR + 16), "the code is at other addresses than in this debug file: it was rewritten"),
        (debug_file(build_id=b""), "nothing shows whether it belongs to the code: there are neither two build-ids nor"),
        (debug_file(file_type=1), "no debug file of a program: an object, or what dwz or -gsplit-dwarf has split off"),
        (debug_file()[:100], "truncated"),
        (b"text", "not an ELF file"),
    ],
    ids=["build-id", "machine", "addresses", "nothing", "object", "damaged", "text"],
)
def test_refused_by_name(tmp_path: Path, debug: bytes, reason: str) -> None:
    path, binary = tmp_path / "x.debug", tmp_path / "x"
    path.write_bytes(debug)
    binary.write_bytes(program(AMD64, (fde(AMD64, 0, 16, 16, of_eh_frame=True),)))
    for words in (("-o", tmp_path / "o"), ("--from", "code", "-o", tmp_path / "o")):
        result = run("convert", binary, *words, "--debug-file", path)
        assert result.failed(3, binary)
        assert f"error: {path}: {reason}" in result.err[0]
    assert find_debug_file(load(binary), str(tmp_path)) is None
    assert not (tmp_path / "o").exists()


def link_to(arch: Arch, name: str, data: bytes) -> asm.Section:
    text = name.encode() + b"\0"
    text += bytes(-len(text) % 4) + struct.pack(f"{arch.byte_order}I", zlib.crc32(data))
    return asm.Section(".gnu_debuglink", text)


@pytest.mark.parametrize(("arch", "name"), [(AMD64, "xyz"), (S390X, "wxyz"), (AMD64, "vwxyz")])
def test_by_checksum(tmp_path: Path, arch: Arch, name: str) -> None:
    """One of the two has no build-id. The number is in the next whole word; without all of it there is none."""
    debug, (path, binary) = debug_file(arch, (fde(arch, 0, 16, 168),), b""), (tmp_path / name, tmp_path / "x")
    path.write_bytes(debug)
    link = link_to(arch, name, debug)
    for size in (len(link.data), len(link.data) - 1, len(name)):
        binary.write_bytes(program(arch, (), b"1234", link._replace(data=link.data[:size])))
        for where in (str(tmp_path), "auto"):
            found = find_debug_file(load(binary), where)
            assert (found and found.name) == (str(path) if size == len(link.data) else None)
    binary.write_bytes(program(arch, (), b"1234", link))
    path.write_bytes(debug_file(arch, (fde(arch, 0, 16, 176),), b""))
    assert find_debug_file(load(binary), "auto") is None
    with pytest.raises(InputError, match=r"another build: its CRC is \w{8}, that in \.gnu_debuglink \w{8}"):
        find_debug_file(load(binary), str(path))


def test_a_link_names_a_file_and_nothing_else(tmp_path: Path) -> None:
    """What a name without directories leads to is opened only if it is a regular file."""
    debug = debug_file(AMD64, (fde(AMD64, 0, 16, 168),), b"")
    binary, system = tmp_path / "bin" / "x", tmp_path / "system"
    system.mkdir()
    binary.parent.mkdir()
    (binary.parent / "sub").mkdir()
    for place in (tmp_path, binary.parent / "sub"):
        (place / "x.debug").write_bytes(debug)
    for name in (str(tmp_path / "x.debug"), "../x.debug", "sub/x.debug", "/dev/ptmx"):
        binary.write_bytes(program(AMD64, (), b"1234", link_to(AMD64, name, debug)))
        assert find_debug_file(load(binary), str(system)) is None
    binary.write_bytes(program(AMD64, (), b"1234", link_to(AMD64, "x.debug", debug)))
    (binary.parent / "x.debug").symlink_to(tmp_path / "x.debug")
    found = find_debug_file(load(binary), "auto")
    assert found is not None
    assert found.name == str(binary.parent / "x.debug")


def test_below_another_root(tmp_path: Path) -> None:
    """There, and in a directory that the user names; no link leads out, and no other place is looked at."""
    root, system = tmp_path / "root", tmp_path / "system"
    own, others = debug_file(AMD64, (fde(AMD64, 0, 16, 168),), b""), debug_file(AMD64, (), b"1234")
    image = load(program(AMD64, (), b"1234", link_to(AMD64, "x.debug", own)), "/bin/x")
    for folder in ("bin/.debug", "usr/lib/debug/.build-id/31", "usr/lib/debug/bin"):
        (root / folder).mkdir(parents=True)
    for folder in (".build-id/31", "bin"):
        (system / folder).mkdir(parents=True)
    (tmp_path / "own").write_bytes(own)
    (tmp_path / "others").write_bytes(others)
    inside = ("/bin/x.debug", "/bin/.debug/x.debug", "/usr/lib/debug/bin/x.debug")
    for path in (*inside, "/usr/lib/debug/.build-id/31/323334.debug"):
        place, content = root / path.lstrip("/"), own if path in inside else others
        place.symlink_to(tmp_path / ("own" if path in inside else "others"))
        assert find_debug_file(image, "auto", str(root)) is None
        place.unlink()
        (root / "held").write_bytes(content)
        place.symlink_to("/held")
        found = find_debug_file(image, "auto", str(root))
        assert found is not None
        assert found.name == path
        place.unlink()
    for name in ("bin/x.debug", ".build-id/31/323334.debug"):
        (system / name).symlink_to(tmp_path / ("own" if name.startswith("bin") else "others"))
        assert find_debug_file(image, "auto", str(root)) is None
        found = find_debug_file(image, str(system), str(root))
        assert found is not None
        assert found.name == str(system / name)
        (system / name).unlink()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/x.debug").write_bytes(own)
    image.name = "/../bin/x"
    assert find_debug_file(image, str(system), str(root)) is None


def test_memory_of_a_process_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The vDSO is in no folder, and names no file in the current one."""
    debug = debug_file(AMD64, (fde(AMD64, 0, 16, 168),), b"")
    (tmp_path / "x.debug").write_bytes(debug)
    vdso = program(AMD64, (), b"1234", link_to(AMD64, "x.debug", debug))
    monkeypatch.chdir(tmp_path)
    assert isinstance(FileStore().read(vdso, "[vdso]").rows, str)
    assert isinstance(FileStore().read(vdso, "program", "").rows, Section)


def test_damaged_cfi(tmp_path: Path) -> None:
    """Damaged FDEs, and a section that cannot be walked, are named with the debug file's name."""
    own, sound = fde(AMD64, 0, 16, 16, of_eh_frame=True), fde(AMD64, 32, 16, 24)
    bad = asm.Fde(cie_of(AMD64, augmentation=""), TEXT_VADDR + 64, 16, (asm.restore_state(),))
    name = f"{tmp_path / 'debug'}(.debug_frame)"
    conversion = convert(attached(tmp_path, program(AMD64, (own,)), debug_file(AMD64, (sound, bad))))
    assert [each.section.name for each in conversion.cfi.damaged] == [name]
    image = attached(tmp_path, program(AMD64, (own,)), debug_file(AMD64, (sound,), tail=b"\xf0\xff\0\0"))
    assert [each.name for each in convert(image).cfi.unread] == [name]
    # Without other CFI it is the best source.
    with pytest.raises(InputError, match="exceeds the section"):
        convert(attached(tmp_path, program(), debug_file(AMD64, (sound,), tail=b"\xf0\xff\0\0")))


def test_requests_that_make_no_sense(tmp_path: Path) -> None:
    binary, debug = tmp_path / "x", tmp_path / "x.debug"
    binary.write_bytes(program())
    debug.write_bytes(debug_file(AMD64, (fde(AMD64, 0, 16, 16),)))
    result = run("coverage", binary, "--from", "eh_frame", "--debug-file", debug)
    assert result.err == ("cfi2sframe: error: --from eh_frame and --debug-file are mutually exclusive",)
    for words in (("-o", debug), ("--check", "--report", debug)):
        assert "would overwrite an input" in run("convert", binary, *words, "--debug-file", debug).err[0]
    with pytest.raises(UnfitError, match="no call frame information"):
        convert(binary)
    own = program(AMD64, (fde(AMD64, 0, 16, 16, of_eh_frame=True),))
    done = run("-", "-o", tmp_path / "o", "-v", "--debug-file", "auto", stdin=own)
    assert any(line.endswith("debug file: none found") for line in done.err)


def test_without_section_headers(tmp_path: Path) -> None:
    """The build-id is that of PT_NOTE, and addresses are compared with the segments'."""
    sections = (
        eh_frame(AMD64),
        note(AMD64, b"1234")._replace(addr=FRAME_VADDR + 0x100),
        asm.Section(".text", bytes(0x100), SHT_PROGBITS, CODE, TEXT_VADDR),
    )
    segments = (
        # Other bytes are before the note.
        asm.Segment(1, 4, (".eh_frame", ".note.gnu.build-id")),
        asm.Segment(1, 5, (".text",)),
        asm.Segment(4, 4, (".note.gnu.build-id",), align=4),
    )
    binary = asm.elf_file(AMD64.elf_machine, sections, file_type=3, segments=segments, section_headers=False)
    image = attached(tmp_path, binary, debug_file(AMD64, (fde(AMD64, 0, 16, 16),)))
    assert convert(image).described_count == 1
    with pytest.raises(InputError, match="at other addresses"):
        attached(tmp_path, binary, debug_file(vaddr=TEXT_VADDR + 16))


def test_the_limits_of_a_job_allow_for_it(tmp_path: Path) -> None:
    """10 s of CPU time for each MiB, of the debug file, too."""
    debug = tmp_path / "debug"
    debug.write_bytes(debug_file(AMD64, (fde(AMD64, 0, 16, 16),)) + b"\1" * (4 << 20))
    image = load(program())
    with limited(1), with_debug_file(image, str(debug)) as both:
        assert signal.getitimer(signal.ITIMER_PROF)[0] > 40
        assert both.debug_file is not None
    assert image.debug_file is None
