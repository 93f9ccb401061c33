# SPDX-License-Identifier: Apache-2.0
"""Programs of many link variants, each built once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.support.embedded import compile_program
from tests.support.needs import need

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

KINDS = {
    "pie": [],
    "nopie": ["-no-pie", "-fno-pie"],
    "static": ["-static", "-DNO_DLOPEN"],
    "static-pie": ["-static-pie", "-DNO_DLOPEN"],
}
#: In static programs of these there is room for one program header, and not for two, before they are stripped.
FULL_LINKERS = ("bfd", "gold")
VARIANTS = {
    "plain": [],
    "noseparate": ["-Wl,-z,noseparate-code"],
    "hash-sysv": ["-Wl,--hash-style=sysv"],
    "hash-both": ["-Wl,--hash-style=both"],
    "stripped": ["-s"],
    "debug": ["-g"],
}


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """`program(linker="bfd", kind="pie", variant="plain", source="program.cpp")`: a built program."""
    built: dict[tuple[str, str, str, str], Path] = {}
    directory = tmp_path_factory.mktemp("programs")

    def build(linker: str = "bfd", kind: str = "pie", variant: str = "plain", source: str = "program.cpp") -> Path:
        key = (linker, kind, variant, source)
        if key not in built:
            need("g++", f"ld.{linker}")
            path = directory / "-".join([linker, kind, variant, source.split(".", maxsplit=1)[0]])
            compile_program(path, source, [f"-fuse-ld={linker}", *KINDS[kind], *VARIANTS[variant]])
            built[key] = path
        return built[key]

    return build
