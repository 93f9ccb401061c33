# SPDX-License-Identifier: Apache-2.0
"""Convert a copy of many programs and of every library they need, and check that all still run as before.

    tools/tree.py [--count 200] [--sample 12] [--directory build/tree]

Programs of /usr/bin that know `--version` or `--help` are run with both, as they are and converted in place. Then the
tools of packaging pipelines (strip, objcopy, eu-strip, llvm-strip, patchelf, separate debug files) are applied to a
sample of them with all its libraries, and the results run once more and are verified. Programs run without a terminal,
without standard input, in an empty folder, without network where the kernel permits that, and for a few seconds.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import decode_existing, load  # noqa: E402  # the checkout that this script lies in
from cfi2sframe.api import verify  # noqa: E402
from cfi2sframe.errors import Cfi2SFrameError  # noqa: E402

SOURCE: Final = Path("/usr/bin")
TIMEOUT: Final = 5.0
FLAGS: Final = ("--version", "--help")
#: Programs that are never run: they may change the machine, need a terminal or a network, or not end.
EXCLUDED: Final = re.compile(
    r"(?:.*(?:agent|daemon|kill|login|mount|passwd|shell|systemd|sudo).*|apt|bash|busctl|ch[a-z]+|dash|dbus|deb|dirmngr|"
    r"dpkg|expiry|fuser|gdbus|gpg|halt|init|ip[a-z]*|journal|less|mc|mesg|nano|newgrp|networkctl|nologin|perl|pkexec|"
    r"poweroff|reboot|reset|resolvectl|rsh|run|scp|screen|script|service|setpriv|setsid|sftp|sg|sh|shutdown|ssh|su|"
    r"sync|tabs|telnet|timedate|tmux|tset|tput|udev|unshare|vi|view|vim|wall|write|xterm|zsh)(?:[-.0-9_a-z]*)"
)
#: A table of long options has these words, or a longer one that ends in them, since linkers merge strings.
KNOWS_A_FLAG: Final = re.compile(rb"(?:version|help)\0")
PLACEMENT: Final = re.compile(r"info: \.sframe at 0x[0-9a-f]+: (.*)")


class Run(NamedTuple):
    """The result of a program; the path of its tree is replaced by TREE."""

    status: int | str
    output: bytes


class Outcome(NamedTuple):
    """The result of one file: how its section was placed, or why it has none."""

    path: Path
    placement: str
    refusal: str


class Tree(NamedTuple):
    """A folder of programs and one of libraries."""

    root: Path

    @property
    def programs(self) -> Path:
        """The folder of programs."""
        return self.root / "bin"

    @property
    def libraries(self) -> Path:
        """The folder of libraries, under their sonames."""
        return self.root / "lib"

    def make(self) -> None:
        """Make the empty folders."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.programs.mkdir(parents=True)
        self.libraries.mkdir()


class Step(NamedTuple):
    """A tool that pipelines apply, as commands in order; IN and OUT stand for the files, DEBUG for a third one."""

    name: str
    commands: tuple[tuple[str, ...], ...]


def steps() -> list[Step]:
    """Return the steps whose tools are installed."""
    binutils = {"": ""} | {f" {suite}": f"{ROOT}/build/oracles/{suite}/bin/" for suite in ("trixie", "sid")}
    found = []
    for label, folder in binutils.items():
        strip, objcopy = f"{folder}strip", f"{folder}objcopy"
        found += [
            Step(f"strip{label}", ((strip, "-o", "OUT", "IN"),)),
            Step(f"strip -g{label}", ((strip, "-g", "-o", "OUT", "IN"),)),
            Step(f"objcopy{label}", ((objcopy, "IN", "OUT"),)),
            Step(
                f"debug file{label}",
                (
                    (objcopy, "--only-keep-debug", "IN", "DEBUG"),
                    (objcopy, "--strip-debug", "--add-gnu-debuglink=DEBUG", "IN", "OUT"),
                ),
            ),
        ]
    found += [
        Step("eu-strip", (("eu-strip", "-o", "OUT", "IN"),)),
        Step("llvm-strip", (("llvm-strip", "-o", "OUT", "IN"),)),
        Step("patchelf", (("patchelf", "--set-rpath", "$ORIGIN/../lib", "--output", "OUT", "IN"),)),
    ]
    return [step for step in found if all(shutil.which(command[0]) for command in step.commands)]


