# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/lab/producers.md, from the records of two states of the sources; for tools/producers.py."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from producer_runs import VERSIONS

from cfi2sframe.render.markdown import markdown_table
from cfi2sframe.report.size.tables import Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

    from producer_runs import Record

SOURCES: Final = (".eh_frame", ".debug_frame", ".gopclntab")
ARCHES: Final = ("amd64", "arm64", "s390x")
#: The parts of the name of each file whose goals docs/lab/producers.md states: the package and the file.
PROGRAMS: Final = (
    "docker.io/usr/sbin/dockerd",
    "containerd/usr/bin/containerd",
    "podman/usr/bin/podman",
    "rclone/usr/bin/rclone",
    "hugo/usr/bin/hugo",
    "fzf/usr/bin/fzf",
    "firefox-esr/usr/lib/firefox-esr/libxul.so",
    "libreoffice-core-nogui/usr/lib/libreoffice/program/libmergedlo.so",
    "bash-static/usr/bin/bash-static",
    "busybox-static/bin/busybox",
)
#: Fields of an account with the reasons of other FDEs and stubs than those that a version cannot describe.
_OTHER_REASONS: Final = {"damage": "damaged", "dropped": "dropped", "stubs_left_out": "PLT stubs"}
_DESCRIBED: Final = ("default", "flexible", "stubs", "padding")
_EVERY: Final = "all"
#: Addresses and counts, but no releases ("6.7").
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|(?<![\w.])\d[\d,]*(?![\w,]|\.\d)")
_MAX_EXAMPLES: Final = 3


class Measurement(NamedTuple):
    """The records of a state of the sources, and the producers in the order of the list."""

    producers: tuple[str, ...]
    records: tuple[Record, ...]

    @property
    def keys(self) -> frozenset[tuple[str, int]]:
        """What was measured: files and versions."""
        return frozenset((record.key, record.version) for record in self.records)

    def limited_to(self, keys: Container[tuple[str, int]]) -> Measurement:
        """Return the measurement without what is not among `keys`."""
        return self._replace(records=tuple(r for r in self.records if (r.key, r.version) in keys))

    def select(self, version: int, producer: str = _EVERY, arch: str = _EVERY) -> list[Record]:
        """Return the records of a version, producer and architecture."""
        return [
            record
            for record in self.records
            if record.version == version
            and producer in (_EVERY, record.producer)
            and arch in (_EVERY, record.arch)
            # Files without code are no concern of anybody's.
            and record.code_size
        ]


class Sums(NamedTuple):
    """What became of files: counts of files, FDEs and bytes by name, and reasons with their functions and bytes.

    `functions` counts FDEs, ranges of PLT stubs and, for sources that are not read, files. `bytes` are those of FDEs
    that are left out, and of `holes` in FDEs that are described in part.
    """

    counts: Counter[str]
    functions: Counter[str]
    bytes: Counter[str]
    holes: Counter[str]

    @property
    def described_percent(self) -> float:
        """The share of all bytes of code that is described."""
        return 100 * self.counts["described_bytes"] / self.counts["code"] if self.counts["code"] else 0.0


def add_up(records: Iterable[Record]) -> Sums:
    """Return the sums over records of one version."""
    sums = Sums(Counter(), Counter(), Counter(), Counter())
    for record in records:
        counts, account = sums.counts, record.account
        counts["files"] += 1
        counts["code"] += record.code_size
        if account is None:
            counts["uncovered"] += record.code_size
            continue
        functions, of_code = account["functions"], account["bytes"]
        counts["described"] += functions["described"]
        counts["in_parts"] += functions.get("in_parts", 0)
        for name in ("fdes", "left_out", "damaged", "dropped", "replaced"):
            counts[name] += functions[name]
        counts["described_bytes"] += sum(of_code[name] for name in _DESCRIBED)
        counts["left_out_bytes"] += of_code["left_out"]
        counts["other_padding"] += of_code["other_padding"]
        counts["uncovered"] += of_code["uncovered"]
        counts["contradicting"] += account["contradicting"]
        counts.update(account["sources"])
        for reason, (count, size) in account["reasons"].items():
            sums.functions[reason] += count
            sums.bytes[reason] += size
        for reason, (count, size) in account["holes"].items():
            sums.holes[reason] += count
            sums.bytes[reason] += size
        for kind, name in _OTHER_REASONS.items():
            sums.functions.update({f"{name}: {_plain(text)}": count for text, count in account[kind].items()})
        sums.functions.update(f"{name} is not read: {_plain(reason)}" for name, reason in account["unread"].items())
    return sums


