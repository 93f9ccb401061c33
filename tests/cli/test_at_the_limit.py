# SPDX-License-Identifier: Apache-2.0
"""Numbers that users give, and limits that the help names: the value itself, and the ones beside it."""

import json
from math import inf, nextafter
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import run
from tests.support.elf.samples import Code, linked_file, push_fp


@pytest.fixture
def three_quarters(tmp_path: Path) -> Path:
    """A file of which 96 of 128 bytes of code are described."""
    path = tmp_path / "program"
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64, size=96),), codes=(Code(size=128),)))
    return path


@pytest.mark.parametrize(
    ("percent", "status"), [(0, 0), (nextafter(75, 0), 0), (75, 0), (nextafter(75, inf), 4), (100, 4)]
)
def test_a_share_at_the_limit(percent: float, status: int, three_quarters: Path) -> None:
    out = three_quarters.with_name("out.sframe")
    for words in (("coverage",), ("convert", "-o", out)):
        done = run(*words, "--fail-under", repr(percent), three_quarters)
        assert (done.status, len(done.err)) == (status, 1 if status else 0)
    assert out.exists() == (status == 0)


def test_all_of_a_file_is_a_hundred_percent(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64, size=128),), codes=(Code(size=128),)))
    assert run("coverage", "--fail-under", "100", path).status == 0


@pytest.mark.parametrize("words", [(), ("--for", "glibc")], ids=str)
def test_a_growth_at_the_limit(words: tuple[str, ...], three_quarters: Path) -> None:
    before = three_quarters.read_bytes()
    (file,) = json.loads(run("size", *words, "--format", "json", three_quarters).out)["files"]
    percent = 100 * (file["sframe_size"] + file["padding_size"] - file["existing_size"]) / file["file_size"]
    assert percent > 0
    for limit, status in ((nextafter(percent, 0), 4), (percent, 0), (nextafter(percent, inf), 0), (0, 4)):
        done = run("size", *words, "--fail-over", repr(limit), three_quarters)
        assert (done.status, len(done.err)) == (status, 1 if status else 0)
    assert run("size", "--compare", three_quarters, three_quarters, "--fail-over", "0").status == 0
    assert three_quarters.read_bytes() == before


BELOW_ALL, ABOVE_ALL = repr(nextafter(0, -1)), repr(nextafter(100, inf))


@pytest.mark.parametrize(
    ("words", "allowed", "refused"),
    [
        (("coverage", "--sframe-version="), ("1", "3"), ("0", "4")),
        (("coverage", "-O"), ("0", "2"), ("-1", "3")),
        (("coverage", "--sframe-version=2", "--errata="), ("0", "2"), ("-1", "3")),
        (("coverage", "-j"), ("1", "2"), ("-1", "0")),
        (("coverage", "--fail-under="), ("0",), (BELOW_ALL, ABOVE_ALL, "nan")),
        (("size", "--fail-over="), ("100",), (BELOW_ALL, ABOVE_ALL, "nan")),
        (("dump", "--section-address="), ("0", str((1 << 64) - 1)), ("-1", str(1 << 64))),
    ],
    ids=str,
)
def test_the_first_and_the_last_value_of_a_range(
    words: tuple[str, ...], allowed: tuple[str, ...], refused: tuple[str, ...], three_quarters: Path
) -> None:
    path, (*others, option) = three_quarters, words
    if words[0] == "dump":
        path = path.with_name("raw.sframe")
        assert run(three_quarters, "-o", path).status == 0
    assert [run(*others, option + value, path).status for value in allowed] == [0] * len(allowed)
    assert [run(*others, option + value, path).status for value in refused] == [2] * len(refused)


def test_a_section_that_is_not_there(three_quarters: Path, tmp_path: Path) -> None:
    done = run("verify", three_quarters, tmp_path / "missing.sframe")
    assert done.status == 3
    assert done.err[0] == f"cfi2sframe: {tmp_path / 'missing.sframe'}: error: No such file or directory"
