# SPDX-License-Identifier: Apache-2.0
"""cfi2sframe: SFrame sections from the DWARF CFI of finished objects, executables and libraries.

cfi2sframe.convert_file("program", "program.new")      # a copy with the section in it; or in_place=True
conversion = cfi2sframe.convert("program")              # in memory
section = cfi2sframe.decode_existing("program.new")     # iterates over functions, which iterate over rows
where = section.find(pc)                                # None, or where CFA, RA and FP are
where.cfa, where.ra, where.fp                           # rsp+16, c-8, c-16
print(cfi2sframe.trace.trace_process(pid))              # stacks, walked by such rows

Errors are `Cfi2SFrameError`s (`cfi2sframe.errors`); if a file cannot be opened or read, also an `OSError`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cfi2sframe import errors, trace
    from cfi2sframe.api import convert, decode, decode_existing, verify
    from cfi2sframe.conversion.convert import Conversion
    from cfi2sframe.elf.load import load
    from cfi2sframe.errors import Cfi2SFrameError
    from cfi2sframe.jobs.listing import convert_file
    from cfi2sframe.process import guard as guard
    from cfi2sframe.report.coverage import account
    from cfi2sframe.sframe.model import Section
    from cfi2sframe.verification.verify import Verification

__version__ = "0.1.0"

__all__ = [
    "Cfi2SFrameError",
    "Conversion",
    "Section",
    "Verification",
    "__version__",
    "account",
    "convert",
    "convert_file",
    "decode",
    "decode_existing",
    "errors",
    "load",
    "trace",
    "verify",
]

#: The module of each name.
_HOMES = {
    "Cfi2SFrameError": "errors",
    "Conversion": "conversion.convert",
    "Section": "sframe.model",
    "Verification": "verification.verify",
    "account": "report.coverage",
    "convert": "api",
    "convert_file": "jobs.listing",
    "decode": "api",
    "decode_existing": "api",
    "load": "elf.load",
    "verify": "api",
}
#: The names that are modules themselves.
_MODULES = {"errors": "errors", "guard": "process.guard", "trace": "trace"}


def __getattr__(name: str) -> object:
    # Imported when first asked for: the command line must not load what it does not use.
    home = _HOMES.get(name) or _MODULES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module = import_module(f"{__name__}.{home}")
    return getattr(module, name) if name in _HOMES else module


def __dir__() -> list[str]:
    return sorted(__all__)
