# SPDX-License-Identifier: Apache-2.0
"""Programs with stubs of every kind, linked by the linkers that are here."""

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe import load
from cfi2sframe.elf.image import ElfImage
from tests.support.needs import need
from tests.support.oracle import tools

SOURCE: Final = Path(__file__).resolve().parents[3] / "testdata/src/plt/calls.c"

GNU_VERSIONS: Final[tuple[tools.BinutilsVersion, ...]] = ("2.40", "2.44", "newest")


class Shape(NamedTuple):
    """What is known of a linker's row of stubs: sizes in bytes of the first block (0: as the others) and the others."""

    header_size: int
    block_size: int


class Variant(NamedTuple):
    """A way to link: the compiler's options, and the shapes of the sections that must come out.

    `linker` is a version of GNU ld, what -fuse-ld= takes, or "mold-1" or "mold-2": before version 2, and since.
    `compiler` is the driver's name.
    """

    name: str
    linker: str
    options: tuple[str, ...]
    shapes: Mapping[str, Shape]
    compiler: str = "gcc"


_LAZY: Final = {".plt": Shape(16, 16), ".plt.got": Shape(0, 8)}
_IBT: Final = {".plt": Shape(16, 16), ".plt.got": Shape(0, 16), ".plt.sec": Shape(0, 16)}
_ONE: Final = ("-shared", "-fPIC", "-DONE_CALL", "-nostdlib")


def _gnu(version: str) -> list[Variant]:
    ibt = ("-fcf-protection", "-Wl,-z,ibtplt", "-Wl,-z,lazy")
    return [
        Variant("lazy", version, ("-Wl,-z,lazy",), _LAZY),
        Variant("now", version, ("-Wl,-z,now",), _LAZY),
        Variant("ibt", version, ibt, _IBT),
        Variant("ibt-now", version, (*ibt, "-Wl,-z,now"), _IBT),
        Variant("no-pie", version, ("-no-pie", "-Wl,-z,lazy"), _LAZY),
        Variant("static", version, ("-static",), {".plt": Shape(0, 8)}),
        Variant("one-stub", version, _ONE, {".plt": Shape(16, 16)}),
        Variant("one-stub-ibt", version, (*_ONE, *ibt), {".plt": Shape(16, 16), ".plt.sec": Shape(0, 16)}),
    ]


_MOLD_1: Final = {".plt": Shape(32, 16), ".plt.got": Shape(0, 16)}
_MOLD_2: Final = {".plt": Shape(32, 16), ".plt.got": Shape(0, 8)}
_LLD: Final = {".plt": Shape(16, 16), ".iplt": Shape(0, 16)}
_RETPOLINE: Final = {".plt": Shape(48, 32), ".iplt": Shape(0, 32)}
VARIANTS: Final = (
    *(variant for version in GNU_VERSIONS for variant in _gnu(version)),
    Variant("lazy", "lld", ("-Wl,-z,lazy",), _LLD),
    Variant("now", "lld", ("-Wl,-z,now",), _LLD),
    Variant("ibt", "lld", ("-fcf-protection", "-Wl,-z,force-ibt"), {**_LLD, ".plt.sec": Shape(0, 16)}),
    Variant("retpoline", "lld", ("-Wl,-z,retpolineplt",), _RETPOLINE),
    Variant("retpoline-now", "lld", ("-Wl,-z,retpolineplt", "-Wl,-z,now"), {**_LLD, ".plt": Shape(32, 16)}),
    Variant("static", "lld", ("-static",), {".iplt": Shape(0, 16)}),
    Variant("lazy", "mold-1", (), _MOLD_1),
    Variant("now", "mold-1", ("-Wl,-z,now",), _MOLD_1),
    Variant("static", "mold-1", ("-static",), {".plt.got": Shape(0, 16)}),
    Variant("lazy", "mold-2", (), _MOLD_2),
    Variant("static", "mold-2", ("-static",), {".plt.got": Shape(0, 8)}),
    Variant("lazy", "gold", (), {".plt": Shape(16, 16)}),
    Variant("static", "gold", ("-static",), {".plt": Shape(16, 16)}),
)

