# SPDX-License-Identifier: Apache-2.0
"""The exception tree: one root, messages that say where, and exceptions that survive a process boundary."""

import pickle

import pytest

from cfi2sframe import errors
from cfi2sframe.errors import (
    BudgetError,
    Cfi2SFrameError,
    CfiError,
    ChangedError,
    ElfError,
    InputError,
    RequestError,
    SFrameError,
    UnfitError,
)


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
def test_messages_say_where(error: InputError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize("kind", [InputError, ElfError, UnfitError, ChangedError, BudgetError, CfiError, SFrameError])
def test_input_errors_survive_pickling(kind: type[InputError]) -> None:
    error = kind("damaged", ".eh_frame", 12)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
    assert type(again) is kind
    assert (again.reason, again.where, again.offset, str(again)) == ("damaged", ".eh_frame", 12, str(error))


def test_there_is_one_root() -> None:
    kinds = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(kinds) > 6
    assert all(issubclass(kind, Cfi2SFrameError) for kind in kinds)


def test_a_wrong_request_is_no_damaged_input() -> None:
    assert not issubclass(RequestError, InputError)
    assert not issubclass(InputError, RequestError)
