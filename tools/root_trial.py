#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Convert a whole root of this machine's release, use it, and take the sections out again.

    tools/root_trial.py [--directory build/root] [--only NAME]...

DIRECTORY/pristine (tools/fetch-root) is never written to. DIRECTORY/converted, a copy of it, is converted and verified,
and after the removal compared with it, byte for byte and attribute for attribute. The scripts of root_trial_checks/ run
in DIRECTORY/before, another copy of it, and in DIRECTORY/after, a copy of the converted root: they have to succeed and
to print the same. Then the dpkg trigger of contrib/dpkg has to keep DIRECTORY/after converted through an installation
and an upgrade, and has to take the sections out.

It needs root. What runs inside has a mount table, processes and a network of its own (without any interface). The exit
status is 1 when a check fails.
"""

from __future__ import annotations

import argparse
import difflib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from root_trial_snapshot import differences, snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT: Final = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from cfi2sframe import decode_existing, load  # noqa: E402  # the checkout that this script lies in
from cfi2sframe.api import verify  # noqa: E402
from cfi2sframe.errors import Cfi2SFrameError  # noqa: E402

CHECKS: Final = Path(__file__).resolve().parent / "root_trial_checks"
TRIGGER: Final = ROOT / "contrib" / "dpkg" / "cfi2sframe-trigger"
TIMEOUT_SECONDS: Final = 1800
#: Nothing that runs inside can reach a process, a mount or a network outside.
INSIDE: Final = (
    *("unshare", "--mount", "--pid", "--fork", "--kill-child", "--ipc", "--uts", "--net"),
    *("sh", "-c", 'mount -t proc proc "$0/proc" && exec chroot "$0" "$@"'),
)
ENVIRONMENT: Final = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "TERM": "dumb",
    "DEBIAN_FRONTEND": "noninteractive",
}
#: Of the problems of one check, so many are printed.
_SHOWN_COUNT: Final = 20
LAUNCHER: Final = '#!/bin/sh\nPYTHONPATH=/opt/cfi2sframe exec python3 -m cfi2sframe "$@"\n'


class Done(NamedTuple):
    """The exit status of a command, and what it printed on both streams."""

    status: int
    output: str


class Account:
    """Prints what was checked, and counts it."""

    def __init__(self) -> None:
        self.check_count = 0
        self.failure_count = 0
        self._start = time.monotonic()

    def check(self, name: str, problems: Sequence[str], note: str = "") -> None:
        """Print a check with how long it took since the one before it, and what is wrong."""
        seconds = time.monotonic() - self._start
        self.check_count += 1
        self.failure_count += bool(problems)
        lines = [f"{'FAIL' if problems else 'ok  '}  {name}{f': {note}' if note else ''} ({seconds:.0f} s)"]
        lines += (f"        {problem}" for problem in problems[:_SHOWN_COUNT])
        if len(problems) > _SHOWN_COUNT:
            lines.append(f"        and {len(problems) - _SHOWN_COUNT:,} more")
        print(*lines, sep="\n", flush=True)
        self._start = time.monotonic()


def run(command: Sequence[str], environment: dict[str, str] | None = None) -> Done:
    """Run a command without standard input, whatever becomes of it."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=environment,
        check=False,
        timeout=TIMEOUT_SECONDS,
    )
    return Done(done.returncode, done.stdout.decode(errors="replace"))


def cfi2sframe(*words: str | Path) -> Done:
    """Run the command line of this checkout."""
    return run([sys.executable, "-m", "cfi2sframe", *map(str, words)])


def run_inside(root: Path, *words: str) -> Done:
    """Run a command in a root."""
    return run([*INSIDE, str(root), *words], ENVIRONMENT)


def copy(source: Path, target: Path) -> Path:
    """Copy a tree with all of its attributes; an earlier copy goes."""
    if target.exists():
        shutil.rmtree(target)
    subprocess.run(["cp", "-a", "--reflink=auto", str(source), str(target)], check=True)
    return target


def problems_of(done: Done) -> list[str]:
    """Return the last lines of a command that has failed."""
    return [] if done.status == 0 else [f"exit status {done.status}", *done.output.splitlines()[-_SHOWN_COUNT:]]


def sum_of(done: Done) -> str:
    """Return the last line of cfi2sframe's that has sums, if there is one."""
    sums = [line for line in done.output.splitlines() if " bytes of .sframe" in line]
    return sums[-1].removeprefix("cfi2sframe: info: ") if sums else ""


def convert(account: Account, root: Path, report: Path) -> list[Path]:
    """Convert a root; return the files that have a section now."""
    done = cfi2sframe("--in-place", "-r", "-v", "--report", report, root)
    account.check("convert", problems_of(done), sum_of(done))
    outcomes = [json.loads(line) for line in report.read_text().splitlines()]
    return [Path(outcome["file"]) for outcome in outcomes if outcome["status"] == "converted"]


def difference_of(path: Path) -> str:
    """Return how a file's section differs from its CFI; empty when it does not."""
    try:
        image = load(path)
        found = verify(image, decode_existing(image)).differences
    except (Cfi2SFrameError, OSError) as error:
        return f"{path}: {error}"
    return f"{path}: {len(found)} differences, {found[0]}" if found else ""


def verify_all(account: Account, files: Sequence[Path]) -> None:
    """Compare every section with the CFI of its file."""
    with ProcessPoolExecutor() as workers:
        found = [text for text in workers.map(difference_of, files, chunksize=8) if text]
    account.check("verify", found or ([] if files else ["no file to verify"]), f"{len(files):,} files")


