# SPDX-License-Identifier: Apache-2.0
"""What Go's table says of programs that Go built: against Go's own `.debug_frame`, and against runtime.Callers."""

import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from cfi2sframe import account, load
from cfi2sframe.api import convert, verify
from tests.support.conversion.sums import convert_checked
from tests.support.gotable.go_programs import GO_ARCHES, go_build, judge_table

pytestmark = [pytest.mark.oracle, pytest.mark.sampled]

HELLO: Final = """
package main

import "fmt"

func main() { fmt.Println("hello") }
"""

#: Calls through an interface, a function with a deferred call, and recursion, ended by a loop that makes no call. None
#: of them is inlined: runtime.Callers would tell of frames that are none.
SPIN: Final = """
package main

import (
	"fmt"
	"os"
	"runtime"
)

var sink int

//go:noinline
func spin(depth int) int {
	pcs := make([]uintptr, 64)
	count := runtime.Callers(1, pcs)
	for _, pc := range pcs[:count] {
		fmt.Printf("%x ", pc)
	}
	fmt.Println()
	os.Stdout.Sync()
	for {
		sink += depth
	}
}

//go:noinline
func descend(depth int, padding [24]int) int {
	if depth == 0 {
		return spin(depth) + padding[1]
	}
	padding[depth] = depth
	return descend(depth-1, padding) + padding[0]
}

type walker interface{ walk(depth int) int }
type first struct{ big [100]int }

func (f *first) walk(depth int) int {
	defer func() { sink++ }()
	var padding [24]int
	return descend(depth, padding) + f.big[depth]
}

func main() {
	runtime.LockOSThread()
	var w walker = &first{}
	sink = w.walk(5)
}
"""

#: Functions whose depths are not true. On the others, the rows are those of .debug_frame.
SWITCHES: Final = {"gogo", "runtime.mcall", "runtime.systemstack", "runtime.morestack", "runtime.asmcgocall"}
OUTERMOST: Final = {"runtime.goexit", "runtime.mstart", "runtime.rt0_go"}
#: Go ends a traceback where the kernel called a signal handler; other tracers know what the kernel left on the stack.
SIGNAL_ENTRY: Final = "runtime.sigtramp"
MANY_FUNCTIONS: Final = 1000
MANY_ADDRESSES: Final = 5000
FEW: Final = 20


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The runtime is compiled once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GOCACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.mark.parametrize("arch", GO_ARCHES)
@pytest.mark.parametrize("mode", ["exe", "pie"])
def test_against_debug_frame(arch: str, mode: str, tmp_path: Path) -> None:
    """Each function, at each address; those that differ for a reason are few and known."""
    if mode == "pie" and arch != "amd64":
        pytest.skip("position-independent programs are built for AMD64 only")
    image = load(str(go_build(tmp_path, HELLO, f"-buildmode={mode}", arch=arch)))
    verdict = judge_table(image)
    assert verdict.differences == []
    assert verdict.function_count > MANY_FUNCTIONS
    assert verdict.point_count > MANY_ADDRESSES
    without_rules = verdict.others.pop("without rules")
    assert without_rules >= SWITCHES
    assert len(without_rules) < FEW
    ended = set() if arch == "amd64" else {SIGNAL_ENTRY}
    assert verdict.others == {"outermost": OUTERMOST, "ended": ended, "absent": set()}


@pytest.mark.parametrize("arch", GO_ARCHES)
def test_a_stripped_program(arch: str, tmp_path: Path) -> None:
    image = load(str(go_build(tmp_path, HELLO, "-ldflags=-s -w", arch=arch)))
    conversion = convert_checked(image)
    coverage = account(conversion)
    assert list(coverage.sources) == [".gopclntab"]
    assert coverage.described_size >= 0.99 * coverage.code_size
    assert coverage.damaged_count == 0
    assert verify(convert(image)).is_clean


@pytest.mark.parametrize("mode", ["exe", "pie"])
def test_linked_by_the_c_linker(mode: str, tmp_path: Path) -> None:
    """Each function comes from the best source that has it; the table of a PIE is in .data.rel.ro."""
    flags = (f"-buildmode={mode}", "-ldflags=-linkmode=external")
    image = load(str(go_build(tmp_path, HELLO, *flags, cgo=True)))
    sources = account(convert_checked(image)).sources
    assert list(sources) == [".eh_frame", ".debug_frame", ".gopclntab"]
    assert sources[".debug_frame"] > MANY_FUNCTIONS
    subprocess.run(["strip", image.name], check=True)
    image = load(image.name)
    coverage = account(convert_checked(image))
    assert list(coverage.sources) == [".eh_frame", ".gopclntab"]
    assert coverage.described_size >= 0.99 * coverage.code_size
    assert verify(convert(image)).is_clean


@pytest.mark.skipif(platform.machine() != "x86_64", reason="traces a program of AMD64")
@pytest.mark.parametrize("is_converted", [False, True], ids=["by its table", "by its section"])
def test_a_running_program(is_converted: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """The callers of a stripped program's main goroutine, from its registers and stack, and as it says itself."""
    program = go_build(tmp_path, SPIN, "-ldflags=-s -w")
    command = [sys.executable, "-m", "cfi2sframe"]
    if is_converted:
        subprocess.run([*command, "--in-place", str(program)], check=True)
    # A preempted goroutine would not be in its loop.
    env = {**os.environ, "GODEBUG": "asyncpreemptoff=1"}
    with subprocess.Popen([program], env=env, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            callers = [int(word, 16) for word in process.stdout.readline().split()]
            traced = subprocess.run(
                [*command, "trace", "--format", "json", "--pid", str(process.pid)],
                check=False,
                capture_output=True,
                text=True,
            )
        finally:
            process.kill()
    if "ptrace" in traced.stderr:
        pytest.skip(f"cannot trace: {traced.stderr}")
    threads = json.loads(traced.stdout)["threads"]
    (main,) = [thread for thread in threads if thread["id"] == process.pid]
    assert [frame["pc"] for frame in main["frames"]][1:] == callers[1:]
    assert len(callers) > len("descend")
    assert main["ending"] == "outermost"
    assert {frame["row"]["source"] for frame in main["frames"]} == {"file" if is_converted else "converted"}
