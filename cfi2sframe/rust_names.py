# SPDX-License-Identifier: Apache-2.0
"""Read Rust's mangled names: of v0 (`_R`, RFC 2603), and of the legacy scheme (`_ZN`, a hash at the end).

The text is what c++filt prints, without its hashes of crates and types of constants. Back-references let a short name's
text grow without bound, so steps and depth have limits.
"""

from __future__ import annotations

import re
from itertools import count
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

#: What one name may cost: productions of the grammar, each about a microsecond, and how deep these may be nested.
MAX_STEPS: Final = 10_000
_MAX_DEPTH: Final = 100
_MAX_TEXT_SIZE: Final = 1 << 16
#: Decoding Punycode takes the square of an identifier's size.
_MAX_PUNYCODE_SIZE: Final = 256
_BASE_62: Final = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_BASIC_TYPES: Final = {
    "a": "i8",
    "b": "bool",
    "c": "char",
    "d": "f64",
    "e": "str",
    "f": "f32",
    "h": "u8",
    "i": "isize",
    "j": "usize",
    "l": "i32",
    "m": "u32",
    "n": "i128",
    "o": "u128",
    "p": "_",
    "s": "i16",
    "t": "u16",
    "u": "()",
    "v": "...",
    "x": "i64",
    "y": "u64",
    "z": "!",
}
_INTEGERS: Final = frozenset("ahijlmnostxy")
_POINTERS: Final = {"P": "*const ", "O": "*mut "}
_NAMESPACES: Final = {"C": "closure", "S": "shim"}

_LEGACY: Final = re.compile(r"_ZN(?P<path>[0-9][\w.$]*?)17h[0-9a-f]{16}E(?P<suffix>(?:\.[\w.]*)?)", re.ASCII)
_ESCAPE: Final = re.compile(r"\$(SP|BP|RF|LT|GT|LP|RP|C|u[0-9a-f]{1,6})\$|\.\.")
_ESCAPED: Final = {"SP": "@", "BP": "*", "RF": "&", "LT": "<", "GT": ">", "LP": "(", "RP": ")", "C": ",", None: "::"}


class _NoNameError(Exception):
    """The name does not follow the grammar, or costs too much."""


def rust_name(name: str) -> tuple[str | None, int]:
    """Return a Rust name in readable form, None when it is none, and the steps taken, each about a microsecond."""
    if name.startswith("_ZN"):
        return _legacy_name(name), len(name)
    if not name.startswith("_R") or not name.isascii():
        return None, 1
    reader = _RustName(name)
    try:
        return reader.read(), reader.steps
    except (_NoNameError, ValueError, OverflowError):
        # Python's decoder of Punycode and `chr` raise the latter two.
        return None, reader.steps


def _without_llvm(suffix: str) -> str:
    """Return what compilers append to a name, without the number that LLVM gives to promoted local functions."""
    return suffix.partition(".llvm.")[0]


def _legacy_name(name: str) -> str | None:
    match = _LEGACY.fullmatch(name)
    if match is None:
        return None
    path, place, parts = match["path"], 0, []
    while place < len(path):
        digits = re.compile(r"[1-9][0-9]{0,3}").match(path, place)
        if digits is None or digits.end() + int(digits[0]) > len(path):
            return None
        place = digits.end() + int(digits[0])
        parts.append(path[digits.end() : place])
    texts = [_ESCAPE.sub(_unescaped, part[1:] if part.startswith("_$") else part) for part in parts]
    return "::".join(texts) + _without_llvm(match["suffix"])


def _unescaped(match: re.Match[str]) -> str:
    code = match[1]
    if code is None or code[0] != "u":
        return _ESCAPED[code]
    number = int(code[1:], 16)
    return chr(number) if number < 0x110000 and not 0xD800 <= number < 0xE000 else match[0]


