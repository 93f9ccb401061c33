# SPDX-License-Identifier: Apache-2.0
"""The exception tree: what is raised when the bytes or the request are wrong.

Valid CFI that an SFrame version cannot say is not an error: it is a value, see `cfi2sframe.reasons`.
"""

from __future__ import annotations

import errno


class Cfi2SFrameError(Exception):
    """Root of every exception that the package raises on purpose."""


class RequestError(Cfi2SFrameError):
    """The caller asked for something that does not exist, such as version 1 for s390x."""


class InputError(Cfi2SFrameError):
    """The input cannot be used: where (a section, an offset in bytes from its start) and why.

    `where` is a section name, or another name for a part of the file; `offset` counts from that part's start.
    """

    def __init__(self, reason: str, where: str = "", offset: int | None = None) -> None:
        self.reason = reason
        self.where = where
        self.offset = offset
        super().__init__(str(self))

    def __str__(self) -> str:
        if not self.where:
            return self.reason
        place = self.where if self.offset is None else f"{self.where}+0x{self.offset:x}"
        return f"{place}: {self.reason}"

    def __reduce__(self) -> tuple[type[InputError], tuple[str, str, int | None]]:
        return (type(self), (self.reason, self.where, self.offset))


class ElfError(InputError):
    """The ELF structure is damaged, or of a kind that this program does not read."""


class ChangedError(InputError):
    """The file was changed by somebody else while it was being read or converted; nothing is written."""


class UnfitError(ElfError):
    """Nothing is wrong with the file, but there is nothing to convert: no ELF file, another kind or machine, no CFI."""


class BudgetError(InputError):
    """What the input asks for is out of proportion to its size (`cfi2sframe.budget`)."""


class CfiError(InputError):
    """A CIE, an FDE or a call frame instruction is damaged."""


class SFrameError(InputError):
    """An SFrame section is damaged."""


class EmbedError(Cfi2SFrameError):
    """A section cannot be put into this file without risk; nothing is written."""


class VerificationError(Cfi2SFrameError):
    """What was made does not say what it should; nothing is written."""


def reason_of(error: Exception) -> str:
    """Return in one line why work on a file failed, whatever was raised; what nobody foresaw is named as a bug."""
    if isinstance(error, Cfi2SFrameError):
        return str(error)
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        return _out_of_memory()
    if isinstance(error, OSError):
        return error.strerror or str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"
    return f"internal error: {ascii(f'{type(error).__name__}: {error}')[1:-1]}{place}; please report it"


def _out_of_memory() -> str:
    import resource

    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "out of memory" + ("" if limit == resource.RLIM_INFINITY else f" (limit {limit >> 20:,} MiB)")
