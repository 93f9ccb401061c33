# SPDX-License-Identifier: Apache-2.0
"""A section's code as a text, for `ranges`: rows that stay together, and functions that follow one another.

    functions    f              g         h                     h touches nothing that has its attributes
    rows         r s t  u v     r s t     r s t  u v
    letters      A      B       A         A      B              equal rows are one Letter
    spellings    AB             A         AB                    a body by its letters: f and h have one Spelling
    stretches    AB A                     AB                    functions that touch; equal ones are one
    text         A B A A B                                      distinct stretches; a range is a slice of one
    words          B A                                          slices that recur (`ranges` finds them)

The letters of the text are *segments*: a few rows that no range divides. The rows of each distinct body are cut after
each row that is in force for longer than an instruction of a prologue, and after `_MAX_SEGMENT_ROWS` rows. Segments of
equal rows are one letter, and a body is *spelled* with letters.

Letters are for speed: with rows instead, -O2 in one plain module of 323 lines gave the same answers, and sizes within
1 %, but took 2.1 (gdb) to 3.0 times (libz3) the CPU time of this stage.

Functions of equal attributes without a gap between them form a *stretch*. Equal stretches are in the text once. A
stretch ends with the function that brings it to `_STRETCH_ROWS` rows. A function that recurs and has half the rows that
a range may have, or more, is a stretch by itself. So the text has each body of many rows once, and for each other
function fewer rows than that: it grows with the input, however often a long body is used.

Rows, bodies and stretches are compared by their values, so the text is the same whichever equal objects are one object.
"""

from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, pairwise
from operator import add, eq, mul, sub
from typing import Final, NamedTuple, NewType

from cfi2sframe.abi import Arch
from cfi2sframe.range_map import Distinct
from cfi2sframe.sframe.model import Attributes, FrameState, FunctionBody, Section, States
from cfi2sframe.sframe.write import row_tail

#: Rows of a range at most, because readers walk them one after the other. With 24, sections are 1 to 4 % smaller, but
#: look-ups on s390x take up to 1.3 times as long as in GNU's layout; with 16, at most 1.1 times.
MAX_ROWS: Final = 16
#: A segment has at most this many rows, however close together they are.
_MAX_SEGMENT_ROWS: Final = 8
#: Ranges do not reach over the ends of stretches, but short stretches recur more often.
_STRETCH_ROWS: Final = 300
#: Sizes of ranges and distances between rows have 32 bits.
_MAX_STRETCH_SIZE: Final = 1 << 31
#: The distance after a body's last row, where there always is a cut.
_LAST_ROW: Final = 1 << 31
#: The last row start that fits start fields of one byte, and of two.
_MAX_NARROW_START: Final = 0xFF
_MAX_WIDE_START: Final = 0xFFFF
#: Bytes of a segment in `Text.items`, and of the distance in its second half.
_ITEM: Final = 8
_DISTANCE: Final = 4


#: Places of row kinds, letters and spellings, each among the distinct ones of a section.
KindIndex = NewType("KindIndex", int)
LetterIndex = NewType("LetterIndex", int)
SpellingIndex = NewType("SpellingIndex", int)


class RowKind(NamedTuple):
    """A row without its start."""

    state: FrameState
    attributes: Attributes


class Letter(NamedTuple):
    """Rows that stay together; `starts` count from the first one.

    `size` is in bytes, with start fields of one byte; `first_size` is that of the first row.
    """

    kinds: tuple[RowKind, ...]
    starts: tuple[int, ...]
    size: int
    first_size: int


class Spelling(NamedTuple):
    """A body in letters: their indices, and their starts in bytes from the function's.

    `size` is in bytes, with the smallest start fields.
    """

    letters: Sequence[LetterIndex]
    starts: Sequence[int]
    attributes: Attributes
    row_count: int
    size: int


class Group(NamedTuple):
    """The functions `[first, end)` of a section, and the index of their stretch (None: one that stays as it is)."""

    first: int
    end: int
    stretch: int | None


