"""Rows of a result as Python objects, from the JSON of the API and the types of the columns."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

from .responses import Column

Converter = Callable[[Any], Any]

_TOKEN = re.compile(r"\s*(`(?:[^`]|``)*`|[^<>(),:\s]+|[<>(),:])")


def python_rows(columns: Sequence[Column], rows: Iterable[Sequence[Any]]) -> Iterator[dict[str, Any]]:
    """Yields each row as a dictionary by column."""
    names = [column.name for column in columns]
    converters = [converter(str(column.type)) for column in columns]
    for row in rows:
        yield {
            name: value if convert is None or value is None else convert(value)
            for name, convert, value in zip(names, converters, row, strict=True)
        }


def converter(type_: str) -> Converter | None:
    """Returns a function that converts a JSON value, which is not None, of a type of Spark; None for no conversion.

    DECIMAL becomes `Decimal`; DATE and TIMESTAMP become `date` and `datetime`, or stay text outside the years 1 to
    9999, which Python does not support; a STRUCT is a dictionary, an ARRAY a list, a MAP a dictionary, or a list of
    pairs if its keys cannot be keys. Values of unknown types stay as they are.
    """
    try:
        parser = _Types(type_)
        found = parser.type()
        return found if parser.is_at_end else None
    except (ValueError, IndexError):
        return None


def _float(value: Any) -> float:
    return float(value)


def _timestamp(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return text


def _timestamp_ntz(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


def _date(text: str) -> date | str:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return text


_ATOMIC: dict[str, Converter] = {
    "DECIMAL": Decimal,
    "DOUBLE": _float,
    "FLOAT": _float,
    "BINARY": base64.b64decode,
    "DATE": _date,
    "TIMESTAMP": _timestamp,
    "TIMESTAMP_NTZ": _timestamp_ntz,
}


def _or_none(convert: Converter | None) -> Converter:
    return lambda value: value if convert is None or value is None else convert(value)


class _Types:
    """Parses a type as Spark writes it, such as `ARRAY<STRUCT<a: INT, b: DECIMAL(10,2)>>`."""

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = _TOKEN.findall(text)
        self._at = 0

    @property
    def is_at_end(self) -> bool:
        """Whether the whole text was parsed."""
        return self._at == len(self._tokens)

    def type(self) -> Converter | None:
        """Returns the converter of the next type. Raises ValueError or IndexError if the text is not a type."""
        name = self._take().upper()
        if name == "ARRAY":
            return self._array()
        if name == "MAP":
            return self._map()
        if name == "STRUCT":
            return self._struct()
        if self._peek() == "(":
            while self._take() != ")":
                pass
        return _ATOMIC.get(name)

    def _array(self) -> Converter:
        self._expect("<")
        element = _or_none(self.type())
        self._expect(">")
        return lambda values: [element(value) for value in values]

    def _map(self) -> Converter:
        self._expect("<")
        key = _or_none(self.type())
        self._expect(",")
        inner = _or_none(self.type())
        self._expect(">")

        def convert(pairs: Any) -> Any:
            found = [(key(one), inner(value)) for one, value in pairs]
            try:
                return dict(found)
            except TypeError:
                return found

        return convert

    def _struct(self) -> Converter:
        self._expect("<")
        fields: dict[str, Converter] = {}
        while self._peek() != ">":
            if fields:
                self._expect(",")
            name = self._take()
            if name.startswith("`"):
                name = name[1:-1].replace("``", "`")
            self._expect(":")
            fields[name] = _or_none(self.type())
        self._expect(">")
        return lambda value: {name: fields.get(name, _or_none(None))(inner) for name, inner in value.items()}

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _take(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, token: str) -> None:
        if self._take() != token:
            raise ValueError(token)
