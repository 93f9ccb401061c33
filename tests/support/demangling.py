# SPDX-License-Identifier: Apache-2.0
"""Whether C++ names can be made readable here."""

from __future__ import annotations

from tests.support.needs import need


def needs_demangling() -> None:
    """Skip the test where there is no c++filt."""
    need("c++filt")
