# SPDX-License-Identifier: Apache-2.0
"""Shell patterns that name what of a folder is left out.

A pattern without a slash is matched against each name below the folder, one with a slash against the path below it, and
one that begins with a slash against the absolute path. `*` matches slashes, too. Slashes at the end mean nothing.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


class Exclusions:
    """Patterns for one folder, which has `names`: absolute paths that lead to it."""

    def __init__(self, patterns: Iterable[str], names: Sequence[str]) -> None:
        kept = [pattern.rstrip(os.sep).removeprefix("./") for pattern in patterns]
        self._of_names = [pattern for pattern in kept if os.sep not in pattern]
        self._of_paths = [pattern for pattern in kept if os.sep in pattern and not pattern.startswith(os.sep)]
        self._absolute = [pattern for pattern in kept if pattern.startswith(os.sep)]
        self._names = names if self._absolute else ()

    def match(self, path: str) -> bool:
        """Whether a path below the folder is left out; the folders on the way have been asked about before."""
        from fnmatch import fnmatchcase

        name = os.path.basename(path)
        return (
            any(fnmatchcase(name, pattern) for pattern in self._of_names)
            or any(fnmatchcase(path, pattern) for pattern in self._of_paths)
            or any(fnmatchcase(os.path.join(root, path), pattern) for root in self._names for pattern in self._absolute)
        )
