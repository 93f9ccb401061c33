# SPDX-License-Identifier: Apache-2.0
"""Recordings that perf made: the frames are those of the programs' sources, and those that perf finds in them."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe.elf.load import read_file
from cfi2sframe.trace import Recording
from cfi2sframe.trace.profile import place_of
from tests.support import cli
from tests.support.contrib import ROOT
from tests.support.needs import attempt, need
from tests.support.placing.embedded import linked_of

pytestmark = pytest.mark.oracle

#: A recording of perf 6.1, and the root with its program.
DATA: Final = ROOT / "testdata" / "perf" / "program.data"
HERE: Final = ("trace", DATA, "--sysroot", DATA.parent / "root")
#: What the source says of its stacks, the outermost frame first; one function has no CFI.
STACK: Final = re.compile(
    r"program;(?:_start;start_c;work(?:(?:;recurse){1,6};sum|;restore;handler(?:;sum)?|;by_expression)?|without_cfi)"
)
#: Sorts with a callback, in threads, below a recursion.
SOURCE: Final = """
#include <pthread.h>
#include <stdlib.h>
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
__attribute__((noinline)) static int dive(int depth) {
  volatile char room[40];
  room[0] = depth;
  if (depth) return dive(depth - 1) + room[0];
  int *numbers = malloc(200000 * sizeof *numbers);
  for (int i = 0; i < 200000; i++) numbers[i] = i * 7919 % 200003;
  qsort(numbers, 200000, sizeof *numbers, compare);
  int last = numbers[199999];
  free(numbers);
  return last;
}
static void *thread(void *depth) { for (int i = 0; i < 8; i++) dive(*(int *)depth); return NULL; }
int main(void) {
  int depths[2] = {10, 40};
  pthread_t threads[2];
  for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, thread, &depths[i]);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
  return 0;
}
"""


def chains_of(text: str) -> Iterator[tuple[tuple[str, str], list[int]]]:
    """Yield each sample in the text of `perf script`: thread and time, and its addresses in user space."""
    for block in text.split("\n\n"):
        lines = block.strip("\n").splitlines()
        head = re.match(r".*?(\d+)(?:/\d+)? +(\d+\.\d+): ", lines[0]) if lines else None
        if head:
            pcs = [int(line.split()[0], 16) for line in lines[1:]]
            yield (head[1], head[2]), [pc for pc in pcs if pc < 1 << 63]


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return linked_of(tmp_path_factory.mktemp("program"), SOURCE, "-O2", "-pthread")


def record(program: Path, *options: str) -> Path:
    """Record a program; skip where that is not permitted."""
    data = program.with_name("perf.data")
    event = ("-q", "-F", "1999", "-e", "cpu-clock:u", "--call-graph", "dwarf,16384")
    done = attempt(need("perf"), "record", *event, *options, "-o", data, program)
    if done.status:
        pytest.skip(f"perf cannot record here: {done.err.strip()[-200:]}")
    return data


def test_stacks_are_those_of_the_source() -> None:
    folded = cli.run(*HERE, "--format", "folded").out.decode().splitlines()
    assert len(folded) > 5
    for line in folded:
        stack, _, number = line.rpartition(" ")
        assert STACK.fullmatch(stack), line
        assert int(number) > 0
    assert any("restore;handler" in line for line in folded)
    counted = json.loads(cli.run(*HERE, "--format", "json").out)
    assert counted["samples"] == sum(int(line.rpartition(" ")[2]) for line in folded)
    whole = sum(int(line.rpartition(" ")[2]) for line in folded if "_start" in line)
    assert counted["cfi"]["outermost_count"] == whole
    beyond = sum(end["count"] for end in counted["ends"] if end["function"] == "by_expression")
    assert counted["rows"]["outermost_count"] == whole - beyond < whole
    assert {end["function"] for end in counted["ends"]} == {"by_expression", "without_cfi"}
    assert counted["frame_pointers"]["outermost_count"] == 0
    assert sum(stack["count"] for stack in counted["stacks"]) == counted["samples"]
    assert {frame["build_id"] is None for stack in counted["stacks"] for frame in stack["frames"]} == {False}


def test_samples_can_be_chosen() -> None:
    """By number, time, thread and process, as in perf's own text."""
    every = list(chains_of(cli.run(*HERE, "--format", "perf").out.decode()))
    (thread, third), (_, fifth) = every[2][0], every[4][0]
    for option, value, chosen in (
        ("--samples", "3..5", every[2:5]),
        ("--samples", "5..", every[4:]),
        ("--time", f"{third}..{fifth}", every[3:5]),
        ("--time", f"..{fifth}", every[:4]),
        ("--thread", thread, every),
        ("--pid", "1", []),
    ):
        found = list(chains_of(cli.run(*HERE, "--format", "perf", option, value).out.decode()))
        # Times are cut after microseconds.
        assert len(found) in range(len(chosen) - 1, len(chosen) + 2) if option == "--time" else found == chosen
    assert cli.run(*HERE, "--pid", "1").status == 0
    for words, message in (
        (("--samples", "x"), "not a range A..B: 'x'"),
        (("--executable", "x"), "--executable is only valid with a core file"),
    ):
        done = cli.run(*HERE, *words)
        assert done.status == 2
        assert message in done.err[-1]


