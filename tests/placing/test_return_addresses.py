# SPDX-License-Identifier: Apache-2.0
"""A walker in C that looks up return addresses themselves, as the kernel's and glibc's code do, finds glibc's stacks.

Their frames made calls that do not return, the last instructions of their functions: without padding in the section the
walk ends there.
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
from tests.support.places import PAST_NORETURN_CALLS, build, program_of
from tests.support.variants import convert_unpadded
from tests.support.walk import Place, compile_sampler, libraries_of, read_report, variables_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from cfi2sframe.elf.image import ElfImage

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

#: Version 2 cannot pass the frame of a handler. The stack of a destructor passes ld.so, which has no section.
CASES: Final = [
    (place, version)
    for place in PAST_NORETURN_CALLS
    for version in (2, 3)
    if place != "destructor" and (place, version) != ("signal-loop", 2)
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
    """`walk(place, options, lookup, is_padded)`: the stack of a converted copy, with converted libraries."""
    need("ldd")
    built = tmp_path_factory.mktemp("places")
    build(built, "sample.c")
    sampler = compile_sampler("gcc", built / "sampler.so")

    @cache
    def folder(options: Options, is_padded: bool) -> Path:  # noqa: FBT001 - part of the key
        made = tmp_path_factory.mktemp("converted")
        (made / "lib").mkdir()
        make = convert_image if is_padded else convert_unpadded
        libraries = {
            made / "lib" / name: path for name, path in libraries_of(built / "places", built / "places_cc").items()
        }
        for target, source in (libraries | {made / name: built / name for name in ("places", "places_cc")}).items():
            write(target, b"".join(emit(make(load(str(source)), options)).chunks))
        return made

    def walk(place: str, options: Options, lookup: str, *, is_padded: bool = True) -> Walk:
        made = folder(options, is_padded)
        variables = variables_of(sampler, made / "report", str(made / "lib"), 0) | {"CONSUMER_LOOKUP": lookup}
        assert run(made / program_of(place), place, **variables) == f"{place}\n"
        report = read_report(made / "report")
        (sample,) = report.samples
        return Walk(sample.outcome, sample.ending, report.place_of(sample.walk[-1]))

    return walk


@pytest.mark.parametrize(("place", "version"), CASES)
def test_calls_that_do_not_return(walk: Callable[..., Walk], place: str, version: int) -> None:
    # Errata 2 has rows for the ends of stacks.
    options = Options(version=version, errata=2 if version == 2 else None)
    # What DWARF unwinders look up is right either way.
    assert walk(place, options, "call", is_padded=False)[:2] == ("equal", "outermost")
    ended = walk(place, options, "ra", is_padded=False)
    assert ended[:2] == ("ended", "no_function")
    assert _is_padding(load(ended.place.module), ended.place.vaddr)
    assert walk(place, options, "ra")[:2] == ("equal", "outermost")
