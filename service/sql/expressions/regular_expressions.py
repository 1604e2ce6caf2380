"""How much work a regular expression of Java can be: a match that has begun cannot be stopped.

Java tries the ways in which a text can match one after the other, and calls itself once more for each turn of a group
whose turns differ. So `(a+)+` takes time without end over a text that nearly matches, and `(a|b)*` exhausts the stack
of a task over a long one, with which the Spark driver ends and all that it runs. What is left here are patterns without
groups of that kind, of few repetitions one behind the other. It is still possible to write one that takes long over
long texts: what bounds that is the job's time limit.

Patterns that texts are matched with: written out in the query, so that they can be looked at before it runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from service.sql.expressions.nodes import Call, Expression, Like, Null, String, position_of, walk
from service.sql.parser import Text

MAX_LENGTH = 1_000
"""Characters of a pattern."""

_MAX_NESTING = 16
_MAX_LOOPS = 12
_MAX_WAYS = 10_000_000
_TOO_MANY = _MAX_WAYS + 1
_MAX_TURNS = 10_000
"""Steps that may be taken without getting on in the text: counts multiply, `((a?){99}){99}`."""
_MAX_UNEVEN_TURNS = 1_000
"""Turns of a repetition for each of which Java calls itself once more, since they may be of different lengths."""

_GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|<[A-Za-z][A-Za-z0-9]*>|[A-TV-Za-wyz-]*:))?")
# Neither x, which allows comments, nor U, by which classes such as \w hold more.
_FLAGS = re.compile(r"\(\?[A-TV-Za-wyz-]+\)")
_COUNT = re.compile(r"\{([0-9]{1,9})(,([0-9]{1,9})?)?\}")
# Not an empty one: Java drops it, so that what follows repeats what stands before.
_LITERAL = re.compile(r"\\Q(?!\\E|$).+?(?:\\E|$)", re.DOTALL)
_REFERENCE = re.compile(r"\\(?:[1-9]|k<[^>]*>)")
_LOOKS = ("(?=", "(?!", "(?<=", "(?<!")
_BOUNDARIES = frozenset(rf"\{letter}" for letter in "bBAzZG")
# Those of which it is plain where they end. Java takes whatever follows `\c` as part of it, brackets too.
_ESCAPED = (
    r"\\(?:[pP](?:[A-Z]|\{[\w =.-]+\})|x(?:[0-9A-Fa-f]{2}|\{[0-9A-Fa-f]+\})|u[0-9A-Fa-f]{4}|N\{[\w -]+\}"
    r"|0[0-7]{1,3}|[dDwWsSbBAzZGhHvVRXntrfae]|[^0-9A-Za-z])"
)
_ESCAPE = re.compile(_ESCAPED, re.DOTALL)
# Not the set operations that Java knows inside of one, nor a bracket that it takes for a member.
_CLASS = re.compile(rf"\[(?!\^\])\^?(?:{_ESCAPED}|[^\\\[\]&]|&(?!&))+\]", re.DOTALL)
# What may stand for a character beyond the first 65,536, which is two to Java, and for others, which are one.
_UNEVEN = re.compile(r"\\[DSWHVpPN]|\\x\{0*[0-9A-Fa-f]{5,}\}|[^\x00-\uffff]")


class PatternError(ValueError):
    """A pattern that is not taken; the message says why, and what to write instead."""


_UNEVENLY_REPEATED = (
    "repeats something that is of different lengths over some texts, such as (.)* or .{0,5000} where a character takes "
    "two places: over long ones that exhausts the stack. Write .*, repeat it possessively, (.)*+, or at most "
    f"{_MAX_UNEVEN_TURNS:,} times"
)


@dataclass(frozen=True)
class _Work:
    """In how many ways a part can match: `loops` repetitions without end, one behind the other, times `ways`; whether
    it can match the `empty` text, and how many `turns` it may take at one place of the text. `uneven`: what it matches
    in one way may be of different lengths to Java; `plain`: it is one character, which Java repeats by counting.
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
                    "repeats a group in which something may be repeated or chosen, such as (a+)+ or (a|b)*: over some "
                    "texts that takes without end. Write a class of characters, [ab]*, repeat the group possessively, "
                    "(…)*+, or bound how often, (…){0,5}"
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
        """Repeated without that anything of it is tried again."""
        ways = 1 if least == most else 2
        turns = self.turns if most is None else self._turns(most)
        loops, ways = self.loops + int(most is None), min(self.ways * ways, _TOO_MANY)
        return _Work(loops, ways, self.empty or not least, turns, self.uneven)

    def _turns(self, most: int) -> int:
        # Where each turn takes a part of the text, that is over before the count.
        return min(self.turns * (max(most, 1) if self.empty else 1), _MAX_TURNS + 1)


