# SPDX-License-Identifier: Apache-2.0
"""Damaged files on the command line: exit status, messages and files are as promised."""

import os
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cfi2sframe import load
from cfi2sframe.cli.messages import (
    EXIT_DIFFERENCE,
    EXIT_INCOMPLETE,
    EXIT_SUCCESS,
    EXIT_UNCOMPARED,
    EXIT_UNUSABLE,
    EXIT_USAGE,
)
from cfi2sframe.constants.elf import SHT_SYMTAB
from cfi2sframe.conversion.sources import find_cfi, read_programs
from cfi2sframe.placing.undo import record_span
from tests.fuzz.damage import ZONES, Change, Damage, Seed, damages, whole_files, zones_of
from tests.support import cli
from tests.support.dwarf.naive_compare import problems_of_cfi

pytestmark = [pytest.mark.fuzz, pytest.mark.oracle]

#: Words of each way to run the program, without the file; `{out}` is a file to write.
WAYS: Final = {
    "copy": ("convert", "-o", "{out}"),
    "copy of version 2": ("convert", "--sframe-version", "2", "--replace", "-o", "{out}"),
    "raw": ("convert", "-o", "{out}"),
    "strict": ("convert", "--strict", "-v", "-o", "{out}"),
    "in place": ("convert", "--in-place", "-j", "1"),
    "in place, replacing": ("convert", "--in-place", "--replace", "-j", "1"),
    "check": ("convert", "--check", "-j", "1"),
    "from code": ("convert", "--from", "code", "-o", "{out}"),
    "from code, in place": ("convert", "--from", "code", "--in-place", "-j", "1"),
    "verify from code": ("verify", "--would-be", "--from", "code"),
    "coverage from code": ("coverage", "--from", "code", "--format", "json"),
    "remove": ("remove", "-o", "{out}"),
    "remove in place": ("remove", "--in-place"),
    "verify existing": ("verify",),
    "verify version 1": ("verify", "--would-be", "--sframe-version", "1"),
    "dump": ("dump",),
    "lookup": ("lookup", "20000", "20004", "1040", "0"),
    "coverage": ("coverage", "--format", "json"),
    "size": ("size",),
    "trace": ("trace",),
}
#: What each way may end with, beside success and what cannot be used.
STATUSES: Final = {
    # A version that the ABI does not have, or whose fields cannot hold the distances, was the wrong thing to ask for.
    "copy of version 2": {EXIT_USAGE},
    "verify version 1": {EXIT_USAGE},
    "strict": {EXIT_INCOMPLETE},
    "check": {EXIT_DIFFERENCE, EXIT_INCOMPLETE},
    "verify existing": {EXIT_DIFFERENCE, EXIT_UNCOMPARED},
    "lookup": {EXIT_DIFFERENCE},
}
UNTOUCHED: Final = Damage((), None)


def run(way: str, file: Path, out: Path) -> cli.Result:
    """Run the program one way, and check what is promised for every file."""
    out = out.with_suffix(".sframe") if way == "raw" else out
    out.unlink(missing_ok=True)
    before, listed = file.read_bytes(), set(os.listdir(file.parent))
    words = [word.format(out=out) for word in WAYS[way]]
    result = cli.run(words[0], str(file), *words[1:])
    assert result.status in {EXIT_SUCCESS, EXIT_UNUSABLE, *STATUSES.get(way, ())}, (way, result)
    for line in result.err:
        assert line.startswith("cfi2sframe: "), (way, result.err)
    assert (
        result.err
        or (way == "check" and result.out)
        or result.status in (EXIT_SUCCESS, EXIT_DIFFERENCE, EXIT_UNCOMPARED)
    ), (way, result)
    is_written = "{out}" in WAYS[way] and result.status == EXIT_SUCCESS
    assert out.exists() is is_written, (way, result)
    assert set(os.listdir(file.parent)) - listed == ({out.name} if is_written else set()), way
    if "--in-place" not in WAYS[way] or result.status != EXIT_SUCCESS:
        assert file.read_bytes() == before, (way, result)
    return result


def check_file(seed: Seed, damage: Damage, way: str, folder: Path) -> int:
    """Run a damaged file one way, convert and verify it; return how many FDEs the naive evaluator may have compared."""
    file, out = folder / "file", folder / "out"
    data = damage.apply(seed)
    file.write_bytes(data)
    run(way, file, out)
    file.write_bytes(data)
    converted = run("raw", file, out)
    verified = cli.run("verify", "--would-be", str(file))
    assert verified.status in (EXIT_SUCCESS, EXIT_UNUSABLE), (verified.out, verified.err)
    # Whatever can be converted is right by our own reading of the CFI, and by another one's.
    assert verified.status == converted.status, (converted, verified)
    if converted.status != EXIT_SUCCESS or load(file).is_relocatable:
        return 0
    image = load(file)
    cfi = read_programs(image, *find_cfi(image, "eh_frame"))
    assert list(problems_of_cfi(cfi, image.arch)) == []
    return len(cfi.entries)


seeds = st.deferred(lambda: st.sampled_from(whole_files()))
checks = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]


@pytest.mark.parametrize(
    "_turn",
    [pytest.param(0, marks=pytest.mark.sampled), *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, 30))],
)
@settings(max_examples=60, suppress_health_check=checks)
@given(seed=seeds, damage=damages(), way=st.sampled_from(sorted(WAYS)))
def test_damaged_files(_turn: int, seed: Seed, damage: Damage, way: str, tmp_path: Path) -> None:
    check_file(seed, damage, way, tmp_path)


@pytest.mark.parametrize("way", WAYS)
def test_files_without_damage(way: str, tmp_path: Path) -> None:
    seed = next(s for s in whole_files() if s.name == "amd64-slack")
    assert {*seed.zones} == {*ZONES}
    assert check_file(seed, UNTOUCHED, way, tmp_path) >= 4


def test_a_symbol_table_past_the_end(tmp_path: Path) -> None:
    """Found by the tests above: symbols were read from a file without any."""
    file = tmp_path / "file"
    data = next(s.data for s in whole_files() if s.name == "amd64-object.o")
    record = record_span(data)
    assert record is not None
    # By its record, removal would restore the object without a look at its symbols.
    file.write_bytes(data[: record.start])
    image = load(file.read_bytes())
    table = next(s for s in image.sections if s.type == SHT_SYMTAB)
    damage = Damage((Change("sections", 64 * table.index + 24, 8, len(image.data) - 30),), None)
    file.write_bytes(damage.apply(Seed("object", bytes(image.data), zones_of(image))))
    result = run("remove", file, tmp_path / "out")
    assert result.status == EXIT_UNUSABLE
    assert ".symtab: truncated: " in result.err[0]
