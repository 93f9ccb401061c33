# SPDX-License-Identifier: Apache-2.0
"""Stack traces from SFrame: of core files, of live processes, or of anything that has registers and memory.

    print(trace_process(pid))
    traced = trace_core("core", executable="program")
    for thread in traced.threads:
        for entry in thread.trace.entries: print(hex(entry.frame.pc))

    space = AddressSpace.of_mappings(arch, [FileMapping(start, end, file_offset, path), ...])
    trace = space.walk(Frame(pc, sp, fp), Memory.at(sp, stack).read)

    caller = caller_of(frame, lookup.find(frame.lookup_pc), read_memory)

`walk` and `step` do the same for rows of any origin, given a function that finds them. All exceptions are
`Cfi2SFrameError`s; a stack that cannot be followed to its end is no error but has an `Ending`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.lazy import importer

if TYPE_CHECKING:
    from cfi2sframe.trace.frame import Ending, Frame, Located, Row, Trace, TraceEntry
    from cfi2sframe.trace.memory import Memory
    from cfi2sframe.trace.modules import FileStore
    from cfi2sframe.trace.run import ThreadTrace, Traced, trace_core, trace_process
    from cfi2sframe.trace.space import AddressSpace, FileMapping
    from cfi2sframe.trace.stepping import caller_of, step
    from cfi2sframe.trace.walking import walk

__all__ = [
    "AddressSpace",
    "Ending",
    "FileMapping",
    "FileStore",
    "Frame",
    "Located",
    "Memory",
    "Row",
    "ThreadTrace",
    "Trace",
    "TraceEntry",
    "Traced",
    "caller_of",
    "step",
    "trace_core",
    "trace_process",
    "walk",
]

_HOMES = {
    "AddressSpace": "space",
    "Ending": "frame",
    "FileMapping": "space",
    "FileStore": "modules",
    "Frame": "frame",
    "Located": "frame",
    "Memory": "memory",
    "Row": "frame",
    "ThreadTrace": "run",
    "Trace": "frame",
    "TraceEntry": "frame",
    "Traced": "run",
    "caller_of": "stepping",
    "step": "stepping",
    "trace_core": "run",
    "trace_process": "run",
    "walk": "walking",
}

# A walk over given rows needs neither ELF nor ptrace.
__getattr__ = importer(__name__, _HOMES)


def __dir__() -> list[str]:
    return sorted(__all__)
