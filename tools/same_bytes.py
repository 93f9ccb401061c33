#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Show that a change of structure changes no output: run two states of the sources on the same files, and compare.

same_bytes.py [--files N] [--one-of N] [--jobs N] --before COMMIT [FOLDER]...
same_bytes.py --list FILE                      (what it starts for each state: prints digests of all that is said)

The files are those of FOLDERs (default: golden objects, and what `make corpus-files` fetches, of three ABIs) and N of
the machine's, spread evenly over /usr in the order of their names. `commands` has what is asked about each: every verb
but `trace`, which needs processes. Compared are exit statuses, standard output with the file that is written, and
messages. Exit status 1 when anything differs; what does is named by the command that shows it.
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
#: The corpus has linked files only.
OBJECTS: Final = ROOT / "testdata/golden"
MACHINE_FOLDERS: Final = ("/usr/bin", "/usr/sbin", "/usr/lib")
ELF_MAGIC: Final = b"\x7fELF"
#: What costs much more than a conversion is asked about smaller files only: to follow their code, ...
MAX_FOLLOWED_SIZE: Final = 1 << 18
#: ... and to rewrite them.
MAX_REWRITTEN_SIZE: Final = 4 << 20
#: Files of this size and more are converted at one level and version only.
LARGE_SIZE: Final = 16 << 20
#: How many differences are named.
NAMED_COUNT: Final = 100
#: Stands for the file in the name of a command.
FILE: Final = "FILE"


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", metavar="FOLDER", nargs="*", type=Path, default=[OBJECTS, CORPUS])
    parser.add_argument("--before", metavar="COMMIT", help="the state to compare with")
    parser.add_argument("--files", type=int, default=400, metavar="N", help="files of the machine (default: 400)")
    parser.add_argument("--one-of", type=int, default=1, metavar="N", help="only every Nth file, for a quick answer")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    parser.add_argument("--list", metavar="FILE", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.list is not None:
        print_digests(arguments.list.read_text(encoding="utf-8").splitlines())
        return 0
    if arguments.before is None:
        parser.error("--before names the commit to compare with")
    files = [*elf_files(arguments.folders), *spread(list(elf_files(map(Path, MACHINE_FOLDERS))), arguments.files)]
    files = files[:: arguments.one_of]
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


def digests(root: Path, files: list[Path], jobs: int, folder: Path) -> dict[str, list[str]]:
    """Return three digests for each command that is run with the sources under `root`, as `print_digests` has them."""
    shares = [files[number::jobs] for number in range(jobs)]
    lists = []
    for number, share in enumerate(shares):
        lists.append(folder / f"files-{number}")
        lists[-1].write_text("".join(f"{path}\n" for path in share), encoding="utf-8")
    # The sources under test are the only ones that can be imported; this file brings none.
    command = [sys.executable, "-P", __file__, "--list"]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0", "CFI2SFRAME_PROGRESS": "never"}

    def run(path: Path) -> str:
        return subprocess.run(
            [*command, str(path)], env=environment, stdout=subprocess.PIPE, text=True, check=True
        ).stdout

    found = {}
    with ThreadPoolExecutor(jobs) as pool:
        for text in pool.map(run, lists):
            for line in text.splitlines():
                *parts, name = line.split(" ", len(PARTS))
                found[name] = parts
    return found


#: What is compared of each command.
PARTS: Final = ("exit status", "output", "messages")


def print_digests(files: list[str]) -> None:
    """Print a line for each command: its exit status, digests of what is written and of messages, file and words."""
    from cfi2sframe.cli import main

    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for file in files:
            for number, (name, output) in enumerate(commands(os.stat(file).st_size), 1):
                buffer, err = io.BytesIO(), io.StringIO()
                out = io.TextIOWrapper(buffer, "utf-8", "backslashreplace")
                with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                    status = main([file if word == FILE else word for word in name.split()])
                    out.flush()
                forget_results()
                content = buffer.getvalue()
                if output and os.path.exists(output):
                    content += Path(output).read_bytes()
                parts = (hashlib.sha256(part).hexdigest() for part in (content, err.getvalue().encode()))
                # The same words may come again, about another section.
                sys.stdout.write(f"{status} {' '.join(parts)} {file}: {number}. {name}\n")
            for left in os.listdir():
                os.unlink(left)


def forget_results() -> None:
    """Free what a run has kept for the end of its process; where that is depends on the state of the sources."""
    for name in ("cfi2sframe.cli", "cfi2sframe.cli.messages"):
        kept = getattr(sys.modules.get(name), "KEPT", None)
        if kept is not None:
            kept.clear()


def commands(size: int) -> Iterator[tuple[str, str]]:
    """Yield what is asked about a file of some size: commands, each with the file that it writes, or "".

    They run in an empty folder, one after the other: later ones read what earlier ones have written.
    """
    is_large = size >= LARGE_SIZE
    for version in (3,) if is_large else (1, 2, 3):
        for level in "1" if is_large else "012":
            yield f"convert {FILE} -o out.sframe --sframe-version {version} -O{level}", "out.sframe"
        yield f"coverage {FILE} --sframe-version {version} -j 1 --format json", ""
        if not is_large:
            # At the level of the last section.
            yield f"dump out.sframe {'--format json' * (version == 2)}", ""
            yield f"verify {FILE} out.sframe -v --sframe-version {version} --report report", "report"
            yield f"size {FILE} --sframe-version {version} -j 1 --format json", ""
    yield f"convert {FILE} --check -v -j 1 --report report", "report"
    yield f"coverage {FILE} -j 1 --top all", ""
    yield f"size {FILE} -j 1", ""
    if size < MAX_REWRITTEN_SIZE:
        for version in (2, 3):
            yield f"convert {FILE} -o out.elf -v --replace --sframe-version {version} --report report", "out.elf"
            yield f"dump out.elf {'--format json' * (version == 3)}", ""
            yield "verify out.elf -j 1 --for libsframe --for kernel", ""
            yield "remove out.elf -v -o removed", "removed"
        yield "convert out.elf -v -o again.elf --sframe-version 2", "again.elf"
    if size < MAX_FOLLOWED_SIZE:
        yield f"convert {FILE} -o code.sframe -v --from code", "code.sframe"
        yield f"verify {FILE} code.sframe -v --from code", ""
        yield f"coverage {FILE} -j 1 --from code --format json", ""
        yield f"size {FILE} -j 1 --from code --format json", ""
        yield f"audit {FILE} -j 1 -v", ""


def compare(old: dict[str, list[str]], new: dict[str, list[str]]) -> int:
    """Print what differs, and a digest of all; return the exit status."""
    nothing = [""] * len(PARTS)
    found = [
        (name, [part for part, *each in zip(PARTS, old.get(name, nothing), new.get(name, nothing), strict=True)
                if each[0] != each[1]])
        for name in sorted(old.keys() | new.keys())
    ]  # fmt: skip
    different = [(name, parts) for name, parts in found if parts]
    for name, parts in different[:NAMED_COUNT]:
        print(f"differs: {', '.join(parts)}: {name}")
    for title, each in (("before", old), ("after", new)):
        text = "".join(f"{' '.join(parts)} {name}\n" for name, parts in sorted(each.items()))
        print(f"{title}: {len(each):,} commands, {hashlib.sha256(text.encode()).hexdigest()}")
    counts = (f"{part}: {sum(part in parts for _, parts in different):,}" for part in PARTS)
    print(f"{len(different):,} commands differ ({'; '.join(counts)})")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
