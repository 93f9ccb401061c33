# SPDX-License-Identifier: Apache-2.0
"""The reader in C that docs/writing-a-reader.md is enough for: its answer is the library's, at every PC."""

import subprocess
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import Section, convert, load
from cfi2sframe.api import decode
from cfi2sframe.sframe.model import Found, Rule
from tests.fuzz import seeds
from tests.support.contrib import ROOT, run
from tests.support.needs import need

pytestmark = pytest.mark.sampled

SOURCE: Final = ROOT / "tests" / "support" / "consumer" / "reader_main.c"
#: The address that the made-up sections are for.
VADDR: Final = 0x30000


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    need("cc")
    path = tmp_path_factory.mktemp("reader") / "reader"
    run("cc", "-Wall", "-Wextra", "-Werror", "-Wno-sign-compare", "-O1", "-o", path, SOURCE)
    return path


def _text(found: Found | None) -> str:
    state = None if found is None else found.state
    if found is None or state is None:
        return "none"
    signal = " signal" if found.function.body.is_signal_frame else ""
    if state.cfa is None:
        return f"outermost{signal}"
    return f"row{signal}{' signed' if state.mangled_ra else ''} " + " ".join(
        map(_rule, (state.cfa, state.ra, state.fp))
    )


def _rule(rule: Rule | None) -> str:
    if rule is None:
        return "-"
    return f"{int(rule.register is not None)}:{rule.register or 0}:{rule.offset}:{int(rule.deref)}"


def _said(reader: Path, folder: Path, data: bytes, vaddr: int, section: Section, pcs: range) -> list[str]:
    (folder / "section").write_bytes(data)
    arch = section.arch
    words = [str(reader), str(folder / "section"), str(vaddr), str(arch.sp_register), str(arch.fp_register)]
    text = "".join(f"{pc}\n" for pc in pcs)
    return subprocess.run(words, input=text, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("name", "data"), [each for each in seeds.sframe_sections() if each[0].startswith("a") and each[0][-1] != "1"]
)
def test_its_answers_are_the_library_s(name: str, data: bytes, reader: Path, tmp_path: Path) -> None:
    """Several rows, PCMASK, outermost frames; in version 3 a signal frame and a flexible FDE, on AArch64 signed RAs."""
    section = decode(data, VADDR)
    pcs = range(min(section.starts) - 2, max(map(sum, zip(section.starts, section.sizes, strict=True))) + 2)
    wanted = [_text(section.find(pc)) for pc in pcs]
    words = {word for text in wanted for word in text.split()[:-1]} | {*wanted}
    assert {"row", "none", "signed" if name.startswith("aarch64") else "outermost"} <= words
    assert ("signal" in words) == (name == "amd64-3")
    assert _said(reader, tmp_path, data, VADDR, section, pcs) == wanted


def test_of_the_c_library(reader: Path, tmp_path: Path) -> None:
    libraries = [path for path in map(Path, ("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/libc.so.6")) if path.exists()]
    if not libraries:
        pytest.skip("no C library of AMD64")
    conversion = convert(load(str(libraries[0])))
    section = decode(conversion.data, conversion.section_vaddr)
    pcs = range(min(section.starts), section.starts[-1] + 1, 13)
    said = _said(reader, tmp_path, conversion.data, conversion.section_vaddr, section, pcs)
    assert said == [_text(section.find(pc)) for pc in pcs]
