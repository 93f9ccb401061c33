# SPDX-License-Identifier: Apache-2.0
"""The exception tree: one root, messages with a place, and exceptions that survive a process boundary."""

import pickle

import pytest

from cfi2sframe import errors
from cfi2sframe.errors import (
    Cfi2SFrameError,
    CfiError,
    ElfError,
    ErrorKind,
    InputError,
    NotElfError,
    RequestError,
    SFrameError,
    UnfitError,
    kind_of,
)

KINDS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InputError("too short"), "too short"),
        (InputError("too short", offset=4), "too short"),
        (ElfError("too short", ".text"), ".text: too short"),
        (CfiError("too short", ".eh_frame", 0), ".eh_frame+0x0: too short"),
        (SFrameError("too short", ".sframe", 28), ".sframe+0x1c: too short"),
    ],
)
def test_messages_name_the_place(error: InputError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(kind, OSError)])
def test_errors_survive_pickling(kind: type[Cfi2SFrameError]) -> None:
    error = kind("damaged", ".eh_frame", 12)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert (again.reason, again.where, again.offset, str(again)) == ("damaged", ".eh_frame", 12, str(error))


def test_there_is_one_root() -> None:
    assert len(KINDS) > 6
    assert all(issubclass(kind, Cfi2SFrameError) for kind in KINDS)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (RequestError("no such version"), ErrorKind.REQUEST),
        (NotElfError("not an ELF file"), ErrorKind.NOT_ELF),
        (UnfitError("no call frame information"), ErrorKind.UNFIT),
        (CfiError("too short", ".eh_frame", 0), ErrorKind.DAMAGED),
        (PermissionError(13, "Permission denied"), ErrorKind.SYSTEM),
        (MemoryError(), ErrorKind.SYSTEM),
        (ZeroDivisionError(), ErrorKind.INTERNAL),
    ],
)
def test_every_exception_has_a_kind(error: Exception, kind: ErrorKind) -> None:
    assert kind_of(error) is kind
