# SPDX-License-Identifier: Apache-2.0
"""What to do to a file, and what became of it: immutable records that can be pickled."""

import os
from enum import Enum
from typing import Literal, NamedTuple

from cfi2sframe.constants.elf import SHT_GNU_SFRAME
from cfi2sframe.constants.sframe import SFRAME_VERSION_3
from cfi2sframe.conversion.options import Options
from cfi2sframe.errors import ErrorKind
from cfi2sframe.text import counted
from cfi2sframe.verification import READERS

Status = Literal["converted", "would convert", "removed", "would remove", "unchanged", "skipped", "failed"]


class SkipKind(Enum):
    """Why a file of a directory is left alone. The values are what reports have."""

    NOT_ELF = "no ELF file"
    FOREIGN = "other machine"
    NO_CFI = "no CFI"
    READER = "not for the reader"
    OBJECT = "relocatable object"
    MODULE = "kernel module"
    DEBUG_FILE = "separate debug file"
    KERNEL = "kernel image"
    SECTION = "another section"
    PAYLOAD = "data after the ELF file"


class Settings(NamedTuple):
    """How to convert a file or, with `removes`, how to take the section out of it; then only some of these count.

    `reader` is who reads the section: functions that it would refuse are left out. `replaces`: a different section is
    replaced. `verifies`: the file is read back before the rename. `keeps_rights`: refuse a file whose owner, set-ID
    bits or attributes cannot be kept. `is_strict` and `fail_under` (percent of the bytes of code) make functions that
    are left out a failure. `skips_unfit`: skip a file with nothing to convert. `only_checks`: write nothing.
    `wants_account`: the outcome has the account. `is_in_tree`: the file was found in a directory; skip what is not for
    this program (`SkipKind`). `is_raw`: the output is the section alone, not a copy of the input. `debug_file` is where
    to look for the file's separate debug file (`elf.debug_file.find_debug_file`); None: nowhere.
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
    debug_file: str | None = None

    @property
    def section_type(self) -> int:
        """The sh_type that the reader expects."""
        return SHT_GNU_SFRAME if self.reader is None else READERS[self.reader].section_type

    @property
    def names_version(self) -> bool:
        """Whether the user has asked for a version, errata or reader, and not for what describes most."""
        return self.reader is not None or self.options.version != SFRAME_VERSION_3 or self.options.errata is not None

    @property
    def takes_objects(self) -> bool:
        """Whether relocatable objects in directories are converted."""
        return self.removes or (self.reader is not None and READERS[self.reader].reads_objects)


class Job(NamedTuple):
    """A file to convert, in place or to an `output`: a path, or `-` for standard output.

    `name` is the file's in messages. In place, `targets` are the resolved paths of all names given for the file: the
    first is read, and each is a name of the new file afterwards. With an output, the only target is the path as given,
    `-` for standard input. `other_names` are the given names besides `name`. `state` is None where stat(2) fails.
    `raises`: a failure is raised instead of being an outcome.
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
    """What became of a file, or with `only_checks` would become of it.

    `reason` says why it failed, was skipped or stays as it is; `kind` is the kind of a failure, `skip_kind` that of a
    skipped file. `section_size` (bytes) is that of the section written or removed. `described_count` FDEs are described
    from start to end, `in_part_count` in part, and `left_out_count` not at all. `placement` says where the section
    is. `account` is the JSON text of `coverage --format json`, `summary` a sentence; both only if asked for.
    """

    name: str
    other_names: tuple[str, ...]
    status: Status
    kind: ErrorKind | None = None
    reason: str = ""
    warnings: tuple[str, ...] = ()
    section_size: int = 0
    described_count: int = 0
    left_out_count: int = 0
    in_part_count: int = 0
    placement: str = ""
    summary: str = ""
    account: str = ""
    skip_kind: SkipKind | None = None

    def __repr__(self) -> str:
        words: list[str] = [self.status]
        if self.reason:
            words.append(self.reason)
        if self.status == "converted":
            words += [counted(self.described_count, "function"), counted(self.section_size, "byte")]
        return f"<Outcome of {self.name}: {', '.join(words)}>"
