# SPDX-License-Identifier: Apache-2.0
"""Walk the stacks of a running program by its .sframe and by glibc's backtrace(): the sampler beside this."""

import re
from itertools import takewhile
from pathlib import Path
from typing import Final, NamedTuple

from cfi2sframe import convert, load
from tests.support.needs import need, run
from tests.support.placing.embedded import converted, write

CONSUMER: Final = Path(__file__).parent
STRICT: Final = ("-O2", "-Wall", "-Wextra", "-Werror")
#: Endings after which backtrace() may know more without SFrame being wrong.
ENDS_EARLY: Final = ("no_module", "no_section", "no_function", "unsafe_register", "too_deep")
SECONDS: Final = "1"
MIN_SAMPLES: Final = 100
#: Modules without a section: the kernel's, the loader, the sampler itself.
_NOT_CONVERTED: Final = re.compile(r"linux-(?:vdso|gate)|ld[-\d.]|ld-linux|ld64|sampler\.so")


class Place(NamedTuple):
    """Where a PC is: the module's file, and the address in it."""

    module: str
    vaddr: int


class Sample(NamedTuple):
    """One sample: why the walk by .sframe ended, the PCs of both walks, and how many of the first ones are equal."""

    ending: str
    outcome: str
    walk: list[int]
    trace: list[int]
    common: int

    @property
    def is_parted(self) -> bool:
        """Whether the walk is not that of backtrace()."""
        return self.outcome not in ("equal", "ended")


class Module(NamedTuple):
    """A module that was loaded at a sample, and the state of its section."""

    state: str
    version: int
    bias: int
    start: int
    end: int
    path: str


class Report(NamedTuple):
    """What the sampler wrote."""

    samples: list[Sample]
    modules: list[Module]

    def place_of(self, pc: int) -> Place:
        """Return where a PC is."""
        for module in self.modules:
            if module.start <= pc < module.end:
                return Place(module.path, pc - module.bias)
        return Place("", pc)

    def count(self, *outcomes: str) -> int:
        """Return how many samples have one of these outcomes."""
        return sum(sample.outcome in outcomes for sample in self.samples)

    @property
    def frame_count(self) -> int:
        """How many steps were made."""
        return sum(len(sample.walk) - 1 for sample in self.samples)

    @property
    def parted(self) -> list[Sample]:
        """The samples whose walk is not that of backtrace()."""
        return [sample for sample in self.samples if sample.is_parted]

    @property
    def in_converted_code(self) -> int:
        """How many walks met converted code only; a busy machine stays in the vDSO for many ticks at times."""
        count = sum(sample.ending != "no_section" for sample in self.samples)
        assert count > len(self.samples) / 2
        return count

    def check_modules(self, *versions: int) -> None:
        """Check that all modules but those that are never converted have a good section, of one of these versions."""
        found = [m for m in self.modules if not _NOT_CONVERTED.match(Path(m.path).name)]
        assert {m.state for m in found} == {"good"}, found
        assert {m.version for m in found} <= set(versions), found
        assert len(found) >= 2


def compile_sampler(compiler: str, target: Path) -> Path:
    """Compile the library that is loaded into programs."""
    run(compiler, *STRICT, "-fPIC", "-shared", "-o", target, CONSUMER / "sampler.c")
    return target


def libraries_of(*programs: Path) -> dict[str, Path]:
    """Return the libraries that programs load, by their names."""
    found = (re.finditer(r"^\s*(\S+) => (/\S+) \(", run("ldd", program), re.MULTILINE) for program in programs)
    return {match[1]: Path(match[2]) for matches in found for match in matches}


def variables_of(sampler: Path, report: Path, libraries: str, interval_us: int = 499) -> dict[str, str]:
    """Return the variables with which a program is sampled; no interval: the program takes its samples itself."""
    report.unlink(missing_ok=True)
    # A path in LD_PRELOAD ends at a space; a name is looked for.
    return {
        "LD_LIBRARY_PATH": f"{libraries}:{sampler.parent}",
        "LD_PRELOAD": sampler.name,
        "CONSUMER_OUT": str(report),
        "CONSUMER_INTERVAL_US": str(interval_us),
    }


def read_report(path: Path) -> Report:
    """Read the report of one run."""
    samples, modules = [], dict[Module, None]()
    for line in path.read_text().splitlines():
        kind, first, rest = line.split(" ", 2)
        if kind == "module":
            version, bias, start, end, name = rest.split(" ", 4)
            modules[Module(first, int(version, 16), int(bias, 16), int(start, 16), int(end, 16), name)] = None
            continue
        returned, _, pcs = rest.partition(" ")
        walk, trace = ([int(pc, 16) for pc in part.split()] for part in pcs.split("|"))
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(walk, trace, strict=False)))
        outcome = _outcome(first, returned == "faulted", walk, trace, common)
        samples.append(Sample(first, outcome, walk, trace, common))
    return Report(samples, list(modules))


def _outcome(ending: str, has_faulted: bool, walk: list[int], trace: list[int], common: int) -> str:  # noqa: FBT001
    if common < min(len(walk), len(trace)):
        return "different"
    if has_faulted:
        return "faulted"
    if not trace:
        return "unaligned"
    if len(walk) == len(trace):
        return "equal"
    if len(walk) > len(trace):
        return "longer"
    return "ended" if ending in ENDS_EARLY else "different"


class Sampler(NamedTuple):
    """The sampler, and a folder of C libraries that have a section, as the programs' own libraries have."""

    library: Path
    converted: Path
    programs: Path


def build_sampler(folder: Path, programs: Path) -> Sampler:
    """Build the sampler, and convert copies of the libraries that programs of C and Rust load."""
    need("cc", "ldd")
    (folder / "lib").mkdir()
    flags = ("-O2", "-shared", "-fPIC", "-Wl,--no-as-needed")
    run("cc", *flags, "-o", folder / "all.so", "-xc", "/dev/null", "-lgcc_s", "-lm")
    for name, path in libraries_of(folder / "all.so").items():
        write(folder / "lib" / name, converted(path.read_bytes()))
    return Sampler(compile_sampler("cc", folder / "sampler.so"), folder / "lib", programs)


def check_walks(sampler: Sampler, program: Path, *words: str, libraries: Path | None = None) -> Report:
    """Run a program under the sampler: every stack that is walked by .sframe must be backtrace()'s.

    `libraries` is where the program's own libraries are.
    """
    expected = run(program, "0", *words, LD_LIBRARY_PATH=str(libraries or ""))
    out = program.with_name(f"{program.name}.walks")
    folders = ":".join(str(folder) for folder in (libraries, sampler.converted) if folder is not None)
    assert run(program, SECONDS, *words, **variables_of(sampler.library, out, folders)) == expected
    report = read_report(out)
    assert len(report.samples) >= MIN_SAMPLES
    assert report.frame_count > len(report.samples)
    assert [sample for sample in report.parted if not _is_in_stub_without_cfi(report, sample)] == []
    assert report.count("equal") > 0.95 * report.in_converted_code
    report.check_modules(2, 3)
    return report


def _is_in_stub_without_cfi(report: Report, sample: Sample) -> bool:
    """Whether backtrace() gave up where it was: in a PLT stub, for which some linkers write no CFI."""
    if sample.outcome != "longer" or len(sample.trace) != 1:
        return False
    path, vaddr = report.place_of(sample.walk[0])
    image = load(path)
    if any(e.start_vaddr <= vaddr < e.start_vaddr + e.size for e in convert(image).cfi.entries):
        return False
    section = image.section_at(vaddr)
    return section is not None and section.name.startswith(".plt")
