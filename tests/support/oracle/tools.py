# SPDX-License-Identifier: Apache-2.0
"""Where the outside tools and files of the tests are; a test whose tools are missing is skipped."""

import os
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Literal, NamedTuple

import pytest

from tests.support.needs import need

BinutilsVersion = Literal["2.40", "2.44", "newest"]
Target = Literal["amd64", "aarch64", "s390x"]
CorpusArch = Literal["amd64", "arm64", "s390x"]

_BUILD = Path(__file__).resolve().parents[3] / "build"
_SUITES: dict[BinutilsVersion, str] = {"2.40": "bookworm", "2.44": "trixie", "newest": "sid"}
_PREFIXES: dict[Target, str] = {"amd64": "", "aarch64": "aarch64-linux-gnu-", "s390x": "s390x-linux-gnu-"}
_VERSION = re.compile(r"(\d+\.\d+(?:\.\d+)?)")


class Binutils(NamedTuple):
    """GNU binutils of one version; `directory` holds its programs under their plain names."""

    version: str
    directory: Path

    def tool(self, name: str, target: Target = "amd64") -> str:
        """Path of a program for a target; the test is skipped when this set has none."""
        path = self.directory / (_PREFIXES[target] + name)
        if not path.exists():
            pytest.skip(f"no {path.name} in binutils {self.version}")
        return str(path)


def oracles_directory() -> Path:
    """The folder of the fetched tools: CFI2SFRAME_ORACLES, or build/oracles of this project."""
    return Path(os.environ.get("CFI2SFRAME_ORACLES") or _BUILD / "oracles")


def corpus_root() -> Path:
    """The folder of the fetched ELF files: CFI2SFRAME_CORPUS, or build/corpus of this project."""
    return Path(os.environ.get("CFI2SFRAME_CORPUS") or _BUILD / "corpus")


def corpus_directory(arch: CorpusArch) -> Path:
    """The folder of the fetched ELF files of one architecture."""
    path = corpus_root() / arch
    if not (path / ".done").exists():
        pytest.skip(f"no ELF files of {arch}: make corpus-files")
    return path


@cache
def tool_version(path: str) -> str:
    """The version that a program prints, `2.47.50` or `14.0.6`; empty when it prints none."""
    text = subprocess.run([path, "--version"], capture_output=True, text=True, check=False).stdout
    match = _VERSION.search(text)
    return match[1] if match else ""


def find_binutils(version: BinutilsVersion) -> Binutils:
    """Find GNU binutils, which are fetched; "2.40" is the machine's own where it has that version."""
    path = shutil.which("as") if version == "2.40" else None
    if path is not None and tool_version(path) == version:
        return Binutils(version, Path(path).parent)
    directory = oracles_directory() / _SUITES[version] / "bin"
    if not (directory.parent / ".done").exists():
        pytest.skip(f"no binutils {version}: make oracles")
    return Binutils(tool_version(str(directory / "as")), directory)


def find_s390x_binutils() -> Binutils:
    """Find the newest GNU binutils that run on s390x themselves, under an emulator: readelf and objdump."""
    directory = oracles_directory() / "sid-s390x" / "bin"
    if not (directory.parent / ".done").exists():
        pytest.skip("no binutils of s390x: make oracles")
    need("qemu-s390x")
    return Binutils(tool_version(str(directory / "readelf")), directory)


def find_llvm_readelf() -> str:
    """Find the newest llvm-readelf, which is fetched."""
    path = oracles_directory() / "sid" / "bin" / "llvm-readelf"
    if not path.exists():
        pytest.skip("no newest llvm-readelf: make oracles")
    return str(path)
