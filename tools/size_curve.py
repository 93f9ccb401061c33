#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Draw the two prices of a section against each other: its size, and the rows that a reader walks for a look-up.

size_curve.py [--svg FILE] [FILE...]

For each file a curve over the largest number of rows that a range may have (`MAXIMA`), and the points of GNU's layout,
-O1, -O2 and -Os; version 3. Sizes are ratios to `.eh_frame` + `.eh_frame_hdr`, rows are means over all bytes of code.
The figures are a table in Markdown on standard output. Without files: `NAMES`, those that are there.
"""

from __future__ import annotations

import argparse
import sys
from html import escape
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from cfi2sframe import Options, load
from cfi2sframe.conversion import convert_image
from cfi2sframe.errors import Cfi2SFrameError
from cfi2sframe.gnu.layout import gnu_sections
from cfi2sframe.report.size.measure import predicted_sizes
from cfi2sframe.sframe.constants import SFRAME_VERSION_3
from cfi2sframe.sframe.layout import plan_section
from cfi2sframe.sframe.lookup_cost import lookup_cost
from cfi2sframe.sframe.ranges import make_ranges

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cfi2sframe.conversion import Conversion

NAMES: Final = tuple(
    Path("/usr") / name
    for name in (
        *("bin/perl", "bin/git", "lib/x86_64-linux-gnu/libc.so.6"),
        *("lib/x86_64-linux-gnu/libcrypto.so.3", "bin/gdb"),
    )
)
#: The largest numbers of rows of a range; those with a label in the picture.
MAXIMA: Final = (6, 8, 12, 16, 20, 24, 32, 48, 96, 256)
LABELLED: Final = (6, 12, 24, 48, 256)
LEVELS: Final = {
    "-O1": Options(level=1),
    "-O2": Options(level=2),
    "-Os": Options(level="s"),
}
GNU: Final = "GNU's layout"


class Point(NamedTuple):
    """The two prices of a section: its size as a ratio to its CFI, and the mean rows walked for a look-up."""

    ratio: float
    mean_rows: float


class Curve(NamedTuple):
    """A file's points: by the largest number of rows of a range, and by the name of a layout.

    There is no point for a number with which no ranges are smaller than the functions.
    """

    name: str
    by_maximum: dict[int, Point]
    by_layout: dict[str, Point]


# Measuring


def curve_of(path: Path) -> Curve:
    """Measure a linked file. Raises `Cfi2SFrameError`."""
    conversions = {name: convert_image(load(str(path)), options) for name, options in LEVELS.items()}
    plain = conversions["-O1"]
    base_size = sum(len(section.data) for section in plain.cfi.sections)
    base_size += sum(section.size for section in plain.image.sections_named(".eh_frame_hdr"))

    by_layout = {GNU: _gnu(plain, base_size)}
    for name, conversion in conversions.items():
        by_layout[name] = Point(len(conversion.data) / base_size, conversion.lookup_cost.mean_rows)
    by_maximum = {maximum: _bounded(plain, maximum, base_size) for maximum in MAXIMA}
    return Curve(path.name, {maximum: point for maximum, point in by_maximum.items() if point}, by_layout)


def _gnu(plain: Conversion, base_size: int) -> Point:
    """Return the point of the section that GNU as and ld would make."""
    gnu = gnu_sections(plain.image, plain.cfi, plain.code_map)[SFRAME_VERSION_3]
    # Their rows are those of functions that are neither shared nor reach over their padding.
    alike = convert_image(load(plain.image.name), Options(level=0, with_padding=False))
    return Point(predicted_sizes(gnu, SFRAME_VERSION_3).size / base_size, alike.lookup_cost.mean_rows)


def _bounded(plain: Conversion, max_rows: int, base_size: int) -> Point | None:
    """Return the point of the section whose ranges have up to `max_rows` rows each; None where it has the functions."""
    section = make_ranges(plain.section, plain.image.arch, max_rows).section
    if section.starts == plain.section.starts:
        return None
    plan = plan_section(section, plain.image.arch, plain.section_vaddr, share=True)
    return Point(plan.size / base_size, lookup_cost(section.sizes, section.bodies).mean_rows)


# The table


def table_of(curves: Sequence[Curve]) -> Iterator[str]:
    """Yield the figures as a table in Markdown, one column for each file: ratio, rows."""
    yield f"| | {' | '.join(curve.name for curve in curves)} |"
    yield f"|---|{'---:|' * len(curves)}"
    for name in (GNU, "-O1"):
        yield _line(name, [curve.by_layout[name] for curve in curves])
    for maximum in MAXIMA:
        yield _line(f"at most {maximum} rows", [curve.by_maximum.get(maximum) for curve in curves])
    for name in ("-O2", "-Os"):
        yield _line(name, [curve.by_layout[name] for curve in curves])


def _line(name: str, points: Sequence[Point | None]) -> str:
    cells = ["-" if point is None else f"{point.ratio:.3f}, {point.mean_rows:.1f}" for point in points]
    return f"| {name} | {' | '.join(cells)} |"


# The picture

_WIDTH: Final = 780
_HEIGHT: Final = 500
_LEFT: Final = 56
_RIGHT: Final = 640
_TOP: Final = 64
_BOTTOM: Final = 440
_ROW_TICKS: Final = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
#: The least distance of two labels' base lines.
_LINE_HEIGHT: Final = 15
#: Of each file, on light and dark pages.
_COLOURS: Final = (
    ("#a3315b", "#ee93b4"),
    ("#14589b", "#86bdf0"),
    ("#a85400", "#eda55a"),
    ("#1e7a3c", "#6cc58a"),
    ("#6a4fa3", "#bfa8f2"),
)
#: Page, text, softer text and lines of the grid, light and dark.
_PLAIN_COLOURS: Final = (
    ("#ffffff", "#1c1f24", "#5b6370", "#dfe2e6"),
    ("#14171b", "#e6e8eb", "#a0a8b3", "#343a43"),
)
_DESCRIPTION: Final = (
    "For each file a curve: the more rows a range may have, the smaller the section is, and the more rows are walked. "
    "Marks are the sections of GNU's layout, -O1, -O2 and -Os. The figures are in a table of size-and-speed.md."
)


class Axes(NamedTuple):
    """The picture's scales: rows, whose steps are ratios, and ratios to the CFI, whose steps are equal."""

    least_rows: float
    most_rows: float
    least_ratio: float
    most_ratio: float

    def x(self, mean_rows: float) -> float:
        """Return the horizontal place of a number of rows."""
        return _LEFT + (_RIGHT - _LEFT) * log(mean_rows / self.least_rows) / log(self.most_rows / self.least_rows)

    def y(self, ratio: float) -> float:
        """Return the vertical place of a ratio."""
        return _BOTTOM - (_BOTTOM - _TOP) * (ratio - self.least_ratio) / (self.most_ratio - self.least_ratio)


