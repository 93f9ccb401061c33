# SPDX-License-Identifier: Apache-2.0
"""What SFrame costs: a record of numbers for each file, and sums of records. Sizes count bytes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.report.coverage import count_functions, figures
from cfi2sframe.report.gnu_size import gnu_size
from cfi2sframe.report.tables import column_sums

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cfi2sframe.conversion import Conversion


class FileSize(NamedTuple):
    """A file and its section, or with `add_up` the sums of several; `gnu_size` is an estimate.

    `cfi_size` counts all CFI that was read, of Go the table, and `existing_size` the `.sframe` that the file has. The
    section has `record_count` records and `row_count` rows, some of them shared. Functions are counted as
    `coverage.Coverage` does.
    """

    file: str
    arch: str
    sframe_version: int
    file_count: int = 0
    file_size: int = 0
    cfi_size: int = 0
    eh_frame_hdr_size: int = 0
    existing_size: int = 0
    sframe_size: int = 0
    gnu_size: int = 0
    function_count: int = 0
    left_out_count: int = 0
    in_part_count: int = 0
    record_count: int = 0
    row_count: int = 0

    @property
    def base_size(self) -> int:
        """The size of the CFI and its search table, which the section is compared with."""
        return self.cfi_size + self.eh_frame_hdr_size

    @property
    def ratio(self) -> float | None:
        """The section to the CFI with its search table; None without CFI."""
        return self.sframe_size / self.base_size if self.base_size else None

    @property
    def growth_percent(self) -> float | None:
        """The section in percent of the file."""
        return 100 * self.sframe_size / self.file_size if self.file_size else None


#: The fields that are added up.
SUMMED: Final = FileSize._fields[FileSize._fields.index("file_count") :]


def measure(conversion: Conversion) -> FileSize:
    """Return the sizes of a converted file."""
    image = conversion.image
    return FileSize(
        file=image.name,
        arch=image.arch.name,
        sframe_version=conversion.target.version,
        file_count=1,
        file_size=len(image.data),
        existing_size=0 if image.sframe_section is None else image.sframe_section.size,
        gnu_size=gnu_size(conversion),
        **figures(conversion, count_functions(conversion)[0]),
    )


def add_up(files: Sequence[FileSize], name: str) -> FileSize:
    """Return the sums of some files in one version."""
    arches = {file.arch for file in files}
    arch = arches.pop() if len(arches) == 1 else ""
    return FileSize(name, arch, files[0].sframe_version, **column_sums(files, SUMMED))
