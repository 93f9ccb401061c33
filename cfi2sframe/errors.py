# SPDX-License-Identifier: Apache-2.0
"""The exceptions: the bytes or the request are wrong.

The kind of an exception decides the exit status and what reports count as a failure; its wording decides nothing. Valid
CFI that an SFrame version cannot express is no error but a value (`cfi2sframe.why`).
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import UnionType
from typing import ClassVar, Final

__all__ = [
    "Cfi2SFrameError",
    "CfiError",
    "ChangedError",
    "CostError",
    "ElfError",
    "EmbedError",
    "ErrorKind",
    "ForeignError",
    "IncompleteError",
    "InputError",
    "NotElfError",
    "OutputError",
    "PayloadError",
    "ReaderError",
    "RequestError",
    "SFrameError",
    "UnfitError",
    "VerificationError",
]

#: Capstone's number for it (CS_ERR_MEM).
_OUT_OF_MEMORY: Final = 1


class ErrorKind(Enum):
    """The kind of fault in a file or a request. Reports have the names in lower case."""

    REQUEST = "the request contradicts itself, or asks for what does not exist"
    NOT_ELF = "no ELF file"
    UNFIT = "an intact ELF file with nothing to convert: another class, type or machine, or no CFI"
    UNUSABLE = "the input cannot be read, or lacks what is needed"
    DAMAGED = "the bytes contradict their format"
    CHANGED = "somebody else changed the file during the run"
    COSTLY = "the input asks for work or memory out of proportion to its size"
    REFUSED = "the file cannot be rewritten without risk"
    WRONG = "the output was found wrong before it was published"
    INCOMPLETE = "functions are left out, and the caller forbids that"
    SYSTEM = "the operating system refused: no space, no permission, no memory, a process that died"
    INTERNAL = "a bug of this program"


class Cfi2SFrameError(Exception):
    """Root of all exceptions that the package raises on purpose. Its text has all fields; unknown ones are empty."""

    kind: ClassVar[ErrorKind] = ErrorKind.UNUSABLE
    reason: str
    """The message."""
    where: str
    """A section or another part of the file."""
    offset: int | None
    """Bytes from the start of that part."""
    file: str
    """The file's name as the caller gave it, or `process PID`."""

    def __init__(self, reason: str, where: str = "", offset: int | None = None, file: str = "") -> None:
        self.reason = reason
        self.where = where
        self.offset = offset
        self.file = file
        super().__init__(str(self))

    @property
    def detail(self) -> str:
        """The text without the file."""
        if not self.where:
            return self.reason
        place = self.where if self.offset is None else f"{self.where}+0x{self.offset:x}"
        return f"{place}: {self.reason}"

    def __str__(self) -> str:
        return f"{self.file}: {self.detail}" if self.file else self.detail

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> "tuple[type[Cfi2SFrameError], tuple[object, ...]]":
        return (type(self), (self.reason, self.where, self.offset, self.file))


@contextmanager
def with_file_name(file: str) -> Iterator[None]:
    """Set the file of exceptions that are raised by code that only has bytes."""
    try:
        yield
    except Cfi2SFrameError as error:
        error.file = error.file or file
        raise


@contextmanager
def naming_path(path: str) -> Iterator[None]:
    """Give an `OSError` the caller's path, instead of a descriptor or a part of the path."""
    try:
        yield
    except OSError as error:
        error.filename = path
        raise


class RequestError(Cfi2SFrameError):
    """The caller asked for something that does not exist, such as version 1 for s390x."""

    kind = ErrorKind.REQUEST


class InputError(Cfi2SFrameError):
    """The input cannot be used."""


class ElfError(InputError):
    """The ELF structure is damaged, or of a kind that this program does not read."""

    kind = ErrorKind.DAMAGED


class ArchiveError(InputError):
    """The structure of an archive is damaged."""

    kind = ErrorKind.DAMAGED


class ChangedError(InputError):
    """Somebody else changed the file while it was being read or converted; nothing is written."""

    kind = ErrorKind.CHANGED


