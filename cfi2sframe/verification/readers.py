# SPDX-License-Identifier: Apache-2.0
"""What each reader of SFrame sections insists on, as one table, and what it would do with a section: `judge`.

Each rule was seen in the releases that its editions name: in the reader's source, or by running it.

- kernel: Linux's unwinder of user-space stacks, a series of patches. With CONFIG_SFRAME_VALIDATION it reads the whole
  section when it registers it; without, it drops a section at the first look-up that meets an error. Only the rules of
  validation are here: a section that they accept has no other errors.
- kernel-arm64: the series for stacks of the kernel itself and of its modules.
- glibc: `backtrace()`, where glibc was configured with `--enable-sframe`. It trusts what it reads: no bounds of rows
  are checked. Whatever it cannot do, it leaves the whole trace to DWARF; so it does where one module of a trace has no
  section.
- libsframe, by which readelf, objdump and gdb read sections, and ld, GNU's, which merges those of objects. SFrame moved
  from version 1 to 2 with binutils 2.41, and to 3 with 2.46. Releases 2.41 to 2.43 and 2.45 of ld were not run: 2.45 is
  taken to be like 2.44 with the flag of PC-relative starts (errata 1).

`cfi2sframe.readers` has the names, and what is written for each.
"""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - part of a NamedTuple's fields
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from cfi2sframe.elf.constants import EM_AARCH64, EM_S390, EM_X86_64, SHT_GNU_SFRAME
from cfi2sframe.sframe.constants import FLAGS_BY_VERSION
from cfi2sframe.sframe.constants import SFRAME_F_FDE_FUNC_START_PCREL as _PCREL
from cfi2sframe.sframe.constants import SFRAME_F_FDE_SORTED as _SORTED
from cfi2sframe.sframe.constants import SFRAME_F_FRAME_POINTER as _FRAME_POINTER
from cfi2sframe.verification import reader_checks as c
from cfi2sframe.verification.reader_checks import Check, Edition, Subject, each

if TYPE_CHECKING:
    from cfi2sframe.elf.image import ElfImage
    from cfi2sframe.sframe.read import DecodedSection

#: What becomes of a section that breaks a rule.
Consequence = Literal["refuses it", "does not find it", "reads it wrongly", "leaves traces to DWARF", "crashes"]


class Broken(NamedTuple):
    """A rule that a section breaks: where first (None: as a whole) and how, and the starts of all such functions."""

    rule: str
    consequence: Consequence
    vaddr: int | None
    message: str
    vaddrs: tuple[int, ...] = ()


class Habit(NamedTuple):
    """What a reader does with `amount` functions or rows (`message` says which) of a section that it reads."""

    amount: int
    message: str


class Verdict(NamedTuple):
    """What one edition of a reader would do with a section."""

    reader: str
    releases: str
    broken: tuple[Broken, ...]
    habits: tuple[Habit, ...]

    @property
    def reads_it(self) -> bool:
        """Whether no rule is broken."""
        return not self.broken


class _Rule(NamedTuple):
    """A demand, and what editions do where it is broken; where that `is_decisive`, they look at nothing after it."""

    name: str
    editions: dict[str, Consequence]
    check: Check
    is_decisive: bool = False


class _Remark(NamedTuple):
    """Functions or rows that some editions treat in their own way: what to say of them, and how to count them."""

    editions: str
    message: str
    count: Callable[[Subject], int]


#: By the names that the rules give them; of each reader, the oldest first.
_EDITIONS: Final = {
    "kernel": Edition("kernel", "patches of 2026, in no release", (3,)),
    "arm64": Edition("kernel-arm64", "patches of 2026 (v6 to v8), in no release", (3,), machines=(EM_AARCH64,)),
    "glibc": Edition("glibc", "2.42 to 2.44", (2,), machines=(EM_X86_64, EM_AARCH64)),
    "lib40": Edition("libsframe", "2.40", (1,), _SORTED | _FRAME_POINTER),
    "lib44": Edition("libsframe", "2.44", (2,), _SORTED | _FRAME_POINTER),
    "lib47": Edition("libsframe", "2.47", (2, 3)),
    "ld40": Edition("ld-2.40", "2.40", (1,), _SORTED | _FRAME_POINTER),
    "ld44": Edition("ld-2.41", "2.41 to 2.44", (2,), _SORTED | _FRAME_POINTER),
    "ld45": Edition("ld-2.45", "2.45", (2,)),
    "ld47": Edition("ld", "2.47", (3,)),
}
_LIB, _LD, _ALL = "lib40 lib44 lib47", "ld40 ld44 ld45 ld47", " ".join(_EDITIONS)


