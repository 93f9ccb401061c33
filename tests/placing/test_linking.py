# SPDX-License-Identifier: Apache-2.0
"""A linker merges converted objects into what it makes of the assembler's own SFrame sections."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.api import decode_existing, verify
from cfi2sframe.constants.elf import SHT_GNU_SFRAME, SHT_PROGBITS
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import Section
from cfi2sframe.verification.verify import Difference
from tests.support.needs import need, run
from tests.support.oracle import known_wrong
from tests.support.oracle.gas import differences_in_meaning
from tests.support.oracle.targets import AARCH64, S390, Target
from tests.support.oracle.tools import Binutils, BinutilsVersion, find_binutils, tool_version
from tests.support.placing.embedded import emitted
from tests.support.placing.emitted import TESTDATA

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]


class Generation(NamedTuple):
    """What an assembler and a linker of one release agree upon."""

    binutils: BinutilsVersion
    options: Options
    section_type: int


# libsframe 2.44 refuses the flag for PC-relative starts.
GENERATIONS = {
    "newest": Generation("newest", Options(version=3), SHT_GNU_SFRAME),
    "2.44": Generation("2.44", Options(version=2, errata=0), SHT_PROGBITS),
    "2.40": Generation("2.40", Options(version=1), SHT_PROGBITS),
}
COMPILER_FLAGS = ("-O2", "-w", "-ffunction-sections", "-fPIC")
FEWEST_FUNCTIONS = 170
# Code of the C library that comes without SFrame.
STARTUP = ("_start", "_dl_relocate_static_pie")
LINKS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "gc-sections": ("-Wl,--gc-sections",),
    "nopie": ("-no-pie",),
    "shared": ("-shared",),
}


PROJECT: Final = Path(__file__).resolve().parents[1] / "support/placing/programs/project"


def units(*, with_cpp: bool = True) -> list[tuple[str, Path, tuple[str, ...]]]:
    """Return of each object of a C and C++ program a name, the source, and flags; the last has main()."""
    counts = {"c": 6, "cc": 3 * with_cpp}
    parts = [(f"part{part}.{suffix}", suffix, part) for suffix, count in counts.items() for part in range(count)]
    made = [(name, PROJECT / f"part.{suffix}", (f"-DPART={part}",)) for name, suffix, part in parts]
    return [*made, ("main.c", PROJECT / "main.c", ("-DWITH_CPP",) * with_cpp)]


class Twins(NamedTuple):
    """The same objects twice: with the assembler's sections, and with those made of their CFI."""

    theirs: list[Path]
    ours: list[Path]


class Objects(NamedTuple):
    """The objects of a program, for a linker of the same release."""

    tools: Binutils
    generation: Generation
    program: Twins


