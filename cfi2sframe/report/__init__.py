# SPDX-License-Identifier: Apache-2.0
"""Reports: what became of functions and code (`coverage`), what a section costs (`size`), what `audit` found.

In: conversions and findings. Out: one `Report` of tables and sentences, and a renderer for each format. Nothing here
knows where it is shown.
"""

from typing import Final

#: Raised when a key of the data of any report changes its meaning or is removed.
SCHEMA_VERSION: Final = 4
