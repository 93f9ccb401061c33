# SPDX-License-Identifier: Apache-2.0
"""Functions that never come back to their caller, by the names that libraries export them under.

Each is declared so by its library (`noreturn`, `No_Return`), or ends with a call of such a function.
"""

from __future__ import annotations

from typing import Final

_C: Final = (
    *("abort", "exit", "_exit", "_Exit", "quick_exit", "__exit_thread", "pthread_exit", "thrd_exit"),
    *("longjmp", "_longjmp", "siglongjmp", "__longjmp_chk", "__libc_longjmp", "__libc_siglongjmp", "setcontext"),
    *("__assert_fail", "__assert_perror_fail", "__assert", "__assert_rtn", "__stack_chk_fail", "__fortify_fail"),
    *("__chk_fail", "__libc_fatal", "__libc_start_main", "err", "errx", "verr", "verrx", "__stack_chk_fail_local"),
)
_CPP: Final = (
    *("_Unwind_Resume", "__cxa_throw", "__cxa_rethrow", "__cxa_bad_cast", "__cxa_bad_typeid"),
    *("__cxa_throw_bad_array_new_length", "__cxa_throw_bad_array_length", "__cxa_pure_virtual"),
    *("__cxa_deleted_virtual", "__cxa_call_unexpected", "__cxa_call_terminate"),
    *("_ZSt9terminatev", "_ZSt10unexpectedv", "_ZSt17rethrow_exceptionNSt15__exception_ptr13exception_ptrE"),
    *("_ZSt17__throw_bad_allocv", "_ZSt16__throw_bad_castv", "_ZSt18__throw_bad_typeidv"),
    *("_ZSt19__throw_logic_errorPKc", "_ZSt20__throw_domain_errorPKc", "_ZSt24__throw_invalid_argumentPKc"),
    *("_ZSt20__throw_length_errorPKc", "_ZSt20__throw_out_of_rangePKc", "_ZSt24__throw_out_of_range_fmtPKcz"),
    *("_ZSt21__throw_runtime_errorPKc", "_ZSt19__throw_range_errorPKc", "_ZSt22__throw_overflow_errorPKc"),
    *("_ZSt23__throw_underflow_errorPKc", "_ZSt19__throw_ios_failurePKc", "_ZSt19__throw_ios_failurePKci"),
    *("_ZSt20__throw_system_errori", "_ZSt20__throw_future_errori"),
    "_ZSt19__throw_regex_errorNSt15regex_constants10error_typeE",
    *("_ZSt25__throw_bad_function_callv", "_ZSt28__throw_bad_array_new_lengthv"),
    *("_ZSt21__throw_bad_exceptionv", "_ZSt21__glibcxx_assert_failPKciS0_S0_"),
)
_RUST: Final = ("rust_begin_unwind", "rust_panic")
_FORTRAN: Final = (
    *("_gfortran_stop_string", "_gfortran_stop_numeric", "_gfortran_error_stop_string", "_gfortran_error_stop_numeric"),
    *("_gfortran_runtime_error", "_gfortran_runtime_error_at", "_gfortran_os_error", "_gfortran_os_error_at"),
    *("_gfortran_exit_i4", "_gfortran_exit_i8", "_gfortran_abort"),
)
_PERL: Final = (
    *("Perl_abort_execution", "Perl_croak", "Perl_croak_caller", "Perl_croak_kw_unless_class"),
    *("Perl_croak_memory_wrap", "Perl_croak_no_mem", "Perl_croak_no_modify", "Perl_croak_nocontext"),
    *("Perl_croak_popstack", "Perl_croak_sv", "Perl_croak_xs_usage", "Perl_vcroak", "Perl_die"),
    *("Perl_die_nocontext", "Perl_die_sv", "Perl_die_unwind", "Perl_my_exit", "Perl_my_failure_exit"),
    "Perl_noperl_die",
)
_ADA: Final = (
    *("__gnat_last_chance_handler", "__gnat_raise_exception", "__gnat_raise_with_msg", "__gnat_reraise_zcx"),
    *("__gnat_raise_constraint_error", "__gnat_raise_constraint_error_msg", "__gnat_raise_program_error"),
    *("__gnat_raise_program_error_msg", "__gnat_raise_storage_error", "__gnat_raise_storage_error_msg"),
    *("__gnat_raise_from_controlled_operation", "__gnat_raise_from_signal_handler", "__gnat_reraise"),
)
#: Most of its assertions come back where a test has asked for that.
_GLIB: Final = ("g_assertion_message_expr", "g_abort", "g_thread_exit")
_NAMES: Final = frozenset({*_C, *_CPP, *_RUST, *_FORTRAN, *_PERL, *_ADA, *_GLIB})
#: GNAT has such a function for each check of the language and each exception: `__gnat_rcheck_CE_Range_Check`.
_ADA_CHECK: Final = "__gnat_rcheck_"


def never_returns(name: str) -> bool:
    """Whether the function that a library exports under a name never comes back to its caller."""
    return name in _NAMES or name.startswith(_ADA_CHECK)
