#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Print pip constraints for the oldest dependencies that pyproject.toml allows: NAME==BOUND for each NAME>=BOUND.

What has no lower bound is not for users of the program (test tools), or any version will do.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Extras whose packages the program itself loads.
EXTRAS = ("zstd", "html")


def main() -> int:
    """Print the constraints."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(name for extra in EXTRAS for name in project["optional-dependencies"][extra])]
    bounds = {
        match[1]: match[2] for match in (re.match(r"([\w.-]+)\s*>=\s*([\w.]+)", text) for text in wanted) if match
    }
    for name, bound in sorted(bounds.items()):
        print(f"{name}=={bound}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
