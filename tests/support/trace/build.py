# SPDX-License-Identifier: Apache-2.0
"""The test programs: what they are made of, how they are compiled, and where they are looked at."""

import resource
from pathlib import Path
from typing import Final, NamedTuple

from tests.support.needs import need, run

SOURCES: Final = Path(__file__).resolve().parent / "programs"

#: No frame pointers, no debug information; everything that is not asked for is as the compiler has it.
FLAGS: Final = ("-O2", "-fomit-frame-pointer", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,-z,lazy")

#: gdb commands, after the stop: into the resolver of lazy binding, and further into ld.so.
_TO_RESOLVER: Final = ("tbreak *(long)resolver", "continue")


class Program(NamedTuple):
    """A test program: `commands` are gdb's after the stop, `functions` are names that its chain has, inside out.

    Its traces end with `ending`; where that is not the true end, the judges have more frames than the trace.
    """

    name: str
    source: str
    flags: tuple[str, ...] = ()
    commands: tuple[str, ...] = ()
    functions: tuple[str, ...] = ("stop_here", "main")
    least_frames: int = 5
    thread_count: int = 1
    ending: str = "outermost"


_HANDLED: Final = ("stop_here", "third", "faults_at_once", "second", "first", "work", "work", "main")

PROGRAMS: Final = (
    Program(
        "recursion", "recursion.c", functions=("stop_here", "even", "odd", "even", "recurse", "main"), least_frames=175
    ),
    Program("recursion-static-pie", "recursion.c", ("-static-pie",), least_frames=175),
    Program("recursion-static", "recursion.c", ("-static",), least_frames=175),
    Program("recursion-no-pie", "recursion.c", ("-no-pie",), least_frames=175),
    Program("dynamic", "dynamic.c", functions=("stop_here", "large", "with_array", "with_alloca", "loop", "main")),
    Program("drap", "drap.c", functions=("stop_here", "aligned", "aligned", "aligned_with_alloca", "main")),
    Program("drap-stackrealign", "drap.c", ("-mstackrealign",), functions=("stop_here", "aligned", "main")),
    Program(
        "callback", "callback.c", functions=("stop_here", "compare_inner", "lfind", "compare_outer", "qsort_r", "main")
    ),
    Program("handler", "handler.c", functions=_HANDLED, least_frames=18),
    Program("handler-alternate", "handler.c", ("-DON_ALTERNATE_STACK=1",), functions=_HANDLED, least_frames=18),
    Program("handler-above", "handler.c", ("-DON_ALTERNATE_STACK=2",), functions=_HANDLED, least_frames=18),
    Program("handler-static-pie", "handler.c", ("-static-pie",), functions=_HANDLED, least_frames=18),
    Program("exception-destructor", "exception.cpp", ("-DSTAGE=0",), least_frames=10),
    Program(
        "exception-search",
        "exception.cpp",
        ("-DSTAGE=4",),
        ("tbreak *(long)&__gxx_personality_v0", "continue"),
        ("__gxx_personality_v0", "_Unwind_RaiseException", "__cxa_throw", "main"),
        least_frames=10,
    ),
    Program("exception-handler", "exception.cpp", ("-DSTAGE=1",)),
    Program("exception-rethrown", "exception.cpp", ("-DSTAGE=2",)),
    Program(
        "exception-terminate",
        "exception.cpp",
        ("-DSTAGE=3",),
        functions=("stop_here", "__gxx_personality_v0", "_Unwind_Resume", "main"),
        least_frames=10,
    ),
    Program("lazy-resolver", "lazy.c", commands=_TO_RESOLVER, functions=("call", "call", "main"), least_frames=10),
    # The resolver's CFA is counted from rbx, which its callees save somewhere: rows say that of FP and RA only.
    Program(
        "lazy-search",
        "lazy.c",
        commands=(*_TO_RESOLVER, "stepi 300"),
        functions=(),
        least_frames=3,
        ending="unknown-register",
    ),
    Program("threads", "threads.c", functions=("stop_here", "main"), thread_count=7),
    Program("threads-static-pie", "threads.c", ("-static-pie",), thread_count=7),
    Program("noreturn", "noreturn.c", functions=("stop_here", "last", "ends", "last", "ends", "main"), least_frames=60),
)


def named(name: str) -> Program:
    """Return a program of the list."""
    return next(program for program in PROGRAMS if program.name == name)


def compile_program(program: Program, folder: Path, triplet: str = "") -> Path:
    """Compile a program into a folder, for another machine where its triplet is given."""
    target = folder / program.name
    kind = "g++" if program.source.endswith(".cpp") else "gcc"
    compiler = f"{triplet}-{kind}" if triplet else kind
    run(need(compiler), *FLAGS, *program.flags, "-o", target, SOURCES / program.source)
    return target


def is_core_name_plain() -> bool:
    """Return whether the kernel writes a core as `core` or `core.PID` into the working directory."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    return pattern.exists() and pattern.read_text().strip() == "core"


def allow_cores() -> None:
    """Let a process that is about to be started leave a core of any size that it may have."""
    limit = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (limit, limit))
