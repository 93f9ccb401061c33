# SPDX-License-Identifier: Apache-2.0
"""Records of a request to convert, of the new bytes of a file, and of the outcome."""

from collections.abc import Callable
from enum import Enum
from typing import Literal, NamedTuple

from cfi2sframe.constants.elf import SHT_GNU_SFRAME
from cfi2sframe.conversion.options import Options
from cfi2sframe.elf.contents import FileData
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.errors import ErrorKind
from cfi2sframe.text import counted
from cfi2sframe.verification import READERS

Status = Literal["converted", "would convert", "removed", "would remove", "unchanged", "skipped", "failed"]


class SkipKind(Enum):
    """A reason why a file of a directory is skipped; the value is its name in reports."""

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


class Conditions(NamedTuple):
    """The user's conditions: a file that breaks one is not written, and fails.

    `is_strict`: nothing is damaged, unread or left out. `fail_under`: the least percentage of the bytes of code that is
    described.
    """

    is_strict: bool = False
    fail_under: float | None = None


class Request(NamedTuple):
    """A request to convert, whatever the file.

    `options` determine the section; functions that `reader` would refuse are left out. `debug_file` is the place of
    the separate debug file (`elf.debug_file.find_debug_file`); None: none is read. `is_raw`: the section alone is made,
    not a copy of the file with it. `replaces`: a different section is replaced. `verifies`: the new file is read back
    before it gets its name. `only_checks`: only a forecast is made. `wants_account`: the outcome has the account.
    """

    options: Options = Options()
    reader: str | None = None
    debug_file: str | None = None
    is_raw: bool = False
    replaces: bool = False
    verifies: bool = True
    only_checks: bool = False
    conditions: Conditions = Conditions()
    wants_account: bool = False

    @property
    def section_type(self) -> int:
        """The sh_type that the reader expects."""
        return SHT_GNU_SFRAME if self.reader is None else READERS[self.reader].section_type


class Outcome(NamedTuple):
    """The result of a job, or its forecast.

    `reason` says why it failed, was skipped or stays as it is; `kind` is the kind of a failure, `skip_kind` that of a
    skipped file. `section_size` (bytes) is that of the section written or removed. `described_count` FDEs are described
    from start to end, `in_part_count` in part, and `left_out_count` not at all. `placement` says where the section
    is. `account` is the JSON text of `coverage --format json`, `summary` a sentence; both only if asked for.
    """

    name: str = ""
    other_names: tuple[str, ...] = ()
    status: Status = "failed"
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


class Product(NamedTuple):
    """The new content of a file, and the outcome once that is written; the job adds the names.

    `content` None: the file stays as it is, or is copied to the output. `check` raises where the file as written is not
    what was asked for; None: nothing checks it. `is_copy`: the output has the rights of the file.
    """

    outcome: Outcome
    content: FileData | None = None
    check: Callable[[ElfImage], None] | None = None
    is_copy: bool = True


#: Takes, before the work on a file is done, the outcome that counts if it fails.
Note = Callable[[Outcome], None]
