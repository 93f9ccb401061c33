# SPDX-License-Identifier: Apache-2.0
"""A walker in C that looks up return addresses themselves, as the kernel's and glibc's code do, finds glibc's stacks.

Their frames made calls that do not return, the last instructions of their functions: without padding in the section the
walk ends there.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

from cfi2sframe import load
from cfi2sframe.conversion import Options, convert_image
from cfi2sframe.emit import emit
from tests.support.embedded import write
from tests.support.needs import need, run
from tests.support.places import PAST_NORETURN_CALLS, build, program_of
from tests.support.variants import convert_unpadded
from tests.support.walk import compile_sampler, libraries_of, read_report, variables_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

#: Version 2 cannot pass the frame of a handler. The stack of a destructor passes ld.so, which has no section.
CASES: Final = [
    (place, version)
    for place in PAST_NORETURN_CALLS
    for version in (2, 3)
    if place != "destructor" and (place, version) != ("signal-loop", 2)
]


@pytest.fixture(scope="session")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[str, str]]:
    """`walk(place, options, lookup, is_padded)`: the outcome of a walk in a converted copy, and why it ended."""
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

    def walk(place: str, options: Options, lookup: str, *, is_padded: bool = True) -> tuple[str, str]:
        made = folder(options, is_padded)
        variables = variables_of(sampler, made / "report", str(made / "lib"), 0) | {"CONSUMER_LOOKUP": lookup}
        assert run(made / program_of(place), place, **variables) == f"{place}\n"
        (sample,) = read_report(made / "report").samples
        return sample.outcome, sample.ending

    return walk


@pytest.mark.parametrize(("place", "version"), CASES)
def test_calls_that_do_not_return(walk: Callable[..., tuple[str, str]], place: str, version: int) -> None:
    # Errata 2 has rows for the ends of stacks.
    options = Options(version=version, errata=2 if version == 2 else None)
    # What DWARF unwinders look up is right either way.
    assert walk(place, options, "call", is_padded=False) == ("equal", "outermost")
    assert walk(place, options, "ra", is_padded=False) == ("ended", "no_function")
    assert walk(place, options, "ra") == ("equal", "outermost")
