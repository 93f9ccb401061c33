# SPDX-License-Identifier: Apache-2.0
"""The exception tree: one root, messages with a place, and exceptions that survive a process boundary."""

import pickle
import resource

import pytest

from cfi2sframe import errors

KINDS = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (errors.InputError("too short"), "too short"),
        (errors.InputError("too short", offset=4), "too short"),
        (errors.ElfError("too short", ".text"), ".text: too short"),
        (errors.CfiError("too short", ".eh_frame", 0), ".eh_frame+0x0: too short"),
        (errors.SFrameError("too short", ".sframe", 28), ".sframe+0x1c: too short"),
    ],
)
def test_messages_name_the_place(error: errors.InputError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("kind", [kind for kind in KINDS if not issubclass(kind, OSError)])
def test_errors_survive_pickling(kind: type[errors.Cfi2SFrameError]) -> None:
    error = kind("damaged", ".eh_frame", 12)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert (again.reason, again.where, again.offset, str(again)) == ("damaged", ".eh_frame", 12, str(error))


def test_there_is_one_root() -> None:
    assert len(KINDS) > 6
    assert all(issubclass(kind, errors.Cfi2SFrameError) for kind in KINDS)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (errors.RequestError("no such version"), errors.ErrorKind.REQUEST),
        (errors.NotElfError("not an ELF file"), errors.ErrorKind.NOT_ELF),
        (errors.UnfitError("no call frame information"), errors.ErrorKind.UNFIT),
        (errors.CfiError("too short", ".eh_frame", 0), errors.ErrorKind.DAMAGED),
        (PermissionError(13, "Permission denied"), errors.ErrorKind.SYSTEM),
        (MemoryError(), errors.ErrorKind.SYSTEM),
        (SystemError("error return without exception set"), errors.ErrorKind.SYSTEM),
        (SystemError("<built-in method read> returned NULL without setting an exception"), errors.ErrorKind.SYSTEM),
        (SystemError("bad argument to internal function"), errors.ErrorKind.INTERNAL),
        (ZeroDivisionError(), errors.ErrorKind.INTERNAL),
    ],
)
def test_every_exception_has_a_kind(error: Exception, kind: errors.ErrorKind) -> None:
    assert errors.kind_of(error) is kind


def test_a_bug_is_told_with_the_place_where_it_was_raised() -> None:
    def divide() -> None:
        raise ZeroDivisionError("by\nzero")

    def work() -> None:
        divide()

    with pytest.raises(ZeroDivisionError) as caught:
        work()
    place = f"{__name__}:{divide.__code__.co_firstlineno + 1}"
    assert (
        errors.reason_of(caught.value) == rf"internal error: ZeroDivisionError: by\nzero at {place}; please report it"
    )
    assert errors.reason_of(KeyError(1)) == "internal error: KeyError: 1; please report it"


@pytest.mark.parametrize(
    ("limit", "text"), [(resource.RLIM_INFINITY, ""), (1 << 20, " (limit 1 MiB)"), (5000 << 20, " (limit 5,000 MiB)")]
)
def test_a_lack_of_memory_is_told_with_the_limit_in_force(
    limit: int, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", {resource.RLIMIT_AS: (limit, 1 << 50)}.get)
    for error in (MemoryError(), OSError(12, "Cannot allocate memory"), SystemError("return without exception set")):
        assert errors.reason_of(error) == f"out of memory{text}"


def test_an_error_of_the_system_is_told_in_its_words() -> None:
    assert errors.reason_of(PermissionError(13, "Permission denied")) == "Permission denied"
    assert errors.reason_of(OSError("no number")) == "no number"
