# SPDX-License-Identifier: Apache-2.0
"""A walker in C that looks up return addresses themselves, as the kernel's and glibc's code do, finds glibc's stacks.

Their frames made calls that do not return, the last instructions of their functions: without padding in the section the
walk ends there. Each program takes one sample, with such calls on the stack, by raising SIGPROF.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.conversion import Options, convert_image
from cfi2sframe.emit import emit
from tests.support.embedded import write
from tests.support.needs import need, run
from tests.support.variants import convert_unpadded
from tests.support.walk import CONSUMER, STRICT, Place, compile_sampler, libraries_of, read_report, variables_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.elf.image import ElfImage

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

#: Cold functions, and cold parts of functions, are not aligned.
UNSORTED: Final = ("-fno-reorder-functions", "-fno-reorder-blocks-and-partition")
COMPILERS: Final = {
    "noreturn.c": ("gcc", *STRICT, *UNSORTED),
    "noreturn.cc": ("g++", *STRICT, *UNSORTED),
    "noreturn.rs": ("rustc", "-O"),
}
#: Version 2 cannot pass the frame of a handler, nor express what libgcc does when it enters a handler of exceptions.
CASES: Final = [
    *(("noreturn.c", case, 3) for case in ("longjmp", "abort", "free")),
    *(("noreturn.cc", case, 3) for case in ("throw", "library", "noexcept")),
    *(("noreturn.rs", case, 3) for case in ("panic", "bounds")),
    *(("noreturn.c", "longjmp", 2), ("noreturn.cc", "throw", 2), ("noreturn.cc", "library", 2)),
    *(("noreturn.rs", case, 2) for case in ("panic", "bounds")),
]


class Walk(NamedTuple):
    """The one sample of a run: its outcome, why the walk ended, and the place of the frame where it did."""

    outcome: str
    ending: str
    place: Place


def _is_padding(image: ElfImage, vaddr: int) -> bool:
    """Whether a function ends at an address, and instructions that do nothing fill the space up to the next one."""
    fdes = [entry.fde for entry in convert(image).cfi.entries]
    functions = [(fde.pc_begin_vaddr, fde.pc_begin_vaddr + fde.pc_range) for fde in fdes]
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


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Walk]:
    """`walk(program, case, options, lookup, is_padded)`: the stack of a converted copy, with converted libraries."""
    need("gcc", "ldd")
    built = tmp_path_factory.mktemp("noreturn")
    sampler = compile_sampler("gcc", built / "sampler.so")

    @cache
    def program(name: str) -> Path:
        need(COMPILERS[name][0])
        run(*COMPILERS[name], "-o", built / name, CONSUMER / name)
        return built / name

    @cache
    def folder(_options: Options, _is_padded: bool) -> Path:  # noqa: FBT001 - part of the key
        made = tmp_path_factory.mktemp("converted")
        (made / "lib").mkdir()
        return made

    def walk(name: str, case: str, options: Options, lookup: str, *, is_padded: bool = True) -> Walk:
        make, made = convert_image if is_padded else convert_unpadded, folder(options, is_padded)
        # backtrace() loads libgcc, whether the program needs it or not.
        libraries = libraries_of(program(name), program("noreturn.cc"))
        targets = {path: made / "lib" / soname for soname, path in libraries.items()}
        for source, target in {program(name): made / name, **targets}.items():
            if not target.exists():
                write(target, b"".join(emit(make(load(str(source)), options)).chunks))
        variables = variables_of(sampler, made / "report", str(made / "lib"), 0)
        setting = ["env", *(f"{key}={value}" for key, value in {**variables, "CONSUMER_LOOKUP": lookup}.items())]
        assert run(*setting, made / name, case).endswith("left\n")
        report = read_report(made / "report")
        (sample,) = report.samples
        return Walk(sample.outcome, sample.ending, report.place_of(sample.walk[-1]))

    return walk


@pytest.mark.parametrize(("name", "case", "version"), CASES)
def test_calls_that_do_not_return(walk: Callable[..., Walk], name: str, case: str, version: int) -> None:
    # Errata 2 has rows for the ends of stacks.
    options = Options(version=version, errata=2 if version == 2 else None)
    # What DWARF unwinders look up is right either way.
    assert walk(name, case, options, "call", is_padded=False)[:2] == ("equal", "outermost")
    ended = walk(name, case, options, "ra", is_padded=False)
    assert ended[:2] == ("ended", "no_function")
    assert _is_padding(load(ended.place.module), ended.place.vaddr)
    assert walk(name, case, options, "ra")[:2] == ("equal", "outermost")