class _RustName:
    """Reads a name of v0, and collects its text. Methods raise `_NoNameError` where it does not follow the grammar."""

    def __init__(self, name: str) -> None:
        self.steps = 0
        self._name = name
        self._place = 2
        self._depth = 0
        self._lifetime_count = 0
        self._text: list[str] = []
        self._text_size = 0
        self._is_silent = False

    def read(self) -> str:
        """Return the text of the whole name."""
        if not self._next_is_upper():
            raise _NoNameError
        self._path(in_value=True)
        if self._next_is_upper():
            # The crate that instantiated the function.
            self._silently(lambda: self._path(in_value=False))
        suffix = self._name[self._place :]
        if suffix and suffix[0] not in ".$":
            raise _NoNameError
        return "".join(self._text) + _without_llvm(suffix)

    # Words

    def _next_is_upper(self) -> bool:
        return "A" <= self._name[self._place : self._place + 1] <= "Z"

    def _next(self) -> str:
        if self._place >= len(self._name):
            raise _NoNameError
        self._place += 1
        return self._name[self._place - 1]

    def _eat(self, letter: str) -> bool:
        found = self._name.startswith(letter, self._place)
        self._place += found
        return found

    def _base_62(self) -> int:
        if self._eat("_"):
            return 0
        value = 0
        while not self._eat("_"):
            digit = _BASE_62.find(self._next())
            value = value * 62 + digit
            if digit < 0 or value >= 1 << 64:
                raise _NoNameError
        return value + 1

    def _optional_base_62(self, tag: str) -> int:
        return self._base_62() + 1 if self._eat(tag) else 0

    def _identifier(self) -> str:
        is_punycode = self._eat("u")
        match = re.compile(r"(0|[1-9][0-9]{0,4})_?").match(self._name, self._place)
        if match is None:
            raise _NoNameError
        start = match.end()
        self._place = start + int(match[1])
        if self._place > len(self._name):
            raise _NoNameError
        text = self._name[start : self._place]
        if not is_punycode:
            return text
        if len(text) > _MAX_PUNYCODE_SIZE:
            raise _NoNameError
        plain, _, code = text.rpartition("_")
        text = (f"{plain}-{code}" if plain else code).encode().decode("punycode")
        # A surrogate is no character.
        text.encode()
        return text

    # Text

    def _say(self, text: str) -> None:
        if not self._is_silent:
            self._text.append(text)
            self._text_size += len(text)
            if self._text_size > _MAX_TEXT_SIZE:
                raise _NoNameError

    def _silently(self, production: Callable[[], None]) -> None:
        was_silent, self._is_silent = self._is_silent, True
        production()
        self._is_silent = was_silent

    def _say_lifetime(self, index: int) -> None:
        depth = self._lifetime_count - index
        if depth < 0:
            raise _NoNameError
        letter = chr(ord("a") + depth) if depth < 26 else f"_{depth}"
        self._say("'_" if index == 0 else f"'{letter}")

    def _list(self, separator: str, production: Callable[[], None]) -> int:
        """Read productions up to an `E`; return how many they are."""
        for number in count():
            if self._eat("E"):
                return number
            if number:
                self._say(separator)
            production()
        raise _NoNameError

    # Productions

    def _enter(self) -> None:
        self.steps += 1
        self._depth += 1
        if self.steps > MAX_STEPS or self._depth > _MAX_DEPTH:
            raise _NoNameError

    def _back_reference(self, production: Callable[[], None]) -> None:
        """Read an earlier part of the name again."""
        place = self._place - 1
        target = self._base_62() + 2
        if target >= place:
            raise _NoNameError
        if not self._is_silent:
            back, self._place = self._place, target
            production()
            self._place = back

    def _path(self, *, in_value: bool) -> None:
        self._enter()
        tag = self._next()
        if tag == "C":
            self._optional_base_62("s")
            self._say(self._identifier())
        elif tag == "N":
            self._nested(in_value=in_value)
        elif tag in "MXY":
            if tag != "Y":
                self._optional_base_62("s")
                self._silently(lambda: self._path(in_value=False))
            self._say("<")
            self._type()
            if tag != "M":
                self._say(" as ")
                self._path(in_value=False)
            self._say(">")
        elif tag == "I":
            self._path(in_value=in_value)
            self._say("::<" if in_value else "<")
            self._list(", ", self._generic_argument)
            self._say(">")
        elif tag == "B":
            self._back_reference(lambda: self._path(in_value=in_value))
        else:
            raise _NoNameError
        self._depth -= 1

    def _nested(self, *, in_value: bool) -> None:
        namespace = self._next()
        if not namespace.isalpha():
            raise _NoNameError
        self._path(in_value=in_value)
        number, name = self._optional_base_62("s"), self._identifier()
        if namespace.isupper():
            named = f":{name}" if name else ""
            self._say(f"::{{{_NAMESPACES.get(namespace, namespace)}{named}#{number}}}")
        elif name:
            self._say(f"::{name}")

    def _generic_argument(self) -> None:
        if self._eat("L"):
            self._say_lifetime(self._base_62())
        elif self._eat("K"):
            self._constant()
        else:
            self._type()

    def _type(self) -> None:
        self._enter()
        tag = self._next()
        if tag in _BASIC_TYPES:
            self._say(_BASIC_TYPES[tag])
        elif tag in "RQ":
            self._say("&")
            if self._eat("L") and (lifetime := self._base_62()):
                self._say_lifetime(lifetime)
                self._say(" ")
            self._say("mut " if tag == "Q" else "")
            self._type()
        elif tag in _POINTERS:
            self._say(_POINTERS[tag])
            self._type()
        elif tag in "AS":
            self._say("[")
            self._type()
            if tag == "A":
                self._say("; ")
                self._constant()
            self._say("]")
        elif tag == "T":
            self._say("(")
            self._say(",)" if self._list(", ", self._type) == 1 else ")")
        elif tag == "F":
            self._with_binder(self._function)
        elif tag == "D":
            self._say("dyn ")
            self._with_binder(lambda: self._list(" + ", self._dyn_trait))
            if not self._eat("L"):
                raise _NoNameError
            if lifetime := self._base_62():
                self._say(" + ")
                self._say_lifetime(lifetime)
        elif tag == "B":
            self._back_reference(self._type)
        else:
            self._place -= 1
            self._path(in_value=False)
        self._depth -= 1

    def _with_binder(self, production: Callable[[], object]) -> None:
        """Read what may begin with a binder of lifetimes, which holds for the production only."""
        outer = self._lifetime_count
        number = self._optional_base_62("G")
        if number > _MAX_DEPTH:
            raise _NoNameError
        if number:
            self._say("for<")
            for index in range(number):
                self._say(", " if index else "")
                self._lifetime_count += 1
                self._say_lifetime(1)
            self._say("> ")
        production()
        self._lifetime_count = outer

    def _function(self) -> None:
        self._say("unsafe " if self._eat("U") else "")
        if self._eat("K"):
            abi = "C" if self._eat("C") else self._identifier().replace("_", "-")
            self._say(f'extern "{abi}" ')
        self._say("fn(")
        self._list(", ", self._type)
        self._say(")")
        if not self._eat("u"):
            self._say(" -> ")
            self._type()

    def _dyn_trait(self) -> None:
        is_open = self._open_path()
        while self._eat("p"):
            self._say(", " if is_open else "<")
            is_open = True
            self._say(f"{self._identifier()} = ")
            self._type()
        self._say(">" if is_open else "")

    def _open_path(self) -> bool:
        """Read a path, without the closing bracket of its arguments; return whether there are any."""
        self._enter()
        is_open = False
        if self._eat("B"):
            answers: list[bool] = []
            self._back_reference(lambda: answers.append(self._open_path()))
            is_open = answers == [True]
        elif self._eat("I"):
            self._path(in_value=False)
            self._say("<")
            self._list(", ", self._generic_argument)
            is_open = True
        else:
            self._path(in_value=False)
        self._depth -= 1
        return is_open

    def _constant(self) -> None:
        self._enter()
        tag = self._next()
        if tag == "B":
            self._back_reference(self._constant)
        elif tag == "p":
            self._say("_")
        elif tag in _INTEGERS:
            self._say("-" if self._eat("n") else "")
            self._say(str(self._hexadecimal()))
        elif tag == "b":
            self._say({0: "false", 1: "true"}.get(self._hexadecimal(), "?"))
        elif tag == "c":
            letter = chr(self._hexadecimal())
            is_plain = letter.isprintable() and letter not in "'\\"
            self._say(f"'{letter if is_plain else letter.encode('unicode_escape').decode()}'")
        else:
            raise _NoNameError
        self._depth -= 1

    def _hexadecimal(self) -> int:
        match = re.compile(r"([0-9a-f]{0,32})_").match(self._name, self._place)
        if match is None:
            raise _NoNameError
        self._place = match.end()
        return int(match[1] or "0", 16)
