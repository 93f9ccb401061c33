# SPDX-License-Identifier: Apache-2.0
"""Demands of each reader of SFrame sections, and of `verify` on every section, as one table.

`verdicts_of` returns the verdicts of a reader on a section, `unmet_demands` that of `verify`. Each rule was seen in the
releases that its editions name: in the reader's source, or by running it.

- verify: what the specification demands, whatever the rows mean.
- unusual: what it allows and the strictest readers refuse; this program never writes it.
- kernel: Linux's unwinder of user-space stacks, a series of patches. With CONFIG_SFRAME_VALIDATION it reads the whole
  section when it registers it; without, it drops a section at the first look-up that meets an error. Its demands on
  bits and words that no producer writes (reserved ones, words left over) are not here.
- kernel-arm64: the series for stacks of the kernel itself and of its modules.
- glibc: `backtrace()`, where glibc was configured with `--enable-sframe`. It trusts what it reads: no bounds of rows
  are checked. Where it cannot go on, or one module of a trace has no section, it leaves the whole trace to DWARF.
- libsframe, by which readelf, objdump and gdb read sections, and ld, GNU's, which merges those of objects. SFrame moved
  from version 1 to 2 with binutils 2.41, and to 3 with 2.46. Releases 2.41 to 2.43 and 2.45 of ld were not run: 2.45 is
  taken to be like 2.44 with the flag of PC-relative starts (errata 1).

`cfi2sframe.verification` has the names, and the form of section that is written for each.
"""

from collections.abc import Callable
from operator import lt
from typing import Final, Literal, NamedTuple

from cfi2sframe.constants.elf import EM_AARCH64, EM_S390, EM_X86_64, SHT_GNU_SFRAME
from cfi2sframe.constants.sframe import FLAGS_BY_VERSION, HEADER_SIZE
from cfi2sframe.constants.sframe import SFRAME_F_FDE_FUNC_START_PCREL as _PCREL
from cfi2sframe.constants.sframe import SFRAME_F_FDE_SORTED as _SORTED
from cfi2sframe.constants.sframe import SFRAME_F_FRAME_POINTER as _FRAME_POINTER
from cfi2sframe.elf.image import ElfImage
from cfi2sframe.sframe.model import Section
from cfi2sframe.sframe.read import DecodedSection
from cfi2sframe.verification import reader_checks as c
from cfi2sframe.verification.reader_checks import Breaches, Check, Edition, Subject, each_body, subject_of

#: The fate of a section that breaks a rule.
Consequence = Literal["refuses it", "does not find it", "reads it wrongly", "leaves traces to DWARF", "crashes"]


class Broken(NamedTuple):
    """A rule that a section breaks: how, at the first place, and the starts of all functions; none: as a whole."""

    rule: str
    consequence: Consequence
    message: str
    vaddrs: tuple[int, ...] = ()


class Verdict(NamedTuple):
    """The rules of one edition of a reader that a section breaks."""

    reader: str
    releases: str
    broken: tuple[Broken, ...]

    @property
    def reads_it(self) -> bool:
        """True if no rule is broken."""
        return not self.broken


class _Rule(NamedTuple):
    """A demand, and what editions do where it is broken; after one that `is_decisive`, they check nothing more."""

    name: str
    editions: dict[str, Consequence]
    check: Check
    is_decisive: bool = False

    def breaches(self, subject: Subject) -> Breaches:
        """Return which functions break the rule, or that the section does."""
        result = self.check(subject)
        return [(None, result)] if isinstance(result, str) else result if isinstance(result, list) else []


class _FileRule(NamedTuple):
    """A decisive demand on the file alone."""

    name: str
    editions: dict[str, Consequence]
    check: Callable[[ElfImage, Edition], object]

    def of_section(self) -> _Rule:
        """Return the demand as one on a section of the file."""
        return _Rule(self.name, self.editions, lambda it: self.check(it.image, it.edition), is_decisive=True)


