# SPDX-License-Identifier: Apache-2.0
"""Convert a file by the command line of some state of the sources, and record what it says; for tools/producers.py.

What a user meets is what is recorded: exit status, messages, the account that `--report` writes, and the rewritten
file, which `verify` reads again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from elftools.common.exceptions import ELFError
from elftools.elf.constants import P_FLAGS, SH_FLAGS
from elftools.elf.elffile import ELFFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

#: The versions that are measured: the newest, and the one that glibc's backtrace() reads.
VERSIONS: Final = (3, 2)
#: No run takes longer, in seconds.
TIMEOUT_SECONDS: Final = 1800
_TIMED_OUT: Final = 124
_PROGRAM: Final = "cfi2sframe: "
_COMPARED: Final = re.compile(r"([\d,]+) rows compared")
_MAX_MESSAGES: Final = 20


class File(NamedTuple):
    """A file of a package: `path` is absolute, `name` the path inside the package, `size` counts bytes."""

    producer: str
    arch: str
    package: str
    name: str
    path: str
    size: int

    @property
    def key(self) -> str:
        """What names the file in a record."""
        return f"{self.arch}/{self.package}/{self.name}"


class Run(NamedTuple):
    """A run of the program: exit status, lines on standard error, CPU seconds, bytes of the largest resident set."""

    status: int
    messages: tuple[str, ...]
    cpu_seconds: float
    peak_size: int


class Record(NamedTuple):
    """What became of a file in one version.

    `error` is the message of a file that is not rewritten, empty otherwise. `account` is a digest of the account, see
    `digest_of`; None where there is none. Then `code_size` has the bytes of executable sections. `compared` counts the
    rows that `verify` compared; `differences` are its first lines, and `odd` what no run should print. `readelf_rows`
    counts the rows that GNU readelf printed as `dump` does, `readelf_problem` says how it did not; 0 and empty where it
    was not asked.
    """

    producer: str
    arch: str
    key: str
    size: int
    version: int
    status: int
    error: str
    account: dict[str, Any] | None
    code_size: int
    compared: int
    differences: tuple[str, ...]
    odd: tuple[str, ...]
    cpu_seconds: float
    peak_size: int
    readelf_rows: int = 0
    readelf_problem: str = ""


Comparison = tuple[int, str]


def measure(
    file: File,
    version: int,
    package: Path,
    work: Path,
    *,
    verifies: bool = True,
    compare: Callable[[str], Comparison] | None = None,
) -> Record:
    """Convert a file with the package under `package`, verify what was made if that is asked for; return the record.

    `work` is a folder for the rewritten file. `compare` is called with its path; see `Record.readelf_rows`.
    """
    with tempfile.TemporaryDirectory(dir=work) as folder:
        out, report = os.path.join(folder, "out"), os.path.join(folder, "account")
        wanted = ["--sframe-version", str(version)]
        done = run_program(package, file.path, "-o", out, "--report", report, *wanted)
        account = _read_account(report)
        error = _error_of(done, file.path)
        has_section = account is not None and account["sizes"]["sframe"] > 0
        is_rewritten = has_section and not error
        verified = None
        if verifies and has_section:
            chosen = [out] if is_rewritten else ["--would-be", file.path, *wanted]
            verified = run_program(package, "verify", "-v", *chosen)
        rows, problem = compare(out) if compare is not None and is_rewritten else (0, "")
    return Record(
        file.producer,
        file.arch,
        file.key,
        file.size,
        version,
        done.status,
        error,
        None if account is None else digest_of(account),
        _code_size(file.path) if account is None else account["bytes"]["total"],
        _compared(verified),
        _differences(verified),
        tuple(line for run in (done, verified) if run is not None for line in odd_lines(run)),
        done.cpu_seconds,
        done.peak_size,
        rows,
        problem,
    )


def run_program(package: Path, *arguments: str) -> Run:
    """Run the command line of a package; nothing else is imported from here."""
    command = ["timeout", str(TIMEOUT_SECONDS), sys.executable, "-P", "-m", "cfi2sframe", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(package)}
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=messages, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(process.pid, 0)
        # Otherwise it would be waited for again.
        process.returncode = os.waitstatus_to_exitcode(status)
        messages.seek(0)
        lines = messages.read().decode(errors="backslashreplace").splitlines()
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return Run(process.returncode, tuple(lines), round(cpu_seconds, 2), usage.ru_maxrss * 1024)


def _read_account(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return found


def _error_of(run: Run, path: str) -> str:
    """Return why a file was not rewritten, without its name."""
    if run.status == 0:
        return ""
    if run.status == _TIMED_OUT:
        return f"took more than {TIMEOUT_SECONDS} s"
    start = f"{_PROGRAM}{path}: error: "
    for line in run.messages:
        if line.startswith(start):
            return line.removeprefix(start)
    return run.messages[-1] if run.messages else f"exit status {run.status}"


def odd_lines(run: Run) -> Iterator[str]:
    """Yield lines that no run should print: tracebacks, messages of Python or the kernel, internal errors."""
    unexpected = [line for line in run.messages if not line.startswith(_PROGRAM) or "internal error" in line]
    is_difference = run.status == 1 and not any("Traceback" in line for line in unexpected)
    if not is_difference:
        yield from unexpected[:_MAX_MESSAGES]
    if run.status not in range(5):
        yield f"exit status {run.status}"


def _compared(run: Run | None) -> int:
    for line in () if run is None else run.messages:
        match = _COMPARED.search(line)
        if match:
            return int(match[1].replace(",", ""))
    return 0


def _differences(run: Run | None) -> tuple[str, ...]:
    """Return the first lines of a verification that found something, or failed."""
    if run is None or run.status == 0:
        return ()
    return run.messages[:_MAX_MESSAGES]


def _code_size(path: str) -> int:
    """Return the bytes of a file's executable sections, or segments where it has no sections; 0 if it is damaged."""
    try:
        with open(path, "rb") as file:
            elf = ELFFile(file)
            flags = SH_FLAGS.SHF_ALLOC | SH_FLAGS.SHF_EXECINSTR
            sections = [section for section in elf.iter_sections() if section["sh_flags"] & flags == flags]
            if sections:
                return sum(section["sh_size"] for section in sections if section["sh_type"] != "SHT_NOBITS")
            segments = (part for part in elf.iter_segments() if part["p_type"] == "PT_LOAD")
            return sum(part["p_filesz"] for part in segments if part["p_flags"] & P_FLAGS.PF_X)
    except (ELFError, OSError, ValueError):
        return 0


