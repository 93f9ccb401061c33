# SPDX-License-Identifier: Apache-2.0
"""tools/fetch-producers, with an apt that has a few packages of its own: no network is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "fetch-producers"
ELF = b"\x7fELF\x02\x01\x01\0" + bytes(56)

APT_GET = """#!/bin/sh
printf '%s\\n' "$*" >> "$FAKE/calls"
case " $* " in
  *" indextargets "*) echo "main Debian Debian http://archive.invalid/debian" ;;
  *" update "*) ;;
  *" download "*) cp "$FAKE/debs/$3.deb" . || exit 100 ;;
  *) exit 100 ;;
esac
"""
APT_CACHE = """#!/bin/sh
case $1 in
  madison) [ ! -e "$FAKE/debs/$2.deb" ] || echo " $2 | 1 | http://archive.invalid/debian" ;;
  depends) printf '%s\\n' "$2" "  Depends: image-6.1" "  Depends: other" ;;
  *) exit 100 ;;
esac
"""
LIST = """\
# producers
[One]
stable   tool
stable   gone
[Two, with a space]
stable   small   s390x,arm64
newer    other   any
newer    @image  amd64  ./boot/vm*
"""


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    for tool in ("bash", "dpkg", "dpkg-deb", "awk", "xargs", "tar"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    fake = tmp_path / "fake"
    (fake / "bin").mkdir(parents=True)
    (fake / "debs").mkdir()
    for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
        (fake / "bin" / name).write_text(text)
        (fake / "bin" / name).chmod(0o755)
    (fake / "list").write_text(LIST)
    _build(fake / "debs", "tool", {"usr/bin/tool": ELF, "usr/bin/script": b"#!/bin/sh\n"})
    _build(fake / "debs", "small", {"usr/bin/small": ELF})
    _build(fake / "debs", "other", {"usr/bin/other": ELF})
    _build(fake / "debs", "image-6.1", {"boot/vmlinux-6.1": ELF, "lib/module.ko": ELF})
    return {
        **os.environ,
        "FAKE": str(fake),
        "PRODUCERS_LIST": str(fake / "list"),
        "PATH": f"{fake}/bin:{os.environ['PATH']}",
    }


def _build(folder: Path, name: str, files: dict[str, bytes]) -> None:
    root = folder / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 2:1\nArchitecture: amd64\nMaintainer: N. <n@invalid>\nDescription: test\n"
    )
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    command = ["dpkg-deb", "--root-owner-group", "-b", str(root), f"{folder}/{name}.deb"]
    subprocess.run(command, check=True, capture_output=True)


def _fetch(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)


def _files(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def test_packages_of_each_architecture(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = _fetch(environment, str(out), "amd64", "arm64")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout.splitlines() == [
        "amd64: other: 1 files",
        "amd64: image: 1 files",
        "amd64: tool: 1 files",
        "amd64: stable has no gone",
        "arm64: other: 1 files",
        "arm64: tool: 1 files",
        "arm64: stable has no gone",
        "arm64: small: 1 files",
    ]
    kept = {".done", ".packages", "tool/usr/bin/tool", "other/usr/bin/other"}
    # Of a package with a pattern, only that is unpacked.
    assert _files(out / "amd64") == kept | {"image/boot/vmlinux-6.1"}
    assert _files(out / "arm64") == kept | {"small/usr/bin/small"}
    assert (out / "amd64/.packages").read_text() == (
        "other newer other 2:1\nimage newer image-6.1 2:1\ntool stable tool 2:1\n"
    )


def test_what_is_there_is_not_fetched_again(environment: dict[str, str], tmp_path: Path) -> None:
    out, calls = tmp_path / "out", Path(environment["FAKE"], "calls")
    assert _fetch(environment, str(out), "amd64").returncode == 0
    calls.unlink()
    again = _fetch(environment, str(out), "amd64")
    assert (again.returncode, again.stdout, calls.exists()) == (0, "", False)
    # A longer list brings what is new in it.
    with open(environment["PRODUCERS_LIST"], "a", encoding="utf-8") as file:
        file.write("stable small amd64\n")
    assert _fetch(environment, str(out), "amd64").stdout.splitlines() == [
        "amd64: stable has no gone",
        "amd64: small: 1 files",
    ]
    assert sum("download" in line for line in calls.read_text().splitlines()) == 1


def test_a_package_that_cannot_be_had(environment: dict[str, str], tmp_path: Path) -> None:
    Path(environment["FAKE"], "debs/other.deb").write_bytes(b"no archive")
    run = _fetch(environment, str(tmp_path / "out"), "amd64")
    assert run.returncode == 1
    assert "fetch-producers: other of newer has nothing that is ./*" in run.stderr
    assert not (tmp_path / "out/amd64/.done").exists()
    assert not (tmp_path / "out/amd64/other").exists()


@pytest.mark.parametrize("arguments", [(), ("--other", "x"), ("x", "m68k")])
def test_usage(environment: dict[str, str], tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = subprocess.run(
        [SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 1
    assert "fetch-producers: " in run.stderr
    assert not (tmp_path / "x").exists()
