# SPDX-License-Identifier: Apache-2.0
"""Functions cut and joined to make a section smaller (-O2); start at `make_ranges`.

An SFrame function is a range of code with a list of rows; nothing ties it to one function of the program. A program's
functions begin and end alike (prologues and epilogues set up and release frames) and differ in the middle, so whole row
lists seldom repeat, but parts of them do:

    before:  f  [ push push sub ....... add pop pop ]      two functions, two lists of all their rows
             g  [ push push sub ............. add pop pop ]

    after:   f  [ push push sub ....... | add pop pop ]    four ranges, but two lists: the two beginnings are equal,
             g  [ push push sub ............. | add pop pop ]        and so are the two ends

A range costs a record of the function table. A row list costs its bytes once, however many ranges use it. That is the
task of a tokenizer: find a dictionary of words with which a text is short.

1. Letters: the rows of each distinct function are cut into segments, short runs of rows. Equal segments are one letter.
2. Text: functions without a gap between them form a stretch, so words may reach from one function into the next. Most
   do: an epilogue, padding, the next prologue. Equal stretches are in the text once. (`segments` does 1 and 2.)
3. Words: all slices of the text, of at most `MAX_ROWS` rows and segments, that occur more than once.
4. Parses: dynamic programming divides each stretch into the cheapest ranges. The rows of a range are a word, which
   other ranges use too, or are its own. Own rows cost their bytes, a word a fixed price for each user. The first parse
   takes the fair share, the bytes divided by the number of occurrences. The second parse divides by the square of the
   users that the first parse found, a price between the fair share and what one more user costs (nothing): words of
   few users lose those, words of many users keep them. Prices do not change during a parse, so the order of the
   stretches does not matter.

Every address keeps its row. A range has at most `MAX_ROWS` rows, because readers walk them one after the other. The
bytes depend on the rows alone, not on which equal objects are one object.

The work is bound by the text, which grows with the input (see `segments`). Whatever the text, at most `MAX_ROWS` words
end with a segment, and its range begins with one of at most a few hundred segments before it, those of a stretch's rows
or of `MAX_ROWS` rows. There are two parses, whatever they find. Ranges are made only if they take about as many bytes
as the functions, so the output is bound, too. At worst, where rows of two or three bytes recur in all orders, all this
takes 7 us for each byte of CFI.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import count
from operator import floordiv, sub
from typing import Final, NamedTuple

from cfi2sframe.abi import Arch
from cfi2sframe.constants import sframe as s
from cfi2sframe.sframe.model import FunctionBody, Section
from cfi2sframe.sframe.segments import MAX_ROWS, Sums, Text, make_text

#: Units of a parse's costs in a byte.
_BYTE: Final = 1 << 16


class _Prices(NamedTuple):
    """Bytes of a record of the function table, and of the attribute before a row list."""

    record: int
    attribute: int


def make_ranges(section: Section, arch: Arch) -> Section:
    """Return a section with its functions as ranges of up to `MAX_ROWS` rows that share row lists.

    The functions are in ascending order, and have their first rows at their starts. No range holds an address that no
    function holds. Functions of repeating blocks stay as they are. So do all functions where nothing is saved; if some
    have too many rows, only where ranges would add half of the size, because many of those functions have one row list.
    """
    prices = _Prices(s.FDE_SIZE[section.version], s.FDE_ATTRIBUTE_SIZE if section.version >= s.SFRAME_VERSION_3 else 0)
    text = make_text(section, arch)
    words = _find_words(text, prices)
    parser = _RangeParser(text, words, prices)
    users = _count_users(text, words, parser.parse(_shared(words.sizes, words.counts)))
    parsed = parser.parse(_shared(words.sizes, [max(user_count, 1) ** 2 for user_count in users]))

    keys = list(map(text.key, parsed.firsts, parsed.lasts))
    lists = dict(zip(keys, zip(parsed.firsts, parsed.lasts, strict=True), strict=True))
    size = prices.record * sum(map(text.uses.__getitem__, parsed.firsts))
    size += sum([prices.attribute + text.size(first, last) for first, last in lists.values()])
    whole_size = prices.record * text.function_count
    whole_size += sum([prices.attribute + spelling.size for spelling in text.spellings])
    has_long = any(spelling.row_count > MAX_ROWS for spelling in text.spellings)
    if size >= (whole_size * 3 // 2 if has_long else whole_size):
        return section
    bodies = {key: text.body(first, last) for key, (first, last) in lists.items()}
    return _place(text, parsed.firsts, [bodies[key] for key in keys], section)


class _Words(NamedTuple):
    """The row lists that more than one range could have.

    `ending[N]` has the indices of those that end with segment N: the first has one segment, each other one a segment
    more than the one before it. Segments with which the same longest one ends share a tuple. By index: `sizes` in
    bytes, with the attribute, and `counts` of the places at which each ends.
    """

    ending: list[tuple[int, ...]]
    sizes: list[int]
    counts: list[int]


def _find_words(text: Text, prices: _Prices) -> _Words:
    """Find the slices of the text that occur more than once, of `MAX_ROWS` rows and segments at most."""
    words = _Words([()] * len(text.letters), [], [])
    ending, sizes, first_wide = words.ending, words.sizes, text.first_wide
    lasts = list(range(len(text.letters)))
    for length in range(1, MAX_ROWS + 1):
        keys = text.keys(lasts, length)
        counts = Counter(keys)
        ending_of: dict[bytes, tuple[int, ...]] = {}
        recurring: list[int] = []
        for last, key in zip(lasts, keys, strict=True):
            if counts[key] == 1:
                continue
            if key not in ending_of:
                # Equal words end with equal shorter ones.
                ending_of[key] = (*ending[last], len(sizes))
                sizes.append(prices.attribute + text.size(last - length + 1, last))
                words.counts.append(counts[key])
            ending[last] = ending_of[key]
            recurring.append(last)
        # A slice recurs only if it does without its first segment, and without its last one.
        lasts = [last for last in recurring if last - length >= first_wide[last] and len(ending[last - 1]) >= length]
    return words


class _Ranges(NamedTuple):
    """The ranges of a text in order, as columns.

    Range N has the segments `[firsts[N], lasts[N]]`, and they are the word `words[N]`; None: it has rows of its own.
    """

    firsts: list[int]
    lasts: list[int]
    words: list[int | None]


class _RangeParser:
    """Finds the cheapest ranges of a text, given the prices of words.

    The rows of a stretch that occurs several times are stored once, so each use of it pays its share of them. Sizes are
    differences of sums (`Sums`): a range of rows of its own costs the total before it less a sum up to its beginning,
    with which it is opened, plus a sum up to its end.
    """

    def __init__(self, text: Text, words: _Words, prices: _Prices) -> None:
        self._text = text
        self._words = words
        self._record = prices.record * _BYTE
        self._attributes = [prices.attribute * _BYTE // uses for uses in text.uses]
        self._narrow = Sums(*[_shared(column, text.uses) for column in text.narrow])
        self._wide = Sums(*[_shared(column, text.uses) for column in text.wide])

    def parse(self, word_prices: Sequence[int]) -> _Ranges:
        """Return the cheapest ranges. One that is word N costs a record and `word_prices[N]`.

        With a method for each of its three steps, the stage takes 1.3 times as long (libcrypto).
        """
        first_narrow, first_wide = self._text.first_narrow, self._text.first_wide
        (narrow_begins, narrow_ends), (wide_begins, wide_ends) = self._narrow, self._wide
        narrow_opened, wide_opened = array("q"), array("q")
        record, attributes = self._record, self._attributes
        totals, firsts, chosen = [0], list[int](), list[int | None]()
        cheapest = -1
        for last, ending in enumerate(self._words.ending):
            # Rows of its own with narrow starts, or a longer range with wide ones.
            narrow_opened.append(totals[last] - narrow_begins[last])
            wide_opened.append(totals[last] - wide_begins[last])
            bound = first_narrow[last]
            if cheapest < bound:
                cheapest = narrow_opened.index(min(narrow_opened[bound:]), bound)
            elif narrow_opened[last] < narrow_opened[cheapest]:
                cheapest = last
            first, least = cheapest, narrow_opened[cheapest] + narrow_ends[last]
            if first_wide[last] < bound:
                opened = min(wide_opened[first_wide[last] : bound])
                if opened + wide_ends[last] < least:
                    first, least = wide_opened.index(opened, first_wide[last]), opened + wide_ends[last]
            least += attributes[last]
            # Or a word, of which each is a segment longer than the one before.
            word = None
            begin = last
            for ending_word in ending:
                cost = totals[begin] + word_prices[ending_word]
                if cost < least:
                    first, least, word = begin, cost, ending_word
                begin -= 1
            totals.append(least + record)
            firsts.append(first)
            chosen.append(word)
        lasts = _trace_back(firsts)
        return _Ranges([firsts[last] for last in lasts], lasts, [chosen[last] for last in lasts])


def _trace_back(firsts: Sequence[int]) -> list[int]:
    """Return the last segment of each range, in order, given the best first segment of a range that ends with each."""
    lasts: list[int] = []
    end = len(firsts)
    while end:
        lasts.append(end - 1)
        end = firsts[end - 1]
    return lasts[::-1]


def _shared(sizes: Sequence[int], uses: Sequence[int]) -> "array[int]":
    """Return the cost of sizes in bytes for each of some uses."""
    return array("q", map(floordiv, map(_BYTE.__mul__, sizes), uses))


def _count_users(text: Text, words: _Words, parsed: _Ranges) -> list[int]:
    """Return the number of ranges of the section that have each word as their rows."""
    users = [0] * len(words.sizes)
    for first, word in zip(parsed.firsts, parsed.words, strict=True):
        if word is not None:
            users[word] += text.uses[first]
    return users


def _place(text: Text, firsts: Sequence[int], made: Sequence[FunctionBody], section: Section) -> Section:
    """Return the section with the ranges that begin with some segments, and their bodies, wherever stretches occur."""
    offsets = [text.starts[first] for first in firsts]
    index_of = dict(zip(firsts, count(), strict=False))
    bounds = [*map(index_of.__getitem__, text.bounds[:-1]), len(firsts)]
    starts: list[int] = []
    sizes: list[int] = []
    bodies: list[FunctionBody] = []
    for first, end, stretch in text.groups:
        if stretch is None:
            range_starts = [section.starts[first]]
            bodies.append(section.bodies[first])
        else:
            ranges = slice(bounds[stretch], bounds[stretch + 1])
            range_starts = list(map(section.starts[first].__add__, offsets[ranges]))
            bodies += made[ranges]
        starts += range_starts
        sizes += map(sub, [*range_starts[1:], section.starts[end - 1] + section.sizes[end - 1]], range_starts)
    return section._replace(starts=tuple(starts), sizes=tuple(sizes), bodies=tuple(bodies))