# The account


def digest_of(account: dict[str, Any]) -> dict[str, Any]:
    """Return what the tables need of an account (schemas/coverage.schema.json); older ones lack some fields."""
    sizes: Counter[str] = Counter()
    for item in account["left_out"]:
        sizes[item["message"]] += item["size"]
    text: Counter[str] = Counter()
    for section in account["sections"]:
        if section["name"] == ".text":
            text.update({name: value for name, value in section.items() if name != "name"})
    return {
        "functions": account["functions"],
        "bytes": account["bytes"],
        "text": dict(text),
        "sframe_size": account["sizes"]["sframe"],
        "rows": account["rows"],
        "reasons": {reason: [count, sizes[reason]] for reason, count in account["reasons"].items()},
        "holes": {reason: [counts["holes"], counts["bytes"]] for reason, counts in account.get("holes", {}).items()},
        "dropped": account["dropped"],
        "damage": Counter(f"{item['where']}: {item['reason']}" for item in account["damaged"]),
        "stubs_left_out": Counter(item["message"] for item in account["stubs_left_out"]),
        "sources": {source["name"]: source["fdes"] for source in _sources(account)},
        "contradicting": sum(source.get("contradicting", 0) for source in _sources(account)),
        "unread": {item["name"]: item["reason"] for item in account.get("unread", [])},
    }


def _sources(account: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the sources; accounts without them have one."""
    found: list[dict[str, Any]] = account.get("sources", [])
    if found or "sources" in account:
        return found
    return [{"name": account["source"], "fdes": account["functions"]["fdes"]}] if account["source"] else []
