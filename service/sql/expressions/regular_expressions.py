"""Limits the work of regular expressions and LIKE patterns, because Spark cannot stop a match that has begun.

Java's engine backtracks, and recurses for each turn of a group whose turns differ in length. So `(a+)+` does not end on
a text that nearly matches, and `(a|b)*` overflows the stack of a task on a long text, which stops the Spark driver and
all its jobs. Only patterns without such groups and with few repetitions in sequence are accepted. They can still be
slow on long texts, within the job's time limit. A pattern must be a literal, so that it can be checked before the job
runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from service.sql.expressions.nodes import Call, Expression, Like, Null, String, position_of, walk
from service.sql.parser import Text

MAX_LENGTH = 1_000
"""The maximum number of characters of a pattern."""

_MAX_NESTING = 16
_MAX_LOOPS = 12
_MAX_WAYS = 10_000_000
_TOO_MANY = _MAX_WAYS + 1
_MAX_TURNS = 10_000
"""Maximum steps without progress in the text; nested counts are multiplied, as in `((a?){99}){99}`."""
_MAX_UNEVEN_TURNS = 1_000
"""Maximum turns of a repetition for each of which Java recurses, because their lengths may differ."""

_GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>|[A-TV-Za-wyz-]*:))?")
# Without x, which allows comments, and U, which adds characters to classes such as \w.
_FLAGS = re.compile(r"\(\?[A-TV-Za-wyz-]+\)")
_COUNT = re.compile(r"\{([0-9]{1,9})(,([0-9]{1,9})?)?\}")
# Not an empty one: Java drops it, so a following repetition applies to the preceding part.
_LITERAL = re.compile(r"\\Q(?!\\E|$).+?(?:\\E|$)", re.DOTALL)
_REFERENCE = re.compile(r"\\(?:[1-9]|k<[^>]*>)")
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_BACKWARDS = ("(?<=", "(?<!")
_BOUNDARIES = frozenset(rf"\{letter}" for letter in "bBAzZG")
# Only escapes whose end is clear. Java reads any character after `\c` as a part of it, even a bracket.
_ESCAPED = (
    r"\\(?:[pP](?:[A-Z]|\{[\w =.-]+\})|x(?:[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]+\})|u[0-9A-Fa-f]{4}|N\{[\w -]+\}"
    r"|0[0-7]{1,3}|[dDwWsSbBAzZGhHvVRXntrfae]|[^0-9A-Za-z])"
)
_ESCAPE = re.compile(_ESCAPED, re.DOTALL)
# Without Java's set operations inside a class, and without a bracket that Java would read as a member.
_CLASS = re.compile(rf"\[(?!\^\])\^?(?:{_ESCAPED}|[^\\\[\]&]|&(?!&))+\]", re.DOTALL)
# Classes and escapes that may match both characters of one and of two UTF-16 code units.
_UNEVEN = re.compile(r"\\[DSWHVpPN]|\\x\{0*[0-9A-Fa-f]{5,}\}|[^\x00-\uffff]")
_UNEVENLY_REPEATED = (
    "repeats a part that matches texts of different lengths, such as (.)* or .{0,5000} (some characters have two code "
    "units), which overflows the stack on long texts. Write .*, or a possessive repetition such as (.)*+, or repeat at "
    f"most {_MAX_UNEVEN_TURNS:,} times"
)
_OF_PATTERNS = frozenset(
    {
        "regexp_replace",
        "regexp_extract",
        "regexp_extract_all",
        "regexp_count",
        "regexp_instr",
        "regexp_substr",
        "split",
        "str_to_map",
    }
)
"""Functions whose second argument is a regular expression; of str_to_map, the third one is too."""
_MAX_WILDCARDS = 12


class PatternError(ValueError):
    """A pattern that is not supported; the message says why, and what to write instead."""


@dataclass(frozen=True)
class _Work:
    """The number of ways in which a part can match: `loops` unbounded repetitions in sequence, times `ways`.

    `empty`: it can match the empty text; `turns`: the repetitions that it may take at one place of the text. `uneven`:
    its matches may have different lengths in UTF-16; `plain`: it is one character, repeated without recursion.
    """

    loops: int = 0
    ways: int = 1
    empty: bool = False
    turns: int = 1
    uneven: bool = False
    plain: bool = False

    def then(self, other: _Work) -> _Work:
        ways = min(self.ways * other.ways, _TOO_MANY)
        uneven = self.uneven or other.uneven
        return _Work(self.loops + other.loops, ways, self.empty and other.empty, self.turns + other.turns, uneven)

    def either(self, other: _Work) -> _Work:
        loops = max(self.loops, other.loops)
        ways = min(self.ways + other.ways, _TOO_MANY)
        return _Work(loops, ways, self.empty or other.empty, self.turns + other.turns, self.uneven or other.uneven)

    def times(self, least: int, most: int | None) -> _Work:
        varies = self.loops > 0 or self.ways > 1
        if most is None:
            if varies:
                raise PatternError(
                    "repeats a group that contains a repetition or an alternative, such as (a+)+ or (a|b)*: it may "
                    "overflow the stack on long texts, or never end. Write a character class such as [ab]*, a "
                    "possessive repetition (…)*+, or a bounded one (…){0,5}"
                )
            if self.uneven and not self.plain:
                raise PatternError(_UNEVENLY_REPEATED)
            return _Work(1, 1, self.empty or not least, self.turns, self.uneven)
        if self.uneven and most > _MAX_UNEVEN_TURNS:
            raise PatternError(_UNEVENLY_REPEATED)
        ways = most - least + 1
        for _ in range(most if self.ways > 1 else 0):
            ways *= self.ways
            if ways > _MAX_WAYS:
                break
        return _Work(self.loops * most, min(ways, _TOO_MANY), self.empty or not least, self._turns(most), self.uneven)

    def possessively(self, least: int, most: int | None) -> _Work:
        """Returns the work of a possessive repetition, in which nothing is tried again."""
        ways = 1 if least == most else 2
        turns = self.turns if most is None else self._turns(most)
        loops, ways = self.loops + int(most is None), min(self.ways * ways, _TOO_MANY)
        return _Work(loops, ways, self.empty or not least, turns, self.uneven)

    def _turns(self, most: int) -> int:
        # If each turn consumes a part of the text, the text ends before the count does.
        return min(self.turns * (max(most, 1) if self.empty else 1), _MAX_TURNS + 1)


def check_regular_expression(pattern: str) -> None:
    """Raises PatternError for a pattern that is too long, could need too much work, or is invalid."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"has {len(pattern)} characters, but may have at most {MAX_LENGTH}")
    work = _Reader(pattern).whole()
    if work.turns > _MAX_TURNS:
        raise PatternError(
            f"repeats a part that may be empty more than {_MAX_TURNS} times (nested counts are multiplied). Lower the "
            "counts"
        )
    if work.loops > _MAX_LOOPS or work.ways > _MAX_WAYS:
        raise PatternError(
            f"may match a text in too many ways. Use at most {_MAX_LOOPS} unbounded repetitions, and lower the bounds "
            "of the others"
        )