@cache
def sandbox() -> tuple[str, ...]:
    """Return the command that disables the network, or an empty one if that is not permitted."""
    tool = shutil.which("unshare")
    if tool is None:
        return ()
    for options in (("-n",), ("-rn",)):
        if not subprocess.run([tool, *options, "true"], capture_output=True, check=False).returncode:
            return (tool, *options)
    return ()


def run_program(tree: Tree, name: str, flag: str) -> Run:
    """Run a program of a tree with the libraries of that tree."""
    environment = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TERM": "dumb", "LD_LIBRARY_PATH": str(tree.libraries)}
    with tempfile.TemporaryDirectory() as folder:
        # The variables are for the program alone, not for the command that disables the network.
        command = [*sandbox(), "env", *(f"{k}={v}" for k, v in environment.items()), str(tree.programs / name), flag]
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder},
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            process.communicate()
            return Run("timeout", b"")
    return Run(process.returncode, output.replace(str(tree.root).encode(), b"TREE").replace(folder.encode(), b"HOME"))


def runs_of(tree: Tree, name: str) -> tuple[Run, ...]:
    """Run a program with each flag."""
    return tuple(run_program(tree, name, flag) for flag in FLAGS)


def libraries_of(program: Path, folder: Path | None = None) -> dict[str, Path] | None:
    """Return the libraries that a program is loaded with, by soname; None when it cannot be loaded."""
    environment = dict(os.environ) | ({"LD_LIBRARY_PATH": str(folder)} if folder else {})
    done = subprocess.run(["ldd", program], capture_output=True, text=True, check=False, env=environment)
    if done.returncode or "not found" in done.stdout:
        return None
    return {match[1]: Path(match[2]) for match in re.finditer(r"^\s*(\S+) => (/\S+) \(", done.stdout, re.MULTILINE)}


def is_candidate(path: Path) -> bool:
    """Whether a file is a dynamic program, without special rights, that knows a flag."""
    if path.is_symlink() or not path.is_file() or path.stat().st_mode & 0o6000 or EXCLUDED.fullmatch(path.name):
        return False
    data = path.read_bytes()
    return data[:5] == b"\x7fELF\x02" and KNOWS_A_FLAG.search(data) is not None


def choose(tree: Tree, count: int, workers: ProcessPoolExecutor) -> dict[str, tuple[Run, ...]]:
    """Copy programs and their libraries into a tree until enough of them run, and return what each printed."""
    chosen: dict[str, tuple[Run, ...]] = {}
    candidates = [path for path in sorted(SOURCE.iterdir()) if is_candidate(path)]
    random.Random(1).shuffle(candidates)  # noqa: S311  # the same choice each time
    while candidates and len(chosen) < count:
        group, candidates = candidates[: count - len(chosen)], candidates[count - len(chosen) :]
        for path in group:
            needed = libraries_of(path)
            if needed:
                shutil.copy2(path, tree.programs)
                for soname, library in needed.items():
                    shutil.copy2(library, tree.libraries / soname)
        names = [path.name for path in group if (tree.programs / path.name).exists()]
        first, second = (list(workers.map(partial(runs_of, tree), names)) for _ in range(2))
        for name, runs, again in zip(names, first, second, strict=True):
            if runs == again and any(run.status == 0 and run.output for run in runs):
                chosen[name] = runs
            else:
                (tree.programs / name).unlink()
    return chosen


