# SPDX-License-Identifier: Apache-2.0
"""Fuzz target: any bytes as a recording of perf, whose samples are walked, counted and printed in each format."""

from collections.abc import Iterator
from typing import get_args

from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.trace import Profile, Recording
from cfi2sframe.trace.frames import EndingKind
from cfi2sframe.trace.profile import perf_text
from tests.fuzz.harness import expect
from tests.fuzz.target_core import ARCHES, InsideStore, place
from tests.support.trace import recordings as r


def run(data: bytes) -> None:
    """Walk a recording: an error of the project's own, or an account that has each sample once."""
    try:
        recording = Recording(data, InsideStore(place().root))
        profile = Profile(recording, keeps_stacks=True)
        for walked in recording:
            profile.add(walked)
            if walked.trace is not None:
                kind = walked.trace.ending.kind
                expect(kind in {*get_args(EndingKind)} - {"internal-error"}, f"{walked.trace.ending}")
            for line in perf_text(walked).splitlines():
                expect(line.removeprefix("\t").isprintable(), f"{line!r}")
    except Cfi2SFrameError:
        return
    for line in [*str(profile).splitlines(), *profile.json().splitlines(), *"".join(profile.folded()).splitlines()]:
        expect(line.isprintable(), f"{line!r}")
    expect(sum(profile.stacks.values()) == profile.walked_count, "stacks that are not counted")
    expect(profile.by_rows.outermost_count + sum(profile.ends.values()) == profile.walked_count, "ends that are not")


def seeds() -> Iterator[tuple[str, bytes]]:
    """Yield a recording of every ABI, as a file and as a pipe, and one with everything else in it."""
    for name, arch in ARCHES.items():
        recording = r.plain_recording(arch, f"/{name}")
        made = r.recorded(arch)
        order = arch.byte_order
        records = (
            *recording.records,
            r.of_time(arch, r.FORK, bytes(24), 50),
            r.record(arch, r.ROUND, b""),
            r.of_time(arch, r.LOST, bytes(16), 55),
            r.of_time(arch, r.EXIT, bytes(24), 56),
            r.mapped(arch, 60, "//anon"),
            r.record(arch, r.AUXTRACE, (8).to_bytes(8, "little" if order == "<" else "big") + bytes(32)) + bytes(8),
            r.sample(arch, 70, made.frame, made.data, misc=1),
            r.sample(arch, 71, None),
        )
        yield name, recording._replace(records=records).file()
        yield f"{name}-pipe", recording._replace(records=records).pipe()