def check_regular_expression(pattern: str) -> None:
    """Raises PatternError for a pattern that is too long, or could be too much work, or that is none."""
    if len(pattern) > MAX_LENGTH:
        raise PatternError(f"has {len(pattern)} characters; at most {MAX_LENGTH}")
    work = _Reader(pattern).whole()
    if work.turns > _MAX_TURNS:
        raise PatternError(
            f"repeats what may be empty more than {_MAX_TURNS} times, counts within counts multiplied: lower the counts"
        )
    if work.loops > _MAX_LOOPS or work.ways > _MAX_WAYS:
        raise PatternError(
            f"may match a text in too many ways: repeat at most {_MAX_LOOPS} parts without end, and bound the others "
            "more tightly"
        )


class _Reader:
    """Reads a pattern as java.util.regex does; what is rare and could be misread is refused."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0

    def whole(self) -> _Work:
        work = self._choice(0)
        if self._at < len(self._pattern):
            raise PatternError("closes a parenthesis that is not open")
        return work

    def _choice(self, depth: int) -> _Work:
        if depth > _MAX_NESTING:
            raise PatternError(f"is nested more than {_MAX_NESTING} groups deep")
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
            # It is as long as what it refers to.
            return _Work(0, 2, empty=True)
        if self._match(_ESCAPE):
            escape = self._pattern[self._at - 2 : self._at]
            if escape in (r"\R", r"\X"):
                return _Work(0, 2)
            return self._character(start) if escape not in _BOUNDARIES else _Work(empty=True)
        if self._pattern[self._at] == "\\":
            raise PatternError(
                f"holds {self._pattern[self._at : self._at + 2]}, which is not known: write a character by its code, "
                r"\x{1b}, and one that means itself without a backslash"
            )
        if self._pattern[self._at] == "[":
            if not self._match(_CLASS):
                raise PatternError(
                    "holds a class of characters that is not closed, or that has others in it: write it plainly, and "
                    "brackets in it with a backslash"
                )
            return self._character(start)
        if self._pattern[self._at] == "{":
            raise PatternError(
                r"has a count of repetitions that is not one, or is not known: write {2,5}, and a brace as \{"
            )
        if self._pattern[self._at] != "(":
            self._at += 1
            return _Work(empty=True) if self._pattern[start] in "^$" else self._character(start)
        opened = self._at
        if not self._match(_GROUP) or self._pattern[self._at : self._at + 1] == "?":
            raise PatternError("begins a group in a way that is not known, or that allows comments")
        work = self._choice(depth + 1)
        if not self._take(")"):
            raise PatternError("has a parenthesis that is not closed")
        looks = self._pattern.startswith(_LOOKS, opened)
        return replace(work, empty=work.empty or looks)

    def _character(self, start: int) -> _Work:
        """One character, of those that the text from `start` on stands for."""
        text = self._pattern[start : self._at]
        # A character by itself is as long each time.
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
        """Least and most turns of the repetition that begins here."""
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
            raise PatternError("repeats something at most less often than at least")
        return least, most

    def _take(self, sign: str) -> bool:
        matches = self._pattern.startswith(sign, self._at)
        self._at += matches
        return matches

    def _match(self, expression: re.Pattern[str]) -> bool:
        found = expression.match(self._pattern, self._at)
        self._at = found.end() if found is not None else self._at
        return found is not None


_OF_PATTERNS = frozenset({"regexp_replace", "regexp_extract"})
"""Functions whose second argument is a regular expression."""

_MAX_WILDCARDS = 12


def check_patterns(tree: Expression, source: Text) -> None:
    """Looks at every pattern in the resolved `tree`.

    Raises SpecError `unsupported_construct` for a regular expression that is no string literal, and for a pattern that
    could take too long over some texts. A LIKE may have its pattern from a column.
    """
    for node in walk(tree):
        if isinstance(node, Like) and node.operator != "RLIKE":
            _check_like(node, source)
        elif isinstance(node, Like):
            _check_regular_expression(node.pattern, "RLIKE", position_of(node), source)
        elif isinstance(node, Call) and node.name in _OF_PATTERNS:
            _check_regular_expression(node.arguments[1], node.name, node.at, source)


def _check_regular_expression(pattern: Expression, what: str, at: int | None, source: Text) -> None:
    if isinstance(pattern, Null):
        return
    if not isinstance(pattern, String):
        hint = "Write the pattern as a string literal: it is looked at before the job runs."
        raise source.unsupported(f"{what} with a pattern that is computed", at=at, hint=hint)
    try:
        check_regular_expression(pattern.value)
    except PatternError as error:
        raise source.error("unsupported_construct", f"The pattern of {what} {error}.", at=at) from None


def _check_like(node: Like, source: Text) -> None:
    if not isinstance(node.pattern, String):
        return
    pattern = node.pattern.value
    if len(pattern) > MAX_LENGTH or pattern.count("%") > _MAX_WILDCARDS:
        detail = f"A pattern of {node.operator} has at most {MAX_LENGTH} characters and {_MAX_WILDCARDS} signs %."
        raise source.error("unsupported_construct", detail, at=position_of(node))
