# SPDX-License-Identifier: Apache-2.0
"""Stack traces from SFrame: of core files, live processes, perf's recordings, or any registers and memory.

    print(trace_process(pid))
    traced = trace_core("core", executable="program")
    for thread in traced.threads:
        for entry in thread.entries: print(hex(entry.frame.pc))

    profile = Profile(recording := Recording(data))
    for walked in recording: profile.add(walked)
    print(profile)

    space = AddressSpace(Snapshot(arch, [FileMapping(start, end, file_offset, path), ...]))
    trace = space.walk(Frame(pc, sp, fp), Memory([(sp, stack)]).read)

    caller = caller_of(frame, section.find(frame.lookup_pc), read_memory)

`walk` does the same for rows of any origin, given a function that finds them. All exceptions are `Cfi2SFrameError`s; a
stack that cannot be followed to its end is not an error: its trace has an `Ending`.
"""

from cfi2sframe.trace.beyond import LoadedCfa
from cfi2sframe.trace.core import trace_core
from cfi2sframe.trace.frames import Ending, Frame, Trace, TraceEntry, caller_of, walk
from cfi2sframe.trace.live import trace_process
from cfi2sframe.trace.perf_sample import Sample
from cfi2sframe.trace.profile import Profile
from cfi2sframe.trace.recording import Recording, WalkedSample, Wanted
from cfi2sframe.trace.snapshot import Death, FileMapping, Memory, Snapshot
from cfi2sframe.trace.space import AddressSpace, Module
from cfi2sframe.trace.store import FileStore, ModuleFile
from cfi2sframe.trace.traced import Traced

__all__ = [
    "AddressSpace",
    "Death",
    "Ending",
    "FileMapping",
    "FileStore",
    "Frame",
    "LoadedCfa",
    "Memory",
    "Module",
    "ModuleFile",
    "Profile",
    "Recording",
    "Sample",
    "Snapshot",
    "Trace",
    "TraceEntry",
    "Traced",
    "WalkedSample",
    "Wanted",
    "caller_of",
    "trace_core",
    "trace_process",
    "walk",
]


def __dir__() -> list[str]:
    return __all__
