# SPDX-License-Identifier: Apache-2.0
"""Packages whose face names what their modules hold, and imports it when asked (PEP 562)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__`: `homes` says which of its modules holds a name. It raises `AttributeError`."""

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{package}.{home}"), name)

    return find
