# SPDX-License-Identifier: Apache-2.0
"""A walker in C that looks up return addresses themselves, as the kernel's and glibc's code do, finds glibc's stacks.

Their frames made calls that do not return, the last instructions of their functions: without padding in the section the
walk ends there. Each program takes one sample, with such calls on the stack, by raising SIGPROF.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.conversion import Options, convert_image
from cfi2sframe.emit import emit
from tests.support.needs import need, run
from tests.support.variants import convert_unpadded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.elf.image import ElfImage

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

CONSUMER: Final = Path(__file__).resolve().parents[1] / "support/consumer"
SAMPLER: Final = [CONSUMER / "sampler.c", CONSUMER / "sampler_report.c", *sorted(CONSUMER.glob("sframe_*.c"))]
STRICT: Final = ["-O2", "-Wall", "-Wextra", "-Werror"]
#: Cold functions, and cold parts of functions, are not aligned.
UNSORTED: Final = ["-fno-reorder-functions", "-fno-reorder-blocks-and-partition"]
NEVER_US: Final = "1000000000"
#: Version 2 cannot pass the frame of a handler, nor express what libgcc does when it enters a handler of exceptions.
CASES: Final = [
    *(("noreturn", case, 3) for case in ("longjmp", "abort", "free")),
    *(("noreturn_cc", case, 3) for case in ("throw", "library", "noexcept")),
    *(("noreturn_rs", case, 3) for case in ("panic", "bounds")),
    *(("noreturn", "longjmp", 2), ("noreturn_cc", "throw", 2), ("noreturn_cc", "library", 2)),
    *(("noreturn_rs", case, 2) for case in ("panic", "bounds")),
]


class Walk(NamedTuple):
    """The one sample of a run: its outcome, why the walk ended, and the place of the frame where it did."""

    outcome: str
    ending: str
    module: str
    offset: int


def _walk_of(report: Path) -> Walk:
    records = [json.loads(line) for line in report.read_text().splitlines()]
    report.unlink()
    (summary,) = (record for record in records if record["record"] == "summary")
    (stop,) = (record for record in records if record["record"] == "stop")
    assert summary["samples"] == 1
    place = stop["place"]
    return Walk(stop["outcome"], stop["ending"], place["module"], int(place["offset"], 0))


def _variables(sampler: Path, report: Path, lookup: str) -> dict[str, str]:
    return {
        "LD_PRELOAD": str(sampler),
        "CONSUMER_OUT": str(report),
        "CONSUMER_CLOCK": "wall",
        "CONSUMER_INTERVAL_US": NEVER_US,
        "CONSUMER_LOOKUP": lookup,
    }


def _convert(source: Path, target: Path, options: Options, *, is_padded: bool = True) -> None:
    make = convert_image if is_padded else convert_unpadded
    target.write_bytes(b"".join(emit(make(load(str(source)), options)).chunks))
    target.chmod(0o755)


def _functions(image: ElfImage) -> Iterator[tuple[int, int]]:
    for entry in convert(image).cfi.entries:
        yield entry.fde.pc_begin_vaddr, entry.fde.pc_begin_vaddr + entry.fde.pc_range


def _is_padding(image: ElfImage, vaddr: int) -> bool:
    """Whether a function ends at an address, and instructions that do nothing fill the space up to the next one."""
    functions = list(_functions(image))
    if not any(end == vaddr for _, end in functions):
        return False
    limit = min(start for start, _ in functions if start >= vaddr)
    data = image.bytes_at(vaddr, limit - vaddr)
    assert data
    return _are_nops(data)


def _are_nops(data: bytes) -> bool:
    import capstone

    found = list(capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64).disasm_lite(data, 0))
    # `xchg ax, ax` is a nop of two bytes.
    return sum(size for _, size, _, _ in found) == len(data) and {
        f"{name} {operands}" if name == "xchg" else name for _, _, name, operands in found
    } <= {"nop", "int3", "xchg ax, ax"}


class Built(NamedTuple):
    """`program(name)` builds a program or skips the test; `sampler` is the walker's library."""

    sampler: Path
    program: Callable[[str], Path]


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    need("gcc", "ldd")
    folder = tmp_path_factory.mktemp("noreturn")
    run("gcc", *STRICT, "-fPIC", "-shared", "-o", folder / "sampler.so", *SAMPLER)

    @cache
    def program(name: str) -> Path:
        path = folder / name
        if name == "noreturn":
            run("gcc", *STRICT, *UNSORTED, "-o", path, CONSUMER / "noreturn.c")
        elif name == "noreturn_cc":
            need("g++")
            run("g++", *STRICT, *UNSORTED, "-o", path, CONSUMER / "noreturn.cc")
        else:
            need("rustc")
            run("rustc", "-O", "-o", path, CONSUMER / "noreturn.rs")
        return path

    return Built(folder / "sampler.so", program)


@pytest.fixture(scope="session")
def walk(built: Built, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Walk]:
    """`walk(program, case, options, lookup, is_padded)`: the stack of a converted copy, with converted libraries."""
    folders: dict[tuple[Options, bool], Path] = {}

    def walk(name: str, case: str, options: Options, lookup: str, *, is_padded: bool = True) -> Walk:
        source = built.program(name)
        if (options, is_padded) not in folders:
            folders[options, is_padded] = tmp_path_factory.mktemp("converted")
            (folders[options, is_padded] / "lib").mkdir()
        folder = folders[options, is_padded]
        # backtrace() loads libgcc, whether the program needs it or not.
        libraries = run("ldd", source) + run("ldd", built.program("noreturn_cc"))
        wanted = {m[1]: Path(m[2]) for m in re.finditer(r"^\s*(\S+) => (/\S+) \(", libraries, re.MULTILINE)}
        for path, target in ((source, folder / name), *((p, folder / "lib" / n) for n, p in wanted.items())):
            if not target.exists():
                _convert(path, target, options, is_padded=is_padded)
        report = folder / "report.jsonl"
        variables = _variables(built.sampler, report, lookup) | {"LD_LIBRARY_PATH": str(folder / "lib")}
        words = ["env", *(f"{key}={value}" for key, value in variables.items()), str(folder / name), case]
        assert run(*words).endswith("left\n")
        return _walk_of(report)

    return walk


@pytest.mark.parametrize(("name", "case", "version"), CASES)
def test_calls_that_do_not_return(walk: Callable[..., Walk], name: str, case: str, version: int) -> None:
    # Errata 2 has rows for the ends of stacks.
    options = Options(version=version, errata=2 if version == 2 else None)
    # What DWARF unwinders look up is right either way.
    assert walk(name, case, options, "call", is_padded=False)[:2] == ("equal", "outermost")
    ended = walk(name, case, options, "ra", is_padded=False)
    assert ended[:2] == ("ended", "no_function")
    assert _is_padding(load(ended.module), ended.offset)
    assert walk(name, case, options, "ra")[:2] == ("equal", "outermost")
