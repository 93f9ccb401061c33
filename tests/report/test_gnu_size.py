# SPDX-License-Identifier: Apache-2.0
"""The estimate of what GNU as and ld would make is near the section that they make of compiled code."""

import re
import subprocess
from pathlib import Path
from typing import Final, get_args

import pytest

from cfi2sframe import load
from cfi2sframe.conversion.convert import convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.report.gnu_size import gnu_size
from tests.support.needs import need, run
from tests.support.oracle.tools import Binutils, BinutilsVersion, Target, find_binutils

pytestmark = pytest.mark.oracle

SOURCES: Final = Path(__file__).resolve().parents[2] / "testdata/src"
VERSIONS: Final[dict[BinutilsVersion, int]] = {"2.40": 1, "2.44": 2, "newest": 3}
COMPILERS: Final[dict[Target, str]] = {
    "amd64": "gcc",
    "aarch64": "aarch64-linux-gnu-gcc",
    "s390x": "s390x-linux-gnu-gcc",
}
CASES: Final = [
    (target, path.name)
    for target in get_args(Target)
    for path in sorted((SOURCES / target).iterdir())
    if path.suffix in (".c", ".cc")
]
#: What the estimate may miss of a small section: a function of one row.
SMALL: Final = 29


def _assembly(source: Path, target: Target, directory: Path) -> Path:
    compiler = need(COMPILERS[target])
    build = re.search(r"Build: \S+ (.*)-c", source.read_text())
    options = build[1].split() if build else ["-O2", "-fPIC"]
    assembly = directory / (source.name + ".s")
    run(compiler, *options, "-S", source, "-o", assembly)
    return assembly


def _tool(binutils: Binutils, name: str, target: Target) -> str:
    if binutils.version == "2.40" and target != "amd64":
        pytest.skip("version 1 is checked for AMD64 only")
    if binutils.version.startswith("2.44") and target == "s390x":
        pytest.skip("binutils 2.44 writes no SFrame for s390x")
    return binutils.tool(name, target)


def _real_size(image: ElfImage) -> int:
    """The bytes of all sections: an object has one for each section group, which ld makes into one with one header."""
    sizes = [section.size for section in image.sections if section.name == ".sframe"]
    return sum(sizes) - 28 * (len(sizes) - 1) if sizes else 0


def _is_near(image: ElfImage, version: int) -> bool:
    """Whether the estimate is within 3 % of the file's section, or differs by one small function."""
    real = _real_size(image)
    return abs(gnu_size(convert_image(image, Options(version=version))) - real) <= max(0.03 * real, SMALL)


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("target", "name"), CASES)
def test_objects(target: Target, name: str, version: BinutilsVersion, tmp_path: Path) -> None:
    assembler = _tool(find_binutils(version), "as", target)
    made = tmp_path / "made.o"
    run(assembler, "--gsframe", _assembly(SOURCES / target / name, target, tmp_path), "-o", made)
    assert _is_near(load(made), VERSIONS[version])


@pytest.mark.parametrize(
    ("target", "register"),
    [*(("amd64", name) for name in ("%rip", "%rbp", "%rbx")), ("aarch64", "x30"), ("aarch64", "x29")],
)
def test_directives_begin_rows_by_their_registers(target: Target, register: str, tmp_path: Path) -> None:
    """Also those that change nothing."""
    source, made = tmp_path / "a.s", tmp_path / "a.o"
    source.write_text("f: .cfi_startproc\n" + f"nop\n.cfi_restore {register}\n" * 3 + "nop\n.cfi_endproc\n")
    run(find_binutils("newest").tool("as", target), "--gsframe", source, "-o", made)
    image = load(made)
    assert gnu_size(convert_image(image, Options())) == _real_size(image)


CALLS: Final = 18


def _program(target: Target, call_count: int) -> str:
    """A source with that many external functions called, and one whose address is taken and that is called as well."""
    names = [f"external{number}" for number in range(call_count)]
    declarations = "\n".join(f"extern int {name}(int);" for name in (*names, "taken"))
    bodies = "\n".join(f"int f{n}(int a) {{ return {name}(a + {n}) + {name}(a); }}" for n, name in enumerate(names))
    taken = "int (*get(void))(int) { return taken; } int h(void) { return taken(3) + 1; }"
    return f"/* {target} */\n{declarations}\n{bodies}\n{taken}\n"


LINKS: Final = [
    ("amd64", ["-fcf-protection=none"], []),
    ("amd64", ["-fcf-protection=none"], ["-z", "now"]),
    ("amd64", ["-fcf-protection=full"], []),
    ("amd64", ["-fcf-protection=full"], ["-z", "now"]),
    ("amd64", ["-fcf-protection=none"], ["-z", "ibtplt"]),
    ("aarch64", [], []),
    ("aarch64", ["-mbranch-protection=standard"], []),
    ("s390x", [], []),
]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("call_count", [0, 1, 14, CALLS])
@pytest.mark.parametrize(("target", "options", "link_options"), LINKS)
def test_linked_files(
    target: Target,
    options: list[str],
    link_options: list[str],
    call_count: int,
    version: BinutilsVersion,
    tmp_path: Path,
) -> None:
    """The linker adds functions for its PLT sections, whose FRE type follows the section's size."""
    tools = find_binutils(version)
    assembler, linker = _tool(tools, "as", target), _tool(tools, "ld", target)
    compiler = need(COMPILERS[target])
    source, assembly, made, linked = (tmp_path / name for name in ("a.c", "a.s", "a.o", "a.so"))
    source.write_text(_program(target, call_count))
    run(compiler, "-O2", "-fPIC", *options, "-S", source, "-o", assembly)
    run(assembler, "--gsframe", assembly, "-o", made)
    link = [linker, "-shared", "--eh-frame-hdr", *link_options, str(made), "-o", str(linked)]
    done = subprocess.run(link, capture_output=True, text=True, check=False)
    if version == "2.40" and "assertion fail" in done.stderr:
        pytest.skip("ld 2.40 fails on a .plt.sec without a .plt")
    assert done.returncode == 0, done.stderr
    image = load(linked)
    assert _real_size(image) > 28
    assert _is_near(image, VERSIONS[version])


@pytest.mark.parametrize("version", ["2.44", "newest"])
def test_stubs_of_static_programs_have_no_functions(version: BinutilsVersion, tmp_path: Path) -> None:
    tools = find_binutils(version)
    source, made, linked = (tmp_path / name for name in ("a.s", "a.o", "a.out"))
    source.write_text(
        ".globl _start\n.type chosen, @gnu_indirect_function\nchosen: .cfi_startproc\nret\n.cfi_endproc\n"
        "_start: .cfi_startproc\ncall chosen@PLT\nret\n.cfi_endproc\n"
    )
    run(tools.tool("as"), "--gsframe", source, "-o", made)
    run(tools.tool("ld"), made, "-o", linked)
    image = load(linked)
    assert any(image.sections_named(".plt"))
    assert gnu_size(convert_image(image, Options(version=VERSIONS[version]))) == _real_size(image)