def axes_of(curves: Sequence[Curve]) -> Axes:
    """Return scales that hold all points, and a ratio of 1."""
    points = [point for curve in curves for point in (*curve.by_maximum.values(), *curve.by_layout.values())]
    rows, ratios = [point.mean_rows for point in points], [point.ratio for point in points]
    return Axes(
        min(rows) / 1.1,
        max(rows) * 1.1,
        (min(ratios) * 20 // 1) / 20,
        (max(*ratios, 1.0) * 20 // 1 + 1) / 20,
    )


def picture_of(curves: Sequence[Curve]) -> Iterator[str]:
    """Yield the picture, an SVG file that follows the colours of its reader."""
    axes = axes_of(curves)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        'aria-labelledby="title desc">\n'
        '<title id="title">Size of .sframe and rows walked for a look-up</title>\n'
        f'<desc id="desc">{escape(_DESCRIPTION)}</desc>\n'
    )
    yield _style(len(curves))
    yield f'<rect class="page" width="{_WIDTH}" height="{_HEIGHT}" rx="8"/>\n'
    yield from _grid(axes)
    yield from _legend()
    places = _label_places([axes.y(_last(curve).ratio) for curve in curves])
    for number, (curve, label_y) in enumerate(zip(curves, places, strict=True)):
        yield f'<g class="c{number % len(_COLOURS)}">\n'
        yield from _curve(curve, axes, label_y, with_maxima=number == 0)
        yield "</g>\n"
    yield "</svg>\n"


def _style(count: int) -> str:
    # Not by variables, which many programs that draw SVG do not know.
    light, dark = (_rules(theme, count) for theme in (0, 1))
    return (
        "<style>\n"
        'text { font: 13px system-ui, "Segoe UI", Roboto, "Liberation Sans", sans-serif; }\n'
        ".soft { font-size: 12px; } .own { font-weight: 600; }\n"
        ".curve { fill: none; stroke-width: 2; } .empty { stroke-width: 2; } .one { stroke-dasharray: 4 3; }\n"
        f"{light}"
        f"@media (prefers-color-scheme: dark) {{\n{dark}}}\n"
        "</style>\n"
    )


def _rules(theme: int, count: int) -> str:
    """Return the colours of a theme: 0 is light, 1 is dark."""
    page, text, soft, line = _PLAIN_COLOURS[theme]
    lines = [
        f".page, .empty {{ fill: {page}; }} text {{ fill: {text}; }} .soft {{ fill: {soft}; }}",
        f".grid {{ stroke: {line}; }} .one {{ stroke: {soft}; }}",
    ]
    owners = [("key", text), *((f"c{number}", pair[theme]) for number, pair in enumerate(_COLOURS[:count]))]
    for owner, colour in owners:
        lines.append(f".{owner} .curve, .{owner} .empty {{ stroke: {colour}; }}")
        lines.append(f".{owner} .full, .{owner} .own {{ fill: {colour}; }}")
    return "".join(f"{line}\n" for line in lines)


def _grid(axes: Axes) -> Iterator[str]:
    for step in range(round(axes.least_ratio * 20), round(axes.most_ratio * 20) + 1):
        y = axes.y(step / 20)
        kind = "one" if step == 20 else "grid"
        yield f'<line class="{kind}" x1="{_LEFT}" x2="{_RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>\n'
        if step % 2 == 0:
            yield _text(_LEFT - 8, y + 4, f"{step / 20:.1f}", "soft", "end")
    for rows in _ROW_TICKS:
        if axes.least_rows <= rows <= axes.most_rows:
            x = axes.x(rows)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{_BOTTOM}"/>\n'
            yield _text(x, _BOTTOM + 18, str(rows), "soft", "middle")
    yield _text(
        (_LEFT + _RIGHT) / 2, _BOTTOM + 42, "rows walked for a look-up, mean over the bytes of code", "", "middle"
    )
    yield _text(16, 26, "size of .sframe to .eh_frame + .eh_frame_hdr")


def _legend() -> Iterator[str]:
    yield '<g class="key">\n'
    for number, name in enumerate((GNU, "-O1", "-O2", "-Os")):
        x = 390 + (0, 130, 200, 270)[number]
        yield _mark(name, x, 22)
        yield _text(x + 12, 26, name)
    yield "</g>\n"


def _curve(curve: Curve, axes: Axes, label_y: float, *, with_maxima: bool) -> Iterator[str]:
    # In the order of the rows walked: a larger maximum may, for once, make a quicker section.
    places = [(axes.x(p.mean_rows), axes.y(p.ratio)) for p in sorted(curve.by_maximum.values(), key=_rows_of)]
    yield f'<polyline class="curve" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in places)}"/>\n'
    for maximum, point in curve.by_maximum.items():
        x, y = axes.x(point.mean_rows), axes.y(point.ratio)
        yield f'<circle class="full" cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>\n'
        if with_maxima and maximum in LABELLED:
            yield _text(x, y - 11, f"\N{LESS-THAN OR EQUAL TO} {maximum}", "soft", "middle")
    for name, point in curve.by_layout.items():
        yield _mark(name, axes.x(point.mean_rows), axes.y(point.ratio))
    yield _text(_RIGHT + 14, label_y + 4, curve.name, "own")


def _mark(name: str, x: float, y: float) -> str:
    """Return the mark of a layout: empty ones are those without cuts."""
    if name == GNU:
        return f'<rect class="empty" x="{x - 5:.1f}" y="{y - 5:.1f}" width="10" height="10"/>\n'
    if name == "-O1":
        return f'<circle class="empty" cx="{x:.1f}" cy="{y:.1f}" r="5"/>\n'
    if name == "-O2":
        return f'<circle class="full" cx="{x:.1f}" cy="{y:.1f}" r="6"/>\n'
    return f'<path class="full" d="M{x:.1f},{y - 7:.1f} l7,7 l-7,7 l-7,-7 z"/>\n'


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    styles = f' class="{kind}"' if kind else ""
    return f'<text{styles} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>\n'


def _label_places(wanted: Sequence[float]) -> list[float]:
    """Return places at or below the wanted ones, from top to bottom, so that no two labels overlap."""
    places = [0.0] * len(wanted)
    previous = float("-inf")
    for number in sorted(range(len(wanted)), key=wanted.__getitem__):
        previous = places[number] = max(wanted[number], previous + _LINE_HEIGHT)
    return places


def _last(curve: Curve) -> Point:
    return max(curve.by_maximum.values(), key=_rows_of, default=curve.by_layout["-O1"])


def _rows_of(point: Point) -> float:
    return point.mean_rows


def main() -> int:
    """Run the command line; return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", metavar="FILE", nargs="*", type=Path)
    parser.add_argument("--svg", metavar="FILE", type=Path, help="write the picture here")
    arguments = parser.parse_args()
    paths = arguments.files or [path for path in NAMES if path.exists()]
    if len(paths) > len(_COLOURS):
        parser.error(f"there are colours for {len(_COLOURS)} files")
    curves = []
    for path in paths:
        try:
            curves.append(curve_of(path))
        except Cfi2SFrameError as error:
            print(f"size_curve: {path}: {error}", file=sys.stderr)
    if not curves:
        return 1
    print("\n".join(table_of(curves)))
    if arguments.svg is not None:
        arguments.svg.write_text("".join(picture_of(curves)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