def _by(editions: str, consequence: Consequence = "refuses it") -> dict[str, Consequence]:
    return dict.fromkeys(editions.split(), consequence)


# fmt: off
_DECISIVE: Final = True
_RULES: Final = (
    _Rule("linked file", _by("kernel glibc"),
          lambda it: it.image.is_relocatable and "it reads sections of linked files, and this is an object", _DECISIVE),
    _Rule("object", _by(_LD),
          lambda it: not it.image.is_relocatable and "it reads sections of objects, and this is a linked file",
          _DECISIVE),
    _Rule("PT_GNU_SFRAME", _by("kernel glibc", "does not find it"), c.segment),
    _Rule("section type", _by("ld47"),
          lambda it: it.is_in_file and (found := it.image.sframe_section) is not None
          and found.type != SHT_GNU_SFRAME and f"the section's type is 0x{found.type:x}, not SHT_GNU_SFRAME"),
    _Rule("version", _by(_ALL),
          lambda it: it.section.version not in it.edition.versions
          and f"version {it.section.version}; it reads version {' and '.join(map(str, it.edition.versions))}",
          _DECISIVE),
    _Rule("flags", _by("kernel"),
          lambda it: it.header.flags != _SORTED | _PCREL and f"flags 0x{it.header.flags:x}", _DECISIVE),
    _Rule("flags", _by("arm64"),
          lambda it: not it.header.flags & _PCREL
          and f"flags 0x{it.header.flags:x}, without SFRAME_F_FDE_FUNC_START_PCREL", _DECISIVE),
    _Rule("flags", _by(f"glibc {_LIB} {_LD}"),
          lambda it: it.header.flags & ~(it.edition.flags or FLAGS_BY_VERSION[it.section.version])
          and f"flags 0x{it.header.flags:x}", _DECISIVE),
    _Rule("byte order", _by("kernel arm64 glibc"), c.byte_order, _DECISIVE),
    _Rule("ABI", _by("arm64 glibc"),
          lambda it: it.section.arch.elf_machine not in it.edition.machines
          and f"it is not written for {it.section.arch.name}", _DECISIVE),
    _Rule("ABI", _by("lib44", "reads it wrongly"),
          lambda it: it.section.arch.elf_machine == EM_S390
          and f"it does not know how {it.section.arch.name} stores the CFA's offset", _DECISIVE),
    _Rule("ABI", _by("ld44 ld45", "reads it wrongly"),
          lambda it: it.section.arch.elf_machine == EM_S390
          and f"it does not merge sections of {it.section.arch.name}; 2.46 does", _DECISIVE),
    _Rule("auxiliary header", _by("kernel arm64"),
          lambda it: it.header.auxhdr_size and f"an auxiliary header of {it.header.auxhdr_size} bytes", _DECISIVE),
    _Rule("functions and rows", _by("kernel"),
          lambda it: (not it.header.fde_count and "sfh_num_fdes is 0")
          or (not it.header.fre_count and "sfh_num_fres is 0"), _DECISIVE),
    _Rule("offsets", _by(f"glibc {_LIB} {_LD}"),
          lambda it: it.header.fde_offset > it.header.fre_offset and "sfh_fdeoff is past sfh_freoff", _DECISIVE),
    _Rule("layout", _by("kernel"),
          lambda it: it.header.fre_offset < it.header.fde_offset + it.table_size
          and "the rows begin before the function table ends", _DECISIVE),
    _Rule("layout", _by("glibc", "reads it wrongly"), c.gaps, _DECISIVE),
    _Rule("SFRAME_F_FDE_SORTED", _by("glibc", "leaves traces to DWARF"),
          lambda it: not it.section.is_sorted and "SFRAME_F_FDE_SORTED is not set: nothing is looked up", _DECISIVE),
    _Rule("executable segments", _by("kernel"),
          lambda it: [(None, message) for message in c.segments(it.section, it.image)]),
    _Rule("headers with PF_X", _by("kernel", "does not find it"), c.other_header),
    _Rule("text", _by("arm64"), c.outside_the_text),
    _Rule("order of functions", {"kernel": "refuses it", "glibc": "reads it wrongly"}, each(
        lambda f: f.start <= f.previous_start
        and f"it starts at or before 0x{f.previous_start:x}, the one before it")),
    _Rule("overlap", _by("glibc", "reads it wrongly"), each(
        lambda f: f.start < f.previous_end and "it starts before the end of the one before it")),
    _Rule("block size", _by("glibc", "crashes"), each(
        lambda f: f.record.is_pcmask and not f.record.repeat_size and "it divides by the block size, which is 0")),
    _Rule("number of rows", _by("kernel"), each(c.row_count)),
    _Rule("order of rows", {"kernel": "refuses it", "glibc": "reads it wrongly"}, each(lambda f: f.rows.descends)),
    _Rule("rows outside", {"kernel": "refuses it", "glibc": "reads it wrongly"}, each(c.row_outside)),
    _Rule("rows without data words", _by("glibc", "leaves traces to DWARF"), each(
        lambda f: f.rows.has_outermost and "a row without data words (errata 2) is an error to it")),
    _Rule("rows without data words", _by("arm64"), each(
        lambda f: f.rows.has_outermost and "a row without data words is an error to it")),
    _Rule("flexible rows", _by("arm64"), each(lambda f: f.body.is_flexible and "its rows are flexible")),
    _Rule("CFA's register", _by("arm64"), each(lambda f: f.rows.other_base)),
    _Rule("control words", _by("kernel"), each(lambda f: f.rows.reserved_bit)),
    _Rule("data words", _by("kernel"), each(lambda f: f.rows.left_over)),
    _Rule("register numbers", _by("kernel", "reads it wrongly"), each(lambda f: f.rows.large_register)),
    _Rule("relocations", _by(_LD, "reads it wrongly"), c.relocated),
    _Rule("rows of its own", _by(_LD, "reads it wrongly"), c.own_rows),
)
_REMARKS: Final = (
    _Remark("kernel", "rows start from a register that it knows in the topmost frame only: elsewhere a walk ends there",
            lambda it: sum(function.rows.topmost_only for function in it.functions)),
    _Remark("kernel", "functions have flexible rows: an early version of the series refuses the section for them",
            lambda it: sum(function.body.is_flexible for function in it.functions)),
    _Remark("glibc", "rows have RA in its register: a trace through one is left to DWARF",
            lambda it: 0 if it.header.fixed_ra_offset else sum(f.rows.single_words for f in it.functions)),
    _Remark("kernel", "functions may end in a call and have no function at their end: the return address, which it "
            "looks up, finds no row", c.uncovered_ends),
    _Remark("glibc", "functions may end in a call and have no function at their end: a trace through the return "
            "address, which it looks up, is left to DWARF", c.uncovered_ends),
    _Remark("kernel glibc", "functions have code before their first row: no row is found there",
            lambda it: sum(function.body.starts[:1] > (0,) for function in it.functions)),
    _Remark(_LIB, "functions share their rows: a host of the other byte order refuses the section",
            lambda it: sum(count for count in c.row_list_users(it).values() if count > 1)),
    _Remark(_LIB, "rows more or fewer than sfh_num_fres: a host of the other byte order refuses the section",
            lambda it: abs(it.header.fre_count - it.section.row_count)),
    _Remark("lib47", "functions start relative to the section: sframe_find_fre, a function of the library, looks for "
            "them elsewhere",
            lambda it: len(it.functions) if it.section.version == 2 and not it.section.start_is_pcrel else 0),
)
# fmt: on


