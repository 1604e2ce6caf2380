"""Reads the rows at the beginning of an XML file, as Spark reads them: elements with the row tag."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

from service.contract.read_options import ReadOptions

ATTRIBUTE_PREFIX = "_"
"""Before the name of an attribute, in the name of its column: Spark's default."""

_MAX_DEPTH = 64
_DECLARATION = re.compile(rb"^\s*<\?xml[^>]*\?>")
_OTHER_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
"""Byte order marks. That of UTF-32 begins with that of UTF-16, or contains NUL."""
_CHUNK_BYTES = 1 << 12


class XmlRowsError(Exception):
    """The file is not XML as Spark reads it. The message continues a sentence that begins with the file's name."""


def xml_rows(data: bytes, options: ReadOptions, *, is_whole: bool) -> Iterator[dict[str, Any]]:
    """Yields the rows as mappings from columns to texts: attributes, and elements without elements inside. A value is
    a list if an element has several of that name or has elements inside: Spark reads it as text.

    Raises XmlRowsError for a document type definition, which may define entities, for UTF-16 and UTF-32, and for what
    is no XML.
    """
    # The parser would recognise UTF-16, in which the search for declarations would not find them.
    if b"\0" in data or data.startswith(_OTHER_MARKS):
        raise XmlRowsError("is not UTF-8 text")
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise XmlRowsError("has a document type definition, which is not read")
    # The encoding was converted before.
    data = _DECLARATION.sub(b"", data)
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    depth, row_depth = 0, 0
    try:
        for start in range(0, len(data), _CHUNK_BYTES):
            parser.feed(data[start : start + _CHUNK_BYTES])
            for event, element in _events(parser):
                depth += 1 if event == "start" else -1
                if depth > _MAX_DEPTH:
                    raise XmlRowsError(f"is nested more than {_MAX_DEPTH} elements deep")
                is_row = _local(element.tag) == options.row_tag
                if event == "start" and is_row and not row_depth:
                    row_depth = depth
                elif event == "end" and depth + 1 == row_depth:
                    row_depth = 0
                    yield _row(element, options)
                    element.clear()
        if is_whole:
            parser.close()
    except ParseError as error:
        raise XmlRowsError(f"is not XML: {error}") from None


def _events(parser: XMLPullParser[Element]) -> Iterator[tuple[str, Element]]:
    for event in parser.read_events():
        kind, element = event[0], event[-1]
        if isinstance(element, Element):
            yield str(kind), element


def _row(element: Element, options: ReadOptions) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, value in element.attrib.items():
        row[f"{ATTRIBUTE_PREFIX}{_local(name)}"] = _value(value, options)
    for child in element:
        name = _local(child.tag)
        if name in row or len(child) or child.attrib:
            row[name] = [child.tag]
        else:
            row[name] = _value(child.text or "", options)
    return row


def _value(text: str, options: ReadOptions) -> str | None:
    # Spark removes the blanks around values.
    text = text.strip()
    return None if text == options.null_value else text


def _local(tag: str) -> str:
    return tag.rpartition("}")[2]
