#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build the program as one file: zipapp.py FILE. For build roots that have a Python and no pip.

It holds the package and pyelftools, which are pure Python. capstone, which has native code, has to be installed
(python3-capstone in Debian: 4.0.2 or later); without it, files with PLT stubs are refused.
Called by another name (a link named ld, as, cfi2sframe-cc), the file is the wrapper of that program.
"""

from __future__ import annotations

import importlib.metadata
import os
import stat
import sys
import time
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
SHEBANG = b"#!/usr/bin/env python3\n"
#: The earliest time that zip archives can express: 1 January 1980.
EARLIEST = 315532800
MAIN = """\
# SPDX-License-Identifier: Apache-2.0
import os
import sys

if sys.version_info < (3, 11):
    sys.exit("cfi2sframe: error: Python 3.11 or later is needed, this is " + sys.version.split()[0])
if __name__ == "__main__":
    name = os.path.basename(sys.argv[0])
    if name == "cfi2sframe" or name.endswith(".pyz"):
        from cfi2sframe.cli import run
    else:
        from cfi2sframe.cli.wrapper import run
    sys.exit(run())
"""


def files() -> Iterator[tuple[str, bytes]]:
    """Yield the name and the content of each file in the archive."""
    yield "__main__.py", MAIN.encode()
    yield "LICENSE", (ROOT / "LICENSE").read_bytes()
    for path in (ROOT / "cfi2sframe").rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield str(path.relative_to(ROOT)), path.read_bytes()
    for file in importlib.metadata.files("pyelftools") or ():
        is_code = file.parts[0] == "elftools" and file.suffix == ".py"
        if is_code or "licenses" in file.parts or file.name in ("LICENSE", "METADATA"):
            yield str(file), file.read_binary()


def main(arguments: list[str]) -> int:
    """Build the file."""
    if len(arguments) != 1:
        print("usage: zipapp.py FILE", file=sys.stderr)
        return 2
    target = Path(arguments[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    when = time.gmtime(max(int(os.environ.get("SOURCE_DATE_EPOCH") or EARLIEST), EARLIEST))[:6]
    with target.open("wb") as stream:
        stream.write(SHEBANG)
        with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in sorted(files()):
                entry = zipfile.ZipInfo(name, when)
                entry.external_attr = (stat.S_IFREG | 0o644) << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, content)
    target.chmod(0o755)
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
