# SPDX-License-Identifier: Apache-2.0
# ruff: noqa: ANN401  # the scripts are loaded by their path: no types can be taken from them
"""tools/hidden_cfi.py hides all CFI of a file, finds what compilers write for the code, and reports wrong rows."""

from __future__ import annotations

import importlib
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from cfi2sframe import load
from cfi2sframe.code import derive as door
from cfi2sframe.dwarf.rules import TableBuilder
from cfi2sframe.elf import constants as c
from cfi2sframe.rules import Rule
from cfi2sframe.sources import find_cfi
from tests.support.audited import assembled, function
from tests.support.rules import register_offset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cfi2sframe.code.records import Derived
    from cfi2sframe.dwarf.rules import RowState, UnwindTable
    from cfi2sframe.elf.image import ElfImage

pytestmark = pytest.mark.oracle

TOOLS: Final = Path(__file__).resolve().parents[2] / "tools"
MODULES: Final = ("hidden_cfi", "hidden_rows", "hidden_image", "held_files")
SOURCE: Final = r"""
#include <alloca.h>
#include <stdlib.h>

extern int in(int);
extern void take(void *, ...);

LOCAL int several(int a, int b, int c)
{
  int e = in(a), f = in(b), g = in(c);
  for (int i = 0; i < e; i++)
    if (in(i) == f) return g;
  return e + f + g;
}

LOCAL int arrays(int n)
{
  char fixed[5000], *more = alloca(n * 2);
  take(fixed, more);
  return in(fixed[n & 7] + more[1]);
}

LOCAL void __attribute__((noreturn)) fail(int n) { in(n); exit(n); }

int entry(int n)
{
  if (n < 0) fail(several(n, n, n));
  return several(n, 2, 3) + several(4, n, 6) + arrays(n) + arrays(n + 1);
}
"""
#: The exit status of a program that has found a wrong row.
FOUND: Final = 1


@pytest.fixture(name="tool", scope="module")
def _tool() -> Iterator[Callable[[str], Any]]:
    sys.path.insert(0, str(TOOLS))
    yield importlib.import_module
    sys.path.remove(str(TOOLS))
    for name in MODULES:
        sys.modules.pop(name, None)


def compiled(
    folder: Path, *options: str, local: str = "static __attribute__((noinline))", kind: str = "-shared"
) -> Path:
    """Return the source as a compiled file. Skips the test where the compiler is missing."""
    if shutil.which("cc") is None:
        pytest.skip("cc is not installed")
    path = folder / "compiled"
    words = ["cc", "-w", "-fPIC", "-nostdlib", f"-DLOCAL={local}", *options, kind, "-x", "c", "-", "-o", str(path)]
    subprocess.run(words, input=SOURCE, text=True, check=True)
    return path


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("local", ["static __attribute__((noinline))", "__attribute__((noinline))"])
@pytest.mark.parametrize("options", ["-O0", "-O2", "-Os", "-O2 -fno-omit-frame-pointer"])
def test_compiled_functions(
    tool: Callable[[str], Any], options: str, local: str, tmp_path: Path, *, strip: bool
) -> None:
    rows = tool("hidden_rows")
    image = load(str(compiled(tmp_path, *options.split(), local=local)))
    found = rows.compare(image, strip=strip)
    assert found.function_count >= 4
    assert {verdict for verdict in found.sizes if verdict not in rows.SOUND} == set()
    assert found.differences == ()
    assert found.sizes[rows.Verdict.SAME] > 0
    # Everything is reached from `entry`, which the dynamic symbols name, but for fillers before loops.
    assert found.derived_size > 0.9 * found.code_size


def test_object(tool: Callable[[str], Any], tmp_path: Path) -> None:
    found = tool("hidden_rows").compare(load(str(compiled(tmp_path, "-O2", kind="-c"))), strip=True)
    assert found.differences == ()
    assert found.derived_size > 0.9 * found.code_size


@pytest.mark.parametrize(
    ("name", "options"), [(".eh_frame", ("-O2",)), (".debug_frame", ("-g", "-fno-asynchronous-unwind-tables"))]
)
@pytest.mark.parametrize("kind", ["-shared", "-c"])
def test_nothing_is_left(
    tool: Callable[[str], Any], kind: str, name: str, options: tuple[str, ...], tmp_path: Path
) -> None:
    """The copy has the addresses of the file, but neither this program nor readelf finds CFI or hidden symbols."""
    path = compiled(tmp_path, *options, kind=kind)
    image = load(str(path))
    copy = tool("hidden_image").hidden_image(image, strip=True)
    assert name in {section.name for section in find_cfi(image).sections}
    assert find_cfi(copy, "code").sections == ()
    assert [section[:2] + section[4:7] for section in copy.sections] == [s[:2] + s[4:7] for s in image.sections]
    hidden = [old for old, new in zip(image.sections, copy.sections, strict=True) if old != new]
    assert name in {section.name for section in hidden}
    for section in hidden:
        assert not any(copy.data[section.file_offset : section.file_offset + section.size])
    if kind == "-shared":
        assert ".symtab" in {section.name for section in hidden}
        # The linker writes that segment for .eh_frame only.
        assert (c.PT_GNU_EH_FRAME in {segment.type for segment in image.segments}) == (name == ".eh_frame")
        assert c.PT_GNU_EH_FRAME not in {segment.type for segment in copy.segments}
    if shutil.which("readelf") is None:
        pytest.skip("readelf is not installed")
    (tmp_path / "copy").write_bytes(copy.data[:])
    command = ["readelf", "--wide", "--debug-dump=frames", "--symbols", str(tmp_path / "copy")]
    # It exits with 1, because sections of this name have contents elsewhere.
    text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert not re.search(r"\bFDE\b", text)
    assert set(re.findall(r"Symbol table '(.*?)'", text)) == {".symtab" if kind == "-c" else ".dynsym"}