def _plain(text: str) -> str:
    """Return a message without its numbers, so that equal ones add up."""
    return _NUMBER.sub("N", text)


# Cells


def change(before: str, after: str) -> str:
    """Return the cell of what was and is."""
    return after if before == after else f"{before} → {after}"


def size_text(size: int) -> str:
    """Return a number of bytes in a readable unit."""
    if size < 10_000:
        return f"{size:,}"
    return f"{size / 1000:,.1f} kB" if size < 1_000_000 else f"{size / 1_000_000:,.1f} MB"


def percent_text(percent: float) -> str:
    """Return a share; only what is whole is shown as 100 %."""
    return f"{min(percent, 99.99):.2f} %" if percent < 100 else "100 %"


def _number(name: str) -> Callable[[Sums], str]:
    return lambda sums: f"{sums.counts[name]:,}"


def _size(name: str) -> Callable[[Sums], str]:
    return lambda sums: size_text(sums.counts[name])


def _share(sums: Sums) -> str:
    return percent_text(sums.described_percent) if sums.counts["code"] else ""


_SOURCE_COLUMNS: Final[dict[str, Callable[[Sums], str]]] = {
    "files": _number("files"),
    "code": _size("code"),
    **{f"FDEs of {name}": _number(name) for name in SOURCES},
    "contradicting": _number("contradicting"),
    "damaged": _number("damaged"),
}
_VERSION_COLUMNS: Final[dict[str, Callable[[Sums], str]]] = {
    "FDEs described": _number("described"),
    "in part": _number("in_parts"),
    "left out": _number("left_out"),
    "code described": _share,
    "code left out": _size("left_out_bytes"),
    "no CFI: padding": _size("other_padding"),
    "no CFI: code": _size("uncovered"),
}


# Tables


def page_lines(before: Measurement, after: Measurement) -> Iterator[str]:
    """Yield the lines of all tables, each with its heading."""
    yield "### What was read"
    yield ""
    yield from _by_producer(before, after, VERSIONS[0], _SOURCE_COLUMNS)
    for version in VERSIONS:
        yield ""
        yield f"### Version {version}"
        yield ""
        yield from _by_producer(before, after, version, _VERSION_COLUMNS)
        yield ""
        yield f"Version {version}, code described by architecture:"
        yield ""
        yield from _by_arch(before, after, version)
        yield ""
        yield f"Version {version}, what is not described, by reason:"
        yield ""
        yield from _by_reason(before, after, version)
    yield ""
    yield "### Programs"
    yield ""
    yield from _programs(before, after)
    yield ""
    yield "### Files that are not rewritten"
    yield ""
    yield from _refusals(before, after)
    yield ""
    yield "### Checks"
    yield ""
    yield from _checks(after)


def _by_producer(
    before: Measurement, after: Measurement, version: int, cells: dict[str, Callable[[Sums], str]]
) -> Iterator[str]:
    rows = []
    for producer in (*after.producers, _EVERY):
        pair = [add_up(measurement.select(version, producer)) for measurement in (before, after)]
        if pair[1].counts["files"]:
            rows.append((producer, *(change(*map(cell, pair)) for cell in cells.values())))
    columns = (Column("", "text"), *map(Column, cells))
    yield from markdown_table(Table("", columns, tuple(rows)))


def _by_arch(before: Measurement, after: Measurement, version: int) -> Iterator[str]:
    rows = []
    for producer in (*after.producers, _EVERY):
        cells = []
        for arch in ARCHES:
            pair = [add_up(measurement.select(version, producer, arch)) for measurement in (before, after)]
            cells.append(change(*map(_share, pair)) if pair[1].counts["files"] else "")
        if any(cells):
            rows.append((producer, *cells))
    yield from markdown_table(Table("", (Column("", "text"), *map(Column, ARCHES)), tuple(rows)))


