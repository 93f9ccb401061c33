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

# From `typing`, it would make the start take longer, during which an interrupt cannot be caught.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from cfi2sframe import emit, errors, trace
    from cfi2sframe.abi.record import Arch
    from cfi2sframe.abi.rule import NamedRule, Rule
    from cfi2sframe.api import convert, decode, decode_existing, judge, verify
    from cfi2sframe.conversion.convert import Conversion
    from cfi2sframe.conversion.sources import UnreadSource
    from cfi2sframe.elf.contents import LazyBytes
    from cfi2sframe.elf.debug_file import find_debug_file
    from cfi2sframe.elf.image import ElfImage, SectionOffset
    from cfi2sframe.elf.load import load
    from cfi2sframe.errors import Cfi2SFrameError
    from cfi2sframe.jobs.products import convert_file
    from cfi2sframe.jobs.records import Outcome, SkipKind
    from cfi2sframe.placing.undo import Removal
    from cfi2sframe.process import guard
    from cfi2sframe.report.coverage import Coverage, Missing, MissingSum, account
    from cfi2sframe.sframe.model import Found, FrameRow, FrameState, Function, FunctionBody, Section
    from cfi2sframe.sframe.read import DecodedSection, Header
    from cfi2sframe.verification.readers import Broken, Verdict
    from cfi2sframe.verification.truth import Judged
    from cfi2sframe.verification.verify import Difference, Verification

__version__ = "0.1.0"

__all__ = [
    "Arch",
    "Broken",
    "Cfi2SFrameError",
    "Conversion",
    "Coverage",
    "DecodedSection",
    "Difference",
    "ElfImage",
    "Found",
    "FrameRow",
    "FrameState",
    "Function",
    "FunctionBody",
    "Header",
    "Judged",
    "LazyBytes",
    "Missing",
    "MissingSum",
    "NamedRule",
    "Outcome",
    "Removal",
    "Rule",
    "Section",
    "SectionOffset",
    "SkipKind",
    "UnreadSource",
    "Verdict",
    "Verification",
    "__version__",
    "account",
    "convert",
    "convert_file",
    "decode",
    "decode_existing",
    "emit",
    "errors",
    "find_debug_file",
    "guard",
    "judge",
    "load",
    "trace",
    "verify",
]

#: The module of each name.
_HOMES = {
    "Arch": "abi.record",
    "Broken": "verification.readers",
    "Cfi2SFrameError": "errors",
    "Conversion": "conversion.convert",
    "Coverage": "report.coverage",
    "DecodedSection": "sframe.read",
    "Difference": "verification.verify",
    "ElfImage": "elf.image",
    "Found": "sframe.model",
    "FrameRow": "sframe.model",
    "FrameState": "sframe.model",
    "Function": "sframe.model",
    "FunctionBody": "sframe.model",
    "Header": "sframe.read",
    "Judged": "verification.truth",
    "LazyBytes": "elf.contents",
    "Missing": "report.coverage",
    "MissingSum": "report.coverage",
    "NamedRule": "abi.rule",
    "Outcome": "jobs.records",
    "Removal": "placing.undo",
    "Rule": "abi.rule",
    "Section": "sframe.model",
    "SectionOffset": "elf.image",
    "SkipKind": "jobs.records",
    "UnreadSource": "conversion.sources",
    "Verdict": "verification.readers",
    "Verification": "verification.verify",
    "account": "report.coverage",
    "convert": "api",
    "convert_file": "jobs.products",
    "decode": "api",
    "decode_existing": "api",
    "find_debug_file": "elf.debug_file",
    "judge": "api",
    "load": "elf.load",
    "verify": "api",
}
#: The names that are modules themselves.
_MODULES = {"emit": "emit", "errors": "errors", "guard": "process.guard", "trace": "trace"}


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