AARCH64_GCC, S390X_GCC = "aarch64-linux-gnu-gcc", "s390x-linux-gnu-gcc"
_BTI: Final = ("-mbranch-protection=standard", "-Wl,-z,force-bti")
_PAC: Final = "-Wl,-z,pac-plt"
_SHORT: Final = {".plt": Shape(32, 16)}
_LONG: Final = {".plt": Shape(32, 24), ".iplt": Shape(0, 24)}
FOREIGN_VARIANTS: Final = (
    Variant("lazy", "bfd", (), _SHORT, AARCH64_GCC),
    Variant("bti", "bfd", _BTI, _SHORT, AARCH64_GCC),
    Variant("pac", "bfd", (*_BTI, _PAC), {".plt": Shape(32, 24)}, AARCH64_GCC),
    Variant("bti-library", "bfd", (*_BTI, *_ONE), _SHORT, AARCH64_GCC),
    Variant("static", "bfd", ("-static",), {".plt": Shape(0, 16)}, AARCH64_GCC),
    Variant("lazy", "gold", (), _SHORT, AARCH64_GCC),
    Variant("pac-only", "bfd", (_PAC,), {".plt": Shape(32, 24)}, AARCH64_GCC),
    Variant("lazy", "lld", (), {**_SHORT, ".iplt": Shape(0, 16)}, AARCH64_GCC),
    Variant("static", "lld", ("-static",), {".iplt": Shape(0, 16)}, AARCH64_GCC),
    Variant("bti", "lld", _BTI, _LONG, AARCH64_GCC),
    Variant("pac-only", "lld", (_PAC,), _LONG, AARCH64_GCC),
    Variant("pac", "lld", (*_BTI, _PAC), _LONG, AARCH64_GCC),
    *(Variant("lazy", mold, (), _MOLD_1, AARCH64_GCC) for mold in ("mold-1", "mold-2")),
    *(Variant("static", mold, ("-static",), {".plt.got": Shape(0, 16)}, AARCH64_GCC) for mold in ("mold-1", "mold-2")),
    Variant("lazy", "mold-1", (), {".plt": Shape(32, 32), ".plt.got": Shape(0, 16)}, S390X_GCC),
    Variant("lazy", "mold-2", (), {".plt": Shape(48, 16), ".plt.got": Shape(0, 16)}, S390X_GCC),
    Variant("lazy", "bfd", (), {".plt": Shape(32, 32)}, S390X_GCC),
    Variant("static", "bfd", ("-static",), {".plt": Shape(0, 32)}, S390X_GCC),
)


def label(variant: Variant) -> str:
    """Return the name of a test's parameter."""
    return f"{variant.compiler.partition('-')[0]}-{variant.linker}-{variant.name}"


def link(variant: Variant, directory: Path) -> ElfImage:
    """Link the program; skip the test where the compiler or the linker is not here."""
    compiler = need(variant.compiler)
    output = directory / f"{variant.linker}-{variant.name}"
    choice = _choice(variant.linker) if variant.compiler == "gcc" else _cross_choice(variant, directory)
    command = [compiler, "-O1", "-w", *choice, *variant.options, str(SOURCE), "-o", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        if "cannot find" in done.stderr:
            pytest.skip(f"{variant.compiler} has no {variant.linker} or no libraries: {done.stderr.splitlines()[-1]}")
        pytest.fail(f"{' '.join(command)}\n{done.stderr}")
    return load(output.read_bytes(), str(output))


def _choice(linker: str) -> list[str]:
    """Return the driver's options for a linker."""
    for version in GNU_VERSIONS:
        if linker == version:
            return [f"-B{tools.find_binutils(version).directory}/", "-fuse-ld=bfd"]
    if linker.startswith("mold"):
        return [f"-B{_mold(linker).parent}/", "-fuse-ld=mold"]
    need(f"ld.{linker}")
    return [f"-fuse-ld={linker}"]


def _mold(linker: str) -> Path:
    """Find mold before version 2 or since, of the machine or fetched."""
    for path in (Path(shutil.which("mold") or ""), tools.oracles_directory() / "sid" / "bin" / "mold"):
        if path.is_file() and tools.tool_version(str(path)).startswith("1.") == (linker == "mold-1"):
            return path
    pytest.skip(f"{linker} is not here")


def _cross_choice(variant: Variant, directory: Path) -> list[str]:
    """Return the driver's options for a linker: of a cross compiler, -fuse-ld= finds those of its triplet alone."""
    if variant.linker in ("bfd", "gold"):
        return [f"-fuse-ld={variant.linker}"]
    path = need("ld.lld") if variant.linker == "lld" else _mold(variant.linker)
    folder = directory / f"tools-{variant.linker}"
    folder.mkdir(exist_ok=True)
    if not (folder / "ld").exists():
        (folder / "ld").symlink_to(path)
    return [f"-B{folder}"]
