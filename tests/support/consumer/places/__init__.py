# SPDX-License-Identifier: Apache-2.0
"""A C and a C++ program that call compare() in places of their lives where stacks are hard to walk."""

from pathlib import Path
from typing import Final

from tests.support.needs import need, run

FOLDER: Final = Path(__file__).parent
FLAGS: Final = ("-O2", "-Wall", "-Wextra", "-Werror", "-pthread", "-Wl,-z,lazy", "-rdynamic")
#: What the programs need in the folder lib/ beside them.
LIBRARIES: Final = ("libplaces.so", "libplaces2.so")
IN_C: Final = (
    *("deep", "alloca", "qsort", "tree", "signal", "signal-stack", "signal-fault", "signal-loop", "abort", "thread"),
    *("thread-exit", "thread-key", "thread-cancelled", "once", "atexit", "destructor", "noreturn", "library", "dlopen"),
    *("dlopen-constructor", "plt-resolution", "context", "longjmp"),
)
IN_CPP: Final = (
    *("catch", "unwinding", "unwinding-std-thread", "rethrow", "copy", "function", "static-destructor"),
    *("terminate-noexcept", "terminate-destructor", "terminate-uncaught", "abort-destructor", "abort-unwinding"),
)
#: Where the stack passes a call that does not return and ends its function.
PAST_NORETURN_CALLS: Final = ("noreturn", "signal-loop", "atexit", "destructor", "static-destructor")


def program_of(place: str) -> str:
    """Return the name of the program that has a place."""
    return "places_cc" if place in IN_CPP else "places"


def build(folder: Path, compare: str) -> None:
    """Build the programs in a folder, with the compare() of a source, and their libraries in its lib/."""
    need("cc", "c++")
    lib = folder / "lib"
    lib.mkdir(exist_ok=True)
    for name in LIBRARIES:
        soname = f"-Wl,-soname,{name}"
        run("cc", *FLAGS, "-shared", "-fPIC", FOLDER / "places_library.c", soname, "-o", lib / name)
    run("cc", *FLAGS, "-c", FOLDER / compare, "-o", folder / "compare.o")
    links = (folder / "compare.o", lib / "libplaces.so", "-ldl", "-Wl,-rpath,$ORIGIN/lib")
    run("cc", *FLAGS, FOLDER / "places.c", *links, "-o", folder / "places")
    run("c++", *FLAGS, FOLDER / "places.cc", *links, "-o", folder / "places_cc")
