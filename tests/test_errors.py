# SPDX-License-Identifier: Apache-2.0
"""The exception tree: one root, messages with a place, and exceptions that survive a process boundary."""

import pickle
import resource

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
    reason_of,
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
        (SystemError("error return without exception set"), ErrorKind.SYSTEM),
        (SystemError("<built-in method read> returned NULL without setting an exception"), ErrorKind.SYSTEM),
        (SystemError("bad argument to internal function"), ErrorKind.INTERNAL),
        (ZeroDivisionError(), ErrorKind.INTERNAL),
    ],
)
def test_every_exception_has_a_kind(error: Exception, kind: ErrorKind) -> None:
    assert kind_of(error) is kind


def test_a_bug_is_told_with_the_place_where_it_was_raised() -> None:
    def divide() -> None:
        raise ZeroDivisionError("by\nzero")

    def work() -> None:
        divide()

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    place = f"{__name__}:{divide.__code__.co_firstlineno + 1}"
    assert reason_of(caught.value) == rf"internal error: ZeroDivisionError: by\nzero at {place}; please report it"
    assert reason_of(KeyError(1)) == "internal error: KeyError: 1; please report it"


@pytest.mark.parametrize(
    ("limit", "text"), [(resource.RLIM_INFINITY, ""), (1 << 20, " (limit 1 MiB)"), (5000 << 20, " (limit 5,000 MiB)")]
)
def test_a_lack_of_memory_is_told_with_the_limit_in_force(
    limit: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_AS: (limit, 1 << 50)}.get)
    for error in (MemoryError(), OSError(12, "Cannot allocate memory"), SystemError("return without exception set")):
        assert reason_of(error) == f"out of memory{text}"


def test_an_error_of_the_system_is_told_in_its_words() -> None:
    assert reason_of(PermissionError(13, "Permission denied")) == "Permission denied"
    assert reason_of(OSError("no number")) == "no number"
