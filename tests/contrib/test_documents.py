# SPDX-License-Identifier: Apache-2.0
"""The documents: links lead somewhere, tests exist, examples run, the JSON that is explained is written."""

import doctest
import os
import re
import subprocess
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi import AMD64
from cfi2sframe.api import decode
from cfi2sframe.errors import InputError
from cfi2sframe.trace.live import Process
from tests.support.contrib import PROJECT, ROOT, check_section, environment, has_section, run
from tests.support.needs import need

DOCS = ROOT / "docs"
NOTES = DOCS / "format-notes.md"
LIBRARY = DOCS / "library.md"
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *(page for name in ("docs", "contrib", "tests", "testdata") for page in (ROOT / name).rglob("*.md")),
    ]
)
MAX_LINE = 120
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
def test_lines_are_as_short_as_those_of_code(page: Path) -> None:
    """Rows of tables cannot be broken, and code is as it is."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = re.sub(r"^(?:\||    ).*$", "", text, flags=re.MULTILINE).splitlines()
    assert [line for line in lines if len(line) > MAX_LINE] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    """Paths from the root of the project, in backquotes."""
    named = re.findall(r"`((?:tests|docs|tools|contrib|bench|cfi2sframe)/[\w./-]+)(?:::\w+)?`", page.read_text())
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_reading_is_pinned_by_tests_that_exist() -> None:
    """A reading's item begins with the sentence or gap, in bold, and ends with the tests, in parentheses."""
    items = re.findall(r"^- \*\*(.+?)\*\*:(.+)$", NOTES.read_text().replace("\n  ", " "), re.MULTILINE)
    assert len(items) > 30
    for sentence, reading in items:
        pinned = re.search(r" \(((?:`tests/[^`]+`(?:, )?)+)\)$", reading)
        assert pinned, sentence
        names = TEST_NAME.findall(pinned[1])
        assert len(names) == pinned[1].count(", ") + 1, sentence
        for file, test in names:
            assert f"def {test}(" in (ROOT / file).read_text(), (sentence, file, test)


def sampled(pid: int) -> dict[str, Any]:
    """Return what a profiler has of a process that is in code of its program: registers, stack, mappings."""
    for _ in range(200):
        # First of all: until main has been called, the program is in its start-up code.
        time.sleep(0.1)
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
