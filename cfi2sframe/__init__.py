# SPDX-License-Identifier: Apache-2.0
"""cfi2sframe: SFrame sections from the DWARF CFI of finished objects, executables and libraries.

image = cfi2sframe.load("/bin/ls")
conversion = cfi2sframe.convert(image, cfi2sframe.Options(version=3))
assert cfi2sframe.verify(image).is_clean
section = cfi2sframe.decode(conversion.data, conversion.section_vaddr)
found = cfi2sframe.Lookup(section).find(pc)

Stack traces that use such sections are in `cfi2sframe.trace`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cfi2sframe.lazy import importer

if TYPE_CHECKING:
    from cfi2sframe.api import convert, decode, decode_existing, decode_raw, verify
    from cfi2sframe.conversion import Conversion, Options
    from cfi2sframe.elf.load import load
    from cfi2sframe.errors import Cfi2SFrameError
    from cfi2sframe.report.coverage import account
    from cfi2sframe.sframe.lookup import Lookup

__version__ = "0.1.0"

__all__ = [
    "Cfi2SFrameError",
    "Conversion",
    "Lookup",
    "Options",
    "__version__",
    "account",
    "convert",
    "decode",
    "decode_existing",
    "decode_raw",
    "load",
    "verify",
]

_HOMES = {
    "Cfi2SFrameError": "errors",
    "Conversion": "conversion",
    "Lookup": "sframe.lookup",
    "Options": "conversion",
    "account": "report.coverage",
    "convert": "api",
    "decode": "api",
    "decode_existing": "api",
    "decode_raw": "api",
    "load": "elf.load",
    "verify": "api",
}

# Imported when first asked for: the command line must not load what it does not use.
__getattr__ = importer(__name__, _HOMES)
