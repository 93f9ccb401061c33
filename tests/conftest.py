# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every test may ask for; one that is missing skips the test with how to get it."""

import gc
import os
import signal
import subprocess
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, is_hypothesis_test, settings

from tests import tiers
from tests.support.consumer.walk import Sampler, build_sampler
from tests.support.contrib import install_programs
from tests.support.needs import need
from tests.support.oracle import tools

# Programs that a shell starts in the background ignore SIGINT, and those that the tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine is no failure of a test, and a run that failed in CI has to fail again on the next try.
settings.register_profile("dev", deadline=None, max_examples=60, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("dev"), max_examples=120, derandomize=True, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))

# Users' programs buffer their output.
os.environ.pop("PYTHONUNBUFFERED", None)

# A busy machine makes any run long enough to tell of its progress.
os.environ["CFI2SFRAME_PROGRESS"] = "never"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Tell which tests to run."""
    parser.addoption(
        "--tier", choices=tiers.TIERS, default="first", help="what to run of what is named (tests/tiers.py)"
    )


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


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the way to run what was skipped; `pytest -rs` has the reasons."""
    skipped = terminalreporter.getreports("skipped")
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} skipped: tools or files are missing; for those that Debian has: make judges"
        )


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    """Skip a test that misses a file of the corpus: an archive that changes may not have all of them."""
    try:
        return (yield)
    except FileNotFoundError as error:
        if not str(error.filename).startswith(str(tools.corpus_root())):
            raise
        pytest.skip(f"{pyfuncitem.name}: no {error.filename}; fetch it with: make corpus-files")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark what hypothesis runs, in whichever file it is."""
    if isinstance(item, pytest.Function) and is_hypothesis_test(item.obj):
        item.add_marker(pytest.mark.property)


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