def judge(name: str, section: DecodedSection, image: ElfImage, *, is_in_file: bool = False) -> tuple[Verdict, ...]:
    """Return what the reader called `name` would do with a section for `image`, by edition, the oldest first.

    `is_in_file`: the section is the one that the file has, so that headers which lead to it count too. There is no
    verdict for a name that `cfi2sframe.readers` does not have.
    """
    functions = tuple(c.stored_functions(section))
    return tuple(
        _verdict(key, Subject(edition, section, image, is_in_file, functions))
        for key, edition in _EDITIONS.items()
        if edition.reader == name
    )


def _verdict(key: str, it: Subject) -> Verdict:
    broken: list[Broken] = []
    for rule in _RULES:
        found = rule.check(it) if key in rule.editions else None
        breaches = [(None, found)] if isinstance(found, str) else found if isinstance(found, list) else []
        if breaches:
            vaddrs = tuple([vaddr for vaddr, _ in breaches if vaddr is not None])
            broken.append(Broken(rule.name, rule.editions[key], *breaches[0], vaddrs))
            if rule.is_decisive:
                return Verdict(it.edition.reader, it.edition.releases, tuple(broken), ())
    habits = [Habit(remark.count(it), remark.message) for remark in _REMARKS if key in remark.editions.split()]
    return Verdict(it.edition.reader, it.edition.releases, tuple(broken), tuple([h for h in habits if h.amount]))
