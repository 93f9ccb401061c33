# SPDX-License-Identifier: Apache-2.0
"""A walker in C, written from the manual alone, finds by .sframe the stacks that glibc's backtrace() finds by CFI.

The programs of tests/support/consumer, and a Python, run with converted copies of their libraries while a sampler walks
their stacks both ways. ld.so stays as it is, since the program names it by its path.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.conversion import Options
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.emit import check, emit
from cfi2sframe.rules import Rule
from tests.support.needs import need, run
from tests.support.rules import register_offset, state_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from cfi2sframe.dwarf.rules import RowState

pytestmark = pytest.mark.oracle

SUPPORT = Path(__file__).resolve().parents[1] / "support"
CONSUMER = SUPPORT / "consumer"
INTERVAL_US = "499"
NEVER_US = "1000000000"
#: Of the longer runs the first is for every day.
SECONDS = ["1", pytest.param("20", marks=pytest.mark.slow)]
SAMPLES_PER_SECOND = 500
MOST_EXAMPLES = 32
#: Samples of steps.c: at every instruction between its two signals.
LEAST_STEPS = 4000
SHARED = ["-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
SAMPLER = [
    CONSUMER / f"{name}.c" for name in ("sampler", "sampler_report", "sframe_process", "sframe_start", "sframe_walk")
]

#: While they install the registers of a landing pad, they overwrite their own saved ones: CFI itself is wrong there.
ENTERS_LANDING_PADS = {
    "_Unwind_RaiseException",
    "_Unwind_Resume",
    "_Unwind_Resume_or_Rethrow",
    "_Unwind_ForcedUnwind",
}
#: Endings of a walk that are no errors: code without a section, functions that cannot be described, and registers
#: that only the topmost frame has.
BLAMELESS = {"outermost", "no_module", "no_section", "no_function", "unsafe_register", "too_deep"}
NOT_CONVERTED = re.compile(r"linux-(?:vdso|gate)|ld[-\d.]|ld-linux|ld64|sampler\w*\.so|libsframe")


class Report(NamedTuple):
    """What the sampler wrote."""

    summary: dict[str, Any]
    modules: list[dict[str, Any]]
    stops: list[dict[str, Any]]
    examples: list[dict[str, Any]]


def _convert(source: Path, target: Path, options: Options) -> None:
    """Write a converted copy, which is read back and verified."""
    emitted = emit(convert(load(str(source)), **options._asdict()))
    target.write_bytes(b"".join(emitted.chunks))
    target.chmod(0o755)
    check(emitted, load(str(target)))


def _libraries(program: Path) -> dict[str, Path]:
    text = run("ldd", program)
    return {m[1]: Path(m[2]) for m in re.finditer(r"^\s*(\S+) => (/\S+) \(", text, re.MULTILINE)}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sampler and the programs, not converted."""
    need("cc", "c++", "ldd")
    folder = tmp_path_factory.mktemp("consumer")
    run("cc", *SHARED, "-o", folder / "sampler.so", *SAMPLER, CONSUMER / "sframe_section.c")
    run("cc", "-O2", "-pthread", "-Wl,-z,lazy", "-o", folder / "workload", CONSUMER / "workload.c")
    run("c++", "-O2", "-Wl,-z,lazy", "-o", folder / "workload_cc", CONSUMER / "workload.cc")
    run("cc", "-O2", "-o", folder / "handler", SUPPORT / "programs/handler.c")
    run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-Wl,-z,lazy", "-o", folder / "steps", CONSUMER / "steps.c")
    return folder


