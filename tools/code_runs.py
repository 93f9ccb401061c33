# SPDX-License-Identifier: Apache-2.0
"""Convert one file without `--from code` and with it, and measure both: what tools/code_figures.py does for each file.

code_runs.py without|with FILE

A process measures one conversion, so that the most memory that it has used is that conversion's; the record is a line
of JSON on standard output.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import sys
import time
from typing import TYPE_CHECKING, Any, Final, NamedTuple

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

from cfi2sframe import Options, account, convert, decode, load, verify
from cfi2sframe.api import decode_made, judge
from cfi2sframe.code import derive as door
from cfi2sframe.errors import Cfi2SFrameError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe import Conversion, DecodedSection
    from cfi2sframe.code.records import Derived
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span

#: A file that loads everything which a conversion with the option needs.
WARMING_FILE: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "testdata/golden/amd64-push-rbp.o")
#: Those that read version 3 in linked files.
READERS_OF_VERSION_3: Final = ("kernel", "libsframe")
_LOOPS: Final = 400_000
_MAX_DIFFERENCES: Final = 5


class Run(NamedTuple):
    """One conversion.

    `error` says why there is none, empty otherwise. `cpu_seconds` are the process's time for the conversion, which
    `derive_seconds` of the analysis are part of; `loop_seconds` what the loop of known work took, the mean of before
    and after. `grown_size` is how much the largest resident set grew, and `section_size` counts the bytes of .sframe.

    The bytes of code without CFI are `described_size` plus those of `reasons`, which has bytes and stretches by the
    reason why they are not described. `functions` were derived. `point_count` addresses were compared with what the
    conversion was made from; `differences` are the first of what differs. `refusals` are readers that would refuse it.
    """

    error: str = ""
    arch: str = ""
    unread: tuple[str, ...] = ()
    code_size: int = 0
    described_size: int = 0
    functions: int = 0
    reasons: dict[str, tuple[int, int]] = {}  # noqa: RUF012 - never changed
    section_size: int = 0
    cpu_seconds: float = 0.0
    derive_seconds: float = 0.0
    loop_seconds: float = 0.0
    grown_size: int = 0
    point_count: int = 0
    differences: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()


def loop_seconds() -> float:
    """Return the CPU seconds that a loop of known work takes: of dicts, tuples and numbers, as the analysis is."""
    begin = time.process_time()
    found: dict[int, tuple[int, int]] = {}
    for number in range(_LOOPS):
        key = number * 7 & 0x3FFF
        found[key] = (number, found.get(key, (0, 0))[0] ^ number)
    return time.process_time() - begin


class _Clock:
    """Counts the CPU seconds of the analysis inside a conversion."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._derive = door.derive
        # The conversion imports the name when it needs it.
        door.derive = self

    def __call__(self, image: ElfImage, covered: Sequence[Span]) -> Derived:
        begin = time.process_time()
        try:
            return self._derive(image, covered)
        finally:
            self.seconds += time.process_time() - begin


def measure(path: str, *, with_code: bool) -> Run:
    """Convert a file, compare what was made, and return the record."""
    options = Options(source="code" if with_code else None)
    convert(load(WARMING_FILE), Options(source="code"))
    clock = _Clock()
    gc.collect()
    # The command line collects no cycles either.
    gc.disable()
    first_loop, first_size = loop_seconds(), _peak_size()
    begin = time.process_time()
    arch = ""
    try:
        image = load(path)
        arch = image.arch.name
        conversion = convert(image, options)
    except Cfi2SFrameError as error:
        return Run(error.reason, arch)
    seconds = time.process_time() - begin
    grown = _peak_size() - first_size
    loops = (first_loop + loop_seconds()) / 2
    gc.enable()

    counted = account(conversion)
    reasons = {} if counted.from_code is None else counted.from_code.reasons
    run = Run(
        arch=arch,
        unread=tuple(f"{item.name}: {item.reason}" for item in conversion.cfi.unread),
        code_size=counted.bytes.code,
        described_size=counted.bytes.from_code,
        functions=0 if counted.from_code is None else counted.from_code.functions,
        reasons={reason: (counts.bytes, counts.stretches) for reason, counts in reasons.items()},
        section_size=len(conversion.data),
        cpu_seconds=seconds,
        derive_seconds=clock.seconds,
        loop_seconds=loops,
        grown_size=grown,
    )
    if not conversion.data:
        return run
    run = run._replace(refusals=tuple(_refusals(conversion)))
    if not with_code:
        return run
    # The image is loaded again, so that the analysis is done again.
    again = load(path)
    section = decode_made(again, options) if again.is_relocatable else _section_of(conversion)
    checked = verify(again, section, options)
    differences = tuple(map(repr, checked.differences[:_MAX_DIFFERENCES]))
    return run._replace(point_count=checked.point_count, differences=differences)


def _refusals(conversion: Conversion) -> Iterator[str]:
    """Yield the readers that would not take a section; none of them reads those of objects."""
    if not conversion.image.is_relocatable:
        section = _section_of(conversion)
        for reader in READERS_OF_VERSION_3:
            if not judge(conversion.image, section, reader)[-1].reads_it:
                yield reader


def _section_of(conversion: Conversion) -> DecodedSection:
    return decode(conversion.data, conversion.section_vaddr)


def _peak_size() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read(line: str) -> Run:
    """Return a record from its JSON."""
    data: dict[str, Any] = json.loads(line)
    data["reasons"] = {reason: (size, count) for reason, (size, count) in data["reasons"].items()}
    for name in ("unread", "differences", "refusals"):
        data[name] = tuple(data[name])
    return Run(**data)


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[2], with_code=sys.argv[1] == "with")._asdict()))
