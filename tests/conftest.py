# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may ask for; one that is missing skips the test with how to get it."""

import gc
import os
import random
import resource
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests import tiers
from tests.support.consumer.walk import Sampler, build_sampler
from tests.support.contrib import install_programs
from tests.support.needs import need
from tests.support.oracle import tools
from tests.support.skips import ALLOWED, Skip, by_reason, judge

# Programs that a shell starts in the background ignore SIGINT, and those that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure of a test, and a run that failed in CI has to fail again on the next try.
settings.register_profile("dev", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
if not os.access(".", os.W_OK):
    settings.register_profile("dev", settings.get_profile("dev"), database=None)
settings.register_profile("ci", settings.get_profile("dev"), max_examples=120, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# Users' programs buffer their output. What a developer has set for his own work must not change what tests see.
for _name in ("PYTHONUNBUFFERED", "NO_COLOR", *(f"CFI2SFRAME_{each}" for each in ("FLAGS", "LOG", "STRICT"))):
    os.environ.pop(_name, None)
os.umask(0o022)

# A busy machine makes any run long enough to tell of its progress.
os.environ["CFI2SFRAME_PROGRESS"] = "never"

_CPU_SECONDS: Final = "CPU seconds"
_WORKERS: Final = pytest.StashKey[list[float]]()


def pytest_configure(config: pytest.Config) -> None:
    """Prepare for what workers tell; they have the environment of this process."""
    config.stash[_WORKERS] = []
    os.environ.setdefault("CORPUS_SEED", str(random.randrange(1 << 16)))  # noqa: S311 - of a sample


def pytest_report_header() -> str:
    """Tell what another run needs to do the same."""
    return f"CORPUS_SEED={os.environ['CORPUS_SEED']}"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tell which tests to run."""
    parser.addoption(
        "--tier", choices=tiers.TIERS, default="first", help="what to run of what is named (tests/tiers.py)"
    )
    parser.addoption("--skips", action="store_true", help="fail unless what skips is what may (tests/support/skips.py)")
    parser.addoption("--absent", default="", help="targets of make that failed for want of the archive")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other tier out."""
    tier = config.getoption("--tier")
    if tier == "all":
        return
    first, second = tiers.split(items)
    items[:], others = (first, second) if tier == "first" else (second, first)
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    """Spare garbage collection the heap of pytest: each job of the program collects, which took half of the time."""
    gc.collect()
    gc.freeze()


def _used() -> float:
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


@pytest.hookimpl(wrapper=True)
def pytest_sessionfinish(session: pytest.Session) -> Generator[None]:
    """Tell what was missing, and the cost of the run; with --skips, fail a run that skipped other tests than it may."""
    config = session.config
    reporter: pytest.TerminalReporter | None = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        # A worker of pytest-xdist.
        config.workeroutput[_CPU_SECONDS] = _used()  # type: ignore[attr-defined]
        yield
        return
    reports = reporter.stats.get("skipped", [])
    skips = [Skip(report.nodeid, report.longrepr[2].removeprefix("Skipped: ")) for report in reports]
    lines = ["", *by_reason(skips)]
    if config.getoption("--skips"):
        wrong, excused = judge(skips, ALLOWED, config.getoption("--tier"), config.getoption("--absent").split())
        if wrong and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        lines += [*wrong, *([f"{excused} tests not run for want of the archive"] if excused else [])]
    yield
    by_workers: list[float] = config.stash[_WORKERS]
    for line in (*lines, f"{_used() + sum(by_workers):.0f} seconds of CPU"):
        reporter.write_line(line)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:  # noqa: ANN401 -- a type of pytest-xdist, which may be missing
    """Keep what a worker of pytest-xdist has used."""
    node.config.stash[_WORKERS].append(getattr(node, "workeroutput", {}).get(_CPU_SECONDS, 0))


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Generator[None, object, object]:
    """Skip a test that misses a file of the corpus: an archive that changes may not have all of them."""
    try:
        return (yield)
    except FileNotFoundError as error:
        if not str(error.filename).startswith(str(tools.corpus_root())):
            raise
        pytest.skip(f"no {Path(error.filename).name}: make corpus-files")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what hypothesis runs, in whichever file it is."""
    if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
        item.add_marker(pytest.mark.property)


@pytest.fixture
def heeds_hangups() -> Iterator[None]:
    """Programs that the test starts end on SIGHUP, also where `nohup` has started the tests."""
    previous = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, previous)


@pytest.fixture
def mount() -> Iterator[Callable[..., Path]]:
    """Give a function that runs mount for a folder, with words, and returns the folder; at the end, unmount all."""
    made: list[Path] = []

    def mounted(point: Path, *words: str | Path) -> Path:
        point.mkdir(exist_ok=True)
        done = subprocess.run(["mount", *map(str, words), point], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        made.append(point)
        return point

    need("mount")
    yield mounted
    for point in reversed(made):
        subprocess.run(["umount", point], check=True)


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cfi2sframe, cfi2sframe-ld and cfi2sframe-cc."""
    return install_programs(tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def sampler(tmp_path_factory: pytest.TempPathFactory, programs: Path) -> Sampler:
    """The stack sampler."""
    return build_sampler(tmp_path_factory.mktemp("sampler"), programs)
