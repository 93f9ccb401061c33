# SPDX-License-Identifier: Apache-2.0
"""A walker in C, written from the manual alone, finds by .sframe the stacks that glibc's backtrace() finds by CFI.

The programs of tests/support/consumer, and a Python, run with converted copies of their libraries while a sampler walks
their stacks both ways. ld.so stays as it is, since the program names it by its path.
"""

import platform
import subprocess
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from cfi2sframe import convert, load
from cfi2sframe.abi.rule import Rule
from cfi2sframe.conversion.convert import Conversion, convert_image
from cfi2sframe.conversion.options import Options
from cfi2sframe.dwarf.expression import Expression
from cfi2sframe.dwarf.rules import RowState
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.emit import emit
from tests.support.consumer.places import IN_C, IN_CPP, LIBRARIES, PAST_NORETURN_CALLS, build, program_of
from tests.support.consumer.walk import (
    CONSUMER,
    ENDS_EARLY,
    STRICT,
    Place,
    Report,
    Sample,
    compile_sampler,
    libraries_of,
    read_report,
    variables_of,
)
from tests.support.conversion.variants import convert_unpadded
from tests.support.dwarf.rules import register_offset, state_at
from tests.support.needs import need, run
from tests.support.placing.embedded import write

pytestmark = pytest.mark.oracle

#: Of the longer runs the first is for every day.
SECONDS = ["1", pytest.param("20", marks=pytest.mark.slow)]
SAMPLES_PER_SECOND = 500
#: Samples of steps.c: at every instruction between its two signals.
LEAST_STEPS = 4000
#: While they install the registers of a landing pad, they overwrite their own saved ones: CFI itself is wrong there.
ENTERS_LANDING_PADS = {"_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_Resume_or_Rethrow", "_Unwind_ForcedUnwind"}
#: Endings of a walk that are no errors: code without a section, functions that cannot be described, and registers
#: that only the topmost frame has.
BLAMELESS = {"outermost", *ENDS_EARLY}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sampler and the programs, not converted."""
    need("cc", "ldd")
    folder = tmp_path_factory.mktemp("consumer")
    compile_sampler("cc", folder / "sampler.so")
    build(folder, "sample.c")
    run("cc", "-O2", "-pthread", "-Wl,-z,lazy", "-o", folder / "workload", CONSUMER / "workload.c")
    run("cc", *STRICT, "-Wl,-z,lazy", "-o", folder / "steps", CONSUMER / "steps.c")
    return folder


class Converter(NamedTuple):
    """Puts sections of a version into copies of programs and, beside those in lib/, of their libraries."""

    version: int
    built: Path
    folder: Path
    make: Callable[[ElfImage, Options], Conversion] = convert_image

    def convert(self, source: Path, target: Path) -> None:
        """Write a copy, once. Errata 2 has rows for the ends of stacks."""
        if not target.exists():
            target.parent.mkdir(exist_ok=True)
            options = Options(self.version, errata=2 if self.version == 2 else None)
            write(target, b"".join(emit(self.make(load(str(source)), options)).chunks))

    def program(self, source: Path) -> Path:
        """Return the copy of a program."""
        # backtrace() loads libgcc, whether the program needs it or not.
        libraries = libraries_of(source, self.built / "places_cc") | {n: self.built / "lib" / n for n in LIBRARIES}
        for soname, library in libraries.items():
            self.convert(library, self.folder / "lib" / soname)
        self.convert(source, self.folder / source.name)
        return self.folder / source.name

    def sample(
        self,
        program: Path,
        *words: str | Path,
        expected: str,
        interval_us: int = 0,
        tracer: Path | None = None,
        lookup: str = "call",
    ) -> Report:
        """Run a program under the sampler, as a tracer's child or by itself; it has to print what is expected."""
        out = program.with_name(f"{program.name}.walks")
        sampler, libraries = self.built / "sampler.so", str(program.parent / "lib")
        variables = variables_of(sampler, out, libraries, interval_us) | {"CONSUMER_LOOKUP": lookup}
        setting = ["env", *(f"{name}={value}" for name, value in variables.items())]
        runner = () if tracer is None else (tracer, "1")
        # What terminate() has to say comes before it.
        assert run(*runner, *setting, program, *words).endswith(expected)
        return read_report(out)

    def check(self, report: Report, least: int) -> None:
        """Nothing differs that is not explained, no walk ends for a bad reason, and every module has its section."""
        assert len(report.samples) >= least
        assert report.frame_count > len(report.samples)
        assert [sample for sample in report.parted if not _is_explained(report, sample)] == []
        assert len(report.parted) <= len(report.samples) * 0.005
        assert {sample.ending for sample in report.samples if not sample.is_parted} <= BLAMELESS
        report.check_modules(self.version)


@pytest.fixture(scope="session", params=[2, 3])
def converter(request: pytest.FixtureRequest, built: Path, tmp_path_factory: pytest.TempPathFactory) -> Converter:
    return Converter(request.param, built, tmp_path_factory.mktemp(f"version{request.param}"))


@pytest.fixture(scope="session")
def unpadded(converter: Converter, tmp_path_factory: pytest.TempPathFactory) -> Converter:
    """One whose sections have no padding."""
    return converter._replace(folder=tmp_path_factory.mktemp("unpadded"), make=convert_unpadded)


def _is_explained(report: Report, sample: Sample) -> bool:
    """Whether the walks went through a frame where the CFI itself is known to be wrong, and both lost their way.

    Or whether a walk ended because SP did not grow where it indeed does not.
    """
    places = [report.place_of(pc) for pc in sample.walk[max(0, sample.common - 8) : max(1, sample.common)]]
    if sample.ending == "loop" and _has_sp_of_its_caller(places[-1]):
        return True
    return any(map(_has_wrong_cfi, places))


