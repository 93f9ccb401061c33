# SPDX-License-Identifier: Apache-2.0
"""The headers that the comparison of a written file reads are those that pyelftools reads."""

from collections.abc import Callable
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from elftools.common.utils import struct_parse
from elftools.elf import enums
from elftools.elf.structs import ELFStructs

from cfi2sframe import load
from cfi2sframe.files.find import elf_files_under
from cfi2sframe.placing.view import FileView
from tests.support.oracle.tools import CorpusArch
from tests.support.placing.embedded import linked_program

#: Where pyelftools has the numbers of the names that it gives in place of them; it does not know those of SFrame yet.
NUMBERS = {
    "e_type": enums.ENUM_E_TYPE,
    "e_machine": enums.ENUM_E_MACHINE,
    "e_version": enums.ENUM_E_VERSION,
    "p_type": enums.ENUM_P_TYPE_BASE,
    "sh_type": enums.ENUM_SH_TYPE_BASE,
}


def test_headers_are_those_of_pyelftools() -> None:
    check_headers(linked_program().read_bytes())


@pytest.mark.corpus
@pytest.mark.parametrize("arch", ["amd64", "arm64", "s390x"])
def test_headers_of_the_corpus_are_those_of_pyelftools(arch: CorpusArch, corpus: Callable[[CorpusArch], Path]) -> None:
    root = corpus(arch)
    for found in islice(elf_files_under(str(root)), 40):
        data = (root / found.path).read_bytes()
        if not load(data).is_relocatable:
            check_headers(data)


def check_headers(data: bytes) -> None:
    view, structs = FileView(data), ELFStructs(little_endian=data[5] == 1, elfclass=64)
    structs.create_basic_structs()
    structs.create_advanced_structs(view.header["e_type"], view.header["e_machine"])
    assert same_header(view.header, struct_parse(structs.Elf_Ehdr, BytesIO(data)))
    for kind, table, headers in (("Elf_Phdr", "ph", view.segments), ("Elf_Shdr", "sh", view.sections)):
        assert len(headers) == view.header[f"e_{table}num"] > 0
        for number, header in enumerate(headers):
            at = view.header[f"e_{table}off"] + number * view.header[f"e_{table}entsize"]
            assert same_header(header, struct_parse(getattr(structs, kind), BytesIO(data), stream_pos=at))


def same_header(ours: dict[str, Any], theirs: Any) -> bool:  # noqa: ANN401 - pyelftools has no types
    return all(
        name == "e_ident" or ours[name] == value or ours[name] == NUMBERS.get(name, {}).get(value)
        for name, value in theirs.items()
    )