def spoiled(table: UnwindTable, change: Callable[[RowState], RowState]) -> UnwindTable:
    """Return a table whose last row is another one."""
    builder = TableBuilder()
    *rest, last = zip(table.starts, table.states, strict=True)
    for start, state in rest:
        builder.add(start, state)
    builder.add(last[0], change(last[1]))
    return builder.table()


def one_too_far(state: RowState) -> RowState:
    assert isinstance(state.cfa, Rule)
    assert state.cfa.register is not None
    return state._replace(cfa=register_offset(state.cfa.register, state.cfa.offset + 8))


@pytest.fixture(name="wrong_row")
def _wrong_row(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Have the analysis say something wrong of the last row of its last function; return that one's address."""
    derive, where = door.derive, list[int]()

    def wrong(image: ElfImage, covered: Any) -> Derived:
        found = derive(image, covered)
        *others, last = found.functions
        table = spoiled(last.table, one_too_far)
        where.append(last.start_vaddr + table.starts[-1])
        return found._replace(functions=(*others, last._replace(table=table)))

    monkeypatch.setattr(door, "derive", wrong)
    return where


def test_wrong_row(
    tool: Callable[[str], Any],
    wrong_row: list[int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = compiled(tmp_path, "-O2")
    findings = tmp_path / "findings.json"
    arguments = ["hidden_cfi.py", "--jobs", "1", "--findings", str(findings), str(path)]
    monkeypatch.setattr(sys, "argv", arguments)
    assert tool("hidden_cfi").main() == FOUND
    (finding,) = [json.loads(line) for line in findings.read_text().splitlines()]
    assert finding["verdict"] == "WRONG"
    assert [int(finding["vaddr"], 16)] == wrong_row
    assert finding["derived_row"] != finding["cfi_row"]
    assert finding["file"] == str(path)
    wrong = table_of(capsys.readouterr().out)["- wrong: the instructions contradict the derived row"]
    assert wrong.split()[0] == str(finding["size"])


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        ("nop; .cfi_def_cfa_offset 24; ret", "CFI_WRONG"),
        # The audit enters no function by such a row, so that its states tell nothing.
        (".cfi_def_cfa_offset 24; ret", "ONE_WRONG"),
        ("nop; .cfi_undefined rip; ret", "OUTERMOST"),
        ("mov %rsp, %rdx; .cfi_def_cfa rdx, 8; ret", "SAME_PLACES"),
        (".cfi_signal_frame; nop; .cfi_def_cfa_offset 24; ret", "SIGNAL_FRAME"),
    ],
)
def test_another_row(tool: Callable[[str], Any], body: str, verdict: str, tmp_path: Path) -> None:
    """Where the CFI is another row, the instructions say which of the two is right."""
    path = assembled(function("ret", "before") + function(body), tmp_path)
    rows = tool("hidden_rows")
    found = rows.compare(load(str(path)))
    named = rows.Verdict[verdict]
    assert found.sizes[named] == 1
    assert found.sizes.keys() == {named, rows.Verdict.SAME}
    assert [each.verdict for each in found.differences] == ([] if named in rows.SOUND else [named])


def test_fp_of_a_helper(tool: Callable[[str], Any], tmp_path: Path) -> None:
    """Neither row says anything of FP, which the only caller has saved."""
    caller = "push %rbp; .cfi_def_cfa_offset 16; .cfi_offset rbp, -16; call helper"
    end = "pop %rbp; .cfi_def_cfa_offset 8; .cfi_restore rbp; ret"
    helper = "xor %ebp, %ebp; mov %rsp, %rdx; .cfi_def_cfa rdx, 8; ret"
    source = function(f"{caller}; {end}") + f".local helper; helper: .cfi_startproc; {helper}; .cfi_endproc\n"
    rows = tool("hidden_rows")
    found = rows.compare(load(str(assembled(source, tmp_path))))
    assert found.sizes == {rows.Verdict.SAME: found.derived_size - 1, rows.Verdict.SAME_PLACES: 1}


def table_of(text: str) -> dict[str, str]:
    """Return the second cell of each line of a table by the first."""
    return {cells[1].strip(): cells[2].strip() for cells in (line.split("|") for line in text.splitlines())}


def test_command_line(tmp_path: Path) -> None:
    """Sound rows are no failure; what cannot be compared is named, and no failure either."""
    (tmp_path / "tree").mkdir()
    path = compiled(tmp_path / "tree", "-O2")
    without = tmp_path / "tree" / "without"
    words = ["cc", "-shared", "-nostdlib", "-fno-asynchronous-unwind-tables", "-x", "c", "-", "-o", str(without)]
    subprocess.run(words, input="int f(void) { return 1; }", text=True, check=True)
    command = [sys.executable, str(TOOLS / "hidden_cfi.py"), "--jobs", "2", "--strip", str(path.parent)]
    run = subprocess.run(command, capture_output=True, text=True, check=False, env={"PYTHONPATH": str(TOOLS.parent)})
    assert run.returncode == 0
    cells = table_of(run.stdout)
    assert cells["files"] == "1"
    derived, what = cells["with a derived row"].split(" ", 1)
    assert 0.9 * int(cells["bytes of code with CFI"]) < int(derived)
    assert what.endswith("%)")
    assert run.stderr == f"{without}: no call frame information: no .eh_frame, .debug_frame or .gopclntab\n"
