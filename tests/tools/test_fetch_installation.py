# SPDX-License-Identifier: Apache-2.0
"""tools/fetch-corpus --installation, with an apt that has a few packages of its own: no network is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "fetch-corpus"
ELF = b"\x7fELF\x02\x01\x01\0" + bytes(56)

#: What the scripts ask apt-get and apt-cache for: $FAKE/inst is to be installed, $FAKE/debs has the archives.
APT_GET = """#!/bin/sh
printf '%s\\n' "$*" >> "$FAKE/calls"
case " $* " in
  *" indextargets "*) echo "main Debian Debian http://archive.invalid/debian" ;;
  *" update "*) ;;
  *" -s install "*) cat "$FAKE/inst" ;;
  *" download "*)
    shift 2
    for package; do cp "$FAKE/debs/$package.deb" . || exit 100; done ;;
  *) exit 100 ;;
esac
"""
APT_CACHE = """#!/bin/sh
cat <<END
Package: base
Priority: required

Package: extra
Priority: optional
END
"""
INST = """\
Inst base (1.0-1 Debian:12/stable [amd64])
Inst tool (2:3.1 Debian:12/stable [amd64]) []
Inst data (7 Debian:12/stable [all])
Conf base (1.0-1 Debian:12/stable [amd64])
"""


def _build(folder: Path, name: str, files: dict[str, bytes]) -> None:
    root = folder / name
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: 1\nArchitecture: amd64\nMaintainer: N. <n@invalid>\nDescription: test\n"
    )
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", str(root), f"{folder}/{name}.deb"], check=True, capture_output=True
    )


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    for tool in ("bash", "dpkg", "dpkg-deb", "awk", "xargs"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    fake = tmp_path / "fake"
    (fake / "bin").mkdir(parents=True)
    for name, text in (("apt-get", APT_GET), ("apt-cache", APT_CACHE)):
        (fake / "bin" / name).write_text(text)
        (fake / "bin" / name).chmod(0o755)
    (fake / "inst").write_text(INST)
    (fake / "debs").mkdir()
    _build(fake / "debs", "base", {"usr/lib/libbase.so": ELF, "usr/share/doc/readme": b"text\n"})
    _build(fake / "debs", "tool", {"usr/bin/tool": ELF, "usr/bin/script": b"#!/bin/sh\n", "usr/lib/short": b"\x7fEL"})
    return {**os.environ, "FAKE": str(fake), "PATH": f"{fake}/bin:{os.environ['PATH']}"}


def _fetch(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)


def _files(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def test_installation(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = _fetch(environment, "--installation", str(out), "amd64")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "amd64: 2 packages, 2 ELF files\n"
    assert _files(out / "amd64") == {".done", ".packages", "usr/lib/libbase.so", "usr/bin/tool"}
    # The package for all architectures is not downloaded; versions are written down with their epochs.
    assert (out / "amd64/.packages").read_text() == "base 1.0-1\ntool 2:3.1\n"
    calls = Path(environment["FAKE"], "calls").read_text().splitlines()
    (simulated,) = (call for call in calls if call.startswith("-s install"))
    assert "-s install base build-essential " in simulated
    assert "extra" not in simulated.split()
    assert any(call.endswith("download base tool") for call in calls)


def test_standard_system(environment: dict[str, str], tmp_path: Path) -> None:
    assert _fetch(environment, "--standard", str(tmp_path / "out"), "amd64").returncode == 0
    calls = Path(environment["FAKE"], "calls").read_text().splitlines()
    assert "-s install base" in calls


def test_what_is_there_is_not_fetched_again(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert _fetch(environment, "--installation", str(out), "amd64").returncode == 0
    Path(environment["FAKE"], "calls").unlink()
    again = _fetch(environment, "--installation", str(out), "amd64")
    assert (again.returncode, again.stdout) == (0, "")
    assert not Path(environment["FAKE"], "calls").exists()


def test_what_cannot_be_resolved(environment: dict[str, str], tmp_path: Path) -> None:
    Path(environment["FAKE"], "inst").unlink()
    run = _fetch(environment, "--installation", str(tmp_path / "out"), "s390x")
    assert run.returncode == 1
    assert "bookworm (s390x) does not offer all of: build-essential " in run.stderr
    assert not (tmp_path / "out/s390x/.done").exists()


#: An archive whose lists for one architecture are not whole: never, or in the first minutes.
APT_GET_OF_A_MIRROR = """#!/bin/sh
case " $* " in
  *" update "*)
    if grep -q 'Architecture "arm64"' "$APT_CONFIG"; then
      echo update >> "$FAKE/tries"
      [ "$(wc -l < "$FAKE/tries")" -gt "$FAILING" ] || exit 100
    fi ;;
esac
exec apt-get.whole "$@"
"""


@pytest.mark.parametrize(("failing", "tries"), [(1, 2), (9, 3)])
def test_lists_that_are_not_whole(environment: dict[str, str], tmp_path: Path, failing: int, tries: int) -> None:
    fake = Path(environment["FAKE"])
    (fake / "bin/apt-get").rename(fake / "bin/apt-get.whole")
    (fake / "bin/apt-get").write_text(APT_GET_OF_A_MIRROR)
    (fake / "bin/apt-get").chmod(0o755)
    out = tmp_path / "out"
    changed = {**environment, "LIST_PAUSES": "0 0", "FAILING": str(failing)}
    run = _fetch(changed, "--installation", str(out), "arm64", "amd64")
    assert len((fake / "tries").read_text().splitlines()) == tries
    assert (out / "amd64/.done").exists()
    assert (out / "arm64/.done").exists() == (failing < tries)
    assert run.returncode == (failing >= tries)
    assert ("fetch-corpus: no files of arm64" in run.stderr) == (failing >= tries)
    assert not (out / "arm64/apt").exists()


@pytest.mark.parametrize("arguments", [(), ("--installation",), ("--other", "x"), ("x", "m68k")])
def test_usage(environment: dict[str, str], tmp_path: Path, arguments: tuple[str, ...]) -> None:
    run = subprocess.run(
        [SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert run.returncode == 1
    assert "fetch-corpus: " in run.stderr
    assert not (tmp_path / "x").exists()
