# SPDX-License-Identifier: Apache-2.0
"""The verb `audit`: text, JSON, exit statuses, several files."""

import json
import re
import shutil
from pathlib import Path

import pytest

from cfi2sframe.report import SCHEMA_VERSION
from tests.support.audit import function
from tests.support.cli import run
from tests.support.needs import run as tool
from tests.support.oracle.gas import assembled

pytestmark = pytest.mark.oracle

RIGHT = function("push %rbx; .cfi_def_cfa_offset 16; call g; pop %rbx; .cfi_def_cfa_offset 8; ret")
WRONG = function("sub $8, %rsp; call g; add $8, %rsp; ret", "wrong")
TEXT = """\
IN: .text+0x4: wrong+0x4: CFA is rsp+8 by the CFI; the instructions say rsp+16: .cfi_def_cfa_offset 16 (2 instructions)
    .text+0x0  sub rsp, 8
  > .text+0x4  call g
    .text+0x9  add rsp, 8
    .text+0xd  ret
IN: 4 instructions, 100.0 % compared, 2 contradict the CFI, in 1 place
"""


@pytest.fixture
def wrong(tmp_path: Path) -> Path:
    return assembled(WRONG, tmp_path)


def test_text(wrong: Path) -> None:
    result = run("audit", wrong)
    assert result.status == 1
    assert result.out.decode() == TEXT.replace("IN", str(wrong))
    assert not result.err


@pytest.mark.parametrize(("count", "end"), [(4, ""), (5, ""), (6, " and 1 more")])
def test_some_of_many_places_are_named(count: int, end: str, tmp_path: Path) -> None:
    clones = "".join(function("sub $8, %rsp; call g; add $8, %rsp; ret", f"f{number}") for number in range(count))
    line = run("audit", assembled(clones, tmp_path)).out.decode().splitlines()[0]
    places = ", ".join(f".text+0x{0x12 + 14 * number:x}" for number in range(min(count - 1, 4)))
    assert line.endswith(f"({2 * count} instructions; also at {places}{end})")


def test_clean(tmp_path: Path) -> None:
    path = assembled(RIGHT, tmp_path)
    result = run("audit", path)
    assert (result.status, result.err) == (0, ())
    assert result.out.decode() == f"{path}: 4 instructions, 100.0 % compared, none contradicts the CFI\n"


def test_what_is_not_compared_is_named(tmp_path: Path) -> None:
    path = assembled(function("jmp *%rdi; mov %rax, %rbx; ret"), tmp_path)
    assert f"{path}: 3 instructions, 33.3 % compared, none contradicts the CFI\n" == run("audit", path).out.decode()
    lines = run("audit", "-v", path).out.decode().splitlines()
    assert lines[0] == f"{path}: .text+0x0: f: not compared: no known path leads there (2 instructions)"


def test_json(wrong: Path, tmp_path: Path) -> None:
    result = run("audit", wrong, "--format", "json")
    assert result.status == 1
    data = json.loads(result.out)
    assert data["schema"] == SCHEMA_VERSION
    (data,) = data["files"]
    assert (data["agreed_count"], data["contradicted_count"], data["undecided"]) == (2, 2, {})
    assert data["rules"]["CFA"] == {"silent": 0, "agreed": 2, "undecided": 0, "contradicted": 2}
    (finding,) = data["findings"]
    assert finding["directive"] == ".cfi_def_cfa_offset 16"
    assert [each["is_first"] for each in finding["context"]] == [False, True, False, False]
    clean = tmp_path / "clean"
    clean.mkdir()
    right = assembled(RIGHT, clean)
    several = json.loads(run("audit", right, wrong, "--format", "json").out)
    assert [len(each["findings"]) for each in several["files"]] == [0, 1]


def test_the_directive_is_right(tmp_path: Path) -> None:
    """What the report says is written where it says so, until nothing is left to say."""
    lines = ["sub $8, %rsp", "call g", "add $8, %rsp", "ret"]
    ends = [4, 9, 13, 14]
    for _ in range(4):
        path = assembled(function("; ".join(lines), "wrong"), tmp_path)
        (data,) = json.loads(run("audit", path, "--format", "json").out)["files"]
        if not data["findings"]:
            break
        first = data["findings"][0]
        offset = int(first["place"].split("+")[1], 16)
        count = ends.index(offset) + 1
        place = [n for n, line in enumerate(lines) if not line.startswith(".cfi")][count]
        lines.insert(place, first["directive"])
    assert lines == ["sub $8, %rsp", ".cfi_def_cfa_offset 16", "call g", "add $8, %rsp", ".cfi_def_cfa_offset 8", "ret"]


def test_folders(wrong: Path, tmp_path: Path) -> None:
    folder = tmp_path / "several"
    folder.mkdir()
    shutil.move(wrong, folder / "wrong.o")
    (folder / "text").write_text("no ELF file")
    result = run("audit", "-j", "1", folder, assembled(RIGHT, tmp_path))
    assert result.status == 1
    lines = result.out.decode().splitlines()
    sums = "8 instructions, 100.0 % compared"
    assert lines[-1] == f"2 files: 1 without a contradiction, 1 place in the others; {sums}"
    assert sum("CFA is" in line for line in lines) == 1


@pytest.mark.parametrize("form", ["text", "markdown", "html"])
def test_a_file_of_which_nothing_was_compared_is_not_called_right(form: str, wrong: Path, tmp_path: Path) -> None:
    wrong = wrong.rename(tmp_path / "wrong.o")
    path = assembled(function(".cfi_escape 0x0f, 3, 0x77, 0, 0x20; ret"), tmp_path)
    assert run("audit", path).out.decode() == f"{path}: 1 instruction, 0.0 % compared\n"
    result = run("audit", path, wrong, "--format", form)
    out, sums = result.out.decode(), "5 instructions, 80.0 % compared"
    headline = f"2 files: 0 without a contradiction, 1 of which nothing was compared, 1 place in the others; {sums}"
    assert (result.status, headline in out.replace("\\", "")) == (1, True)
    if form == "html":
        assert re.findall(r"<caption>(\w+)</caption>", out) == ["Files", "Places", "Instructions"]
        assert '<td data-head="text">add rsp, 8</td>' in out
        assert ">.cfi_def_cfa_offset 16</td>" in out
    else:
        line = "| 1 | 0.0 % | 1 | 0 | PATH |" if form == "markdown" else "PATH: 1 instruction, 0.0 % compared"
        assert line.replace("PATH", str(path)) in out.replace("\\", "").splitlines()


def test_nothing_to_audit(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert run("audit", tmp_path / "empty").status == 3
    assert run("audit").status == 2
    path = assembled("\tnop\n", tmp_path)
    result = run("audit", path)
    assert result.status == 3
    assert "no call frame information" in result.err[0]
    assert run("audit", path, "-o", path).status == 2


def test_one_source_of_cfi(wrong: Path) -> None:
    assert run("audit", wrong, "--from", "eh_frame").status == 1
    assert run("audit", wrong, "--from", "debug_frame").status == 2


def test_an_object_whose_fdes_have_no_relocations(tmp_path: Path) -> None:
    """As other verbs do, it refuses to count nothing."""
    path = assembled(RIGHT, tmp_path)
    tool("objcopy", "--remove-section=.rela.eh_frame", path)
    message = ".eh_frame+0x18: no usable FDE; the first is damaged: there is no relocation for the function's start"
    for verb in ("audit", "size"):
        result = run(verb, path)
        assert (result.status, result.err) == (3, (f"cfi2sframe: {path}: error: {message}",))
