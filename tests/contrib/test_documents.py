# SPDX-License-Identifier: Apache-2.0
"""The documents: their links lead somewhere, their tests exist, their examples run, what JSON has is described."""

from __future__ import annotations

import doctest
import json
import os
import re
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import cfi2sframe
from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode
from cfi2sframe.errors import InputError
from cfi2sframe.trace.snapshot import Process
from tests.contrib.support import PROJECT, ROOT, check_section, environment, has_section, run
from tests.support import cfi_asm as asm
from tests.support.cli import run as run_cli
from tests.support.needs import need
from tests.support.samples import TEXT_VADDR, cie_of, linked_file

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCS = ROOT / "docs"
NOTES = DOCS / "format-notes.md"
LIBRARY = DOCS / "library.md"
JSON_PAGE = DOCS / "reports.md"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for name in ("docs", "contrib", "tests", "testdata") for page in (ROOT / name).rglob("*.md")),
    ]
)
TEST_NAME = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def prose(page: Path) -> str:
    """Return a page without its code."""
    text = re.sub(r"^(?: {4}|\t).*$", "", page.read_text(), flags=re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    broken = [
        link
        for link in re.findall(r"\]\(([^)#\s]+)[^)]*\)", prose(page))
        if not re.match(r"[a-z]+:", link) and not (page.parent / link).exists()
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    """Paths from the root of the project, in backquotes."""
    named = re.findall(r"`((?:tests|docs|tools|contrib|bench|cfi2sframe)/[\w./-]+)(?:::\w+)?`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_reading_is_pinned_by_tests_that_exist() -> None:
    lines = [line for line in NOTES.read_text().splitlines() if line.startswith("| ")]
    rows = [re.split(r"(?<!\\) \| ", line.strip("| ")) for line in lines if not line.startswith("| sentence or gap")]
    assert len(rows) > 30
    for sentence, _reading, pinned in rows:
        names = TEST_NAME.findall(pinned)
        assert names, sentence
        assert not TEST_NAME.sub("", pinned).strip(", "), sentence
        for file, test in names:
            assert f"def {test}(" in (ROOT / file).read_text(), (sentence, file, test)


def sampled(pid: int) -> dict[str, Any]:
    """Return what a profiler has of a process that is in code of its program: registers, stack, mappings."""
    for _ in range(200):
        with closing(Process(pid)) as process:
            try:
                snapshot = process.copy()
            except InputError as error:
                pytest.skip(str(error))
        ((_, sample),) = snapshot.threads
        mappings = [mapping[:4] for mapping in snapshot.mappings]
        program = os.readlink(f"/proc/{pid}/exe")
        if any(start <= sample.pc < end for start, end, _, path in mappings if path == program):
            ((start, data),) = process.memory.pieces
            stack = snapshot.read(sample.sp, start + len(data) - sample.sp)
            return {"sample": sample, "stack": stack, "mappings": mappings}
        time.sleep(0.05)
    pytest.fail("the program does not run")


def compiled(folder: Path, *options: str) -> Path:
    """Compile a program that runs for as many seconds as its argument says."""
    need("cc")
    run("cc", "-O2", *options, "-o", folder / "program", PROJECT / "main.c", PROJECT / "words.c")
    return folder / "program"


def test_the_library_page(tmp_path: Path) -> None:
    """Run the examples of the document on a small program."""
    program = compiled(tmp_path, "-fno-omit-frame-pointer")
    if load(str(program)).arch != AMD64:
        pytest.skip("the page shows AMD64")
    conversion = convert(str(program))
    lookup = decode(conversion.data, conversion.section_vaddr)
    pcs = (pc for function in lookup.functions for pc in range(function.start_vaddr, function.end_vaddr))
    text = LIBRARY.read_text()
    names = {
        "program": str(program),
        "target": str(tmp_path / "target"),
        "open_bytes": lambda path: (tmp_path / path).read_bytes(),
        "pc": next(pc for pc in pcs if str(lookup.find(pc)) == "cfa=rsp+16 ra=c-8 fp=c-16"),
    }
    said: list[str] = []
    with subprocess.Popen([program, "600"], stdout=subprocess.DEVNULL) as process:
        try:
            names |= {"pid": process.pid, **sampled(process.pid)}
            test = doctest.DocTestParser().get_doctest(text, names, "library.md", str(LIBRARY), 0)
            assert len(test.examples) > 15
            flags = doctest.FAIL_FAST | doctest.ELLIPSIS
            results = doctest.DocTestRunner(optionflags=flags).run(test, out=said.append)
        finally:
            process.kill()
    assert results.failed == 0, "".join(said)


def test_the_library_page_names_all_that_is_public() -> None:
    text = LIBRARY.read_text()
    assert [name for name in cfi2sframe.__all__ if not re.search(rf"\b{name}\b", text)] == ["__version__"]


def described(section: str) -> str:
    """Return what the page has under a heading."""
    return JSON_PAGE.read_text().split("\n## JSON\n")[1].split(f"\n### {section}\n")[1].split("\n### ")[0]


def described_keys(section: str) -> set[str]:
    """Return the words in code under a heading, and above the first one."""
    common = JSON_PAGE.read_text().split("\n## JSON\n")[1].split("\n### ")[0]
    return set(re.findall(r"\w+", " ".join(re.findall(r"`([^`]+)`", common + described(section)))))


#: Objects whose keys are names or reasons.
OPEN_KEYS = {"dropped", "undecided", "rules"}


def keys_of(data: Any) -> Iterator[str]:  # noqa: ANN401 - JSON
    """Yield the keys of all objects in some data."""
    if isinstance(data, dict):
        for key, value in data.items():
            yield key
            if key not in OPEN_KEYS:
                yield from keys_of(value)
    elif isinstance(data, list):
        for item in data:
            yield from keys_of(item)


def check_keys(section: str, data: Any) -> None:  # noqa: ANN401 - JSON
    """Whatever a report has is described under its heading."""
    assert set(keys_of(data)) - described_keys(section) == set()


GOLDEN = sorted((ROOT / "testdata" / "golden").glob("*.o"))


def test_keys_of_reports(tmp_path: Path) -> None:
    assert len(GOLDEN) > 10
    # No version has a row for this: CFA = *(rsp + 40) + 8.
    program = (asm.def_cfa_expression(b"\x77\x28\x06\x23\x08"),)
    inexpressible = tmp_path / "inexpressible"
    inexpressible.write_bytes(linked_file(AMD64, (asm.Fde(cie_of(AMD64), TEXT_VADDR, 16, program),)))
    files = [*GOLDEN, inexpressible, Path("/bin/ls"), tmp_path / "missing"]
    for verb in ("coverage", "size", "audit"):
        data = json.loads(run_cli(verb, "--format", "json", *files).out)
        check_keys(verb, data)
        assert data["schema"] == 2
        assert len(data["files"]) > 10
    check_keys("size", json.loads(run_cli("size", "--format", "json", "--compare", files[0], "/bin/ls").out))


def test_keys_that_are_described_exist() -> None:
    (file,) = json.loads(run_cli("coverage", "--format", "json", "/bin/ls").out)["files"]
    (size,) = json.loads(run_cli("size", "--format", "json", "/bin/ls").out)["files"]
    for section, data in (("coverage", file), ("size", size)):
        heads = re.findall(r"^\| (`.*?) \|", described(section), re.MULTILINE)
        assert {key for head in heads for key in re.findall(r"`(\w+)`", head)} <= set(data)


@pytest.mark.parametrize("version", ["1", "2", "3"])
def test_keys_of_dump(version: str, tmp_path: Path) -> None:
    seen = 0
    for path in GOLDEN:
        target = tmp_path / f"{path.stem}.sframe"
        if run_cli(path, "--sframe-version", version, "-o", target).status == 0:
            data = json.loads(run_cli("dump", target, "--format", "json").out)
            check_keys("dump", data)
            seen += len(data["functions"])
    assert seen > 10


def test_keys_of_trace(tmp_path: Path) -> None:
    with subprocess.Popen([compiled(tmp_path), "600"], stdout=subprocess.DEVNULL) as process:
        try:
            result = run_cli("trace", "--pid", str(process.pid), "--format", "json")
        finally:
            process.kill()
    if "permit" in " ".join(result.err):
        pytest.skip(result.err[-1])
    assert result.status == 0, result.err
    data = json.loads(result.out)
    check_keys("trace", data)
    assert data["threads"][0]["frames"]


def test_keys_of_batch_reports(tmp_path: Path) -> None:
    """A file that is converted, one that is right already, one that is no ELF file; with and without --check."""
    report = tmp_path / "report.jsonl"
    for name in ("ls", "cat"):
        (tmp_path / name).write_bytes(Path("/bin", name).read_bytes())
    (tmp_path / "text").write_text("text")
    run_cli("--in-place", tmp_path / "cat")
    files = [tmp_path / name for name in ("ls", "cat", "text")]
    statuses = []
    for mode in ("--check", "--in-place"):
        run_cli(mode, *files, "--report", report)
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        statuses += [line["status"] for line in lines]
        for line in lines:
            account = line.pop("account")
            check_keys("batch", line)
            check_keys("coverage", account)
            assert account is None or account["schema"] == 2
    assert statuses == ["would convert", "unchanged", "failed", "converted", "unchanged", "failed"]


def test_the_shell_of_the_wrappers(tmp_path: Path, programs: Path) -> None:
    """The lines for GCC, clang and objects are run as they stand."""
    need("gcc", "clang", "sh")
    text = (ROOT / "contrib" / "README.md").read_text().split("\n## The wrappers\n")[1]
    lines = [line.strip() for line in re.findall(r"^ {4}(.+)$", text, re.MULTILINE)]
    commands = [line for line in lines if re.match(r"(mkdir|ln|gcc|clang) ", line)]
    assert len(commands) == 5
    for source in PROJECT.iterdir():
        (tmp_path / source.name).write_bytes(source.read_bytes())
    for command in commands:
        (tmp_path / "words").unlink(missing_ok=True)
        run("sh", "-c", command, cwd=tmp_path, env=environment(programs))
        if " -c " in command:
            assert has_section(tmp_path / "words.o")
        elif not command.startswith(("mkdir", "ln")):
            check_section(tmp_path / "words")
