#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build Debian packages: deb.py DIR. The program, and the trigger that keeps an installed system converted.

For Debian 12 and later, whose pyelftools and capstone are new enough. Needs dpkg-deb; fetches nothing.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from dist import source_date
from share import write_share

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import __version__  # noqa: E402

#: The program and its wrappers, each with the module whose `run` it calls.
PROGRAMS = {
    "cfi2sframe": "cfi2sframe.cli",
    **dict.fromkeys(("cfi2sframe-as", "cfi2sframe-cc", "cfi2sframe-ld"), "cfi2sframe.cli.wrapper"),
}
CONTROL = f"""\
Package: cfi2sframe
Version: {__version__}
Architecture: all
Depends: python3 (>= 3.11), python3-pyelftools (>= 0.29), python3-capstone (>= 4.0.2)
Suggests: python3-jinja2, python3-tqdm, python3-zstandard
Section: devel
Priority: optional
Maintainer: Nobody <nobody@example.invalid>
Description: SFrame sections from the call frame information of ELF files
 Adds the table that stack tracers read to programs, libraries and objects that
 are already built, verifies it, reports what it describes, and removes it.
"""
#: As dh_python3 writes them.
POSTINST = "#!/bin/sh\nset -e\nif command -v py3compile >/dev/null; then py3compile -p cfi2sframe; fi\n"
PRERM = "#!/bin/sh\nset -e\nif command -v py3clean >/dev/null; then py3clean -p cfi2sframe; fi\n"


def unpack(wheel: Path, tree: Path) -> None:
    """Put the files of a wheel where Debian has those of Python packages."""
    packages = tree / "usr" / "lib" / "python3" / "dist-packages"
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            folder, _, rest = name.partition(".data/data/")
            # Debian's zsh looks for completions of packages there.
            rest = rest.replace("zsh/site-functions", "zsh/vendor-completions")
            target = tree / "usr" / rest if rest else packages / folder
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(archive.read(name))


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def main(arguments: list[str]) -> int:
    """Build both packages."""
    if len(arguments) != 1:
        print("usage: deb.py DIR", file=sys.stderr)
        return 2
    from flit_core import buildapi

    target = Path(arguments[0]).resolve()
    target.mkdir(parents=True, exist_ok=True)
    os.environ["SOURCE_DATE_EPOCH"] = source_date()
    os.umask(0o022)
    os.chdir(ROOT)
    write_share(ROOT / "data" / "share")
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        unpack(Path(scratch) / buildapi.build_wheel(scratch), tree)
        for name, module in PROGRAMS.items():
            write(tree / "usr" / "bin" / name, f"#!/usr/bin/python3 -sP\nfrom {module} import run\n\nrun()\n", 0o755)
        write(tree / "usr" / "share" / "doc" / "cfi2sframe" / "copyright", (ROOT / "LICENSE").read_text())
        write(tree / "DEBIAN" / "control", CONTROL)
        write(tree / "DEBIAN" / "postinst", POSTINST, 0o755)
        write(tree / "DEBIAN" / "prerm", PRERM, 0o755)
        tree.chmod(0o755)
        for each in (tree, ROOT / "contrib" / "dpkg" / "cfi2sframe-trigger"):
            subprocess.run(["dpkg-deb", "--root-owner-group", "--build", each, target], check=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
