# SPDX-License-Identifier: Apache-2.0
"""What one input may cost: work and memory in proportion to its size, counted in one place.

Only costs that the size of an input does not bound are counted: what a few bytes can ask for many times over
(expressions evaluated again, rows that are shared, bytes that are decompressed, text that is built). Everything else is
linear by construction.

Promise (SECURITY.md): at most 2 s + 10 s per MiB, and 300 MiB + 200 bytes per byte. A budget grants less than half of
that, because a step is only roughly a microsecond, and what is not counted has a cost, too.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from cfi2sframe.errors import BudgetError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Steps, of about a microsecond each, that any input is granted; and those that each of its bytes adds.
BASE_STEPS: Final = 500_000
STEPS_PER_BYTE: Final = 4
#: The same for bytes of memory that are allocated at one time.
BASE_MEMORY: Final = 100 << 20
MEMORY_PER_BYTE: Final = 80


class Budget:
    """The account of one input, from reading to the last report about it.

    `input_size` counts the bytes that are stored or sent: those of a sparse file outside of its holes. Everything
    computed from the input draws on the same account.
    """

    def __init__(self, input_size: int) -> None:
        self.input_size: Final = input_size
        self._steps_left = BASE_STEPS + STEPS_PER_BYTE * input_size
        self._memory_left = BASE_MEMORY + MEMORY_PER_BYTE * input_size

    def spend(self, steps: int, what: str) -> None:
        """Count work of `steps` microseconds before it is done. Raises `BudgetError` when it is too much.

        `what` completes the sentence "... take more work than N bytes of input may".
        """
        if steps > self._steps_left:
            raise BudgetError(f"{what} take more work than {self.input_size:,} bytes of input may")
        self._steps_left -= steps

    def hold(self, size: int, what: str) -> None:
        """Count `size` bytes of memory before they are allocated. Raises `BudgetError` when they are too many.

        `what` completes the sentence "... take more memory than N bytes of input may".
        """
        if size > self._memory_left:
            raise BudgetError(f"{what} take more memory than {self.input_size:,} bytes of input may")
        self._memory_left -= size

    @contextmanager
    def half(self) -> Iterator[None]:
        """Grant half of what is left to what runs inside: to work that may fail, and must not cost all the rest."""
        steps, memory = self._steps_left // 2, self._memory_left // 2
        self._steps_left -= steps
        self._memory_left -= memory
        try:
            yield
        finally:
            self._steps_left += steps
            self._memory_left += memory