def compare_scripts(account: Account, before: Path, after: Path, scripts: Sequence[Path]) -> None:
    """Run scripts in both roots: they have to succeed, and to print the same."""
    for script in scripts:
        was, now = run_script(before, script), run_script(after, script)
        problems = [f"before: {line}" for line in problems_of(was)]
        old, new = was.output.splitlines(), now.output.splitlines()
        problems += difflib.unified_diff(old, new, "before", "after", n=0, lineterm="")
        problems += problems_of(now)
        account.check(script.stem, problems, "" if problems else f"{len(new):,} lines are the same")


def run_script(root: Path, script: Path) -> Done:
    """Run a script in an empty folder of a root."""
    folder = root / "tmp" / "root-trial"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(script, root / "tmp" / "root-trial.sh")
    return run_inside(root, "sh", "-c", "cd /tmp/root-trial && exec sh ../root-trial.sh")


def install_program(root: Path) -> None:
    """Install this checkout's program, with what it imports, into a root."""
    folder = root / "opt" / "cfi2sframe"
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("cfi2sframe", "elftools", "capstone"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            raise SystemExit(f"root_trial.py: {name} is not installed")
        shutil.copytree(Path(spec.origin).parent, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    launcher = root / "usr" / "local" / "bin" / "cfi2sframe"
    launcher.write_text(LAUNCHER)
    launcher.chmod(0o755)


def keep_converted(account: Account, root: Path, count: int) -> None:
    """Check that the dpkg trigger keeps a root converted, of which `count` files have a section."""
    install_program(root)
    deb = root / "tmp" / "cfi2sframe-trigger.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", TRIGGER, deb], check=True, stdout=subprocess.DEVNULL)

    def expect(name: str, command: str, *texts: str) -> None:
        done = run_inside(root, "sh", "-c", command)
        problems = [f"not printed: {text}" for text in texts if text not in done.output]
        if problems or done.status:
            problems += [f"exit status {done.status}", *done.output.splitlines()[-_SHOWN_COUNT:]]
        account.check(f"trigger: {name}", problems, sum_of(done))

    apt = "apt-get -qq --yes --no-install-recommends"
    expect("nothing to do at first", "dpkg --install /tmp/cfi2sframe-trigger.deb", f" {count:,} unchanged")
    by_stamp = f" 1 converted, {count:,} unchanged ({count:,} by the stamp)"
    expect("a new package", f"{apt} install hello && hello", by_stamp, "Hello, world!")
    taken_out = "cfi2sframe remove /usr/bin/hello -o - | md5sum | cut -c-32"
    recorded = "grep usr/bin/hello /var/lib/dpkg/info/hello.md5sums | cut -c-32"
    expect("dpkg's checksum is that of the file without its section", f'[ "$({taken_out})" = "$({recorded})" ]')
    owned = sum(
        has_section(root / name.lstrip("/")) for name in run_inside(root, "dpkg", "-L", "coreutils").output.split()
    )
    rest = count + 1 - owned
    by_stamp = f" {owned:,} converted, {rest:,} unchanged ({rest:,} by the stamp)"
    expect("an upgrade", f"{apt} install --reinstall coreutils && ls / > /dev/null", by_stamp)
    broken = "mv /usr/local/bin/cfi2sframe /tmp; {} && mv /tmp/cfi2sframe /usr/local/bin && dpkg --audit"
    warning = "cfi2sframe-trigger: warning: not every file got its SFrame section"
    expect("a broken converter does not stop apt", broken.format(f"{apt} purge hello"), warning)
    expect("remove", "cfi2sframe-system remove && dpkg --purge cfi2sframe-trigger")
    found = run_inside(root, "dpkg", "--verify")
    account.check("dpkg --verify", [*problems_of(found), *found.output.splitlines()])


def has_section(path: Path) -> bool:
    """Whether a file is an ELF file with a section."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(4) != b"\x7fELF":
            return False
    return load(path).sframe_section is not None


def take_out(account: Account, root: Path, pristine: Path) -> None:
    """Remove all sections of a root, and compare it with the pristine one."""
    done = cfi2sframe("remove", "--in-place", "-r", "-v", root)
    account.check(
        "remove", problems_of(done), (done.output.splitlines() or [""])[-1].removeprefix("cfi2sframe: info: ")
    )
    expected = snapshot(pristine)
    account.check("every byte and attribute", differences(expected, snapshot(root)), f"{len(expected):,} names")


def trial(directory: Path, scripts: Sequence[Path], *, with_trigger: bool = True) -> int:
    """Run the trial of DIRECTORY/pristine; return the exit status."""
    account, pristine = Account(), directory / "pristine"
    converted, before = (copy(pristine, directory / name) for name in ("converted", "before"))
    files = convert(account, converted, directory / "report.jsonl")
    verify_all(account, files)
    after = copy(converted, directory / "after")
    compare_scripts(account, before, after, scripts)
    if with_trigger:
        keep_converted(account, after, len(files))
    take_out(account, converted, pristine)
    print(f"root trial: {account.check_count} checks, {account.failure_count} failures")
    return 1 if account.failure_count else 0


def main() -> int:
    """Run the trial."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "root", help="where the roots are")
    parser.add_argument("--only", metavar="NAME", action="append", help="only this script, and no trigger")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        parser.error("a root can be entered by root only")
    if not (arguments.directory / "pristine").is_dir():
        parser.error(f"there is no {arguments.directory}/pristine: make it with tools/fetch-root")
    scripts = [path for path in sorted(CHECKS.glob("*.sh")) if not arguments.only or path.stem in arguments.only]
    return trial(arguments.directory.resolve(), scripts, with_trigger=not arguments.only)


if __name__ == "__main__":
    sys.exit(main())