def _has_sp_of_its_caller(place: Place) -> bool:
    """Whether the CFA is SP: before the jump of longjmp, and before the jump to a landing pad."""
    found = _entry_and_state(place)
    if found is None:
        return False
    state = found[1]
    is_sp = register_offset(load(place.module).arch.sp_register, 0)
    return (isinstance(state.sp, Rule) and state.sp.is_register) or state.cfa == is_sp


@cache
def _conversion_of(module: str) -> Conversion:
    return convert(load(module))


def _entry_and_state(place: Place) -> tuple[str, RowState] | None:
    """Return the name of the function at a place, and the state of the DWARF table there; None without CFI."""
    module, vaddr = place
    if not Path(module).is_file():
        return None
    conversion = _conversion_of(module)
    for entry in conversion.cfi.entries:
        start = entry.start_vaddr
        if start <= vaddr < start + entry.size:
            state = state_at(entry.program.table, vaddr - start)
            return conversion.image.names_of([start]).get(start, ""), state
    return None


def _has_wrong_cfi(place: Place) -> bool:
    found = _entry_and_state(place)
    if found is None:
        return False
    name, state = found
    if name in ENTERS_LANDING_PADS and Path(place.module).name.startswith("libgcc_s"):
        return True
    # GCC's epilogue of a realigned stack: `leave` has restored FP, and the rule goes on to find it by FP.
    return isinstance(state.fp, Expression) and state.fp.deref and isinstance(state.cfa, Rule)


#: Not `context`: makecontext() makes the first byte of a function the return address. Before it is padding, which has
#: the row of the function before.
PLACES = [place for place in IN_C + IN_CPP if place != "context"]


@pytest.mark.parametrize("place", PLACES)
def test_difficult_places(converter: Converter, place: str) -> None:
    """Recursion, qsort, alloca, handlers, threads, ends of threads and of the program; exceptions and their ends."""
    program = converter.program(converter.built / program_of(place))
    report = converter.sample(program, place, expected=f"{place}\n")
    (sample,) = report.samples
    assert not sample.is_parted or _is_explained(report, sample), sample
    # Version 2 can express neither signal frames, nor what libgcc does to enter a landing pad; ld.so has no section.
    assert converter.version == 2 or sample.outcome != "ended" or sample.ending == "no_section", sample
    report.check_modules(converter.version)


@pytest.mark.sampled
@pytest.mark.parametrize("place", [place for place in PAST_NORETURN_CALLS if place != "destructor"])
def test_calls_that_do_not_return(converter: Converter, unpadded: Converter, place: str) -> None:
    """The kernel's and glibc's code look up return addresses themselves, which are past such functions' ends.

    Without padding in the section, the walk ends there. What DWARF unwinders look up is right either way. The stack of
    a destructor passes ld.so, which has no section.
    """
    if (place, converter.version) == ("signal-loop", 2):
        pytest.skip("version 2 cannot pass the frame of a handler")
    found = []
    for each, lookup in ((unpadded, "call"), (converter, "ra"), (unpadded, "ra")):
        program = each.program(each.built / program_of(place))
        (sample,) = each.sample(program, place, expected=f"{place}\n", lookup=lookup).samples
        found.append((sample.outcome, sample.ending))
    assert found == [("equal", "outermost"), ("equal", "outermost"), ("ended", "no_function")]


@pytest.mark.parametrize("seconds", SECONDS)
def test_difficult_stacks(converter: Converter, seconds: str) -> None:
    """At any time: recursion, qsort, alloca, PLT calls, handlers, realigned stacks, threads."""
    source = converter.built / "workload"
    report = converter.sample(converter.program(source), seconds, expected=run(source, "0"), interval_us=499)
    converter.check(report, SAMPLES_PER_SECOND * int(seconds))
    # Version 2 can express neither signal frames nor realigned stacks.
    assert report.count("equal") > (0.98 if converter.version == 3 else 0.6) * report.in_converted_code


@pytest.mark.sampled
def test_every_instruction(converter: Converter) -> None:
    """Samples by the trap flag instead of a clock: no entry, exit or return code of a handler is left to chance."""
    if platform.machine() != "x86_64":
        pytest.skip("the stepper knows the registers of AMD64 only")
    built = converter.built
    run("cc", *STRICT, "-o", built / "stepper", CONSUMER / "stepper.c")
    tried = subprocess.run([built / "stepper", "1", "true"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no tracing of programs here: {tried.stderr.strip()}")
    program = converter.program(built / "steps")
    report = converter.sample(program, expected=run(built / "steps"), tracer=built / "stepper")
    converter.check(report, LEAST_STEPS)
    # Most of the rest is in ld.so, or (in version 2) below the return code of a handler.
    assert report.count("equal") > (2000 if converter.version == 3 else 800)
    last = Counter(report.place_of(sample.walk[-1]) for sample in report.samples)
    stopped = sum(count for place, count in last.items() if _is_return_code(place))
    assert (stopped > 0) == (converter.version == 2)


def _is_return_code(place: Place) -> bool:
    """Whether a place is in the code of libc that handlers return to: its small signal frame."""
    if Path(place.module).name != "libc.so.6":
        return False
    fdes = [entry for entry in _conversion_of(place.module).cfi.entries if entry.program.cie.is_signal_frame]
    (start,) = (fde.start_vaddr for fde in fdes if fde.size < 32)
    return start <= place.vaddr < start + 32