@pytest.fixture(scope="session", params=[2, 3])
def version(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def _converter(built: Path, folder: Path, options: Options) -> Callable[[Path], Path]:
    (folder / "lib").mkdir()

    def convert_once(program: Path) -> Path:
        target = folder / program.name
        if not target.exists():
            # backtrace() loads libgcc, whether the program needs it or not.
            for soname, library in (_libraries(program) | _libraries(built / "workload_cc")).items():
                if not (folder / "lib" / soname).exists():
                    _convert(library, folder / "lib" / soname, options)
            _convert(program, target, options)
        return target

    return convert_once


@pytest.fixture(scope="session")
def converted(built: Path, version: int, tmp_path_factory: pytest.TempPathFactory) -> Callable[[Path], Path]:
    """`converted(program)`: a converted copy, next to converted copies of its libraries in lib/."""
    return _converter(built, tmp_path_factory.mktemp(f"version{version}"), Options(version=version))


def _sample(
    built: Path,
    program: Path,
    *words: str | Path,
    expected: str,
    variables: dict[str, str] | None = None,
    runner: tuple[str | Path, ...] = (),
    sampler: str = "sampler.so",
) -> Report:
    """Run a program under the sampler; its own output must be that of the unsampled, unconverted one.

    `runner` are the words of a command that runs another, which is not sampled itself.
    """
    out = program.with_name(f"{program.name}.jsonl")
    out.unlink(missing_ok=True)
    sampled = {
        "LD_LIBRARY_PATH": str(program.parent / "lib"),
        "LD_PRELOAD": str(built / sampler),
        "CONSUMER_OUT": str(out),
        "CONSUMER_CLOCK": "wall",
        "CONSUMER_INTERVAL_US": NEVER_US if runner else INTERVAL_US,
    }
    setting = ["env", *(f"{name}={value}" for name, value in sampled.items())]
    assert run(*runner, *setting, program, *words, **(variables or {})) == expected
    records = [json.loads(line) for line in out.read_text().splitlines()]
    of = {kind: [r for r in records if r["record"] == kind] for kind in ("summary", "module", "stop", "example")}
    assert len(of["summary"]) == 1
    return Report(of["summary"][0], of["module"], of["stop"], of["example"])


def _is_explained(example: dict[str, Any]) -> bool:
    """Whether the walks went through a frame where the CFI itself is known to be wrong, and both lost their way.

    Or whether a walk ended because SP did not grow where it indeed does not.
    """
    common = example["walk"][: max(1, example["first_difference"] - example["window_start"])]
    places = [(Path(place["module"] or ""), int(place["offset"], 0)) for place in common]
    if example["ending"] == "loop" and _has_sp_of_its_caller(*places[-1]):
        return True
    return any(_has_wrong_cfi(*place) for place in places)


def _has_sp_of_its_caller(module: Path, vaddr: int) -> bool:
    """Whether the CFA is SP: before the jump of longjmp, and before the jump to a landing pad."""
    found = _entry_and_state(module, vaddr)
    if found is None:
        return False
    state = found[1]
    is_sp = register_offset(load(str(module)).arch.sp_register, 0)
    return (isinstance(state.sp, Rule) and state.sp.is_register) or state.cfa == is_sp


def _entry_and_state(module: Path, vaddr: int) -> tuple[str, RowState] | None:
    """Return the name of the function at an address, and the state of the DWARF table there; None without CFI."""
    if not module.is_file():
        return None
    image = load(str(module))
    for entry in convert(image, version=3).cfi.entries:
        start = entry.fde.pc_begin_vaddr
        if start <= vaddr < start + entry.fde.pc_range:
            state = state_at(entry.program.table, vaddr - start)
            return image.names_of([start]).get(start, ""), state
    return None


def _has_wrong_cfi(module: Path, vaddr: int) -> bool:
    found = _entry_and_state(module, vaddr)
    if found is None:
        return False
    name, state = found
    if name in ENTERS_LANDING_PADS and module.name.startswith("libgcc_s"):
        return True
    # GCC's epilogue of a realigned stack: `leave` has restored FP, and the rule goes on to find it by FP.
    return isinstance(state.fp, Expression) and state.fp.deref and isinstance(state.cfa, Rule)


def _check(report: Report, version: int, least: int) -> None:
    """Nothing differs that is not explained, no walk ends for a bad reason, and every module has its section."""
    summary = report.summary
    assert summary["samples"] >= least, summary
    assert summary["frames"] > summary["samples"]
    assert summary["lost_stops"] == 0
    assert [example for example in report.examples if not _is_explained(example)] == []
    parted = sum(summary[outcome] for outcome in ("different", "longer", "unaligned", "faulted"))
    # The sampler keeps the first ones; there is no place for more.
    assert parted == len(report.examples) or len(report.examples) == MOST_EXAMPLES
    assert parted <= summary["samples"] * 0.005
    assert [stop for stop in report.stops if stop["outcome"] == "ended" and stop["ending"] not in BLAMELESS] == []
    modules = [m for m in report.modules if not NOT_CONVERTED.match(Path(m["module"]).name)]
    assert {(m["state"], m["version"]) for m in modules} == {("good", version)}, modules
    assert len(modules) >= 3


def _in_converted_code(report: Report) -> int:
    """Return how many walks met converted code only; a busy machine stays in the vDSO for many ticks at times."""
    count = int(report.summary["samples"] - report.summary["endings"].get("no_section", 0))
    assert count > report.summary["samples"] / 2
    return count


def _share_of_equal(report: Report) -> float:
    return float(report.summary["equal"] / _in_converted_code(report))


@pytest.mark.parametrize("seconds", SECONDS)
@pytest.mark.parametrize("name", ["workload", "workload_cc"])
def test_difficult_stacks(
    built: Path, converted: Callable[[Path], Path], version: int, name: str, seconds: str
) -> None:
    """Recursion, qsort, alloca, PLT calls, handlers, realigned stacks, threads; and C++ exceptions."""
    report = _sample(built, converted(built / name), seconds, expected=run(built / name, "0"))
    _check(report, version, SAMPLES_PER_SECOND * int(seconds))
    # Version 2 can express neither signal frames, nor realigned stacks, nor what libgcc does to enter a landing pad.
    assert _share_of_equal(report) > (0.98 if version == 3 else 0.6)


def _address_of_restore_rt(library: Path) -> tuple[int, int]:
    """Return the start and the end of the code that handlers return to: the signal frame with the smallest size."""
    frames = [
        (entry.fde.pc_begin_vaddr, entry.fde.pc_begin_vaddr + entry.fde.pc_range)
        for entry in convert(load(str(library)), version=3).cfi.entries
        if entry.fde.cie.is_signal_frame and entry.fde.pc_range < 32
    ]
    assert len(frames) == 1
    return frames[0]


@pytest.mark.parametrize("seconds", SECONDS)
def test_signal_frames(built: Path, converted: Callable[[Path], Path], version: int, seconds: str) -> None:
    """Nearly every sample is taken in a handler: version 2 cannot pass its return code, version 3 can."""
    report = _sample(built, converted(built / "handler"), seconds, expected=run(built / "handler", "0"))
    _check(report, version, SAMPLES_PER_SECOND * int(seconds))
    start, end = _address_of_restore_rt(_libraries(built / "handler")["libc.so.6"])
    stopped = sum(
        stop["count"]
        for stop in report.stops
        if Path(stop["place"]["module"] or "").name == "libc.so.6" and start <= int(stop["place"]["offset"], 0) <= end
    )
    if version == 3:
        assert _share_of_equal(report) > 0.95
        assert stopped <= report.summary["samples"] * 0.01
    else:
        assert stopped > _in_converted_code(report) * 0.9


@pytest.fixture(scope="session")
def stepper(built: Path) -> tuple[str | Path, ...]:
    """The words that have a program sampled at every instruction."""
    if platform.machine() != "x86_64":
        pytest.skip("the stepper knows the registers of AMD64 only")
    run("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", built / "stepper", CONSUMER / "stepper.c")
    tried = subprocess.run([built / "stepper", "1", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no tracing of programs here: {tried.stderr.strip()}")
    return (built / "stepper", "1")


def test_every_instruction(
    built: Path, converted: Callable[[Path], Path], version: int, stepper: tuple[str | Path, ...]
) -> None:
    """Samples by the trap flag instead of a clock: no entry, exit or return code of a handler is left to chance."""
    report = _sample(built, converted(built / "steps"), expected=run(built / "steps"), runner=stepper)
    _check(report, version, LEAST_STEPS)
    # Most of the rest is in ld.so, or (in version 2) below the return code of a handler.
    assert report.summary["equal"] > (2000 if version == 3 else 800)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", SECONDS)
def test_python(built: Path, converted: Callable[[Path], Path], version: int, seconds: str) -> None:
    """A Python with its libraries and its extension modules."""
    found = shutil.which("python3", path="/usr/bin")
    if found is None:
        pytest.skip("no /usr/bin/python3")
    python = Path(found).resolve()
    script = SUPPORT / "python_workload.py"
    result, modules = run(python, "-s", script, "0", "modules").splitlines()
    program = converted(python)
    extensions = program.parent / "extensions"
    extensions.mkdir(exist_ok=True)
    for path in map(Path, modules.split()):
        for soname, library in _libraries(path).items():
            if not (program.parent / "lib" / soname).exists():
                _convert(library, program.parent / "lib" / soname, Options(version=version))
        if not (extensions / path.name).exists():
            _convert(path, extensions / path.name, Options(version=version))
    variables = {"PYTHONPATH": str(extensions), "PYTHONDONTWRITEBYTECODE": "1"}
    report = _sample(built, program, "-s", script, seconds, expected=f"{result}\n", variables=variables)
    _check(report, version, SAMPLES_PER_SECOND * int(seconds))
    assert any(Path(module["module"]).parent == extensions for module in report.modules)
    assert _share_of_equal(report) > 0.85
