# SPDX-License-Identifier: Apache-2.0
"""Walk the stacks of a running program by its .sframe and by glibc's backtrace(): the sampler of `consumer/`."""

from __future__ import annotations

import json
import re
import shutil
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from cfi2sframe import convert, load
from tests.contrib.support import ROOT, environment, run
from tests.support.needs import need

if TYPE_CHECKING:
    from pathlib import Path

CONSUMER: Final = ROOT / "tests" / "support" / "consumer"
SECONDS: Final = "1"
INTERVAL_US: Final = "499"
MIN_SAMPLES: Final = 100
#: Modules without a section: the kernel's, the loader, the sampler itself.
_NOT_CONVERTED: Final = re.compile(r"linux-(?:vdso|gate)|ld[-\d.]|ld-linux|ld64|sampler\.so")


class Sampler(NamedTuple):
    """The sampler, and a folder of C libraries that have a section, as the programs' own libraries have."""

    library: Path
    converted: Path
    programs: Path


def build_sampler(folder: Path, programs: Path) -> Sampler:
    """Build the sampler, and convert copies of the libraries that programs of C and Rust load."""
    need("cc", "ldd")
    library, converted = folder / "sampler.so", folder / "lib"
    sources = [CONSUMER / "sampler.c", CONSUMER / "sampler_report.c", *sorted(CONSUMER.glob("sframe_*.c"))]
    run("cc", "-O2", "-fPIC", "-shared", "-o", library, *sources)
    run("cc", "-O2", "-shared", "-fPIC", "-Wl,--no-as-needed", "-o", folder / "all.so", sources[1], "-lgcc_s", "-lm")
    converted.mkdir()
    for match in re.finditer(r"^\s*(\S+) => (/\S+) \(", run("ldd", folder / "all.so").out, re.MULTILINE):
        shutil.copy(match[2], converted / match[1])
        run("cfi2sframe", "--in-place", converted / match[1], env=environment(programs))
    return Sampler(library, converted, programs)


def check_walks(sampler: Sampler, program: Path, *words: str, libraries: Path | None = None) -> dict[str, Any]:
    """Run a program under the sampler: every stack that is walked by .sframe must be backtrace()'s.

    Returns the sampler's summary. `libraries` is where the program's own libraries are.
    """
    plain = run(program, "0", *words, env={"LD_LIBRARY_PATH": str(libraries or "")})
    report = program.with_name(f"{program.name}.walks.jsonl")
    folders = ":".join(str(folder) for folder in (libraries, sampler.converted) if folder is not None)
    variables = {
        "LD_LIBRARY_PATH": folders,
        "LD_PRELOAD": str(sampler.library),
        "CONSUMER_OUT": str(report),
        "CONSUMER_CLOCK": "wall",
        "CONSUMER_INTERVAL_US": INTERVAL_US,
    }
    sampled = run(program, SECONDS, *words, env=variables)
    assert sampled.out == plain.out
    records = [json.loads(line) for line in report.read_text().splitlines()]
    report.unlink()
    summary: dict[str, Any] = next(record for record in records if record["record"] == "summary")
    assert summary["samples"] >= MIN_SAMPLES, summary
    assert summary["frames"] > summary["samples"]
    examples = [record for record in records if record["record"] == "example"]
    unexplained = [example for example in examples if not _is_in_stub_without_cfi(example)]
    parted = sum(summary[kind] for kind in ("different", "longer", "unaligned", "faulted"))
    assert (unexplained, parted) == ([], len(examples)), unexplained
    # A busy machine stays in the vDSO, which has no section, for many ticks at times.
    inside = summary["samples"] - summary["endings"].get("no_section", 0)
    assert inside > summary["samples"] / 2, summary
    assert summary["equal"] > 0.95 * inside, summary
    modules = [record for record in records if record["record"] == "module"]
    states = {m["module"]: m["state"] for m in modules if not _NOT_CONVERTED.match(m["module"].rpartition("/")[2])}
    assert len(states) >= 2
    assert set(states.values()) == {"good"}, states
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
