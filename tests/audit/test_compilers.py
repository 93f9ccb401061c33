# SPDX-License-Identifier: Apache-2.0
"""What compilers write for whole functions is right: nothing contradicts it, and nearly all of it is compared."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support.audited import audited, said_of
from tests.support.needs import need

pytestmark = pytest.mark.oracle

SOURCE = Path(__file__).resolve().parents[1] / "support/programs/whole_functions.c"
#: What the linker says of its stubs are expressions.
_NO_STUBS = "-Wl,--no-ld-generated-unwind-info"
OPTIONS = (
    "-O0",
    "-O2",
    "-Os",
    "-O3 -mavx2",
    "-O2 -fno-omit-frame-pointer",
    "-O2 -fstack-protector-all -fcf-protection",
    "-O2 -fno-plt -fstack-clash-protection",
    "-O1 -mno-red-zone -mno-push-args -maccumulate-outgoing-args",
)


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("options", OPTIONS)
def test_compiled_functions(compiler: str, options: str, tmp_path: Path) -> None:
    need(compiler)
    if compiler == "clang" and "accumulate" in options:
        pytest.skip("clang has no such options")
    path = tmp_path / "compiled.so"
    words = [compiler, *options.split(), "-w", "-fPIC", "-shared", "-nostdlib", _NO_STUBS, str(SOURCE), "-o", str(path)]
    subprocess.run(words, check=True)
    result = audited(path)
    assert said_of(result) == []
    assert result.agreed_count > 400
    # Realigned frames have expressions.
    assert sum(result.undecided.values()) <= result.agreed_count // 15
