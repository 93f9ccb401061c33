#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Build a wheel whose hot modules are compiled by mypyc: compiled.py DIR. For this Python and this kind of machine.

The pure wheel of the same sources, and an extension module beside each source file that is compiled: Python prefers
those, tracebacks show the sources, and where an extension module does not fit, the source runs. Each compiled module is
imported before the wheel is written. Wants mypy, setuptools and flit_core (the extra `compiled`) and a C compiler.
MYPYC_OPT_LEVEL is the compiler's -O (default 2).
"""

from __future__ import annotations

import ast
import base64
import contextlib
import hashlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import zipfile
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from dist import ROOT, source_date

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

#: What is compiled: the way from a file's bytes to a section's, and back. Chosen by measured CPU time ("Compiled" in
#: docs/lab/size-and-speed.md). A new module in one of these folders is compiled too, unless `KEPT` names it.
COMPILED: Final = (
    "*.py",
    "code/*.py",
    "code/s390x/*.py",
    "dwarf/*.py",
    "elf/*.py",
    "gotable/*.py",
    "sframe/*.py",
    "verification/*.py",
)
#: What is not, and why.
KEPT: Final = {
    "__init__.py": "the package's face imports when asked",
    "__main__.py": "runs as a script",
    "*/__init__.py": "nothing to run",
    "api.py": "strings calls together",
    "demangle.py": "runs once for each name that is shown",
    "elf/contents.py": "reads ranges of files",
    "elf/load.py": "opens files",
    "errors.py": "nothing to run",
    "lazy.py": "runs once for each name that is asked for",
    "limits.py": "runs once for each file of a pool",
    "pool.py": "runs once for each file of a pool",
    "printable.py": "runs once for each line that is printed",
    "processes.py": "runs once for each file of a pool",
    "reasons.py": "nothing to run",
    "sframe/dump.py": "prints",
}
PACKAGE: Final = "cfi2sframe"
#: A class that mypyc does not find, beside those that are imported for types only.
NOT_FOUND: Final = "memoryview"

#: Run in a folder with the package: imports a module, and says what is wrong with it.
IMPORT: Final = """
import importlib, sys
try:
    path = importlib.import_module(sys.argv[1]).__file__
except Exception as error:
    print(f"{type(error).__name__}: {error}")
else:
    if path.endswith(".py"):
        print(f"not the compiled module: {path}")
"""


class BuildError(Exception):
    """Why no wheel can be built, for the user."""


class Member(NamedTuple):
    """A file of a wheel."""

    info: zipfile.ZipInfo
    data: bytes


def compiled_files(package: Path) -> list[str]:
    """Return the files to compile, relative to the package's folder.

    Raises `BuildError` when a pattern of `COMPILED` or `KEPT` fits nothing: the module has another name now.
    """
    found = {path.relative_to(package).as_posix() for pattern in COMPILED for path in package.glob(pattern)}
    stale = [pattern for pattern in COMPILED if next(package.glob(pattern), None) is None]
    stale += [pattern for pattern in KEPT if not any(fnmatch(name, pattern) for name in found)]
    if stale:
        raise BuildError(f"no module is called {' or '.join(stale)}: see the lists of modules in this script")
    return sorted(name for name in found if not any(fnmatch(name, pattern) for pattern in KEPT))


def module_names(files: Iterable[str]) -> list[str]:
    """Return the full names of the modules in files of the package."""
    return [f"{PACKAGE}.{name.removesuffix('.py').replace('/', '.')}" for name in files]


def with_quoted_fields(source: str) -> str:
    """Return a module's source with those fields of its NamedTuples quoted whose class is imported for types only.

    When such a record is made, mypyc looks the classes of its fields up, and fails (or crashes) on those that are not
    there; the interpreter treats all of them as strings. Lines stay where they are.
    """
    tree = ast.parse(source)
    absent = {NOT_FOUND} | {
        alias.asname or alias.name
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.Import | ast.ImportFrom)
        for alias in statement.names
    }
    lines = source.encode().splitlines(keepends=True)
    for record in ast.walk(tree):
        if not isinstance(record, ast.ClassDef) or "NamedTuple" not in map(ast.unparse, record.bases):
            continue
        for field in record.body:
            if not isinstance(field, ast.AnnAssign):
                continue
            said = field.annotation
            outer = said.value if isinstance(said, ast.Subscript) else said
            if isinstance(outer, ast.Name) and outer.id in absent and said.lineno == said.end_lineno:
                line = lines[said.lineno - 1]
                text = line[said.col_offset : said.end_col_offset].decode()
                lines[said.lineno - 1] = line[: said.col_offset] + repr(text).encode() + line[said.end_col_offset :]
    return b"".join(lines).decode()


def check_tools() -> None:
    """Raise `BuildError` for what is missing, with how to get it."""
    if sys.implementation.name != "cpython":
        raise BuildError(f"mypyc compiles for CPython; this is {sys.implementation.name}")
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        raise BuildError(f"no C compiler ({compiler}): apt-get install gcc libc6-dev, or name one with CC=")
    header = Path(sysconfig.get_path("include")) / "Python.h"
    if not header.is_file():
        raise BuildError(f"no {header}: apt-get install python3-dev")
    for name in ("flit_core", "mypyc", "setuptools"):
        if find_spec(name) is None:
            raise BuildError(f"no {name} here: pip install '.[compiled]'")


def build_pure(folder: Path) -> Path:
    """Build the pure wheel into a folder; return its path."""
    from flit_core import buildapi

    with contextlib.chdir(ROOT):
        return folder / str(buildapi.build_wheel(str(folder)))


def compile_modules(folder: Path, files: list[str]) -> list[Path]:
    """Compile modules of the package in a folder; return the extension modules, which stand in `folder/lib`.

    Raises `BuildError` when mypyc or the compiler refuses; standard error has their messages.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution, errors

    paths = [f"{PACKAGE}/{name}" for name in files]
    library = folder / "lib"
    said = io.StringIO()
    with contextlib.chdir(folder):
        try:
            with contextlib.redirect_stdout(said):
                modules = mypycify(
                    ["--strict", "--ignore-missing-imports", *paths],
                    opt_level=os.environ.get("MYPYC_OPT_LEVEL", "2"),
                    debug_level="0",
                )
            for module in modules:
                module.extra_link_args.append("-Wl,-s")
                # One rounding for a * b + c, where there is such an instruction, would choose other ranges at -O2.
                module.extra_compile_args.append("-ffp-contract=off")
            command = Distribution({"name": PACKAGE, "ext_modules": modules}).get_command_obj("build_ext")
            command.build_lib = str(library)
            command.build_temp = str(folder / "temp")
            command.ensure_finalized()
            command.run()
        except SystemExit:
            sys.stderr.write(said.getvalue())
            raise BuildError("mypyc refuses a module; see above") from None
        except (errors.BaseError, errors.CCompilerError) as error:
            raise BuildError(f"the C compiler failed: {error}") from None
    return sorted(path for path in library.rglob("*") if path.is_file())


