# SPDX-License-Identifier: Apache-2.0
"""The architectures other than AMD64, and the names that their tools and files go by."""

from pathlib import Path
from typing import Final, NamedTuple

import pytest

from cfi2sframe.abi import AARCH64_LE, S390X
from cfi2sframe.abi import Arch as AbiRecord
from tests.support.needs import need
from tests.support.oracle.tools import CorpusArch
from tests.support.oracle.tools import Target as ArchName


class Target(NamedTuple):
    """An architecture; `triplet` is what its tools and its libraries' folder are called."""

    name: ArchName
    corpus: CorpusArch
    triplet: str
    arch: AbiRecord

    @property
    def compiler(self) -> str:
        """The machine's cross compiler; skips the test without it."""
        return need(f"{self.triplet}-gcc")

    @property
    def sysroot(self) -> Path:
        """Where the cross compiler's libc is, for an emulator; skips the test without it."""
        path = Path("/usr") / self.triplet
        if not (path / "lib").exists():
            pytest.skip(f"no {path}: make packages")
        return path

    @property
    def emulator(self) -> str:
        """The program that runs programs of this architecture; skips the test without it."""
        return need(f"qemu-{self.name}")


AARCH64: Final = Target("aarch64", "arm64", "aarch64-linux-gnu", AARCH64_LE)
S390: Final = Target("s390x", "s390x", "s390x-linux-gnu", S390X)
TARGETS: Final = (AARCH64, S390)


def label(target: Target) -> str:
    """Return the name of a test's parameter."""
    return target.name
