# SPDX-License-Identifier: Apache-2.0
"""The code that a machine follows, and what tables and names around it say of the flow of control."""

from __future__ import annotations

from bisect import bisect_right
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final

from cfi2sframe.elf import constants as c
from cfi2sframe.elf.references import dynamic_words
from cfi2sframe.errors import ElfError
from cfi2sframe.instructions.decoder import Decoder
from cfi2sframe.instructions.effects import JUMP, Flow, words
from cfi2sframe.instructions.states import State, apply, word_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Sequence

    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.elf.ranges import Span
    from cfi2sframe.instructions.states import TableWord

#: Bytes of a stub up to its jump, at most.
_STUB_SIZE: Final = 96
#: Instructions of a stub up to its jump.
_STUB_LENGTH: Final = 6
#: Words of a table that are tried at most.
_MAX_WORDS: Final = 512
#: Words at a table's start that no index leads to: what counts bits, or sizes, does not begin with 0.
_MAX_UNUSED: Final = 8
_ADDRESS_MASK: Final = (1 << 64) - 1
_ALL_PAGES: Final = range(-1 << 64, 1 << 64)


class Code(Decoder):
    """Some spans of an image's code, whose `entries` are all addresses that may be those of functions.

    What CFI says may narrow the flow: that is what other classes than this one know. Unless the code `needs_proof`,
    what returns with another frame is not refused, and before something unknown, states stay.
    """

    needs_proof = True

    def __init__(
        self, image: ElfImage, spans: Sequence[Span], what: str, otherwise: str = "", entries: Container[int] = ()
    ) -> None:
        super().__init__(image, spans, what, otherwise)
        self.entries = entries
        self.is_fixed = image.header.type == c.ET_EXEC
        self.size = sum(end - start for start, end in spans)
        self._tables: dict[TableWord, tuple[int, ...]] = {}

    def comes_back(self, vaddr: int, end: int) -> bool:  # noqa: ARG002
        """Whether the call at an address may come back to its end."""
        return True

    def may_hold(self, entry: int, vaddr: int) -> bool:  # noqa: ARG002
        """Whether a function may have code at an address."""
        return True

    def fits(self, vaddr: int, state: State) -> bool:  # noqa: ARG002
        """Whether a label may be reached with a state."""
        return True

    def in_table(self, jump: int, targets: Sequence[int]) -> Iterable[int]:  # noqa: ARG002
        """Return those of a table's targets to which a jump may lead."""
        return targets

    def table_targets(self, table: TableWord) -> tuple[int, ...]:
        """Return where the words of a table of jumps lead."""
        found = self._tables.get(table)
        if found is None:
            found = self._tables[table] = tuple(dict.fromkeys(self._read_table(table)))
        return found

    def never_returns(self, vaddr: int) -> bool:
        """Whether the function at an address outside of the spans never returns, or the one that a stub jumps to."""
        found = self._never_returning.get(vaddr)
        if found is None:
            slot = self._slot_of(vaddr)
            found = self._never_returning[vaddr] = slot is not None and self.import_never_returns(slot)
        return found

    def import_never_returns(self, vaddr: int) -> bool:
        """Whether the function whose address the dynamic loader writes to a word never returns."""
        return never_returns(self._dynamic_words[0].get(vaddr, ""))

    def _read_table(self, table: TableWord) -> Iterator[int]:
        """Read a table up to the next address that code loads, or to a word that leads nowhere after others."""
        index = bisect_right(self._loaded, table.vaddr)
        end = self._loaded[index] if index < len(self._loaded) else _ADDRESS_MASK
        order: Final = "little" if self.image.byte_order == "<" else "big"
        is_begun = False
        for place in range(table.vaddr, min(end, table.vaddr + _MAX_WORDS * table.size), table.size):
            data = self.code.data_at(place, table.size)
            if data is None:
                return
            word = int.from_bytes(data, order, signed=table.is_signed)
            if table.size == 8:
                word = self._dynamic_words[1].get(place, word)
            target = word * table.factor + table.added & _ADDRESS_MASK
            if self.holds(target):
                is_begun = True
                yield target
            elif is_begun or place >= table.vaddr + _MAX_UNUSED * table.size:
                return

    @cached_property
    def _loaded(self) -> list[int]:
        """The addresses that the code loads, ascending."""
        references = (
            reference
            for start, end in self.spans
            for reference in self.abi.references(self.read(start, end), start, _ALL_PAGES, self.is_fixed)
        )
        return sorted({reference.target for reference in references if not reference.is_call})

    @cached_property
    def _dynamic_words(self) -> tuple[dict[int, str], dict[int, int]]:
        """What the dynamic loader writes to words: names and addends. A damaged table says nothing."""
        with suppress(ElfError):
            return ({}, {}) if self.image.is_relocatable else dynamic_words(self.image)
        return {}, {}

    @cached_property
    def _never_returning(self) -> dict[int, bool]:
        """Whether functions never return, by their addresses: those that have such names, and those asked for."""
        found = {vaddr: never_returns(name) for vaddr, name in self.code.imports.items()}
        for table in self.image.symbol_tables:
            with suppress(ElfError):
                found |= {s.vaddr: True for s in self.image.symbols(table) if s.vaddr and never_returns(s.name)}
        return found

    def _slot_of(self, vaddr: int) -> int | None:
        """Return the address of the word whose value a stub jumps to; None where there is no stub."""
        state: State = {}
        for count, found in enumerate(self.disassemble(vaddr, vaddr + _STUB_SIZE)):
            effect = self.effect_of(*found)
            if count == _STUB_LENGTH or effect is None or effect.flow not in (Flow.NEXT, Flow.JUMP_INDIRECT):
                return None
            if any(step.register == self.abi.arch.sp_register for step in effect.steps):
                return None
            apply(state, effect.steps)
            if effect.flow is Flow.JUMP_INDIRECT:
                return word_of(state.get(JUMP))
        return None