@pytest.fixture(scope="session")
def assembly(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The compiled sources of the program."""
    need("g++", "gcc")
    folder = tmp_path_factory.mktemp("project")
    made = []
    for name, source, flags in units():
        made.append(folder / f"{name}.s")
        run("gcc" if source.suffix == ".c" else "g++", *COMPILER_FLAGS, *flags, "-S", source, "-o", made[-1])
    return made


@pytest.fixture(scope="session", params=list(GENERATIONS))
def objects(request: pytest.FixtureRequest, assembly: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Objects:
    generation = GENERATIONS[request.param]
    tools = find_binutils(generation.binutils)
    folder = tmp_path_factory.mktemp(f"objects-{request.param}")
    found = Objects(tools, generation, Twins([], []))
    for source in assembly:
        _assemble(tools.tool("as"), source, folder, found.program, generation)
    return found


def _assemble(assembler: str, source: Path, folder: Path, twins: Twins, generation: Generation) -> None:
    """Add a source's objects: the assembler's, and the converted one."""
    plain, theirs, ours = (folder / f"{source.stem}.{kind}.o" for kind in ("plain", "theirs", "ours"))
    run(assembler, source, "-o", plain)
    run(assembler, "--gsframe", source, "-o", theirs)
    conversion = convert(load(str(plain)), **generation.options._asdict())
    ours.write_bytes(
        emitted(conversion, section_type=generation.section_type) if conversion.data else plain.read_bytes()
    )
    twins.theirs.append(theirs)
    twins.ours.append(ours)


def _link(objects: Objects, inputs: Sequence[Path], target: Path, *flags: str) -> Path:
    """Link with the g++ of the machine and the linker of the set, which may warn of nothing that is about SFrame."""
    output = run("g++", f"-B{objects.tools.directory}", "-o", target, *inputs, *flags)
    assert "sframe" not in output.lower(), output
    return target


def _sections(path: Path) -> tuple[ElfImage, Section]:
    image = load(str(path))
    assert any(section.name == ".sframe" for section in image.sections), f"{path.name} has no .sframe"
    return image, decode_existing(image)


def _compare(theirs_path: Path, ours_path: Path) -> tuple[ElfImage, Section]:
    """Check that both files have the same rows at every address; return ours."""
    (their_image, theirs), (our_image, ours) = _sections(theirs_path), _sections(ours_path)
    first, second = ([code._replace(section_index=0) for code in i.code_ranges] for i in (their_image, our_image))
    assert first == second
    assert theirs.version == ours.version
    assert differences_in_meaning(theirs, ours, our_image) == []
    return our_image, ours


def _problems_of_functions(image: ElfImage, section: Section) -> list[Difference]:
    """Return how a section differs from the CFI: but for stubs, and for start-up code that has no SFrame."""
    found = verify(image, section).differences
    names = image.names_of({difference.vaddr for difference in found})
    return [
        difference
        for difference in found
        if not image.place(difference.vaddr).section_name.startswith(".plt")
        and not (difference.kind == "missing" and names.get(difference.vaddr) in STARTUP)
    ]


@pytest.mark.parametrize("link", LINKS)
def test_linked_sections_mean_the_same(
    link: str, objects: Objects, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Rows of stubs are the linker's own: `tests/stubs/test_linked.py` compares them."""
    theirs = _link(objects, objects.program.theirs, tmp_path / "theirs", *LINKS[link])
    ours = _link(objects, objects.program.ours, tmp_path / "ours", *LINKS[link])
    known_wrong.expect_failure(request, f"sframe-kept-{link}", "ld", objects.tools.version)
    image, section = _compare(theirs, ours)
    assert len(section.functions) > FEWEST_FUNCTIONS
    assert _problems_of_functions(image, section) == []
    if link != "shared":
        assert run(ours) == run(theirs)


def test_partial_links(objects: Objects, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Objects joined by `ld -r` before the link that counts."""
    known_wrong.expect_failure(request, "sframe-of-partial-links", "ld", objects.tools.version)
    linker = objects.tools.tool("ld")
    linked = []
    for kind, inputs in zip(Twins._fields, objects.program, strict=True):
        halves = [tmp_path / f"{kind}-{half}.o" for half in (0, 1)]
        for half, path in enumerate(halves):
            run(linker, "-r", "-o", path, *inputs[half::2])
        linked.append(_link(objects, halves, tmp_path / kind))
    image, section = _compare(*linked)
    assert len(section.functions) > FEWEST_FUNCTIONS
    assert _problems_of_functions(image, section) == []


@pytest.mark.parametrize("objects", ["newest"], indirect=True)
@pytest.mark.parametrize("origin", ["machine", "fetched"])
def test_mold(objects: Objects, origin: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Only versions of mold that know SFrame merge sections; others put them one after the other."""
    folder = Path(objects.tools.tool("ld")).parent
    if origin == "fetched" and not (folder / "ld.mold").exists():
        pytest.skip("no mold beside the fetched binutils: make oracles")
    if origin == "machine":
        need("mold")
    version = tool_version("mold" if origin == "machine" else str(folder / "mold"))
    linker = ["g++", *([] if origin == "machine" else [f"-B{folder}"]), "-fuse-ld=mold"]
    run(*linker, "-o", tmp_path / "ours", *objects.program.ours)
    run(*linker, "-o", tmp_path / "plain", *objects.program.theirs)
    assert run(tmp_path / "ours") == run(tmp_path / "plain")
    known_wrong.expect_failure(request, "sframe-merged", "mold", version)
    image, section = _sections(tmp_path / "ours")
    assert _problems_of_functions(image, section) == []
    assert len(section.functions) > FEWEST_FUNCTIONS


# What GNU as leaves out of version 3 for AArch64, where it tries no flexible rows.
LEFT_OUT_BY_GAS = (
    *("aarch64/cfa-other-register.s", "aarch64/fp-without-ra.s", "aarch64/ra-in-register.s"),
    *("s390x/ra-column.s", "s390x/sp-is-cfa.s", "s390x/val-offset-sp-other.s"),
)


#: Compiled differently by the number of the source: RA is signed with key A, with key B, or not at all; with a stack
#: that has backchains.
MORE_FLAGS: dict[str, tuple[tuple[str, ...], ...]] = {
    "aarch64": (("-mbranch-protection=standard",), ("-mbranch-protection=pac-ret+b-key",), ()),
    "s390x": (("-mbackchain",), ("-fno-omit-frame-pointer",), ()),
}


# 2.44 has no SFrame for s390x.
@pytest.mark.parametrize(
    ("target", "key", "is_compiled"),
    [
        *((AARCH64, "newest", True), (AARCH64, "2.44", True), (S390, "newest", True)),
        *((AARCH64, "newest", False), (S390, "newest", False)),
    ],
)
def test_other_architectures(target: Target, key: str, tmp_path: Path, *, is_compiled: bool) -> None:
    """Sources linked to a shared library: those of the program, and those of the test data."""
    generation, tools, name = GENERATIONS[key], find_binutils(GENERATIONS[key].binutils), target.name
    found = Twins([], [])
    if is_compiled:
        for number, (unit, source, flags) in enumerate(units(with_cpp=False)):
            assembly = tmp_path / f"{unit}.s"
            run(target.compiler, *COMPILER_FLAGS, *flags, *MORE_FLAGS[name][number % 3], "-S", source, "-o", assembly)
            _assemble(tools.tool("as", name), assembly, tmp_path, found, generation)
    else:
        for source in sorted((TESTDATA / "src" / name).glob("*.s")):
            case = f"{name}/{source.name}"
            if case in LEFT_OUT_BY_GAS or known_wrong.find(f"linked-sframe-of-{case}", "gas", tools.version):
                run(tools.tool("as", name), "--gsframe", source, "-o", tmp_path / "alone.o")
                assert not verify(*_sections(tmp_path / "alone.o")).is_clean
            else:
                _assemble(tools.tool("as", name), source, tmp_path, found, generation)
    for kind, inputs in zip(Twins._fields, found, strict=True):
        run(tools.tool("ld", name), "-shared", "-z", "muldefs", "-o", tmp_path / kind, *inputs)
    image, section = _compare(tmp_path / "theirs", tmp_path / "ours")
    assert _problems_of_functions(image, section) == []
    if is_compiled:
        assert len(section.functions) >= 60
        signed = [f.body.uses_b_key for f in section.functions if any(row.state.mangled_ra for row in f.rows)]
        assert set(signed) == ({False, True} if target is AARCH64 else set())