class _Reader:
    """Reads a pattern as java.util.regex does, and refuses rare constructs that it could misread."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> _Work:
        work = self._choice(0)
        if self._at < len(self._pattern):
            raise PatternError(r"closes a parenthesis that is not open. Write a literal parenthesis as \)")
        return work

    def _choice(self, depth: int) -> _Work:
        if depth > _MAX_NESTING:
            raise PatternError(f"nests groups more than {_MAX_NESTING} deep. Remove some of them")
        work = self._sequence(depth)
        while self._take("|"):
            work = work.either(self._sequence(depth))
        return work

    def _sequence(self, depth: int) -> _Work:
        work = _Work(empty=True)
        while self._at < len(self._pattern) and self._pattern[self._at] not in "|)":
            work = work.then(self._repeated(self._atom(depth)))
        return work

    def _atom(self, depth: int) -> _Work:
        start = self._at
        if self._match(_LITERAL) or self._match(_FLAGS):
            return _Work(empty=True)
        if self._match(_REFERENCE):
            # Its length is that of the group that it refers to.
            return _Work(0, 2, empty=True)
        if self._match(_ESCAPE):
            escape = self._pattern[self._at - 2 : self._at]
            if escape in (r"\R", r"\X"):
                return _Work(0, 2)
            return self._character(start) if escape not in _BOUNDARIES else _Work(empty=True)
        if self._pattern[self._at] == "\\":
            raise PatternError(
                f"contains the unsupported escape {self._pattern[self._at : self._at + 2]}. Write a character by its "
                r"code, such as \x{1b}, or without a backslash if it has no special meaning"
            )
        if self._pattern[self._at] == "[":
            if not self._match(_CLASS):
                raise PatternError(
                    "contains a character class that is not closed or is nested. Write a single class, and brackets in "
                    "it with a backslash"
                )
            return self._character(start)
        if self._pattern[self._at] == "{":
            raise PatternError(
                r"has an invalid count of repetitions. Write a count such as {2,5}, and a literal brace as \{"
            )
        if self._pattern[self._at] != "(":
            self._at += 1
            return _Work(empty=True) if self._pattern[start] in "^$" else self._character(start)
        opened = self._at
        if not self._match(_GROUP) or self._pattern[self._at : self._at + 1] == "?":
            raise PatternError(
                "contains an unsupported kind of group. Write (…), (?:…), (?=…), (?!…), (?<=…) or (?<!…)"
            )
        work = self._choice(depth + 1)
        if not self._take(")"):
            raise PatternError(r"has a parenthesis that is not closed. Write a literal parenthesis as \(")
        looks = self._pattern.startswith(_LOOKS, opened)
        if work.loops and self._pattern.startswith(_BACKWARDS, opened):
            raise PatternError(
                "repeats a part without a maximum inside (?<=…) or (?<!…), which Java refuses. Write a count such as "
                "{0,10} there"
            )
        return replace(work, empty=work.empty or looks)

    def _character(self, start: int) -> _Work:
        """Returns the work of a single character, whose pattern begins at `start`."""
        text = self._pattern[start : self._at]
        # A single literal character always has the same length.
        uneven = text == "." or text.startswith("[^") or (len(text) > 1 and _UNEVEN.search(text) is not None)
        return _Work(uneven=uneven, plain=True)

    def _repeated(self, work: _Work) -> _Work:
        while (bounds := self._bounds()) is not None:
            least, most = bounds
            if self._take("+"):
                work = work.possessively(least, most)
                continue
            self._take("?")
            work = work.times(least, most)
        return work

    def _bounds(self) -> tuple[int, int | None] | None:
        """Returns the minimum and maximum number of turns of the repetition that begins here; None if none does."""
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        found = _COUNT.match(self._pattern, self._at)
        if found is None:
            return None
        self._at = found.end()
        least = int(found[1])
        most = int(found[3]) if found[3] else None if found[2] else least
        if most is not None and most < least:
            raise PatternError(
                "has a count of repetitions whose maximum is less than its minimum. Swap the two numbers"
            )
        return least, most

    def _take(self, sign: str) -> bool:
        matches = self._pattern.startswith(sign, self._at)
        self._at += matches
        return matches

    def _match(self, expression: re.Pattern[str]) -> bool:
        found = expression.match(self._pattern, self._at)
        self._at = found.end() if found is not None else self._at
        return found is not None


def check_patterns(tree: Expression, source: Text) -> None:
    """Checks every pattern in the resolved `tree`.

    Raises SpecError `unsupported_construct` for a regular expression that is not a string literal, and for a pattern
    that could take too long on some texts. The pattern of a LIKE may be a column.
    """
    for node in walk(tree):
        if isinstance(node, Like) and node.operator != "RLIKE":
            _check_like(node, source)
        elif isinstance(node, Like):
            _check_regular_expression(node.pattern, "RLIKE", position_of(node), source)
        elif isinstance(node, Call) and node.name in _OF_PATTERNS:
            last = len(node.arguments) if node.name == "str_to_map" else 2
            for pattern in node.arguments[1:last]:
                _check_regular_expression(pattern, node.name, node.at, source)


def _check_regular_expression(pattern: Expression, what: str, at: int | None, source: Text) -> None:
    if isinstance(pattern, Null):
        return
    if not isinstance(pattern, String):
        hint = "Write the pattern as a string literal, so that it can be checked before the job runs."
        raise source.unsupported(f"{what} with a computed pattern", at=at, hint=hint)
    try:
        check_regular_expression(pattern.value)
    except PatternError as error:
        raise source.error("unsupported_construct", f"The pattern of {what} {error}.", at=at) from None


def _check_like(node: Like, source: Text) -> None:
    if not isinstance(node.pattern, String):
        return
    pattern = node.pattern.value
    if len(pattern) > MAX_LENGTH or pattern.count("%") > _MAX_WILDCARDS:
        detail = (
            f"The pattern of {node.operator} is too long. Use at most {MAX_LENGTH} characters and {_MAX_WILDCARDS} %."
        )
        raise source.error("unsupported_construct", detail, at=position_of(node))
