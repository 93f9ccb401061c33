# SPDX-License-Identifier: Apache-2.0
"""Rewritten AArch64 and s390x programs run in an emulator, and a walker in C finds their stacks by .sframe there."""

from __future__ import annotations

import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.cli import main
from cfi2sframe.elf.constants import PF_W, PT_GNU_SFRAME, PT_LOAD
from tests.support.needs import run
from tests.support.oracle.tools import ToolMissingError
from tests.support.targets import AARCH64, S390, TARGETS, Target, label

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.elf.image import ElfImage
    from tests.support.oracle.tools import Binutils, BinutilsVersion

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

SUPPORT: Final = Path(__file__).resolve().parents[1] / "support"
CONSUMER: Final = SUPPORT / "consumer"
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
PROGRAM: Final = SUPPORT / "programs/plain.c"


@pytest.fixture(scope="module", params=TARGETS, ids=label)
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.param
    return found


class Built(NamedTuple):
    """A folder with the sampler and the programs that it looks at, not converted."""

    target: Target
    folder: Path


@pytest.fixture(scope="module")
def built(target: Target, tmp_path_factory: pytest.TempPathFactory) -> Built:
    folder = tmp_path_factory.mktemp("consumer")
    sampler = [CONSUMER / "sampler.c", CONSUMER / "sampler_report.c", *sorted(CONSUMER.glob("sframe_*.c"))]
    compiler = target.compiler
    run(compiler, "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-o", folder / "sampler.so", *sampler)
    run(compiler, "-O2", "-pthread", "-Wl,-z,lazy", "-o", folder / "workload", CONSUMER / "workload.c")
    return Built(target, folder)


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
def test_static_programs(
    target: Target,
    release: Literal["machine", "newest"],
    binutils: Callable[[BinutilsVersion], Binutils],
    tmp_path: Path,
) -> None:
    """68 bytes of notes, or 36, are all that may move out of the way; a stripped one gets its headers at the end."""
    program = tmp_path / "program"
    flags = ["-O1", "-static", "-s", "-Wl,--build-id=sha1"]
    if release == "newest":
        try:
            (tmp_path / "ld").symlink_to(binutils("newest").tool("ld", target.name))
        except ToolMissingError as error:
            pytest.skip(str(error))
        flags.append(f"-B{tmp_path}")
    run(target.compiler, *flags, "-o", program, PROGRAM)
    before = program.read_bytes()
    assert main(["--in-place", str(program)]) == 0
    assert run(target.emulator, program) == "789 7 4999\n"
    assert main(["verify", str(program)]) == 0
    _check_segments(load(str(program)), PAGE_SIZES[target])
    assert main(["remove", "--in-place", str(program)]) == 0
    assert program.read_bytes() == before


#: Version and level. All are tried; these are for every day.
QUICK: Final = [(2, "-O2"), (3, "-O1")]
OTHERS: Final = [(2, "-O1"), (3, "-O2")]


@pytest.fixture(
    scope="module",
    params=[*QUICK, *(pytest.param(each, marks=pytest.mark.slow) for each in OTHERS)],
    ids=lambda choice: f"{choice[0]}{choice[1]}",
)
def converted(request: pytest.FixtureRequest, built: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the converted workload, and the converted libraries of the sysroot in lib/."""
    version, level = request.param
    folder = tmp_path_factory.mktemp(f"version{version}")
    (folder / "lib").mkdir()
    shutil.copy(built.folder / "workload", folder / "workload")
    # backtrace() loads libgcc, whether the program needs it or not.
    libraries = [shutil.copy(built.target.sysroot / "lib" / n, folder / "lib") for n in ("libc.so.6", "libgcc_s.so.1")]
    for path in (folder / "workload", *libraries):
        assert main(["--in-place", str(path), "--sframe-version", str(version), level]) == 0
    return folder


def _stubs(path: Path) -> list[range]:
    return [range(s.vaddr, s.end_vaddr) for s in load(str(path)).sections if s.name in (".plt", ".iplt")]


def _starts_in_a_stub(example: dict[str, Any], stubs: Callable[[Path], list[range]]) -> bool:
    first = example["walk"][0]
    path = Path(first["module"] or "")
    return path.exists() and any(int(first["offset"], 0) in covered for covered in stubs(path))


def test_stacks_of_an_emulated_program(built: Built, converted: Path) -> None:
    """Nothing differs from backtrace(); where that ends early, in PLT stubs without CFI, the walker goes on."""
    out = converted / "report.jsonl"
    variables = {
        "LD_LIBRARY_PATH": converted / "lib",
        "LD_PRELOAD": built.folder / "sampler.so",
        "CONSUMER_OUT": out,
        "CONSUMER_CLOCK": "wall",
        "CONSUMER_INTERVAL_US": "997",
    }
    # For the program, not for the emulator, whose architecture is another.
    given = [word for name, value in variables.items() for word in ("-E", f"{name}={value}")]
    target = built.target
    printed = run(target.emulator, "-L", target.sysroot, *given, converted / "workload", SECONDS)
    assert printed == run(target.emulator, "-L", target.sysroot, built.folder / "workload", "0")

    records = [json.loads(line) for line in out.read_text().splitlines()]
    (summary,) = (record for record in records if record["record"] == "summary")
    assert summary["samples"] >= FEWEST_SAMPLES, summary
    assert summary["frames"] > 2 * summary["samples"]
    assert (summary["different"], summary["unaligned"], summary["lost_stops"]) == (0, 0, 0)
    assert summary["equal"] > 0.5 * summary["samples"]
    # In the emulator's return code for handlers, backtrace() looks for instructions where there is no memory.
    assert summary["faulted"] <= 0.01 * summary["samples"]
    longer = [r for r in records if r["record"] == "example" and r["outcome"] == "longer"]
    assert [example for example in longer if not _starts_in_a_stub(example, _stubs)] == []
    assert [r for r in records if r["record"] == "stop" and r["ending"] not in BLAMELESS] == []
    modules = {Path(r["module"]).name: (r["state"], r["version"]) for r in records if r["record"] == "module"}
    version = int(re.sub(r"\D", "", converted.name)[:1])
    for name in ("workload", "libc.so.6", "libgcc_s.so.1"):
        assert modules[name] == ("good", version)