class Sums(NamedTuple):
    """Sums over ranges of segments, from one sum of all that segments add: `ends[last] - begins[first]`.

    A range has its first segment whole. A later one that goes on with the state of the one before it adds all but its
    first row. `ends` are the sums of what segments add, `begins` are these without the whole segment.
    """

    begins: Sequence[int]
    ends: Sequence[int]

    def over(self, first: int, last: int) -> int:
        """Return the sum over the segments `[first, last]`."""
        return self.ends[last] - self.begins[first]


class Text(NamedTuple):
    """The distinct stretches, one after the other; stretch N has the segments `[bounds[N], bounds[N + 1])`.

    `spellings` are those of all bodies, `function_count` counts the functions, `groups` has all of the section.
    By segment: `letters`; `starts`, in bytes from the stretch's; `uses`, how often the stretch occurs; `items`, the
    letter and the distance from its last row to the next segment, as bytes. `narrow` and `wide` sum up the bytes of
    rows with start fields of one byte and of two. The longest range with narrow starts that
    ends with segment N begins with segment `first_narrow[N]`, and the longest of all with `first_wide[N]`.
    """

    alphabet: list[Letter]
    spellings: list[Spelling]
    function_count: int
    groups: list[Group]
    bounds: list[int]
    letters: list[LetterIndex]
    starts: list[int]
    uses: list[int]
    items: bytes
    narrow: Sums
    wide: Sums
    first_narrow: "array[int]"
    first_wide: "array[int]"

    def key(self, first: int, last: int) -> bytes:
        """Return bytes that are equal for equal rows in the segments `[first, last]`."""
        return self.items[_ITEM * first : _ITEM * last + _DISTANCE]

    def keys(self, lasts: Sequence[int], length: int) -> list[bytes]:
        """Return the keys of as many segments that end with each of `lasts`."""
        items, before = self.items, _ITEM * (length - 1)
        return [items[_ITEM * last - before : _ITEM * last + _DISTANCE] for last in lasts]

    def size(self, first: int, last: int) -> int:
        """Return the bytes of the rows in the segments `[first, last]`."""
        return (self.narrow if first >= self.first_narrow[last] else self.wide).over(first, last)

    def body(self, first: int, last: int) -> FunctionBody:
        """Return the rows in the segments `[first, last]`; a segment may go on with the state of the one before it."""
        starts: list[int] = []
        kinds: list[RowKind] = []
        for index, begin in zip(self.letters[first : last + 1], self.starts[first : last + 1], strict=True):
            letter = self.alphabet[index]
            skipped = 1 if kinds and kinds[-1] == letter.kinds[0] else 0
            kinds += letter.kinds[skipped:]
            delta = begin - self.starts[first]
            starts += map(delta.__add__, letter.starts[skipped:])
        return FunctionBody(tuple(starts), States([kind.state for kind in kinds]), *kinds[0].attributes)


def make_text(section: Section, arch: Arch) -> Text:
    """Return the text of a section; its functions are in ascending order.

    Functions of repeating blocks, and those without rows, are not in the text.
    """
    speller = _Speller(arch)
    spelled = list(map(speller.index_of, section.bodies))
    alphabet, spellings = speller.alphabet, speller.spellings
    starts = section.starts
    groups = _find_stretches(starts, section.sizes, spelled, spellings)

    bounds, letters, letter_starts, uses = [0], list[LetterIndex](), list[int](), list[int]()
    use_counts = Counter(group.stretch for group in groups)
    for first, end, stretch in groups:
        if stretch != len(bounds) - 1:
            continue
        for start, index in zip(starts[first:end], spelled[first:end], strict=True):
            if index is not None:
                letters += spellings[index].letters
                letter_starts += map((start - starts[first]).__add__, spellings[index].starts)
        uses += [use_counts[stretch]] * (len(letters) - bounds[-1])
        bounds.append(len(letters))

    ends = list(map(add, letter_starts, map([letter.starts[-1] for letter in alphabet].__getitem__, letters)))
    # The distance to the next stretch is in no range's key.
    pairs = array("I", bytes(_ITEM * len(letters)))
    pairs[0::2] = array("I", letters)
    pairs[1::2] = array("I", map(abs, map(sub, [*letter_starts[1:], 0], ends)))
    items = pairs.tobytes()
    row_sums, narrow, wide = _sum_up(alphabet, letters)
    first_narrow, first_wide = _longest_ranges(bounds, letter_starts, ends, row_sums)
    return Text(
        *(alphabet, spellings, len(spelled) - spelled.count(None), groups, bounds, letters, letter_starts, uses, items),
        *(narrow, wide, first_narrow, first_wide),
    )


