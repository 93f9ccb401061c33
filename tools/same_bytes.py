#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Show that a change of structure changes no output: convert the same files with two states of the sources, compare.

same_bytes.py [--files N] [--jobs N] --before COMMIT [FOLDER]...
same_bytes.py --list FILE                      (what it starts for each state: prints a digest for each output)

The files are those of FOLDERs (default: what `make corpus-files` fetches) and N of the machine's, spread evenly over
/usr in the order of their names. Each is converted to versions 1 to 3 at each level as raw bytes, and to a rewritten
file where it is not too large; `coverage`, `dump` and `size --format json` of it count too, and so do exit
statuses. Messages are compared and counted apart. Exit status 1 when any output differs.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parents[1]
CORPUS: Final = ROOT / "build/corpus"
MACHINE_FOLDERS: Final = ("/usr/bin", "/usr/sbin", "/usr/lib")
ELF_MAGIC: Final = b"\x7fELF"
#: A rewritten copy of a larger file costs more than it shows.
MAX_REWRITTEN_SIZE: Final = 4 << 20
#: Ends the name of what a command prints on standard error.
MESSAGES: Final = " (messages)"
#: Files of this size and more are converted at one level and version only.
LARGE_SIZE: Final = 16 << 20


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, default=[CORPUS])
    parser.add_argument("--before", metavar="COMMIT", help="the state to compare with")
    parser.add_argument("--files", type=int, default=400, metavar="N", help="files of the machine (default: 400)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--list", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list is not None:
        print_digests(arguments.list.read_text(encoding="utf-8").splitlines())
        return 0
    if arguments.before is None:
        parser.error("--before names the commit to compare with")
    files = [*elf_files(arguments.folders), *spread(list(elf_files(map(Path, MACHINE_FOLDERS))), arguments.files)]
    with tempfile.TemporaryDirectory() as folder:
        before = check_out(arguments.before, Path(folder) / "before")
        old, new = (digests(root, files, arguments.jobs, Path(folder)) for root in (before, ROOT))
    return compare(old, new)


def check_out(commit: str, folder: Path) -> Path:
    """Unpack the package's sources of a commit into a folder, which is made; return the folder."""
    command = ["git", "-C", str(ROOT), "archive", commit, "cfi2sframe"]
    archive = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        # Python 3.11 has filters since 3.11.4.
        if hasattr(tarfile, "data_filter"):
            tar.extraction_filter = tarfile.data_filter
        tar.extractall(folder)  # noqa: S202 - git made the archive
    return folder


def elf_files(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the ELF files under folders, each inode once, in the order of their names."""
    seen: set[tuple[int, int]] = set()
    for folder in folders:
        for path in sorted(folder.resolve().rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            status = path.stat()
            if (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            with path.open("rb") as file:
                if file.read(len(ELF_MAGIC)) == ELF_MAGIC:
                    yield path


def spread(files: list[Path], count: int) -> list[Path]:
    """Return at most `count` of the files, at equal distances."""
    step = max(1.0, len(files) / max(1, count))
    return [files[int(step * number)] for number in range(min(count, len(files)))]


def digests(root: Path, files: list[Path], jobs: int, folder: Path) -> dict[str, str]:
    """Return the digest of each output of the sources under `root`, by the name of file and command."""
    shares = [files[number::jobs] for number in range(jobs)]
    lists = []
    for number, share in enumerate(shares):
        lists.append(folder / f"files-{number}")
        lists[-1].write_text("".join(f"{path}\n" for path in share), encoding="utf-8")
    # The sources under test are the only ones that can be imported; this file brings none.
    command = [sys.executable, "-P", __file__, "--list"]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}

    def run(path: Path) -> str:
        return subprocess.run(
            [*command, str(path)], env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    found = {}
    with ThreadPoolExecutor(jobs) as pool:
        for text in pool.map(run, lists):
            for line in text.splitlines():
                digest, name = line.split(" ", 1)
                found[name] = digest
    return found


def print_digests(files: list[str]) -> None:
    """Print a line for each output of each file: the digest, the file, the command's name."""
    from cfi2sframe.cli import main

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for file in files:
            for title, command, output in commands(Path(file)):
                buffer, err = io.BytesIO(), io.StringIO()
                out = io.TextIOWrapper(buffer, "utf-8", "backslashreplace")
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    status = main(command)
                    out.flush()
                forget_results()
                content = buffer.getvalue()
                if output and os.path.exists(output):
                    content += Path(output).read_bytes()
                    os.unlink(output)
                digest = hashlib.sha256(b"%d\0%b" % (status, content)).hexdigest()
                sys.stdout.write(f"{digest} {file}: {title}\n")
                digest = hashlib.sha256(err.getvalue().encode()).hexdigest()
                sys.stdout.write(f"{digest} {file}: {title}{MESSAGES}\n")


def forget_results() -> None:
    """Free what a run has kept for the end of its process; where that is depends on the state of the sources."""
    for name in ("cfi2sframe.cli", "cfi2sframe.cli.messages"):
        kept = getattr(sys.modules.get(name), "KEPT", None)
        if kept is not None:
            kept.clear()


def commands(file: Path) -> Iterator[tuple[str, list[str], str]]:
    """Yield what is asked of a file: a title, the arguments, and the name of the output file, if there is one."""
    size = file.stat().st_size
    for version in (1, 2, 3) if size < LARGE_SIZE else (3,):
        for level in "012" if size < LARGE_SIZE else "1":
            options = ["--sframe-version", str(version), f"-O{level}"]
            yield f"raw {version} -O{level}", [str(file), "-o", "out.sframe", *options], "out.sframe"
    if size < MAX_REWRITTEN_SIZE:
        for version in (2, 3):
            options = ["--sframe-version", str(version), "--replace"]
            yield f"rewritten {version}", [str(file), "-o", "out.elf", *options], "out.elf"
    yield "coverage", ["coverage", "--format", "json", str(file)], ""
    if size < LARGE_SIZE:
        yield "size", ["size", "-j", "1", "--format", "json", str(file)], ""


def compare(old: dict[str, str], new: dict[str, str]) -> int:
    """Print what differs, and a digest of all outputs; return the exit status, which messages do not count for."""
    different = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
    outputs = [name for name in different if not name.endswith(MESSAGES)]
    for name in outputs[:40]:
        print(f"differs: {name}")
    for title, found in (("before", old), ("after", new)):
        lines = [f"{digest} {name}\n" for name, digest in sorted(found.items()) if not name.endswith(MESSAGES)]
        print(f"{title}: {len(lines):,} outputs, {hashlib.sha256(''.join(lines).encode()).hexdigest()}")
    print(f"{len(outputs):,} outputs differ; {len(different) - len(outputs):,} messages differ")
    return 1 if outputs else 0


if __name__ == "__main__":
    sys.exit(main())
