# SPDX-License-Identifier: Apache-2.0
"""What the dynamic loader writes, and what it calls, are what readelf and nm tell of a program.

Which of it refers to padding is for `test_padding`.
"""

from pathlib import Path

import pytest

from cfi2sframe import load
from cfi2sframe.elf.references import dynamic_words, initializer_vaddrs
from tests.support.needs import need, run
from tests.support.placing.embedded import linked_of, linked_program, without_section_headers

pytestmark = pytest.mark.oracle


@pytest.mark.parametrize("linker", ["bfd", "lld"])
def test_words_are_those_of_readelf(linker: str) -> None:
    names, addends = dict[int, str](), dict[int, int]()
    for line in run(need("readelf"), "-rW", linked_program(linker)).splitlines():
        # Offset, info, type, and an addend, or the symbol's value, its name and an addend.
        place, *rest = line.split() or ("",)
        if len(rest) > 3 and rest[1].startswith("R_X86_64_"):
            names[int(place, 16)] = rest[3].partition("@")[0]
        elif len(rest) == 3 and rest[1].startswith("R_X86_64_"):
            addends[int(place, 16)] = int(rest[2], 16)
    assert dynamic_words(load(linked_program(linker))) == (names, addends)
    assert min(len(names), len(addends)) > 2


@pytest.mark.parametrize("with_headers", [True, False])
@pytest.mark.parametrize("kind", ["constructor", "destructor"])
def test_the_functions_of_arrays_are_those_of_nm(kind: str, tmp_path: Path, *, with_headers: bool) -> None:
    source = f"volatile int n; __attribute__(({kind})) static void called(void) {{ n++; }}\n"
    program = linked_of(tmp_path, source + "int main(void) { return 0; }\n", "-no-pie", "-fno-pie")
    lines = [line.split() for line in run(need("nm"), program).splitlines()]
    called = ("called", "frame_dummy", "__do_global_dtors_aux")
    wanted = {int(vaddr, 16) for vaddr, _, name in (line for line in lines if len(line) == 3) if name in called}
    data = program.read_bytes()
    assert initializer_vaddrs(load(data if with_headers else without_section_headers(data))) == wanted
    assert len(wanted) == len(called)
