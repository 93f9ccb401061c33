# SPDX-License-Identifier: Apache-2.0
"""Rust names in readable form: the grammar's productions, names from real programs, and names made to be expensive."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cfi2sframe.demangle import Demangler, readable_names
from cfi2sframe.rust_names import MAX_STEPS, rust_name
from tests.support.demangling import needs_demangling

#: As rustc 1.9x writes them, and what people know them as.
NAMES: Final = {
    "_RNvCsjMaewn57Afh_1t4main": "t::main",
    "_RNCNCNvCsjMaewn57Afh_1t4main00B5_": "t::main::{closure#0}::{closure#0}",
    "_RNCNvCsjMaewn57Afh_1t4mains0_0B3_": "t::main::{closure#2}",
    "_RINvCsjMaewn57Afh_1t2ttFG0_RL1_hRL0_tERL1_hEB2_": "t::tt::<for<'a, 'b> fn(&'a u8, &'b u16) -> &'a u8>",
    "_RINvCsjMaewn57Afh_1t2ttFG_lRL0_hEzEB2_": "t::tt::<for<'a> fn(i32, &'a u8) -> !>",
    "_RINvCsjMaewn57Afh_1t2ttFUKCPhOxEuEB2_": 't::tt::<unsafe extern "C" fn(*const u8, *mut i64)>',
    "_RINvCsjMaewn57Afh_1t2ttThReRSluEEB2_": "t::tt::<(u8, &str, &[i32], ())>",
    "_RINvCsjMaewn57Afh_1t2ttToEEB2_": "t::tt::<(u128,)>",
    "_RINvCsjMaewn57Afh_1t2ttRDNtNtNtNtCsgEmfK2I1SDS_4core4iter6traits8iterator8Iteratorp4ItemmEL_EB2_": (
        "t::tt::<&dyn core::iter::traits::iterator::Iterator<Item = u32>>"
    ),
    "_RINvNtCsjMaewn57Afh_1t1a3genhNCNvB4_4main0Kj3_Kb1_Kc78_EB4_": (
        "t::a::gen::<u8, t::main::{closure#0}, 3, true, 'x'>"
    ),
    "_RNvMs0_NtCsjMaewn57Afh_1t1aINtB5_1KKln5_E1kB7_": "<t::a::K<-5>>::k",
    "_RNvXsX_NtCs8NwYtU1Mohg_4core5arrayAhj4_NtNtB7_7default7Default7defaultCsg0oAa7DM2pc_11miniz_oxide": (
        "<[u8; 4] as core::default::Default>::default"
    ),
    "_RINvMNtCsgEmfK2I1SDS_4core6optionINtB3_6OptionINtNtNtB5_3num7nonzero7NonZerojEE6map_orINtNtB5_6result6ResultuBI_"
    "ENcNtB1m_3Err0ECsjMaewn57Afh_1t": (
        "<core::option::Option<core::num::nonzero::NonZero<usize>>>::map_or::<core::result::Result<(), "
        "core::num::nonzero::NonZero<usize>>, core::result::Result<(), core::num::nonzero::NonZero<usize>>::Err>"
    ),
    "_RNvC1au6fo_5ja": "a::fóo",
    "_RNvNtNtCsdadwybgsbvk_12rustc_middle7queries16__description_fns8entry_fn": (
        "rustc_middle::queries::_description_fns::entry_fn"
    ),
    "_RNvC1a1f.llvm.4711": "a::f",
    "_RNvC1a1f.cold": "a::f.cold",
    "_RYAhj4_NtC1a1T": "<[u8; 4] as a::T>",
    "_ZN4core3fmt5Write9write_fmt17h0123456789abcdefE": "core::fmt::Write::write_fmt",
    "_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$3bar17h930b740aa94f1d3aE": (
        "<Test + 'static as foo::Bar<Test>>::bar"
    ),
}
#: What is no name of Rust, or breaks off.
OTHERS: Final = (
    *(
        "",
        "_R",
        "_R1",
        "_RC",
        "_RNvC1a",
        "_RNvC1a9f",
        "_Rfoo",
        "_R4main",
        "_RNvC1a1f!",
        "_RINvC1a1fKvE",
        "_RINvC1a1fL1_E",
    ),
    *("_RB_", "_RNvB_1f", "_RINvC1a1fKc110000_E", "_RNvC1au3_99", "_RNvC1a1\N{LATIN SMALL LETTER E WITH ACUTE}"),
    *("_ZN3foo3barEv", "_ZN3foo17h0123456789abcdefE1", "_ZN99foo17h0123456789abcdefE", "_ZN17h0123456789abcdefE"),
)


def doubling(depth: int, function: str = "f") -> str:
    """Return a name in which each of the types is the one before it, twice."""
    name, previous = f"_RINvC1a{len(function)}{function}", "l"
    for _ in range(depth):
        place = len(name) - 2
        name += f"T{previous}{previous}E"
        previous = f"B{'' if place == 0 else _base_62(place - 1)}_"
    return f"{name}E"


def _base_62(number: int) -> str:
    digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
    return (_base_62(number // 62) if number >= 62 else "") + digits[number % 62]


HOSTILE: Final = {
    "doubling": doubling(40),
    "deep": "_RINvC1a1f" + "R" * 4000 + "l",
    "nested": "_R" + "Nv" * 1000,
    "binders": "_RINvC1a1fFGzzzzzz_EuE",
    "punycode": "_RNvC1au2000" + "a" * 2000,
    "long": "_RNvC1a4000" + "f" * 4000,
}


@pytest.mark.parametrize("name", NAMES)
def test_names(name: str) -> None:
    assert rust_name(name)[0] == NAMES[name]


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_name(name: str) -> None:
    assert rust_name(name)[0] is None


@pytest.mark.oracle
def test_names_as_cxxfilt_reads_them() -> None:
    """It prints the crates' hashes and the constants' types besides, and no suffix."""
    if not shutil.which("c++filt"):
        pytest.skip("c++filt reads Rust names; apt install binutils")
    names = [name for name in NAMES if not name.endswith(".cold")]
    done = subprocess.run(["c++filt", *names], capture_output=True, text=True, check=True)
    without = re.compile(r"(?<=\w)\[[0-9a-f]{1,16}\]|: (?:[iu](?:\d+|size)|bool|char)\b|::h[0-9a-f]{16}")
    assert [without.sub("", line) for line in done.stdout.splitlines()] == [NAMES[name] for name in names]


@pytest.mark.fuzz
@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_costs_more_than_the_bound(name: str) -> None:
    text, steps = rust_name(HOSTILE[name])
    assert steps <= MAX_STEPS + 1
    assert text is None or len(text) <= 1 << 16


def test_all_names_together_are_bounded() -> None:
    """Each of the names takes the most that one may take; after some of them, names stay as they are."""
    with Demangler() as demangler:
        assert demangler.readable(doubling(3)) != doubling(3)
        for number in range(100, 200):
            demangler.readable(doubling(40, f"f{number}"))
        assert demangler.readable("_RNvC1a1f") == "_RNvC1a1f"


@pytest.mark.property
@given(st.text("RNvCMXYIBETFDKLGUps_0123hlcbAS.", max_size=60), st.binary(max_size=40))
def test_any_text(words: str, data: bytes) -> None:
    for name in (f"_R{words}", f"_RINv{words}E", f"_ZN{words}17h0123456789abcdefE", "_R" + data.decode("latin-1")):
        text, steps = rust_name(name)
        assert steps <= MAX_STEPS + len(name) + 1
        assert text is None or len(text) <= 1 << 16


def test_names_of_a_report() -> None:
    needs_demangling()
    names = ["main", "_ZN6second1fEv", "_RNvC1a1f", "_Zxx", "main", "_RNvC1a1f", ""]
    assert readable_names(names) == {"_ZN6second1fEv": "second::f()", "_RNvC1a1f": "a::f"}


def test_long_text_that_many_functions_share_stays_mangled() -> None:
    name = doubling(9)
    size = len(rust_name(name)[0] or "")
    assert size > 3 * len(name)
    assert readable_names([name]) != {}
    assert readable_names([name] * (1 + (4 << 20) // size)) == {}


def test_no_process_without_cxx_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("os.fork")
    assert readable_names(["main", "_start", "runtime.mcall", "_RNvC1a1f"]) == {"_RNvC1a1f": "a::f"}
    assert readable_names(["main", "_start"]) == {}