class UnfitError(ElfError):
    """Nothing is wrong with the file, but it has nothing to convert: another class, type or machine, or no CFI."""

    kind = ErrorKind.UNFIT


class ForeignError(UnfitError):
    """An ELF file of a class, type or machine that SFrame is not defined for."""


class ReaderError(UnfitError):
    """The reader that the section is for would read none in such a file."""


class NotElfError(UnfitError):
    """The file is no ELF file at all."""

    kind = ErrorKind.NOT_ELF


class CostError(Cfi2SFrameError):
    """The input asks for time or memory out of proportion to its size (`guard.limited`).

    No `InputError`: it ends the whole job, also where a part that cannot be read would be left out.
    """

    kind = ErrorKind.COSTLY


class CfiError(InputError):
    """A CIE, an FDE or a call frame instruction is damaged."""

    kind = ErrorKind.DAMAGED


class SFrameError(InputError):
    """An SFrame section is damaged."""

    kind = ErrorKind.DAMAGED


class EmbedError(Cfi2SFrameError):
    """A section cannot be put into this file without risk; nothing is written."""

    kind = ErrorKind.REFUSED


class PayloadError(EmbedError):
    """A linked file has data after all that its headers describe: an archive, a saved image, a signature."""


class SectionError(EmbedError):
    """The file keeps the section that it has: it may be something else, or the user has not asked to lose its rows."""


class VerificationError(Cfi2SFrameError):
    """The output contradicts the CFI; nothing is written."""

    kind = ErrorKind.WRONG


class IncompleteError(Cfi2SFrameError):
    """Functions would be left out, and the caller forbids that; nothing is written."""

    kind = ErrorKind.INCOMPLETE


class OutputError(Cfi2SFrameError):
    """The operating system refused to write the output; `where` and `file` are its path."""

    kind = ErrorKind.SYSTEM

    def __init__(self, reason: str, where: str = "", offset: int | None = None, file: str = "") -> None:
        super().__init__(reason, where, offset, file or where)

    def __str__(self) -> str:
        return self.detail


def checked_path(path: object) -> str:
    """Return a path as text. Raises `RequestError` for anything that the operating system does not accept as a path."""
    text = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(text, str) or "\0" in text:
        raise RequestError(f"not a path: {text!r}" if isinstance(text, str) else f"not a path: {type(text).__name__}")
    return text


def check_type(value: object, kind: type | UnionType, what: str, way_out: str) -> None:
    """Raise `RequestError`, with the way out, unless a value is of a type, which the message calls `what`."""
    if not isinstance(value, kind):
        raise RequestError(f"not {what}: {type(value).__name__}; {way_out}")


def kind_of(error: Exception) -> ErrorKind:
    """Return the kind of a failure; an unexpected exception is a bug of this program."""
    if isinstance(error, Cfi2SFrameError):
        return error.kind
    return ErrorKind.SYSTEM if isinstance(error, OSError) or is_out_of_memory(error) else ErrorKind.INTERNAL


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception means that memory ran out: Python's, the system's or capstone's.

    Where an allocation fails, Python 3.13 may set no exception, and then raises a SystemError that says so.
    """
    if type(error).__name__ == "CsError":
        return getattr(error, "errno", None) == _OUT_OF_MEMORY
    if isinstance(error, SystemError):
        return "without exception set" in str(error) or "without setting an exception" in str(error)
    return isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM)


def reason_of(error: Exception) -> str:
    """Return the reason why work on a file failed, in one line and without the file's name, for any exception."""
    if isinstance(error, Cfi2SFrameError):
        return error.detail
    if is_out_of_memory(error):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        return "out of memory" + ("" if limit == resource.RLIM_INFINITY else f" (limit {limit >> 20:,} MiB)")
    if isinstance(error, OSError):
        return error.strerror or str(error)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    place = "" if trace is None else f" at {trace.tb_frame.f_globals.get('__name__', '?')}:{trace.tb_lineno}"
    return f"internal error: {ascii(f'{type(error).__name__}: {error}')[1:-1]}{place}; please report it"
