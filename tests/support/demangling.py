# SPDX-License-Identifier: Apache-2.0
"""Whether C++ names can be made readable here."""

from __future__ import annotations

import ctypes

import pytest


def needs_demangling() -> None:
    """Skip the test where GCC's C++ run-time library is not there."""
    try:
        ctypes.CDLL("libstdc++.so.6")
    except OSError:
        pytest.skip("libstdc++.so.6 makes C++ names readable; get it with: apt-get install libstdc++6")
