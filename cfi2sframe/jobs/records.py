# SPDX-License-Identifier: Apache-2.0
"""What is to be done to a file, and what became of it: immutable records that can be pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.conversion import Options
from cfi2sframe.elf.constants import SHT_GNU_SFRAME

if TYPE_CHECKING:
    import os

Status = Literal["converted", "would convert", "unchanged", "skipped", "failed"]
#: Why a file failed: functions are left out and that was forbidden; the request makes no sense; anything else.
Problem = Literal["", "incomplete", "request", "unusable"]


class Settings(NamedTuple):
    """What to do to every file.

    `replaces`: a different `.sframe` gives way. `verifies`: the written file is read back before it is renamed.
    `is_strict` and `min_coverage` (percent of the functions) forbid what is left out. `skips_unfit`: files that have
    nothing to convert are passed over. `only_checks`: nothing is written. `wants_account`: outcomes carry the account.
    `may_move_table`: see `cfi2sframe.emit.emit`.
    """

    options: Options = Options()
    section_type: int = SHT_GNU_SFRAME
    may_move_table: bool = False
    replaces: bool = False
    verifies: bool = True
    is_strict: bool = False
    min_coverage: float | None = None
    skips_unfit: bool = False
    only_checks: bool = False
    wants_account: bool = False


class FileState(NamedTuple):
    """What tells a file from any other, and from itself when it has been changed. Times are nanoseconds."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    link_count: int

    @classmethod
    def of(cls, status: os.stat_result) -> FileState:
        """Return what a `stat` found."""
        return cls(
            status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink
        )


class Job(NamedTuple):
    """A file to convert in place.

    `name` is what messages call it. `targets` are the absolute paths, symbolic links resolved, of all the names that
    were given for it: the first is read, and all are the new file afterwards. `other_names` are what those besides
    `name` were called. `state` is None where the file could not be looked at.
    """

    name: str
    targets: tuple[str, ...]
    other_names: tuple[str, ...]
    state: FileState | None
    settings: Settings


class Outcome(NamedTuple):
    """What became of a file, or with `only_checks` would.

    `reason` says why it was skipped or failed (then `problem` says which kind of failure). `section_size` and
    `function_count` are those of the `.sframe` section, `left_out_count` counts functions without an SFrame FDE.
    `account` is JSON text as `coverage --json` prints it, `summary` a sentence for people; both are empty unless
    asked for. `state` is the file's after the job, None when it failed.
    """

    name: str
    other_names: tuple[str, ...]
    status: Status
    problem: Problem = ""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    section_size: int = 0
    function_count: int = 0
    left_out_count: int = 0
    placement: str = ""
    summary: str = ""
    account: str = ""
    state: FileState | None = None
