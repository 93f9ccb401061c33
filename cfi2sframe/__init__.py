# SPDX-License-Identifier: Apache-2.0
"""cfi2sframe: SFrame sections from the DWARF CFI of finished objects, executables and libraries."""

from __future__ import annotations

__version__ = "0.1.0"
