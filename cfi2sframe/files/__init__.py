# SPDX-License-Identifier: Apache-2.0
"""Find the ELF files in what a user names: files, folders, static archives; write files whole.

Two steps, so that a pool of processes can share the work: `find_sources` lists files without reading more than their
first bytes; `open_source` gives the bytes of one of them, `images_of` its ELF images, one in memory at a time.

An archive is one input to the limits of time and memory (`cfi2sframe.guard`), by its size on disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.lazy import importer

if TYPE_CHECKING:
    from cfi2sframe.files.containers import images_of, member_name, open_source
    from cfi2sframe.files.find import find_relative, find_sources, kind_of_container
    from cfi2sframe.files.records import Source, SourceKind, Unusable

__all__ = [
    "Source",
    "SourceKind",
    "Unusable",
    "find_relative",
    "find_sources",
    "images_of",
    "kind_of_container",
    "member_name",
    "open_source",
]

_HOMES = {
    "Source": "records",
    "SourceKind": "records",
    "Unusable": "records",
    "find_relative": "find",
    "find_sources": "find",
    "kind_of_container": "find",
    "member_name": "containers",
    "images_of": "containers",
    "open_source": "containers",
}

# Writing a file must not pay for reading archives.
__getattr__ = importer(__name__, _HOMES)
