# SPDX-License-Identifier: Apache-2.0
"""What to do to a file, and what became of it: immutable records that can be pickled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

from cfi2sframe.conversion import Options
from cfi2sframe.elf.constants import SHT_GNU_SFRAME
from cfi2sframe.printable import counted
from cfi2sframe.readers import READERS

if TYPE_CHECKING:
    import os

    from cfi2sframe.errors import ErrorKind
    from cfi2sframe.files.kinds import SkipKind

Status = Literal["converted", "would convert", "removed", "would remove", "unchanged", "skipped", "failed"]


class Settings(NamedTuple):
    """How to convert files, or with `removes` how to take the section out of them; then only some of these count.

    `reader` is who is to read the section: functions that it would refuse are left out. `replaces`: a different
    `.sframe` section is replaced. `verifies`: the written file is read back before the rename. `keeps_rights`: a
    file whose owner, set-ID bits or attributes cannot be kept is refused. `is_strict` and
    `fail_under` (percent of the bytes of code) forbid functions that are left out. `skips_unfit`: files with nothing to
    convert are skipped. `only_checks`: nothing is written. `wants_account`: outcomes have the account. `is_in_tree`:
    the file was found in a folder, so that what is not for this program (`files.kinds.SkipKind`) is skipped. `is_raw`:
    an output gets the bytes of the section alone, instead of a copy of the input.
    """

    options: Options = Options()
    reader: str | None = None
    replaces: bool = False
    verifies: bool = True
    keeps_rights: bool = False
    is_strict: bool = False
    fail_under: float | None = None
    skips_unfit: bool = False
    only_checks: bool = False
    wants_account: bool = False
    is_in_tree: bool = False
    removes: bool = False
    is_raw: bool = False

    @property
    def section_type(self) -> int:
        """The sh_type that the reader expects."""
        return SHT_GNU_SFRAME if self.reader is None else READERS[self.reader].section_type

    @property
    def takes_objects(self) -> bool:
        """Whether relocatable objects in folders are not skipped."""
        return self.removes or (self.reader is not None and READERS[self.reader].reads_objects)


class Job(NamedTuple):
    """A file to convert, in place or to an `output`: a path, or `-` for standard output.

    `name` is used in messages. In place, `targets` are the absolute resolved paths of all names that were given for the
    file: the first is read, and all are the new file afterwards; with an output, the one target is the path as it was
    given, `-` for standard input. `other_names` are the given names other than `name`. `state` is None if it could not
    be determined. `raises`: failures are raised.
    """

    name: str
    targets: tuple[str, ...]
    settings: Settings
    other_names: tuple[str, ...] = ()
    state: os.stat_result | None = None
    output: str | None = None
    raises: bool = False

    @property
    def size(self) -> int:
        """The size of the file in bytes, 0 if it is unknown."""
        return 0 if self.state is None else self.state.st_size


class Outcome(NamedTuple):
    """What became of a file, or with `only_checks` would.

    `reason` tells why it was skipped or failed, or has no section to remove; `kind` is that of the failure,
    `skip_kind` what a skipped file is, None without one. `section_size` (bytes) is that of the `.sframe` section,
    or of the one removed. `function_count` counts the FDEs that are described from start to end, `left_out_count`
    those without an SFrame FDE, and `in_parts_count` those that are described in part. `placement` tells where the
    section was put. `account` is JSON text as `coverage --format json` prints it, `summary` a sentence; both are empty
    unless asked for.
    """

    name: str
    other_names: tuple[str, ...]
    status: Status
    kind: ErrorKind | None = None
    reason: str = ""
    warnings: tuple[str, ...] = ()
    section_size: int = 0
    function_count: int = 0
    left_out_count: int = 0
    in_parts_count: int = 0
    placement: str = ""
    summary: str = ""
    account: str = ""
    skip_kind: SkipKind | None = None

    def __repr__(self) -> str:
        words: list[str] = [self.status]
        if self.reason:
            words.append(self.reason)
        if self.status == "converted":
            words += [counted(self.function_count, "function"), counted(self.section_size, "byte")]
        return f"<Outcome of {self.name}: {', '.join(words)}>"