def check_imports(folder: Path, names: Iterable[str]) -> None:
    """Import modules of the package in a folder, each in a process of its own.

    Raises `BuildError` with those that fail or are not the compiled ones.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    failures: list[str] = []
    for name in names:
        command = [sys.executable, "-B", "-c", IMPORT, name]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode or done.stdout:
            failures.append(f"{name}: {done.stdout.rstrip() or f'exit status {done.returncode}'}")
    if failures:
        raise BuildError(
            "compiled, these cannot be loaded:\n" + "\n".join(failures) + "\n"
            "If that cannot be helped, name them in KEPT, in this script."
        )


def platform_tag() -> str:
    """Return the wheel's tag for this interpreter on this kind of machine."""
    interpreter = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = re.sub(r"[^\w]", "_", sysconfig.get_platform())
    return f"{interpreter}-{interpreter}{sys.abiflags}-{platform}"


def members_of(pure: Path, library: Path, extensions: Iterable[Path], tag: str) -> Iterator[Member]:
    """Yield the files of the compiled wheel: those of the pure one, with another tag, and the extension modules."""
    with zipfile.ZipFile(pure) as wheel:
        *infos, record_info = wheel.infolist()
        made: list[Member] = []
        for info in infos:
            data = wheel.read(info)
            if info.filename.endswith(".dist-info/WHEEL"):
                text = data.decode().replace("Root-Is-Purelib: true", "Root-Is-Purelib: false")
                data = re.sub(r"(?m)^Tag: .*$", f"Tag: {tag}", text).encode()
            made.append(Member(info, data))
    for path in extensions:
        info = zipfile.ZipInfo(path.relative_to(library).as_posix(), record_info.date_time)
        info.external_attr = 0o100755 << 16
        info.compress_type = zipfile.ZIP_DEFLATED
        made.append(Member(info, path.read_bytes()))
    # Metadata comes last in a wheel, for those who want it only.
    made.sort(key=lambda member: ".dist-info/" in member.info.filename)
    yield from made
    lines = [f"{info.filename},sha256={_digest(data)},{len(data)}\n" for info, data in made]
    yield Member(record_info, "".join([*lines, f"{record_info.filename},,\n"]).encode())


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def build(target: Path) -> Path:
    """Build the wheel into a folder; return its path. Raises `BuildError`, and `OSError` when it cannot be written."""
    check_tools()
    files = compiled_files(ROOT / PACKAGE)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pure = build_pure(folder)
        with zipfile.ZipFile(pure) as wheel:
            wheel.extractall(folder)
        for path in (folder / PACKAGE / name for name in files):
            path.write_text(with_quoted_fields(path.read_text("utf-8")), "utf-8")
        extensions = compile_modules(folder, files)
        shutil.copytree(folder / "lib", folder, dirs_exist_ok=True)
        check_imports(folder, module_names(files))
        tag = platform_tag()
        written = io.BytesIO()
        with zipfile.ZipFile(written, "w", zipfile.ZIP_DEFLATED) as wheel:
            for info, data in members_of(pure, folder / "lib", extensions, tag):
                wheel.writestr(info, data)
    target.mkdir(parents=True, exist_ok=True)
    made = target / pure.name.replace("py3-none-any", tag)
    made.write_bytes(written.getvalue())
    return made


def main(arguments: list[str]) -> int:
    """Build the wheel; print its name."""
    if len(arguments) != 1:
        print("usage: compiled.py DIR", file=sys.stderr)
        return 2
    try:
        os.environ["SOURCE_DATE_EPOCH"] = source_date()
        print(build(Path(arguments[0]).resolve()))
    except subprocess.SubprocessError:
        print("compiled.py: no git here: set SOURCE_DATE_EPOCH", file=sys.stderr)
        return 1
    except (BuildError, OSError) as error:
        print(f"compiled.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
