"""Counts the values of Avro records with arrays and maps before they are decoded.

`fastavro` decodes a record whole. An item of an array may have one byte in the file, and takes up to two hundred bytes
as an object, so that a block within its limit could take some GB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

MAX_VALUES = 1_000_000
"""Fields of a record, and items of its arrays and maps, with those of nested records."""

_FIXED_BYTES = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NUMBERS = frozenset({"int", "long", "enum"})
_TEXTS = frozenset({"bytes", "string"})


_VALUES_OF_BATCH = 200_000


class TooManyValuesError(Exception):
    """A record has more than MAX_VALUES values."""


def has_collections(schema: Any) -> bool:
    """Whether a schema, which was checked before, has arrays or maps."""
    if isinstance(schema, list):
        return any(map(has_collections, schema))
    if not isinstance(schema, Mapping):
        return schema in {"array", "map"}
    fields = schema.get("fields") or ()
    return has_collections(schema["type"]) or any(has_collections(field["type"]) for field in fields)


def batches(data: bytes, count: int, schema: Mapping[str, Any], most: int) -> Iterator[int]:
    """Yields how many of the `count` records of a block to decode together: at most `most`, and no more after the one
    with which they have 200,000 values.

    Raises TooManyValuesError; IndexError, KeyError, TypeError and ValueError for records that do not match the schema.
    """
    block = _Block(data)
    rows = values = 0
    for _ in range(count):
        block.values = 0
        block.skip(schema)
        rows += 1
        values += block.values
        if rows >= most or values >= _VALUES_OF_BATCH:
            yield rows
            rows = values = 0
    if rows:
        yield rows


class _Block:
    """Skips the values of a block, and counts them."""

    def __init__(self, data: bytes) -> None:
        self.values = 0
        self._data = data
        self._place = 0
        self._named: dict[str, Any] = {}

    def skip(self, schema: Any) -> None:
        """Skips a value of the type `schema`."""
        if isinstance(schema, list):
            self.skip(schema[self._number()])
            return
        kind = schema if isinstance(schema, str) else schema["type"]
        if not isinstance(kind, str):
            self.skip(kind)
            return
        if isinstance(schema, Mapping) and "name" in schema:
            self._named.update(dict.fromkeys((schema["name"], f"{schema.get('namespace')}.{schema['name']}"), schema))
        elif kind in self._named:
            schema, kind = self._named[kind], self._named[kind]["type"]
        if kind in _NUMBERS:
            self._number()
        elif kind in _TEXTS:
            self._advance(self._number())
        elif kind in _FIXED_BYTES:
            self._advance(_FIXED_BYTES[kind])
        elif kind == "fixed":
            self._advance(schema["size"])
        elif kind == "record":
            self.values += len(schema["fields"])
            for field in schema["fields"]:
                self.skip(field["type"])
        else:
            self._skip_items(schema, is_map=kind == "map")

    def _skip_items(self, schema: Mapping[str, Any], *, is_map: bool) -> None:
        items = schema["values" if is_map else "items"]
        while count := self._number():
            if count < 0:
                self._number()
            self.values += abs(count)
            if self.values > MAX_VALUES:
                raise TooManyValuesError
            for _ in range(abs(count)):
                if is_map:
                    self._advance(self._number())
                self.skip(items)

    def _number(self) -> int:
        value = shift = 0
        while True:
            byte = self._data[self._place]
            self._place += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (value >> 1) ^ -(value & 1)
            shift += 7
            if shift > 63:
                raise ValueError("a number of more than 64 bits")

    def _advance(self, count: int) -> None:
        self._place += count
        if count < 0 or self._place > len(self._data):
            raise ValueError("a value after the end of the block")
