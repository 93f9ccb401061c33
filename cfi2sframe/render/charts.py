# SPDX-License-Identifier: Apache-2.0
"""Charts as inline SVG without a script.

Horizontal coordinates are percentages and font sizes are pixels: a chart is as wide as its page, and its text stays
readable on a phone. Each chart has a title and a description; a table on the page repeats the numbers.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

#: The length of the longest bar in percent of the width; its label follows it.
_BAR_REACH: Final = 62.0
_BAR_HEIGHT: Final = 14
_BAR_STEP: Final = 18
_NAME_HEIGHT: Final = 20
_GROUP_GAP: Final = 12
_COLUMNS_HEIGHT: Final = 170
_COLUMNS_TOP: Final = 18
_COLUMNS_BOTTOM: Final = 38


class Segment(NamedTuple):
    """A segment of a bar: its class in the style sheet, and its value."""

    style: str
    value: float


class Bar(NamedTuple):
    """A bar of segments, and the text after it."""

    segments: tuple[Segment, ...]
    label: str


class BarGroup(NamedTuple):
    """Bars under a common name."""

    name: str
    bars: tuple[Bar, ...]


class Bin(NamedTuple):
    """A class of a distribution: a label below it, which may be empty, and a count for each series."""

    label: str
    counts: tuple[int, ...]


def bar_chart(identity: str, title: str, description: str, groups: Sequence[BarGroup]) -> Iterator[str]:
    """Yield groups of horizontal bars on one scale."""
    bars = [bar for group in groups for bar in group.bars]
    widest = max((sum(segment.value for segment in bar.segments) for bar in bars), default=0) or 1
    height = sum(_NAME_HEIGHT + _BAR_STEP * len(group.bars) + _GROUP_GAP for group in groups)
    yield from _open(identity, title, description, height)
    y = 0
    for group in groups:
        yield f'<text class="name" x="0" y="{y + 14}">{escape(_shorten(group.name))}</text>\n'
        y += _NAME_HEIGHT
        for bar in group.bars:
            yield from _bar(bar, y, widest)
            y += _BAR_STEP
        y += _GROUP_GAP
    yield "</svg>\n"


def _bar(bar: Bar, y: int, widest: float) -> Iterator[str]:
    x = 0.0
    for style, value in bar.segments:
        width = _BAR_REACH * value / widest
        if value > 0:
            # A segment is visible however small it is.
            yield (
                f'<rect class="{style}" x="{x:.3f}%" y="{y}" width="{max(width, 0.15):.3f}%" height="{_BAR_HEIGHT}"/>\n'
            )
        x += width
    yield f'<text class="soft" x="{x + 0.8:.3f}%" y="{y + 11}">{escape(bar.label)}</text>\n'


def column_chart(
    identity: str, title: str, description: str, bins: Sequence[Bin], styles: Sequence[str], mark: int | None, unit: str
) -> Iterator[str]:
    """Yield a distribution: a column per class and series, with a line before class number `mark`."""
    height = _COLUMNS_TOP + _COLUMNS_HEIGHT + _COLUMNS_BOTTOM
    base = _COLUMNS_TOP + _COLUMNS_HEIGHT
    most = max((max(item.counts) for item in bins), default=0) or 1
    step = 100 / max(len(bins), 1)
    width = step * 0.84 / max(len(styles), 1)
    yield from _open(identity, title, description, height)
    for number, item in enumerate(bins):
        left = number * step + step * 0.08
        for series, (style, count) in enumerate(zip(styles, item.counts, strict=True)):
            if count:
                high = max(_COLUMNS_HEIGHT * count / most, 1.5)
                place = f'x="{left + series * width:.3f}%" y="{base - high:.1f}" width="{width:.3f}%"'
                yield f'<rect class="{style}" {place} height="{high:.1f}"/>\n'
        if item.label:
            yield f'<text class="soft" x="{number * step:.3f}%" y="{base + 16}">{escape(item.label)}</text>\n'
    yield f'<line class="axis" x1="0" x2="100%" y1="{base}" y2="{base}"/>\n'
    yield f'<text class="soft" x="0" y="12">{escape(f"{most:,} {unit}")}</text>\n'
    if mark is not None:
        at = f"{mark * step:.3f}%"
        yield f'<line class="one" x1="{at}" x2="{at}" y1="{_COLUMNS_TOP - 12}" y2="{base}"/>\n'
    yield "</svg>\n"


def _open(identity: str, title: str, description: str, height: int) -> Iterator[str]:
    yield (
        f'<svg role="img" height="{height}" aria-labelledby="{identity}-title {identity}-desc">\n'
        f'<title id="{identity}-title">{escape(title)}</title>\n'
        f'<desc id="{identity}-desc">{escape(description)}</desc>\n'
    )


def _shorten(name: str, length: int = 46) -> str:
    """Shorten a name to a phone's width; its end is kept, which distinguishes files."""
    return name if len(name) <= length else "\N{HORIZONTAL ELLIPSIS}" + name[-length + 1 :]


def legend(entries: Sequence[tuple[str, str]]) -> str:
    """Return a legend: pairs of a class in the style sheet and its meaning."""
    items = "".join(f'<li><span class="{style}"></span>{escape(text)}</li>' for style, text in entries)
    return f'<ul class="legend">{items}</ul>\n'
