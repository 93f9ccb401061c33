# SPDX-License-Identifier: Apache-2.0
"""The verb `convert`: one file to an output, or files in place."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.cli.batch import (
    check_apart,
    check_folder,
    exit_status,
    is_single,
    run_batch,
    run_here,
    say_end,
    write_report,
)
from cfi2sframe.cli.common import fail, fail_early, worst
from cfi2sframe.cli.convert_options import check, configure, output_job, settings_of
from cfi2sframe.cli.inputs import names_of
from cfi2sframe.errors import RequestError

if TYPE_CHECKING:
    import argparse

__all__ = ["configure", "execute"]


def execute(arguments: argparse.Namespace) -> int:
    """Convert what the arguments name; return the worst file's exit status."""
    if arguments.output is None:
        return _convert_in_place(arguments)
    try:
        check(arguments)
        check_folder(arguments.report)
        job = output_job(arguments, settings_of(arguments, wants_account=bool(arguments.report or arguments.verbose)))
        check_apart(arguments, [job])
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except OSError as error:
        return fail(error, arguments.report)
    outcome = run_here(job)
    say_end(arguments, outcome)
    report = f"{_indented(outcome.account)}\n" if arguments.report and outcome.account else None
    return worst((exit_status(outcome), write_report(arguments, report)))


def _indented(account: str) -> str:
    import json

    return json.dumps(json.loads(account), indent=2)


def _convert_in_place(arguments: argparse.Namespace) -> int:
    """Convert files in place, or check what that would do."""
    read = arguments.files_from
    try:
        check(arguments)
        names = names_of(arguments)
        wants_account = bool(arguments.report or (arguments.verbose and is_single(arguments, names)))
        settings = settings_of(arguments, wants_account=wants_account)
        read = arguments.report
        check_folder(read)
    except RequestError as error:
        return fail_early(error, arguments.inputs)
    except OSError as error:
        return fail(error, read)
    return run_batch(arguments, names, settings)
