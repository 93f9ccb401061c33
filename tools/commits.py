# SPDX-License-Identifier: Apache-2.0
"""The package as it was at a commit, for the tools that compare it with what is here."""

from __future__ import annotations

import io
import subprocess
import tarfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]


def check_out(commit: str, folder: Path) -> Path:
    """Unpack the package's sources of a commit into a folder, which is made; return the folder."""
    command = ["git", "-C", str(ROOT), "archive", commit, "cfi2sframe"]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        # Python 3.11 has filters since 3.11.4.
        tar.extractall(folder)  # noqa: S202 - git made the archive
    return folder
