"""Refuses names with characters that cannot be seen, and finds the longest chain of equal tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from sqlglot.tokenizer_core import Token, TokenType

if TYPE_CHECKING:
    from service.sql.parser import Text

_TEXT_QUOTES = "\u2018\u2019\u201c\u201d"
_NOT_IN_NAMES = re.compile(f"[\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff{_TEXT_QUOTES}]")


def check_names(source: Text, tokens: Iterable[Token]) -> None:
    """Refuses names without quotes that contain invisible characters or quotation marks of texts: they come from a
    word processor or a web page, and the message about an unknown name would not show them.
    """
    for token in tokens:
        if token.token_type is TokenType.VAR and not token.text.isascii():
            found = _NOT_IN_NAMES.search(token.text)
            if found is None:
                continue
            if found.group() in _TEXT_QUOTES:
                detail = f"{found.group()} is not a quotation mark of SQL. Write ' around a text, and ` around a name."
            else:
                character = f"U+{ord(found.group()):04X}"
                detail = f"The name contains the invisible character {character}. Remove it, or quote the name with `."
            raise source.error("sql_syntax", detail, at=token.start + found.start())


def longest_chain(tokens: Sequence[Token]) -> int:
    """Returns the offset of the longest sequence of equal tokens."""
    chains = [list(chain) for _, chain in groupby(tokens, key=lambda token: token.text.upper())]
    return max(chains, key=len)[0].start
