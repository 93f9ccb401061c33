# SPDX-License-Identifier: Apache-2.0
"""Numbers that users give, and limits that the help names: the value itself, and the ones beside it."""

import json
from math import inf, nextafter
from pathlib import Path

import pytest

from cfi2sframe.abi import AMD64
from tests.support.cli import run
from tests.support.elf.samples import Code, linked_file, object_file, push_fp


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
    done = run("coverage", "--fail-under", repr(percent), three_quarters)
    assert (done.status, len(done.err)) == (status, 1 if status else 0)


def test_all_of_a_file_is_a_hundred_percent(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(linked_file(AMD64, (push_fp(AMD64, size=128),), codes=(Code(size=128),)))
    assert run("coverage", "--fail-under", "100", path).status == 0
    assert run("coverage", "--fail-under", repr(nextafter(100, inf)), path).status == 2


def test_a_growth_at_the_limit(three_quarters: Path) -> None:
    (file,) = json.loads(run("size", "--format", "json", three_quarters).out)["files"]
    percent = 100 * (file["sframe_size"] + file["padding_size"] - file["existing_size"]) / file["file_size"]
    assert percent > 0
    for limit, status in ((nextafter(percent, 0), 4), (percent, 0), (nextafter(percent, inf), 0), (0, 4)):
        assert run("size", "--fail-over", repr(limit), three_quarters).status == status


@pytest.mark.parametrize(
    "words", [("--sframe-version", "{}", "1", "3"), ("-O", "{}", "0", "2"), ("--errata", "{}", "0", "2")], ids=str
)
def test_the_first_and_the_last_of_a_range(words: tuple[str, str, str, str], three_quarters: Path) -> None:
    option, _, first, last = words
    more = ["--sframe-version", "2"] if option == "--errata" else []
    for value, status in ((first, 0), (last, 0), (str(int(first) - 1), 2), (str(int(last) + 1), 2)):
        assert (
            run("coverage", *more, f"{option}={value}" if option != "-O" else f"-O{value}", three_quarters).status
            == status
        )


@pytest.mark.parametrize(
    ("words", "allowed", "refused"),
    [
        (("dump", "--section-address"), ("0", str((1 << 64) - 1)), ("-1", str(1 << 64))),
        (("coverage", "-j"), ("1", "2"), ("0", "-1")),
        (("size", "--fail-over"), ("100",), (repr(nextafter(0, -1)), repr(nextafter(100, inf)), "nan")),
        (("coverage", "--fail-under"), ("0",), (repr(nextafter(0, -1)), repr(nextafter(100, inf)), "nan")),
    ],
    ids=str,
)
def test_values_at_the_limits_of_what_can_be_meant(
    words: tuple[str, str], allowed: tuple[str, ...], refused: tuple[str, ...], three_quarters: Path
) -> None:
    (verb, option), path = words, three_quarters
    if verb == "dump":
        path = path.with_name("raw.sframe")
        assert run(three_quarters, "-o", path).status == 0
    assert [run(verb, f"{option}={value}", path).status for value in allowed] == [0] * len(allowed)
    assert [run(verb, f"{option}={value}", path).status for value in refused] == [2] * len(refused)


def test_as_many_lines_as_are_asked_for(tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.o" for number in range(3)]
    for path in paths:
        path.write_bytes(object_file(AMD64, {".text": (push_fp(AMD64),)}))
    for count in (0, 1, 2, 3, 4):
        out = run("size", "--top", str(count), *paths).out.decode()
        assert sum(f"{number}.o" in out for number in range(3)) == min(count, 3)
        assert ("(--top all)" in out) == (count < 3)


def test_a_section_that_is_not_there(three_quarters: Path, tmp_path: Path) -> None:
    done = run("verify", three_quarters, tmp_path / "missing.sframe")
    assert done.status == 3
    assert done.err[0] == f"cfi2sframe: {tmp_path / 'missing.sframe'}: error: No such file or directory"
