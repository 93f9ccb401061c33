# SPDX-License-Identifier: Apache-2.0
"""Programs that tests run, and the Debian packages that bring them."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

PACKAGES: Final = {
    "awk": "mawk",
    "c++": "g++",
    "cc": "gcc",
    "dh": "debhelper",
    "dpkg-buildpackage": "dpkg-dev",
    "dpkg-deb": "dpkg",
    "go": "golang-go",
    "ld.lld": "lld",
    "ld.mold": "mold",
    "ldd": "libc-bin",
    "man": "man-db",
    "ninja": "ninja-build",
    "rpm2cpio": "rpm",
    "rpmbuild": "rpm",
    "sh": "dash",
    **dict.fromkeys(("chroot", "cp", "env", "od", "sort", "true"), "coreutils"),
    **dict.fromkeys(("mount", "prlimit", "unshare"), "util-linux"),
    "find": "findutils",
}
_BINUTILS: Final = frozenset(
    {"addr2line", "as", "ld", "ld.bfd", "ld.gold", "nm", "objcopy", "objdump", "readelf", "strip"}
)
_TRIPLET: Final = re.compile(r"(aarch64-linux-gnu|s390x-linux-gnu|x86_64-linux-gnu)-(.+)")


def package_of(program: str) -> str:
    """Return the package that has a program; most have its name."""
    if match := _TRIPLET.fullmatch(program):
        package = package_of(match[2])
        return f"{package}-{match[1].replace('_', '-')}"
    if program in _BINUTILS:
        return "binutils"
    if program.startswith("qemu-"):
        return "qemu-user"
    if program.startswith("eu-"):
        return "elfutils"
    if program.startswith("llvm-"):
        return "llvm"
    return PACKAGES.get(program, program)


def need(*programs: str) -> str:
    """Return the path of the first of some programs; skip the test where one of them is missing."""
    paths = []
    for program in programs:
        path = shutil.which(program)
        if path is None:
            pytest.skip(f"{program} is not here; get it with: apt-get install {package_of(program)}")
        paths.append(path)
    return paths[0]


class Result(NamedTuple):
    """What a program left."""

    status: int
    out: str
    err: str


def attempt(*command: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None) -> Result:
    """Run a program, whatever becomes of it."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=None if env is None else dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def run(*command: str | Path, **environment: str) -> str:
    """Run a program that must succeed; return what it printed on either stream."""
    words = [str(word) for word in command]
    variables = {**os.environ, "LC_ALL": "C", **environment}
    done = subprocess.run(
        words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, env=variables, timeout=600
    )
    assert done.returncode == 0, f"{shlex.join(words)}: {done.returncode}\n{done.stdout}"
    return done.stdout
