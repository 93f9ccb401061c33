# SPDX-License-Identifier: Apache-2.0
"""What `cfi2sframe trace --format json` prints, as records to compare with the judges'."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.support import cli
from tests.support.trace.judges import Chain

if TYPE_CHECKING:
    from pathlib import Path


class TracedThread(NamedTuple):
    """A thread of a trace: its chain, and what the judges do not have."""

    chain: Chain
    functions: tuple[str | None, ...]
    modules: tuple[str | None, ...]
    rows: tuple[dict[str, Any] | None, ...]
    ending: str


def trace(*words: str | Path) -> dict[str, Any]:
    """Run `cfi2sframe trace --format json WORDS`, which must succeed."""
    done = cli.run("trace", "--format", "json", *words)
    assert done.status == 0, done.err
    found: dict[str, Any] = json.loads(done.out)
    assert found["schema"] == 1
    return found


def threads_of(found: dict[str, Any]) -> tuple[TracedThread, ...]:
    """Return the threads of a trace's JSON, by their numbers."""
    threads = [_thread(thread) for thread in found["threads"]]
    return tuple(sorted(threads, key=lambda thread: thread.chain.thread_id))


def _thread(thread: dict[str, Any]) -> TracedThread:
    frames = thread["frames"]
    assert [frame["index"] for frame in frames] == list(range(len(frames)))
    return TracedThread(
        Chain(
            thread["id"],
            tuple(frame["pc"] for frame in frames),
            tuple(frame["sp"] for frame in frames),
            thread["ending_detail"],
        ),
        tuple(frame["function"] for frame in frames),
        tuple(frame["module"] for frame in frames),
        tuple(frame["row"] for frame in frames),
        thread["ending"],
    )


def is_in_order(wanted: tuple[str, ...], functions: tuple[str | None, ...]) -> bool:
    """Return whether the functions have the wanted names in this order, others in between."""
    rest = iter(functions)
    return all(any(_base(found) == name for found in rest) for name in wanted)


def _base(function: str | None) -> str:
    return re.split(r"[@(.]", function or "")[0]