def _by_reason(before: Measurement, after: Measurement, version: int) -> Iterator[str]:
    """Yield the table of reasons, those with most bytes first."""
    old, new = (add_up(measurement.select(version)) for measurement in (before, after))
    producers = {name: add_up(after.select(version, name)) for name in after.producers}
    producers_before = {name: add_up(before.select(version, name)) for name in before.producers}
    reasons = {*old.functions, *new.functions, *old.holes, *new.holes}
    rows = []
    for reason in sorted(reasons, key=lambda reason: (-old.bytes[reason], -old.functions[reason], reason)):
        is_gone = not (new.functions[reason] or new.holes[reason])
        of = {
            name: sums.bytes[reason] or sums.functions[reason]
            for name, sums in (producers_before if is_gone else producers).items()
        }
        rows.append(
            (
                reason,
                change(f"{old.functions[reason]:,}", f"{new.functions[reason]:,}"),
                change(f"{old.holes[reason]:,}", f"{new.holes[reason]:,}"),
                change(size_text(old.bytes[reason]), size_text(new.bytes[reason])),
                ", ".join(name for name, count in Counter(of).most_common(_MAX_EXAMPLES) if count),
            )
        )
    columns = (Column("reason", "text"), *map(Column, ("count", "holes", "bytes")), Column("mostly in", "text"))
    yield from markdown_table(Table("", columns, tuple(rows)))


def _programs(before: Measurement, after: Measurement) -> Iterator[str]:
    rows = []
    for program in PROGRAMS:
        for arch in ARCHES:
            found = [_find(measurement, f"{arch}/{program}") for measurement in (before, after)]
            if not any(found):
                continue
            texts = [change(*(_text_share(records.get(version)) for records in found)) for version in VERSIONS]
            words = change(*(_is_rewritten(records.get(VERSIONS[0])) for records in found))
            rows.append((program.rpartition("/")[2], arch, *texts, words))
    columns = (
        Column("", "text"),
        Column("", "text"),
        *(Column(f".text described, version {version}") for version in VERSIONS),
        Column("rewritten", "text"),
    )
    yield from markdown_table(Table("", columns, tuple(rows)))


def _find(measurement: Measurement, key: str) -> dict[int, Record]:
    return {record.version: record for record in measurement.records if record.key == key}


def _text_share(record: Record | None) -> str:
    if record is None:
        return ""
    text = record.account["text"] if record.account else {}
    if not text.get("total"):
        return "no CFI"
    return percent_text(100 * sum(text[name] for name in _DESCRIBED) / text["total"])


def _is_rewritten(record: Record | None) -> str:
    if record is None:
        return ""
    return "no" if record.error else "yes"


def _refusals(before: Measurement, after: Measurement) -> Iterator[str]:
    """Yield the table of messages, the most frequent first; version 3 stands for both."""
    counts: list[Counter[str]] = []
    examples: dict[str, list[str]] = {}
    for measurement in (before, after):
        refused = [record for record in measurement.select(VERSIONS[0]) if record.error]
        counts.append(Counter(_plain(record.error) for record in refused))
        for record in refused:
            name = record.key.rpartition("/")[2]
            names = examples.setdefault(_plain(record.error), [])
            if name not in names:
                names.append(name)
    old, new = counts
    rows = [
        (text, change(f"{old[text]:,}", f"{new[text]:,}"), ", ".join(examples[text][:_MAX_EXAMPLES]))
        for text in sorted({*old, *new}, key=lambda text: (-old[text], -new[text], text))
    ]
    columns = (Column("message", "text"), Column("files"), Column("such as", "text"))
    yield from markdown_table(Table("", columns, tuple(rows)))


def _checks(after: Measurement) -> Iterator[str]:
    for version in VERSIONS:
        records = after.select(version)
        verified = [record for record in records if record.compared]
        with_differences = sum(bool(record.differences) for record in records)
        read = [record for record in records if record.readelf_rows or record.readelf_problem]
        problems = sum(bool(record.readelf_problem) for record in read)
        yield (
            f"- Version {version}: {len(records):,} files, {sum(not record.error for record in records):,} of them "
            f"rewritten or left as they are; {sum(record.compared for record in verified):,} rows of "
            f"{len(verified):,} sections compared with the CFI, {with_differences:,} files with differences; "
            f"GNU readelf asked about {len(read):,} files, {sum(record.readelf_rows for record in read):,} rows as "
            f"`dump` prints them, {problems:,} files printed otherwise; "
            f"{sum(bool(record.odd) for record in records):,} runs with a message that none should print."
        )
