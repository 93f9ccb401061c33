# SPDX-License-Identifier: Apache-2.0
"""Walk the stacks of a running program by its .sframe and by glibc's backtrace(): the sampler of `consumer/`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, NamedTuple

from cfi2sframe import convert, load
from tests.support.embedded import converted, write
from tests.support.needs import need, run

CONSUMER: Final = Path(__file__).parent / "consumer"
STRICT: Final = ("-O2", "-Wall", "-Wextra", "-Werror")
#: An interval for programs that say themselves when to take a sample.
NEVER_US: Final = "1000000000"
SECONDS: Final = "1"
MIN_SAMPLES: Final = 100
#: Modules without a section: the kernel's, the loader, the sampler itself.
_NOT_CONVERTED: Final = re.compile(r"linux-(?:vdso|gate)|ld[-\d.]|ld-linux|ld64|sampler\.so")


class Report(NamedTuple):
    """What the sampler wrote."""

    summary: dict[str, Any]
    modules: list[dict[str, Any]]
    stops: list[dict[str, Any]]
    examples: list[dict[str, Any]]

    @property
    def parted(self) -> int:
        """How many walks are not those of backtrace()."""
        return sum(self.summary[outcome] for outcome in ("different", "longer", "unaligned", "faulted"))

    @property
    def in_converted_code(self) -> int:
        """How many walks met converted code only; a busy machine stays in the vDSO for many ticks at times."""
        count = int(self.summary["samples"] - self.summary["endings"].get("no_section", 0))
        assert count > self.summary["samples"] / 2, self.summary
        return count

    def check_modules(self, *versions: int) -> None:
        """Check that all modules but those that are never converted have a good section, of one of these versions."""
        found = [m for m in self.modules if not _NOT_CONVERTED.match(Path(m["module"]).name)]
        assert {m["state"] for m in found} == {"good"}, found
        assert {m["version"] for m in found} <= set(versions), found
        assert len(found) >= 2


def compile_sampler(compiler: str, target: Path) -> Path:
    """Compile the library that is loaded into programs."""
    sources = [CONSUMER / "sampler.c", CONSUMER / "sampler_report.c", *sorted(CONSUMER.glob("sframe_*.c"))]
    run(compiler, *STRICT, "-fPIC", "-shared", "-o", target, *sources)
    return target


def libraries_of(*programs: Path) -> dict[str, Path]:
    """Return the libraries that programs load, by their names."""
    found = (re.finditer(r"^\s*(\S+) => (/\S+) \(", run("ldd", program), re.MULTILINE) for program in programs)
    return {match[1]: Path(match[2]) for matches in found for match in matches}


def variables_of(sampler: Path, report: Path, libraries: str, interval_us: str = "499") -> dict[str, str]:
    """Return the variables with which a program is sampled."""
    report.unlink(missing_ok=True)
    return {
        "LD_LIBRARY_PATH": libraries,
        "LD_PRELOAD": str(sampler),
        "CONSUMER_OUT": str(report),
        "CONSUMER_CLOCK": "wall",
        "CONSUMER_INTERVAL_US": interval_us,
    }


def read_report(path: Path) -> Report:
    """Read the report of one run."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    kinds = ("summary", "module", "stop", "example")
    (summary,), *others = ([record for record in records if record["record"] == kind] for kind in kinds)
    assert summary["lost_stops"] == 0
    return Report(summary, *others)


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
    run("cc", *flags, "-o", folder / "all.so", CONSUMER / "sampler_report.c", "-lgcc_s", "-lm")
    for name, path in libraries_of(folder / "all.so").items():
        write(folder / "lib" / name, converted(path.read_bytes()))
    return Sampler(compile_sampler("cc", folder / "sampler.so"), folder / "lib", programs)


def check_walks(sampler: Sampler, program: Path, *words: str, libraries: Path | None = None) -> dict[str, Any]:
    """Run a program under the sampler: every stack that is walked by .sframe must be backtrace()'s.

    Returns the sampler's summary. `libraries` is where the program's own libraries are.
    """
    expected = run(program, "0", *words, LD_LIBRARY_PATH=str(libraries or ""))
    out = program.with_name(f"{program.name}.walks.jsonl")
    folders = ":".join(str(folder) for folder in (libraries, sampler.converted) if folder is not None)
    assert run(program, SECONDS, *words, **variables_of(sampler.library, out, folders)) == expected
    report = read_report(out)
    summary = report.summary
    assert summary["samples"] >= MIN_SAMPLES, summary
    assert summary["frames"] > summary["samples"]
    unexplained = [example for example in report.examples if not _is_in_stub_without_cfi(example)]
    assert (unexplained, report.parted) == ([], len(report.examples)), unexplained
    assert summary["equal"] > 0.95 * report.in_converted_code, summary
    report.check_modules(2, 3)
    return summary


def _is_in_stub_without_cfi(example: dict[str, Any]) -> bool:
    """Whether backtrace() gave up where it was: in a PLT stub, for which some linkers write no CFI."""
    if example["outcome"] != "longer" or example["backtrace_count"] != 1:
        return False
    place = example["walk"][0]
    vaddr = int(place["offset"], 0)
    image = load(place["module"])
    if any(e.fde.pc_begin_vaddr <= vaddr < e.fde.pc_begin_vaddr + e.fde.pc_range for e in convert(image).cfi.entries):
        return False
    section = image.section_at(vaddr)
    return section is not None and section.name.startswith(".plt")
