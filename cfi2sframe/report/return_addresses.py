# SPDX-License-Identifier: Apache-2.0
"""What a reader meets that looks up return addresses themselves, as the kernel's and glibc's code do.

The row in force at a call is that of RA - 1, the call's last byte, which DWARF unwinders look up. Where a function ends
with a call that does not return, RA lies in padding or in another function.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe.conversion import place_again
from cfi2sframe.padding import MAX_ALIGNMENT, fill_size, is_fill
from cfi2sframe.report.calls import CallFinder
from cfi2sframe.sframe.decode import decode_section
from cfi2sframe.sframe.lookup import Lookup
from cfi2sframe.sframe.lookup_cost import RowWalk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cfi2sframe.conversion import Conversion
    from cfi2sframe.sframe.model import FrameState

#: Steps of three look-ups.
_CALL_STEPS: Final = 6


class ReturnAddresses(NamedTuple):
    """Calls by what the look-up of their return address, RA, gives. `calls` is the sum of the next six.

    `same_row`: the row of RA - 1, or an equal one. `padding` and `no_function`: no function, in padding or elsewhere.
    `next_function`: the row of another function, which starts at RA. `other_row`: another row of the same function,
    which starts at RA. `without`: the section has no function for RA - 1 either, so that it says nothing of the call.

    `found` counts the RAs that have a row, whichever it is, `walked_count` the rows that readers walk for all of them,
    and `max_rows` those for the costliest.
    """

    calls: int = 0
    same_row: int = 0
    padding: int = 0
    no_function: int = 0
    next_function: int = 0
    other_row: int = 0
    without: int = 0
    found: int = 0
    walked_count: int = 0
    max_rows: int = 0

    @property
    def described(self) -> int:
        """The calls for which the section has a row, at RA - 1."""
        return self.calls - self.without

    @property
    def percent(self) -> float:
        """The share of the described calls whose RA gives the row of RA - 1; 100 without such calls."""
        return 100.0 * self.same_row / self.described if self.described else 100.0

    @property
    def mean_rows(self) -> float:
        """The rows walked for the look-up of an RA, on average over those that have a row; 0 without any."""
        return self.walked_count / self.found if self.found else 0.0


def count_return_addresses(conversion: Conversion) -> ReturnAddresses:
    """Look up the return address of every call in the code that a section was made for.

    Calls are found by a linear sweep of each FDE's code, and of what lies between FDEs. Raises `BudgetError` when the
    code is out of proportion to the file, which can map the same bytes many times; `InputError` when AMD64 code is to
    be read and capstone cannot be loaded.
    """
    judge, walk = _Judge(conversion), RowWalk(conversion.section)
    finder = CallFinder(conversion.image.arch, conversion.image.budget, is_linked=not conversion.image.is_relocatable)
    counts = dict.fromkeys(ReturnAddresses._fields, 0)
    for start_vaddr, code in _stretches(conversion):
        for ra in finder.return_addresses(code, start_vaddr):
            conversion.image.budget.spend(_CALL_STEPS, "the return addresses")
            counts[judge.verdict(ra)] += 1
            counts["calls"] += 1
            walked = walk.count_at(ra)
            counts["found"] += walked > 0
            counts["walked_count"] += walked
            counts["max_rows"] = max(counts["max_rows"], walked)
    return ReturnAddresses(**counts)


def _stretches(conversion: Conversion) -> Iterator[tuple[int, bytes]]:
    """Yield the virtual address and the bytes of each FDE's code, and of the code between FDEs."""
    pieces = conversion.code_map.pieces
    edges = sorted({*pieces.starts, *pieces.ends})
    for code_range in conversion.image.code_ranges:
        start, end = code_range.start_vaddr, code_range.end_vaddr
        code = conversion.image.code_bytes(code_range, start, end)
        inside = edges[bisect_right(edges, start) : bisect_left(edges, end)]
        for first, last in pairwise((start, *inside, end)):
            if first - start < len(code):
                yield first, code[first - start : last - start]


class _Judge:
    """Looks return addresses up in the section that a conversion made."""

    def __init__(self, conversion: Conversion) -> None:
        image = conversion.image
        self.image: Final = image
        if image.is_relocatable:
            # A raw section has every text section at 0; to be looked up, functions need distinct addresses.
            conversion = place_again(conversion, 0)
        data, vaddr = conversion.data, conversion.section_vaddr
        self.lookup: Final = Lookup(decode_section(data, vaddr)) if data else None
        pieces, stubs = conversion.code_map.pieces, conversion.code_map.stubs.functions
        owners = [*zip(pieces.starts, pieces.numbers, strict=True)]
        # Stubs have no FDE that counts; negative numbers are nobody's.
        owners += [(stub.start_vaddr, ~number) for number, stub in enumerate(stubs)]
        owners.sort()
        #: Where the FDE or the stubs start that an address belongs to, or that end before it; and their numbers.
        self.starts: Final = [start for start, _ in owners]
        self.owners: Final = [number for _, number in owners]

    def verdict(self, ra: int) -> str:
        """Return the name of the field of `ReturnAddresses` that counts the call before `ra`."""
        called, returned = self.state_at(ra - 1), self.state_at(ra)
        if called is None:
            return "without"
        if returned is None:
            return "padding" if self.is_padding(ra) else "no_function"
        if returned == called:
            return "same_row"
        return "other_row" if self.owner_of(ra) == self.owner_of(ra - 1) else "next_function"

    def state_at(self, pc: int) -> tuple[FrameState, bool] | None:
        """Return the row in force at an address, and whether it is a signal frame's; None where no row is."""
        found = None if self.lookup is None else self.lookup.find(pc)
        if found is None or found.row is None:
            return None
        return found.row.row.state, found.function.is_signal_frame

    def owner_of(self, vaddr: int) -> int:
        """Return the number of the FDE whose code an address is, or follows."""
        return self.owners[bisect_right(self.starts, vaddr) - 1]

    def is_padding(self, ra: int) -> bool:
        """Whether an address without a function lies in padding: instructions there only fill space."""
        code_range = self.image.code_range_of(ra)
        if code_range is None:
            return False
        index = bisect_right(self.starts, ra)
        end = min([code_range.end_vaddr, *self.starts[index : index + 1]])
        data = self.image.code_bytes(code_range, ra, min(end, ra + MAX_ALIGNMENT))
        return is_fill(self.image, data) or fill_size(self.image, code_range, ra, end) > 0
