# SPDX-License-Identifier: Apache-2.0
"""The processes that this one has started."""

from __future__ import annotations

from pathlib import Path


def children() -> set[str]:
    """Return the process numbers of this process's children, those among them that have ended and were not waited for.

    Others may have left some that live on, such as the server of a pool.
    """
    return {number for task in Path("/proc/self/task").iterdir() for number in (task / "children").read_text().split()}