def test_only_sections_count_what_is_there(tmp_path: Path) -> None:
    """Before a conversion nothing has rows; after it, what was converted in memory before."""
    alone = json.loads(cli.run(*HERE, "--only-sections", "--format", "json").out)
    assert (alone["rows"]["outermost_count"], alone["modules"][0]["source"]) == (0, "none")
    (program,) = (DATA.parent / "root").rglob("program")
    converted = tmp_path / program.relative_to(DATA.parent / "root")
    converted.parent.mkdir(parents=True)
    assert cli.run(program, "-o", converted).status == 0
    after = json.loads(cli.run("trace", DATA, "--sysroot", tmp_path, "--only-sections", "--format", "json").out)
    before = json.loads(cli.run(*HERE, "--format", "json").out)
    assert (after["modules"][0]["source"], before["modules"][0]["source"]) == ("file", "converted")
    # A section has none of what is followed by CFI that it cannot hold.
    assert after["cfi"] == after["rows"] == before["rows"]
    assert [(end["count"], end["function"]) for end in after["ends"]] == [
        (end["count"], end["function"]) for end in before["ends"]
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="records with perf")
def test_no_chain_contradicts_perf(program: Path) -> None:
    """The samples are the same, and of the chains of both one is the start of the other; nearly all are whole."""
    data = record(program)
    # Its warnings are on the other stream.
    script = attempt(need("perf"), "script", "-i", data, "-F", "tid,time,ip", "--no-inline")
    theirs = list(chains_of(script.out))
    found = list(Recording(read_file(str(data))))
    assert len(found) == len(theirs) > 30
    lengths = [0, 0]
    for walked, (name, other) in zip(found, theirs, strict=True):
        assert (str(walked.sample.tid), walked.sample.time // 1000) == (name[0], int(name[1].replace(".", "")))
        assert walked.trace is not None
        assert walked.space is not None
        # perf prints addresses of the process, or (6.1) those of the files.
        own = [(entry.named_pc, place_of(entry, walked.space).vaddr) for entry in walked.trace.entries]
        assert all(pc in both for pc, both in zip(other, own, strict=False))
        lengths = [lengths[0] + len(own), lengths[1] + len(other)]
    assert lengths[0] >= lengths[1] > 0
    counted = json.loads(cli.run("trace", data, "--format", "json").out)
    assert counted["rows"]["outermost_count"] > 0.98 * counted["samples"]
    names = {(f["function"] or "").split(".")[0] for stack in counted["stacks"] for f in stack["frames"]}
    assert {"compare", "dive", "thread"} <= names


@pytest.mark.parametrize("options", [(), ("-z",)], ids=["plain", "compressed"])
@pytest.mark.skipif(sys.platform != "linux", reason="records with perf")
def test_what_perf_writes_to_a_pipe(program: Path, options: tuple[str, ...]) -> None:
    if options:
        pytest.importorskip("zstandard")
    words = ("record", "-q", *options, "-F", "199", "-e", "cpu-clock:u", "--call-graph", "dwarf", "-o", "-")
    done = subprocess.run([need("perf"), *words, program], capture_output=True, check=False, timeout=60)
    if done.returncode:
        pytest.skip(f"perf cannot record here: {done.stderr.decode()[-200:]}")
    counted = json.loads(cli.run("trace", "-", "--format", "json", stdin=done.stdout).out)
    assert counted["samples"] > 10
    assert counted["rows"]["outermost_count"] > 0.95 * counted["samples"]
    assert counted["file"] == "<stdin>"