#: By the names that the rules give them; of each reader, the oldest first.
_EDITIONS: Final = {
    "verify": Edition("verify", "", tuple(FLAGS_BY_VERSION)),
    "unusual": Edition("unusual", "", tuple(FLAGS_BY_VERSION)),
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
_LIB, _LD = "lib40 lib44 lib47", "ld40 ld44 ld45 ld47"
_ALL = " ".join(_EDITIONS)


def _by(editions: str, consequence: Consequence = "refuses it", **others: Consequence) -> dict[str, Consequence]:
    return dict.fromkeys(editions.split(), consequence) | others


# fmt: off
_DECISIVE: Final = True
#: Rules of a file, whatever section it has.
_FILE_RULES: Final = (
    _FileRule("linked file", _by("kernel glibc"),
              lambda image, _: image.is_relocatable and "it reads sections of linked files, and this is an object"),
    _FileRule("object", _by(_LD),
              lambda image, _: not image.is_relocatable and "it reads sections of objects, and this is a linked file"),
    _FileRule("ABI", _by("arm64 glibc"),
              lambda image, edition: image.arch.elf_machine not in edition.machines
              and f"it is not written for {image.arch.name}"),
)
_RULES: Final = (
    *map(_FileRule.of_section, _FILE_RULES),
    _Rule("PT_GNU_SFRAME", _by("kernel glibc", "does not find it"), c.segment),
    _Rule("section type", _by("ld47"),
          lambda it: it.is_in_file and (header := it.image.sframe_section) is not None
          and header.type != SHT_GNU_SFRAME and f"the section's type is 0x{header.type:x}, not SHT_GNU_SFRAME"),
    _Rule("version", _by(_ALL),
          lambda it: it.section.version not in it.edition.versions
          and f"version {it.section.version}; it reads version {' and '.join(map(str, it.edition.versions))}",
          _DECISIVE),
    _Rule("flags", _by("kernel"),
          lambda it: it.header.flags != _SORTED | _PCREL and f"flags 0x{it.header.flags:x}", _DECISIVE),
    _Rule("flags", _by("unusual arm64"),
          lambda it: it.section.version == 3 and not it.header.flags & _PCREL
          and "version 3 without SFRAME_F_FDE_FUNC_START_PCREL", _DECISIVE),
    _Rule("flags", _by(f"glibc {_LIB} {_LD}"),
          lambda it: it.header.flags & ~(it.edition.flags or FLAGS_BY_VERSION[it.section.version])
          and f"flags 0x{it.header.flags:x}", _DECISIVE),
    _Rule("flags", _by("verify"),
          lambda it: it.header.flags & ~FLAGS_BY_VERSION[it.section.version]
          and f"flags 0x{it.header.flags:x} are not of this version"),
    _Rule("ABI", _by("verify kernel arm64 glibc"),
          lambda it: it.section.arch != it.image.arch
          and f"for {it.section.arch.name}, the file is for {it.image.arch.name}", _DECISIVE),
    _Rule("byte order", _by("verify kernel arm64 glibc"),
          lambda it: it.header.byte_order != it.section.arch.byte_order
          and f"not in the byte order of {it.section.arch.name}", _DECISIVE),
    _Rule("ABI", _by("lib44 ld44 ld45", "reads it wrongly"),
          lambda it: it.section.arch.elf_machine == EM_S390
          and f"it does not know how {it.section.arch.name} stores the CFA's offset; 2.46 does", _DECISIVE),
    _Rule("auxiliary header", _by("unusual kernel arm64"),
          lambda it: it.header.auxhdr_size and f"an auxiliary header of {it.header.auxhdr_size} bytes", _DECISIVE),
    _Rule("functions and rows", _by("unusual kernel"),
          lambda it: not it.header.fde_count and "no functions", _DECISIVE),
    _Rule("functions and rows", _by("unusual kernel"), lambda it: not it.header.fre_count and "no rows", _DECISIVE),
    _Rule("layout", _by("unusual glibc", "reads it wrongly"),
          lambda it: it.header.fde_offset and f"sfh_fdeoff is {it.header.fde_offset}, not 0", _DECISIVE),
    _Rule("layout", _by("unusual glibc", "reads it wrongly"),
          lambda it: it.header.fre_offset != it.table_size
          and f"sfh_freoff is {it.header.fre_offset}, the table's size {it.table_size}", _DECISIVE),
    _Rule("number of rows", _by("verify"),
          lambda it: it.header.fre_count != it.section.row_count
          and f"sfh_num_fres is {it.header.fre_count}, the functions have {it.section.row_count} rows"),
    _Rule("layout", _by("verify"),
          lambda it: HEADER_SIZE + it.header.auxhdr_size + it.header.fre_offset + it.header.fre_size
          != len(it.section.data) and "sfh_fre_len does not reach the section's end"),
    _Rule("fixed offsets", _by("verify"),
          lambda it: it.header.fixed_ra_offset != it.section.arch.fixed_ra_offset
          and f"fixed RA offset {it.header.fixed_ra_offset}"),
    _Rule("fixed offsets", _by("unusual"),
          lambda it: it.header.fixed_fp_offset and f"fixed FP offset {it.header.fixed_fp_offset}"),
    _Rule("SFRAME_F_FDE_SORTED", _by("unusual glibc", "leaves traces to DWARF"),
          lambda it: not (it.image.is_relocatable or it.section.is_sorted) and "not sorted, in a linked file",
          _DECISIVE),
    _Rule("executable segments", _by("kernel"),
          lambda it: [(None, message) for message in c.segments(it.section, it.image)]),
    _Rule("text", _by("verify"), c.outside_the_code),
    _Rule("text", _by("arm64"), c.outside_the_text),
    _Rule("order of functions", _by("verify kernel", glibc="reads it wrongly"), c.descents),
    _Rule("overlap", _by("verify glibc", "reads it wrongly"), c.overlaps),
    _Rule("block size", _by("verify kernel", glibc="crashes"), c.missing_block_sizes),
    _Rule("block size", _by("unusual"), c.needless_block_sizes),
    _Rule("number of rows", _by("unusual kernel"), each_body(lambda body: not body.starts and "no rows")),
    _Rule("size", _by("unusual"), c.empty_functions),
    _Rule("first row", _by("verify"), each_body(
        lambda body: body.starts[:1] > (0,) and f"the first row starts at {body.starts[0]}")),
    _Rule("order of rows", _by("verify kernel", glibc="reads it wrongly"), each_body(
        lambda body: not all(map(lt, body.starts, body.starts[1:])) and "row starts do not ascend")),
    _Rule("rows outside", _by("verify kernel", glibc="reads it wrongly"), c.rows_outside),
    # As GNU as and LLVM write it, where CFI has a row at the end of a function.
    _Rule("rows outside", _by("unusual kernel", glibc="reads it wrongly"), c.rows_at_end),
    _Rule("rows without data words", _by("arm64", glibc="leaves traces to DWARF"), each_body(
        lambda body: any(state.cfa is None for state in body.states)
        and "a row without data words is an error to it")),
    _Rule("flexible rows", _by("arm64"), each_body(lambda body: body.is_flexible and "its rows are flexible")),
    _Rule("register numbers", _by("kernel", "reads it wrongly"), each_body(c.large_register)),
    _Rule("rows of its own", _by(_LD, "reads it wrongly"), c.shared_rows),
)
# fmt: on


#: The rules that depend on the function, not on the way it is stored.
_OF_FUNCTIONS: Final = ("text", "rows without data words", "flexible rows", "register numbers")


def verdicts_of(
    name: str, section: DecodedSection, image: ElfImage, *, is_in_file: bool = False
) -> tuple[Verdict, ...]:
    """Return the verdicts of the reader called `name` on a section for `image`, one for each edition, the oldest first.

    `is_in_file`: the section is the one that the file has, so headers which lead to it count too. There is no verdict
    for a name that `cfi2sframe.verification` does not have.
    """
    subject_for = subject_of(section, image, is_in_file=is_in_file)
    return tuple(_verdict(key, subject_for(edition)) for key, edition in _EDITIONS.items() if edition.reader == name)


def refusal_of_file(name: str, image: ElfImage) -> Broken | None:
    """Return why the newest edition of the reader called `name` would read no section of a file, whatever its rows."""
    key, edition = _newest_edition(name)
    for rule in _FILE_RULES:
        message = rule.check(image, edition) if key in rule.editions else None
        if isinstance(message, str):
            return Broken(rule.name, rule.editions[key], message)
    return None


def refused_functions(name: str, section: Section, image: ElfImage) -> set[int]:
    """Return the starts of the functions that the newest edition of the reader called `name` does not take."""
    key, edition = _newest_edition(name)
    rules = [rule for rule in _RULES if key in rule.editions and rule.name in _OF_FUNCTIONS]
    subject = subject_of(section, image)(edition)
    return {start for rule in rules for start, _ in rule.breaches(subject) if start is not None}


def _newest_edition(name: str) -> tuple[str, Edition]:
    return next((key, edition) for key, edition in reversed(_EDITIONS.items()) if edition.reader == name)


def _verdict(key: str, subject: Subject) -> Verdict:
    broken: list[Broken] = []
    for rule in _RULES:
        breaches = rule.breaches(subject) if key in rule.editions else []
        if breaches:
            vaddrs = tuple([vaddr for vaddr, _ in breaches if vaddr is not None])
            broken.append(Broken(rule.name, rule.editions[key], breaches[0][1], vaddrs))
            if rule.is_decisive:
                break
    return Verdict(subject.edition.reader, subject.edition.releases, tuple(broken))


class Unmet(NamedTuple):
    """The demands of the specification that a section breaks, and what is unusual in it."""

    broken: Breaches
    unusual: Breaches


def unmet_demands(section: DecodedSection, image: ElfImage) -> Unmet:
    """Return the demands of the specification that a section breaks, and what is unusual in it."""
    subject_for = subject_of(section, image)

    def breaches(key: str) -> Breaches:
        subject = subject_for(_EDITIONS[key])
        return [breach for rule in _RULES if key in rule.editions for breach in rule.breaches(subject)]

    return Unmet(breaches("verify"), breaches("unusual"))
