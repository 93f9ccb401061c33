# SPDX-License-Identifier: Apache-2.0
"""Packages that name the contents of their modules, and import a module when a name is used (PEP 562)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def importer(package: str, homes: Mapping[str, str]) -> Callable[[str], object]:
    """Return a package's `__getattr__`; `homes` maps each name to its module. It raises `AttributeError`.

    A name whose home is empty is a module itself.
    """

    def find(name: str) -> object:
        home = homes.get(name)
        if home is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{package}.{home}"), name) if home else import_module(f"{package}.{name}")

    return find