class _Speller:
    """Spells the bodies of a section; equal rows, segments and bodies are recognized by their values."""

    def __init__(self, arch: Arch) -> None:
        self.alphabet: list[Letter] = []
        self.spellings: list[Spelling] = []
        self._arch = arch
        self._indices: dict[FunctionBody, SpellingIndex] = {}
        self._kinds = Distinct[RowKind]()
        #: By row kind, the bytes of its rows with start fields of one byte.
        self._sizes: list[int] = []
        self._lists: dict[tuple[tuple[FrameState, ...], Attributes], tuple[KindIndex, ...]] = {}
        #: By row kinds, and the distances between their rows.
        self._letter_of: dict[tuple[tuple[KindIndex, ...], tuple[int, ...]], LetterIndex] = {}

    def index_of(self, body: FunctionBody) -> SpellingIndex | None:
        """Return the index of a body's spelling; None for a body that is not in the text."""
        if body.repeat_size:
            return self.index_of(body._replace(repeat_size=0)) if len(body.starts) == 1 else None
        index = self._indices.get(body)
        if index is None and body.starts:
            index = self._indices[body] = self._spell(body)
        return index

    def _spell(self, body: FunctionBody) -> SpellingIndex:
        starts, attributes = body.starts, body.attributes
        kinds = self._kinds_of(body.states, attributes)
        distances = (*map(sub, starts[1:], starts), _LAST_ROW)
        step = self._arch.prologue_step
        letters: list[LetterIndex] = []
        firsts: list[int] = []
        first = 0
        for cut in [end for end, distance in enumerate(distances, 1) if distance > step]:
            while first < cut:
                end = min(cut, first + _MAX_SEGMENT_ROWS)
                letters.append(self._letter(kinds[first:end], distances[first : end - 1]))
                firsts.append(starts[first])
                first = end
        start_size = 1 if starts[-1] <= _MAX_NARROW_START else 2 if starts[-1] <= _MAX_WIDE_START else 4
        size = sum([self.alphabet[letter].size for letter in letters]) + (start_size - 1) * len(starts)
        self.spellings.append(Spelling(letters, firsts, attributes, len(starts), size))
        return SpellingIndex(len(self.spellings) - 1)

    def _kinds_of(self, states: tuple[FrameState, ...], attributes: Attributes) -> tuple[KindIndex, ...]:
        # Bodies differ in their starts, and few lists of states are distinct.
        indices = self._lists.get((states, attributes))
        if indices is None:
            indices = self._lists[states, attributes] = tuple(
                [self._kind_of(RowKind(state, attributes)) for state in states]
            )
        return indices

    def _kind_of(self, kind: RowKind) -> KindIndex:
        index = self._kinds.number_of(kind)
        if index == len(self._sizes):
            self._sizes.append(1 + len(row_tail(kind.state, self._arch, is_flexible=kind.attributes.is_flexible)))
        return KindIndex(index)

    def _letter(self, kinds: tuple[KindIndex, ...], distances: tuple[int, ...]) -> LetterIndex:
        """Return the letter of rows of these kinds with these distances between them."""
        letter = self._letter_of.get((kinds, distances))
        if letter is None:
            letter = self._letter_of[kinds, distances] = LetterIndex(len(self.alphabet))
            sizes = [self._sizes[kind] for kind in kinds]
            starts = tuple(accumulate(distances, initial=0))
            self.alphabet.append(
                Letter(tuple([self._kinds.values[kind] for kind in kinds]), starts, sum(sizes), sizes[0])
            )
        return letter


