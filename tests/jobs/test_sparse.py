# SPDX-License-Identifier: Apache-2.0
"""Sparse files: holes stay holes, and add nothing to the size of the input."""

from pathlib import Path

import pytest

from cfi2sframe.elf.headers import parse_file_header
from cfi2sframe.elf.load import read_file, stored_size
from tests.support.files import sparse
from tests.support.jobs import object_of
from tests.support.process import TOO_COSTLY, run_within_bound

pytestmark = pytest.mark.fuzz

SIZE = 1 << 26


def test_holes_stay_holes(tmp_path: Path) -> None:
    path, out = tmp_path / "file", tmp_path / "out"
    given = sparse(path, {0: object_of(3)}, SIZE)
    for words, status in (
        (("--check", path), 1),
        ((path, "-o", out), 0),
        (("--in-place", path), 0),
        (("--check", path), 0),
        (("verify", path), 0),
        (("remove", "--in-place", path), 0),
        (("coverage", path), 0),
    ):
        run = run_within_bound(*words, input_size=given)
        assert (run.status, words) == (status, words), run.err
    for written in (path, out):
        assert SIZE <= written.stat().st_size < SIZE + (1 << 20)
        assert written.stat().st_blocks * 512 < given + (1 << 20)


def test_more_holes_than_the_file_accounts_for(tmp_path: Path) -> None:
    path = tmp_path / "file"
    run = run_within_bound("--in-place", path, input_size=sparse(path, {0: object_of(3)}, 4 << 40))
    assert run.status == 3
    assert TOO_COSTLY in run.err
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_section_headers_in_a_hole(tmp_path: Path) -> None:
    """There may be as many as the file is long."""
    table, count = 1 << 30, 1 << 34
    header = parse_file_header(object_of(0))._replace(section_headers_offset=table, section_header_count=0)
    # The size of the null section is their number, where they are too many for the header.
    path, null_section = tmp_path / "file", bytes(32) + count.to_bytes(8, "little")
    run = run_within_bound("--check", path, input_size=sparse(path, {0: header.pack(), table: null_section}, 4 << 40))
    assert run.status == 3
    assert TOO_COSTLY in run.err


def test_holes_add_nothing_to_the_size(tmp_path: Path) -> None:
    path = tmp_path / "file"
    # Also to that of a file that would be read whole, had it none.
    for size in (SIZE, 1 << 19):
        stored = sparse(path, {0: object_of(3)}, size)
        assert 0 < stored_size(read_file(str(path))) <= stored
    whole = tmp_path / "whole"
    whole.write_bytes(object_of(3) + bytes(1 << 20))
    assert stored_size(read_file(str(whole))) == whole.stat().st_size
