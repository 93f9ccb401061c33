# SPDX-License-Identifier: Apache-2.0
"""Rewritten AArch64 and s390x programs run in an emulator, and a walker in C finds their stacks by .sframe there."""

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Final, Literal

import pytest

from cfi2sframe import load
from cfi2sframe.cli import main
from cfi2sframe.constants.elf import PF_W, PT_GNU_SFRAME, PT_LOAD
from cfi2sframe.elf.image import ElfImage
from tests.support.consumer.walk import CONSUMER, Place, compile_sampler, read_report, variables_of
from tests.support.needs import run
from tests.support.oracle.targets import AARCH64, S390, TARGETS, Target, label
from tests.support.oracle.tools import find_binutils
from tests.support.placing.embedded import SOURCES

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

SECONDS: Final = "1"
FEWEST_SAMPLES: Final = 200
#: Kernels for AArch64 may use pages of 64 KiB, and linkers align segments for them.
PAGE_SIZES: Final = {AARCH64: 0x10000, S390: 0x1000}
#: The sampler's own code and the emulator's for returning from handlers have no section, ld.so keeps none here, and
#: hand-written code may be left out.
BLAMELESS: Final = {"outermost", "no_module", "no_section", "no_function", "unsafe_register"}
#: Options of the compiler.
KINDS: Final = {
    "pie": (),
    "nopie": ("-no-pie",),
    "stripped": ("-s",),
    "noseparate": ("-Wl,-z,noseparate-code",),
    "separate": ("-Wl,-z,separate-code",),
    "hash-sysv": ("-Wl,--hash-style=sysv",),
}
PROGRAM: Final = SOURCES / "plain.c"


@pytest.fixture(scope="module", params=TARGETS, ids=label)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


@pytest.fixture(scope="module")
def built(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sampler and the program that it looks at, not converted."""
    folder = tmp_path_factory.mktemp("consumer")
    compile_sampler(target.compiler, folder / "sampler.so")
    run(target.compiler, "-O2", "-pthread", "-Wl,-z,lazy", "-o", folder / "workload", CONSUMER / "workload.c")
    return folder


def _check_segments(image: ElfImage, page_size: int) -> None:
    """The section's segment lies in a read-only PT_LOAD; every PT_LOAD can be mapped with pages of this size."""
    loads = [p for p in image.segments if p.type == PT_LOAD]
    (section,) = (p for p in image.segments if p.type == PT_GNU_SFRAME)
    (around,) = (p for p in loads if p.vaddr <= section.vaddr and section.end_vaddr <= p.end_vaddr)
    assert not around.flags & PF_W
    assert around.alignment == page_size
    assert [p for p in loads if (p.vaddr - p.file_offset) % page_size] == []
    # No page of memory belongs to two of them with different rights.
    pages = [
        (p.vaddr // page_size, -(-p.end_vaddr // page_size), p.flags) for p in sorted(loads, key=lambda p: p.vaddr)
    ]
    assert [pair for pair in pairwise(pages) if pair[0][1] > pair[1][0] and pair[0][2] != pair[1][2]] == []


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_rewritten_programs_run_as_before(target: Target, kind: str, version: int, tmp_path: Path) -> None:
    program = tmp_path / "program"
    run(target.compiler, "-O1", *KINDS[kind], "-o", program, PROGRAM)
    emulate: list[str | Path] = [target.emulator, "-L", target.sysroot, program]
    expected = run(*emulate)
    assert expected == "789 7 4999\n"
    assert main(["--in-place", str(program), "--sframe-version", str(version)]) == 0
    assert run(*emulate) == expected
    assert main(["verify", str(program)]) == 0
    _check_segments(load(str(program)), PAGE_SIZES[target])


@pytest.mark.parametrize("release", ["machine", "newest"])
def test_static_programs(target: Target, release: Literal["machine", "newest"], tmp_path: Path) -> None:
    """68 bytes of notes, or 36, are all that may move out of the way; a stripped one gets its headers at the end."""
    program = tmp_path / "program"
    flags = ["-O1", "-static", "-s", "-Wl,--build-id=sha1"]
    if release == "newest":
        (tmp_path / "ld").symlink_to(find_binutils("newest").tool("ld", target.name))
        flags.append(f"-B{tmp_path}")
    run(target.compiler, *flags, "-o", program, PROGRAM)
    before = program.read_bytes()
    assert main(["--in-place", str(program)]) == 0
    assert run(target.emulator, program) == "789 7 4999\n"
    assert main(["verify", str(program)]) == 0
    _check_segments(load(str(program)), PAGE_SIZES[target])
    assert main(["remove", "--in-place", str(program)]) == 0
    assert program.read_bytes() == before


def _is_in_a_stub(place: Place) -> bool:
    section = load(place.module).section_at(place.vaddr) if Path(place.module).exists() else None
    return section is not None and section.name in (".plt", ".iplt")


@pytest.mark.parametrize(
    ("version", "level"),
    [(2, "-O2"), (3, "-O1"), *(pytest.param(*each, marks=pytest.mark.slow) for each in ((2, "-O1"), (3, "-O2")))],
)
def test_stacks_of_an_emulated_program(target: Target, built: Path, version: int, level: str, tmp_path: Path) -> None:
    """Nothing differs from backtrace(); where that ends early, in PLT stubs without CFI, the walker goes on."""
    (tmp_path / "lib").mkdir()
    # backtrace() loads libgcc, whether the program needs it or not.
    libraries = [target.sysroot / "lib" / name for name in ("libc.so.6", "libgcc_s.so.1")]
    copies = [shutil.copy(path, tmp_path / "lib") for path in libraries]
    workload = shutil.copy(built / "workload", tmp_path)
    for path in (workload, *copies):
        assert main(["--in-place", str(path), "--sframe-version", str(version), level]) == 0
    variables = variables_of(built / "sampler.so", tmp_path / "report", str(tmp_path / "lib"), 997)
    # For the program, not for the emulator, whose architecture is another.
    given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    printed = run(target.emulator, "-L", target.sysroot, *given, workload, SECONDS)
    assert printed == run(target.emulator, "-L", target.sysroot, built / "workload", "0")

    report = read_report(tmp_path / "report")
    count = len(report.samples)
    assert count >= FEWEST_SAMPLES
    assert report.frame_count > 2 * count
    assert report.count("different", "unaligned") == 0
    assert report.count("equal") > 0.5 * count
    # In the emulator's return code for handlers, backtrace() looks for instructions where there is no memory.
    assert report.count("faulted") <= 0.01 * count
    longer = {report.place_of(sample.walk[0]) for sample in report.samples if sample.outcome == "longer"}
    assert [place for place in longer if not _is_in_a_stub(place)] == []
    assert {sample.ending for sample in report.samples} <= BLAMELESS
    modules = {Path(module.path).name: (module.state, module.version) for module in report.modules}
    for name in ("workload", "libc.so.6", "libgcc_s.so.1"):
        assert modules[name] == ("good", version)