def _find_stretches(
    starts: Sequence[int],
    sizes: Sequence[int],
    spelled: Sequence[SpellingIndex | None],
    spellings: Sequence[Spelling],
) -> list[Group]:
    """Return the groups of functions, given the spelling of each; stretches are numbered as they first occur."""
    use_counts = Counter(spelled)
    is_alone = [
        2 * spelling.row_count >= MAX_ROWS and use_counts[SpellingIndex(index)] > 1
        for index, spelling in enumerate(spellings)
    ]
    touches = [*map(eq, map(add, starts, sizes), starts[1:]), False]
    stretches: dict[bytes, int] = {}
    groups: list[Group] = []
    end = 0
    while end < len(spelled):
        first, index = end, spelled[end]
        end += 1
        if index is None:
            groups.append(Group(first, end, None))
            continue
        members, attributes, row_count = [index], spellings[index].attributes, spellings[index].row_count
        while row_count < _STRETCH_ROWS and touches[end - 1] and not is_alone[index]:
            index = spelled[end]
            if index is None or is_alone[index] or spellings[index].attributes != attributes:
                break
            if starts[end] + sizes[end] - starts[first] > _MAX_STRETCH_SIZE:
                break
            members.append(index)
            row_count += spellings[index].row_count
            end += 1
        # The size of the last function moves no row.
        key = array("I", [*members, *sizes[first : end - 1]]).tobytes()
        groups.append(Group(first, end, stretches.setdefault(key, len(stretches))))
    return groups


def _sum_up(alphabet: Sequence[Letter], letters: Sequence[LetterIndex]) -> tuple[Sums, Sums, Sums]:
    """Return the sums of rows, and of their bytes with start fields of one byte and of two."""
    last_kinds = [letter.kinds[-1] for letter in alphabet]
    first_kinds = [letter.kinds[0] for letter in alphabet]
    goes_on = [False, *[first_kinds[next_] == last_kinds[letter] for letter, next_ in pairwise(letters)]]

    def sums(wholes: Sequence[int], first_rows: Sequence[int]) -> Sums:
        """Return the sums of a figure, given by letter, and that of the letter's first row."""
        by_segment = list(map(wholes.__getitem__, letters))
        ends = array("q", accumulate(map(sub, by_segment, map(mul, map(first_rows.__getitem__, letters), goes_on))))
        return Sums(array("q", map(sub, ends, by_segment)), ends)

    rows = sums([len(letter.starts) for letter in alphabet], [1] * len(alphabet))
    narrow = sums([letter.size for letter in alphabet], [letter.first_size for letter in alphabet])
    # Each start has one byte more.
    return rows, narrow, Sums(*[array("q", map(add, *columns)) for columns in zip(narrow, rows, strict=True)])


def _longest_ranges(
    bounds: Sequence[int], starts: Sequence[int], ends: Sequence[int], rows: Sums
) -> "tuple[array[int], array[int]]":
    """Return `Text.first_narrow` and `Text.first_wide`; a segment's first row is at its start, the last at its end."""
    first_narrow, first_wide = array("Q"), array("Q")
    row_begins, row_ends = rows
    for base, bound in pairwise(bounds):
        narrow = wide = base
        for last in range(base, bound):
            while row_ends[last] - row_begins[wide] > MAX_ROWS or ends[last] - starts[wide] > _MAX_WIDE_START:
                wide += 1
            narrow = max(narrow, wide)
            while ends[last] - starts[narrow] > _MAX_NARROW_START:
                narrow += 1
            first_narrow.append(narrow)
            first_wide.append(wide)
    return first_narrow, first_wide
