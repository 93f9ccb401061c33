# SPDX-License-Identifier: Apache-2.0
"""tools/fetch-corpus, with an apt that has a package of its own: no network is asked."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "fetch-corpus"
ELF = b"\x7fELF\x02\x01\x01\0" + bytes(56)

#: What the script asks apt-get for: every package that it names is the same one.
APT_GET = """#!/bin/sh
printf '%s\\n' "$*" >> "$FAKE/calls"
case " $* " in
  *" indextargets "*) echo "main Debian Debian http://archive.invalid/debian" ;;
  *" update "*) ;;
  *" download "*)
    shift 2
    for package; do [ "$package" != "$LACKED" ] && cp "$FAKE/tool.deb" "$package.deb" || exit 100; done ;;
  *) exit 100 ;;
esac
"""


def _build(folder: Path, files: dict[str, bytes]) -> None:
    root = folder / "tool"
    (root / "DEBIAN").mkdir(parents=True)
    (root / "DEBIAN/control").write_text(
        "Package: tool\nVersion: 1\nArchitecture: amd64\nMaintainer: N. <n@invalid>\nDescription: test\n"
    )
    for path, data in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-b", str(root), str(folder / "tool.deb")], check=True, capture_output=True
    )


@pytest.fixture(name="environment")
def _environment(tmp_path: Path) -> dict[str, str]:
    for tool in ("bash", "dpkg", "dpkg-deb", "awk", "xargs"):
        if shutil.which(tool) is None:
            pytest.skip(f"no {tool} here")
    fake = tmp_path / "fake"
    (fake / "bin").mkdir(parents=True)
    (fake / "bin/apt-get").write_text(APT_GET)
    (fake / "bin/apt-get").chmod(0o755)
    _build(
        fake,
        {
            "usr/bin/tool": ELF,
            "usr/lib/lib.a": b"!<arch>\n",
            "usr/bin/script": b"#!/bin/sh\n",
            "usr/lib/short": b"\x7fEL",
        },
    )
    return {**os.environ, "FAKE": str(fake), "PATH": f"{fake}/bin:{os.environ['PATH']}"}


def _fetch(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([SCRIPT, *arguments], env=environment, capture_output=True, text=True, check=False)


def _files(root: Path) -> set[str]:
    return {str(file.relative_to(root)) for file in root.rglob("*") if file.is_file()}


def test_binaries_are_kept(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = _fetch(environment, str(out), "amd64")
    assert (run.returncode, run.stderr) == (0, "")
    assert run.stdout == "amd64: 2 files\n"
    assert _files(out / "amd64") == {".done", "usr/bin/tool", "usr/lib/lib.a"}
    # What is there is not fetched again.
    Path(environment["FAKE"], "calls").unlink()
    assert _fetch(environment, str(out), "amd64").stdout == ""
    assert not Path(environment["FAKE"], "calls").exists()


def test_an_archive_that_lacks_a_package(environment: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "out"
    run = _fetch({**environment, "LACKED": "libgcc-s1"}, str(out), "s390x")
    assert (run.returncode, run.stdout) == (0, "s390x: 2 files\n")
    assert run.stderr == "fetch-corpus: the archive lacks libgcc-s1\n"
    # The next call tries again.
    assert _files(out / "s390x") == {"usr/bin/tool", "usr/lib/lib.a"}
    assert _fetch(environment, str(out), "s390x").stderr == ""
    assert ".done" in _files(out / "s390x")


def test_an_archive_that_has_no_package(environment: dict[str, str], tmp_path: Path) -> None:
    Path(environment["FAKE"], "tool.deb").unlink()
    run = _fetch(environment, str(tmp_path / "out"), "s390x")
    assert run.returncode == 1
    assert run.stderr.endswith("fetch-corpus: no files of s390x\n")
    assert not (tmp_path / "out/s390x/.done").exists()