#: Functions that never come back to their caller, by the names that libraries export them under. Each is declared so by
#: its library (`noreturn`, `No_Return`), or ends with a call of such a function. Most assertions of GLib come back
#: where a test has asked for that.
_NEVER_RETURNING: Final = words(
    # C
    "abort exit _exit _Exit quick_exit __exit_thread pthread_exit thrd_exit longjmp _longjmp siglongjmp __longjmp_chk"
    " __libc_longjmp __libc_siglongjmp setcontext __assert_fail __assert_perror_fail __assert __assert_rtn"
    " __stack_chk_fail __fortify_fail __chk_fail __libc_fatal __libc_start_main err errx verr verrx"
    " __stack_chk_fail_local"
    # C++
    " _Unwind_Resume __cxa_throw __cxa_rethrow __cxa_bad_cast __cxa_bad_typeid __cxa_throw_bad_array_new_length"
    " __cxa_throw_bad_array_length __cxa_pure_virtual __cxa_deleted_virtual __cxa_call_unexpected __cxa_call_terminate"
    " _ZSt9terminatev _ZSt10unexpectedv _ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE"
    " _ZSt17__throw_bad_allocv _ZSt16__throw_bad_castv _ZSt18__throw_bad_typeidv _ZSt19__throw_logic_errorPKc"
    " _ZSt20__throw_domain_errorPKc _ZSt24__throw_invalid_argumentPKc _ZSt20__throw_length_errorPKc"
    " _ZSt20__throw_out_of_rangePKc _ZSt24__throw_out_of_range_fmtPKcz _ZSt21__throw_runtime_errorPKc"
    " _ZSt19__throw_range_errorPKc _ZSt22__throw_overflow_errorPKc _ZSt23__throw_underflow_errorPKc"
    " _ZSt19__throw_ios_failurePKc _ZSt19__throw_ios_failurePKci _ZSt20__throw_system_errori"
    " _ZSt20__throw_future_errori _ZSt19__throw_regex_errorNSt15regex_constants10error_typeE"
    " _ZSt25__throw_bad_function_callv _ZSt28__throw_bad_array_new_lengthv _ZSt21__throw_bad_exceptionv"
    " _ZSt21__glibcxx_assert_failPKciS0_S0_"
    # Rust, Fortran
    " rust_begin_unwind rust_panic _gfortran_stop_string _gfortran_stop_numeric _gfortran_error_stop_string"
    " _gfortran_error_stop_numeric _gfortran_runtime_error _gfortran_runtime_error_at _gfortran_os_error"
    " _gfortran_os_error_at _gfortran_exit_i4 _gfortran_exit_i8 _gfortran_abort"
    # Perl
    " Perl_abort_execution Perl_croak Perl_croak_caller Perl_croak_kw_unless_class Perl_croak_memory_wrap"
    " Perl_croak_no_mem Perl_croak_no_modify Perl_croak_nocontext Perl_croak_popstack Perl_croak_sv Perl_croak_xs_usage"
    " Perl_vcroak Perl_die Perl_die_nocontext Perl_die_sv Perl_die_unwind Perl_my_exit Perl_my_failure_exit"
    " Perl_noperl_die"
    # Ada
    " __gnat_last_chance_handler __gnat_raise_exception __gnat_raise_with_msg __gnat_reraise_zcx"
    " __gnat_raise_constraint_error __gnat_raise_constraint_error_msg __gnat_raise_program_error"
    " __gnat_raise_program_error_msg __gnat_raise_storage_error __gnat_raise_storage_error_msg"
    " __gnat_raise_from_controlled_operation __gnat_raise_from_signal_handler __gnat_reraise"
    # GLib
    " g_assertion_message_expr g_abort g_thread_exit"
)
#: GNAT has such a function for each check of the language and each exception: `__gnat_rcheck_CE_Range_Check`.
_ADA_CHECK: Final = "__gnat_rcheck_"


def never_returns(name: str) -> bool:
    """Whether the function that a library exports under a name never comes back to its caller."""
    return name in _NEVER_RETURNING or name.startswith(_ADA_CHECK)