def convert(path: Path) -> Outcome:
    """Convert a file in place by the command line."""
    command = [sys.executable, "-m", "cfi2sframe", "--in-place", "-v", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    match = PLACEMENT.search(done.stderr)
    if done.returncode == 0 and match:
        return Outcome(path, match[1], "")
    lines = [
        line for line in done.stderr.splitlines() if ": error: " in line or "describe none of the functions" in line
    ]
    return Outcome(path, "", (lines or done.stderr.splitlines() or ["no message"])[-1].split(": ", 2)[-1])


def verify_file(path: Path) -> str:
    """Return how a file's section differs from its CFI; empty when it does not."""
    try:
        image = load(path)
        differences = verify(image, decode_existing(image)).differences
    except Cfi2SFrameError as error:
        return str(error)
    return f"{len(differences)} differences, {differences[0]}" if differences else ""


def apply(step: Step, target: Path, source: Path) -> bool:
    """Apply a step to a file; return False if a tool fails."""
    debug = target.with_name(target.name + ".debug")
    places = {"IN": str(source), "OUT": str(target), "DEBUG": str(debug), "--add-gnu-debuglink=DEBUG": ""}
    places["--add-gnu-debuglink=DEBUG"] = f"--add-gnu-debuglink={debug}"
    for command in step.commands:
        words = [command[0], *(places.get(word, word) for word in command[1:])]
        if subprocess.run(words, capture_output=True, check=False).returncode:
            return False
    debug.unlink(missing_ok=True)
    return True


def _apply_to(step: Step, source: Tree, target: Tree, place: tuple[str, str]) -> tuple[tuple[str, str], bool]:
    folder, name = place
    return place, apply(step, target.root / folder / name, source.root / folder / name)


def transform(
    step: Step, source: Tree, target: Tree, places: Sequence[tuple[str, str]], workers: ProcessPoolExecutor
) -> list[tuple[str, str]]:
    """Apply a step to files of a tree; return those on which the tool failed, which are copied as they are."""
    target.make()
    failed = []
    for place, is_done in workers.map(partial(_apply_to, step, source, target), places):
        if not is_done:
            failed.append(place)
            shutil.copy2(source.root.joinpath(*place), target.root.joinpath(*place))
    return failed


def percentages(counts: Iterable[str]) -> list[str]:
    """Return lines of counts, the most frequent first."""
    return [f"  {count:5,}  {text}" for text, count in Counter(counts).most_common()]


class Account:
    """Prints what was done, and counts what went wrong."""

    def __init__(self) -> None:
        self.problems = 0

    def say(self, *lines: str) -> None:
        """Print lines."""
        print(*lines, sep="\n", flush=True)

    def problem(self, text: str) -> None:
        """Print and count a problem."""
        self.problems += 1
        self.say(f"  PROBLEM {text}")


def compare_runs(
    account: Account, tree: Tree, expected: dict[str, tuple[Run, ...]], workers: ProcessPoolExecutor
) -> None:
    """Run programs again and report those that do not behave as before."""
    equal = 0
    for name, runs in zip(expected, workers.map(partial(runs_of, tree), expected), strict=True):
        if runs == expected[name]:
            equal += 1
        else:
            shown = [f"{a.status} -> {b.status}" for a, b in zip(expected[name], runs, strict=True) if a != b]
            account.problem(f"{tree.root.name}/{name}: {', '.join(shown)}")
    account.say(f"  {equal} of {len(expected)} programs run as before")


def check_step(
    account: Account,
    step: Step,
    trees: tuple[Tree, Tree],
    expected: dict[str, tuple[Run, ...]],
    converted: set[tuple[str, str]],
    workers: ProcessPoolExecutor,
) -> None:
    """Apply a step to unmodified and to converted files, run both, verify the converted ones."""
    original, after = trees
    places = [("bin", name) for name in expected]
    needed = {soname for name in expected for soname in libraries_of(original.programs / name) or ()}
    places += [("lib", soname) for soname in sorted(needed)]
    account.say(f"{step.name}: {len(expected)} programs, {len(needed)} libraries")
    slug = step.name.replace(" ", "_")
    plain, changed = (Tree(original.root.parent / f"step-{slug}-{kind}") for kind in ("original", "converted"))
    lost = transform(step, original, plain, places, workers)
    for place in transform(step, after, changed, places, workers):
        if place not in lost:
            account.problem(f"{step.name} fails on the converted {'/'.join(place)}")
    bearing = {
        name: runs
        for name, runs in zip(expected, workers.map(partial(runs_of, plain), expected), strict=True)
        if runs == expected[name]
    }
    if len(bearing) < len(expected):
        account.say(f"  {len(expected) - len(bearing)} programs do not survive it unmodified")
    compare_runs(account, changed, bearing, workers)
    checked = [place for place in places if place in converted and place not in lost]
    right = 0
    found = workers.map(verify_file, [changed.root.joinpath(*place) for place in checked])
    for place, difference in zip(checked, found, strict=True):
        if difference:
            account.problem(f"{step.name} {'/'.join(place)}: {difference}")
        else:
            right += 1
    account.say(f"  {right} of {len(checked)} sections are right")
    shutil.rmtree(plain.root)
    shutil.rmtree(changed.root)


def convert_all(
    account: Account, tree: Tree, names: Iterable[str], workers: ProcessPoolExecutor
) -> set[tuple[str, str]]:
    """Convert a tree in place, verify each section, and return the places of the converted files."""
    files = [tree.programs / name for name in names] + sorted(tree.libraries.iterdir())
    outcomes = list(workers.map(convert, files))
    done = [outcome.path for outcome in outcomes if outcome.placement]
    account.say(f"{len(done)} of {len(files)} files converted")
    account.say(*percentages(re.sub(r" \(.*\)", "", outcome.placement) for outcome in outcomes if outcome.placement))
    account.say("moved sections:", *percentages(_moved(outcome) for outcome in outcomes if outcome.placement))
    account.say(*(f"  refused: {outcome.path.name}: {outcome.refusal}" for outcome in outcomes if outcome.refusal))
    for path, difference in zip(done, workers.map(verify_file, done), strict=True):
        if difference:
            account.problem(f"{path.name}: {difference}")
    return {(path.parent.name, path.name) for path in done}


def _moved(outcome: Outcome) -> str:
    match = re.search(r"\((.*)\)", outcome.placement)
    return match[1] if match else "none"


def count_loaded(tree: Tree, names: Iterable[str]) -> str:
    """Return how many of the libraries are loaded from the tree, as a sentence."""
    loaded = [path for name in names for path in (libraries_of(tree.programs / name, tree.libraries) or {}).values()]
    inside = sum(path.is_relative_to(tree.root) for path in loaded)
    return f"{inside:,} of {len(loaded):,} libraries loaded come from the tree"


def main() -> int:
    """Run the comparison; return 1 when anything went wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many programs (default 200)")
    parser.add_argument("--sample", type=int, default=12, help="how many of them the tools are applied to (default 12)")
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "tree", help="where the copies are made")
    arguments = parser.parse_args()
    account = Account()
    original, after = (Tree(arguments.directory.resolve() / name) for name in ("original", "converted"))
    original.make()
    with ProcessPoolExecutor() as workers:
        expected = choose(original, arguments.count, workers)
        libraries = len(list(original.libraries.iterdir()))
        account.say(f"{len(expected)} programs, {libraries} libraries, network {'off' if sandbox() else 'on'}")
        shutil.rmtree(after.root, ignore_errors=True)
        shutil.copytree(original.root, after.root)
        converted = convert_all(account, after, expected, workers)
        account.say(count_loaded(after, expected))
        compare_runs(account, after, expected, workers)
        sample = random.Random(2).sample(sorted(expected), min(arguments.sample, len(expected)))  # noqa: S311
        for step in steps():
            chosen = {name: expected[name] for name in sample}
            check_step(account, step, (original, after), chosen, converted, workers)
    account.say(f"{account.problems} problems")
    return 1 if account.problems else 0


if __name__ == "__main__":
    sys.exit(main())
