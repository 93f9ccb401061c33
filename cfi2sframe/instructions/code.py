# SPDX-License-Identifier: Apache-2.0
"""The code that a machine follows: targets of jumps through tables, and functions that never return."""

import re
from bisect import bisect_right
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final

from cfi2sframe.constants import elf as c
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.elf.load import stored_size
from cfi2sframe.elf.references import dynamic_words
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.effects import JUMP, Flow
from cfi2sframe.instructions.states import State, TableWord, apply, word_of
from cfi2sframe.range_map import ADDRESS_MASK, Span

#: Bytes of a stub up to its jump, at most.
_STUB_SIZE: Final = 96
#: Instructions of a stub up to its jump.
_STUB_LENGTH: Final = 6
#: Words of a table that are tried, at most.
_MAX_WORDS: Final = 512


class Code(Decoder):
    """Some spans of an image's code; `entries` are all addresses at which functions may begin.

    A class whose code has CFI overrides `comes_back`, `may_hold` and `in_table` to narrow the flow. Unless the code
    `needs_proof`, a return with another frame is not refused, and states before something unknown stay.
    """

    needs_proof = True

    def __init__(
        self, image: ElfImage, spans: Sequence[Span], what: str, otherwise: str = "", entries: Container[int] = ()
    ) -> None:
        super().__init__(image, spans, what, otherwise)
        self.entries = entries
        self.is_fixed = image.header.type == c.ET_EXEC
        self.size = sum(end - start for start, end in spans)
        #: Bytes of `size` that the file can have: headers may claim more.
        self.stored_size = min(self.size, stored_size(image.data))
        self._tables: dict[TableWord, tuple[int, ...]] = {}

    def comes_back(self, vaddr: int, end: int) -> bool:  # noqa: ARG002
        """Return whether the call at an address may return to its end."""
        return True

    def may_hold(self, entry: int, vaddr: int) -> bool:  # noqa: ARG002
        """Return whether the function at an entry may have code at an address."""
        return True

    def in_table(self, jump: int, targets: Sequence[int]) -> Iterable[int]:  # noqa: ARG002
        """Return those of a table's targets to which a jump may lead."""
        return targets

    def table_targets(self, table: TableWord) -> tuple[int, ...]:
        """Return the targets of the words of a jump table."""
        if table not in self._tables:
            self._tables[table] = tuple(dict.fromkeys(self._read_table(table)))
        return self._tables[table]

    def never_returns(self, vaddr: int) -> bool:
        """Return whether the function at an address, or the one that a stub there jumps to, never returns."""
        if vaddr not in self._never_returning:
            self._never_returning[vaddr] = self.import_never_returns(self._slot_of(vaddr))
        return self._never_returning[vaddr]

    def import_never_returns(self, slot: int | None) -> bool:
        """Return whether a slot is given to which the dynamic loader writes a function that never returns."""
        return slot is not None and never_returns(self._dynamic_words[0].get(slot, ""))

    def _read_table(self, table: TableWord) -> Iterator[int]:
        """Yield the targets in a table, up to the next address that code loads, or to a word that leads nowhere."""
        index = bisect_right(self._loaded, table.vaddr)
        end = self._loaded[index] if index < len(self._loaded) else ADDRESS_MASK
        order: Final = "little" if self.image.byte_order == "<" else "big"
        for place in range(table.vaddr, min(end, table.vaddr + _MAX_WORDS * table.size), table.size):
            data = self.code.data_at(place, table.size)
            if data is None:
                return
            word = int.from_bytes(data, order, signed=table.is_signed)
            if table.size == 8:
                word = self._dynamic_words[1].get(place, word)
            target = word * table.factor + table.added & ADDRESS_MASK
            if not self.holds(target):
                return
            yield target

    @cached_property
    def _loaded(self) -> list[int]:
        """The addresses that the code may refer to, ascending."""
        references = (self.abi.references(self.read(*span), span.start, self.is_fixed) for span in self.spans)
        return sorted({target for in_span in references for _, target in in_span})

    @cached_property
    def _dynamic_words(self) -> tuple[dict[int, str], dict[int, int]]:
        """The names and the addends by which the dynamic loader fills words. A damaged table gives none."""
        with suppress(ElfError):
            return ({}, {}) if self.image.is_relocatable else dynamic_words(self.image)
        return {}, {}

    @cached_property
    def _never_returning(self) -> dict[int, bool]:
        """Answers of `never_returns`, by address: at first those of imports, and of symbols that never return."""
        answers = {vaddr: never_returns(name) for vaddr, name in self.code.imports.items()}
        for table in self.image.symbol_tables:
            with suppress(ElfError):
                answers |= {s.vaddr: True for s in self.image.symbols(table) if s.vaddr and never_returns(s.name)}
        return answers

    def _slot_of(self, vaddr: int) -> int | None:
        """Return the address of the word whose value the stub at an address jumps to; None without a stub."""
        state: State = {}
        for count, text in enumerate(self.disassemble(vaddr, vaddr + _STUB_SIZE)):
            effect = self.effect_of(*text)
            if count == _STUB_LENGTH or effect is None or effect.flow not in (Flow.NEXT, Flow.JUMP_INDIRECT):
                return None
            if any(step.register == self.abi.arch.sp_register for step in effect.steps):
                return None
            apply(state, effect.steps)
            if effect.flow is Flow.JUMP_INDIRECT:
                return word_of(state.get(JUMP))
        return None


#: Functions that never return, by the names under which libraries export them. Each is declared so by its library
#: (`noreturn`, `No_Return`), or ends with a call of such a function. Most assertions of GLib return where a test has
#: asked for that.
_NEVER_RETURNING: Final = re.compile(
    # C
    r"abort|_?exit|_Exit|quick_exit|__exit_thread|pthread_exit|thrd_exit|(_|sig)?longjmp|__longjmp_chk"
    r"|__libc_(sig)?longjmp|setcontext|__assert(_fail|_perror_fail|_rtn)?|__stack_chk_fail(_local)?|__fortify_fail"
    r"|__chk_fail|__libc_fatal|__libc_start_main|v?errx?"
    # C++
    r"|_Unwind_Resume|__cxa_(throw|rethrow|bad_|pure_virtual|deleted_virtual|call_unexpected|call_terminate)\w*"
    r"|_ZSt\d+(terminate|unexpected|rethrow_exception|__throw_|__glibcxx_assert_fail)\w*"
    # Rust, Fortran
    r"|rust_begin_unwind|rust_panic|_gfortran_((error_)?stop_|runtime_error|os_error|exit_|abort)\w*"
    # Perl
    r"|Perl_(croak|die|vcroak|my_exit|my_failure_exit|noperl_die|abort_execution)\w*"
    # Ada: one for each check of the language and each exception
    r"|__gnat_(rcheck_|raise_|reraise|last_chance_handler)\w*"
    # GLib
    r"|g_assertion_message_expr|g_abort|g_thread_exit"
)


def never_returns(name: str) -> bool:
    """Return whether a function that a library exports under a name never returns."""
    return _NEVER_RETURNING.fullmatch(name) is not None
