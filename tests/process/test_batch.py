# SPDX-License-Identifier: Apache-2.0
"""Calls of a function in processes: each item has its result, whatever becomes of the processes."""

import os
import subprocess
import sys

import pytest

from tests.support.cli import ROOT

#: `act(number)` is called for each number, in processes; results are printed as they come.
PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from cfi2sframe.process.batch import results_of
{before}
def act(number):
    {action}
    return number * number

def show(number, result):
    print(result if isinstance(result, str) else "done" if result == number * number else "wrong", number)

def lost(number, reason):
    return f"{{reason}}: lost"

results = results_of(act, range({count}), lambda number: 0, lost, count={processes}, on_done=show)
squares = [result for result in results if not isinstance(result, str)]
assert squares == sorted(squares)
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


def lost_by_kill(number: int) -> str:
    return f"worker killed by signal 9 (out of memory?): lost {number}"


def run(action: str, *, count: int, processes: int = 2, folder: object = None, before: str = "") -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(action=action, count=count, processes=processes, before=before)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=str(folder or "."),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.mark.parametrize("processes", [2, 7])
def test_two_items_of_600_kill_their_process(processes: int) -> None:
    lines = run(f"number in (7, 300) and {KILL}", count=600, processes=processes)
    assert sorted(lines) == sorted(
        [*map(lost_by_kill, (7, 300)), *(f"done {number}" for number in range(600) if number not in (7, 300))]
    )


@pytest.mark.parametrize("limit", range(7, 30, 2))
def test_with_few_descriptors_nothing_fails(limit: int) -> None:
    """This process does what another one could not open; a process that cannot be started leaves none open."""
    action = f"""resource.setrlimit(resource.RLIMIT_NOFILE, ({limit}, {limit}))
results = results_of(lambda number: [open("/dev/null") for _ in range(3)] and number * number, range(9), lambda n: 0,
                     lost, count=2)
assert list(results) == [number * number for number in range(9)]
sys.exit()
    """
    source = (
        PROGRAM.partition("results = ")[0]
        .format(action="pass", before="")
        .replace("import os,", "import os, resource,")
    )
    done = subprocess.run(
        [sys.executable, "-c", source + action], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_an_item_whose_process_is_killed_once_is_done_again(tmp_path: object) -> None:
    """As by somebody who looks for memory: nothing is lost."""
    action = f"mark = Path(str(number)); number % 20 or mark.exists() or (mark.touch(), {KILL})"
    assert sorted(run(action, count=100, folder=tmp_path)) == sorted(f"done {number}" for number in range(100))


def test_an_item_that_cannot_be_tried_again_is_lost() -> None:
    """After the two processes that the run begins with, none can be started."""
    few_pipes = """
from cfi2sframe.process import batch
pipe, given = batch._pipe, []
def one_of_two():
    given.append(pipe() if len(given) < 2 else os.dup(-1))
    return given[-1]
batch._pipe = one_of_two
"""
    lines = run(f"number == 2 and {KILL}", count=9, before=few_pipes)
    assert sorted(lines) == [*(f"done {n}" for n in range(9) if n != 2), lost_by_kill(2)]


@pytest.mark.parametrize("status", [3, 0])
def test_every_item_ends_its_process(status: int) -> None:
    lost = {f"worker ended with exit status {status}: lost {number}" for number in range(9)}
    assert set(run(f"os._exit({status})", count=9)) == lost


def test_a_result_that_cannot_be_sent() -> None:
    action = "number = number if number != 2 else type('Odd', (), {'__mul__': lambda self, other: lambda: 0})()"
    lines = run(action, count=4)
    assert sorted(lines)[:3] == ["done 0", "done 1", "done 3"]
    assert sorted(lines)[3].startswith("internal error: ")
    assert sorted(lines)[3].endswith(": lost 2")


def test_processes_do_not_survive_the_first_one() -> None:
    """Not even when it is killed while they are at work."""
    at_work = "print('at work', os.getpid(), flush=True); time.sleep(10); print('survives', flush=True)"
    program = PROGRAM.format(action=at_work, count=4, processes=2, before="")
    with subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        workers = [int(process.stdout.readline().split()[-1]) for _ in range(2)]
        process.kill()
        # The end of their standard output, which they share.
        assert process.stdout.read() == ""
    assert len(set(workers)) == 2
