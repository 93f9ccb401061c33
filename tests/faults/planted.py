# SPDX-License-Identifier: Apache-2.0
"""Runs the program's main jobs with a fault planted in its source, each in a process of its own.

    python -m tests.faults.planted DIR < FAULTS       # a JSON list of [module, old text, new text]

prints, for each fault, a line of JSON: by name of a file of DIR, what became of the job (`Answer`).
"""

import contextlib
import io
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import NamedTuple


class Answer(NamedTuple):
    """What became of a job: its words, its output (hexadecimal; None: nothing written), and whether a check refused."""

    said: str
    written: str | None
    is_refused_by_check: bool


class _Loader(SourceFileLoader):
    """Loads a module with some text of its source replaced."""

    def __init__(self, name: str, path: str, old: str, new: str) -> None:
        super().__init__(name, path)
        self.change = old, new

    def get_code(self, fullname: str) -> CodeType:
        with open(self.path, encoding="utf-8") as file:
            source = file.read()
        old, new = self.change
        if source.count(old) != 1:
            raise LookupError(f"{fullname} has {source.count(old)} times: {old}")
        return compile(source.replace(old, new), self.path, "exec")


class Planter(MetaPathFinder):
    """Plants a fault in one module, when that is imported."""

    def __init__(self, module: str, old: str, new: str) -> None:
        self.module, self.old, self.new = module, old, new

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target) if fullname == self.module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, self.old, self.new)
        return spec


def answers(folder: str) -> dict[str, Answer]:
    """Run the job of each file: those called `remove-*` lose their section, others get one."""
    from cfi2sframe import emit
    from cfi2sframe.cli import main

    refused: list[BaseException] = []

    def noting(check: Callable[..., None]) -> Callable[..., None]:
        def noted(*arguments: object, **more: object) -> None:
            try:
                check(*arguments, **more)
            except Exception as error:
                refused.append(error)
                raise

        return noted

    for name in ("check_asked", "check_section", "check_removal"):
        setattr(emit, name, noting(getattr(emit, name)))
    found = {}
    output = os.path.join(folder, f"out-{os.getpid()}")
    for name in sorted(each for each in os.listdir(folder) if not each.startswith("out-")):
        refused.clear()
        words = ["remove"] if name.startswith("remove-") else ["--replace"]
        said, written = io.StringIO(), None
        with contextlib.redirect_stderr(said):
            main([*words, os.path.join(folder, name), "-o", output])
        if os.path.exists(output):
            with open(output, "rb") as file:
                written = file.read().hex()
            os.unlink(output)
        found[name] = Answer(said.getvalue(), written, bool(refused))
    return found


def _run(folder: str, fault: Sequence[str]) -> None:
    if fault:
        sys.meta_path.insert(0, Planter(*fault))
    try:
        found: object = answers(folder)
    except BaseException as error:  # noqa: BLE001 - the reader of this line judges
        found = {"": Answer(f"{type(error).__name__}: {error}", None, is_refused_by_check=False)}
    print(json.dumps(found), flush=True)  # noqa: T201 - the answer


def main() -> None:
    """Run each fault in a copy of this process, which has not imported the program."""
    import capstone  # noqa: F401 - once for all
    import elftools.elf.elffile  # noqa: F401

    for fault in json.load(sys.stdin):
        pid = os.fork()
        if not pid:
            _run(sys.argv[1], fault)
            os._exit(0)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main()
