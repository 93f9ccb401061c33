# SPDX-License-Identifier: Apache-2.0
"""Stack traces from SFrame: of core files, of live processes, or of anything that has registers and memory.

    traced = trace_core("core", executable="program")
    for thread in traced.threads:
        for entry in thread.trace.entries: print(hex(entry.frame.pc))

`walk` and `step` do the same for any frame, given a function that finds rows and one that reads memory. All exceptions
are `Cfi2SFrameError`s; a stack that cannot be followed to its end is no error but has an `Ending`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.lazy import importer

if TYPE_CHECKING:
    from cfi2sframe.trace.frame import Ending, Frame, Located, Row, Trace, TraceEntry
    from cfi2sframe.trace.modules import FileStore
    from cfi2sframe.trace.run import ThreadTrace, Traced, trace_core, trace_process
    from cfi2sframe.trace.space import AddressSpace
    from cfi2sframe.trace.stepping import step
    from cfi2sframe.trace.walking import walk

__all__ = [
    "AddressSpace",
    "Ending",
    "FileStore",
    "Frame",
    "Located",
    "Row",
    "ThreadTrace",
    "Trace",
    "TraceEntry",
    "Traced",
    "step",
    "trace_core",
    "trace_process",
    "walk",
]

_HOMES = {
    "AddressSpace": "space",
    "Ending": "frame",
    "FileStore": "modules",
    "Frame": "frame",
    "Located": "frame",
    "Row": "frame",
    "ThreadTrace": "run",
    "Trace": "frame",
    "TraceEntry": "frame",
    "Traced": "run",
    "step": "stepping",
    "trace_core": "run",
    "trace_process": "run",
    "walk": "walking",
}

# A walk over given rows needs neither ELF nor ptrace.
__getattr__ = importer(__name__, _HOMES)
