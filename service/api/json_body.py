"""Reads a body as JSON once, before anything else does, and refuses what later readers would take differently.

JSON parsers keep one of two equal keys, guess at encodings, and accept text that neither a database nor a file name
can hold. Here each of these is refused with a reason instead.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any

from service.errors import DuplicateKeyError, InvalidRequestError, MalformedJsonError, NestingTooDeepError
from service.spec.errors import Issue

MAX_NESTING = 64
"""Arrays and objects inside one another. The deepest accepted job needs a dozen."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_SHOWN_OF_A_KEY = 100


def check_json(body: bytes) -> None:
    """Refuses a body that is not plain JSON in UTF-8.

    Raises MalformedJsonError, NestingTooDeepError, DuplicateKeyError, and InvalidRequestError for the character U+0000
    and for halves of surrogate pairs.
    """
    try:
        # Decoded here: from bytes, the parser would accept UTF-16 and UTF-32 as well.
        _check_values(json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object))
    except RecursionError as error:
        raise _too_deep() from error
    except UnicodeDecodeError as error:
        raise MalformedJsonError(f"The body is not JSON in UTF-8: see byte {error.start}.") from error
    except json.JSONDecodeError as error:
        raise MalformedJsonError(f"The body is not JSON: {error.msg}, at character {error.pos}.") from error
    except ValueError as error:
        raise MalformedJsonError("The body holds a number with more digits than can be read.") from error


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise DuplicateKeyError(
            f"The key '{twice[:_SHOWN_OF_A_KEY]}' is given twice in one object: remove one of them."
        )
    return found


def _check_values(document: Any) -> None:
    # A list instead of recursion, which Python bounds. The outermost value is seen as the member of a list.
    pending: list[tuple[Any, int, str]] = [([document], 0, "")]
    while pending:
        container, depth, pointer = pending.pop()
        if depth > MAX_NESTING:
            raise _too_deep()
        for name, value in container.items() if isinstance(container, dict) else enumerate(container):
            if _is_unstorable(name):
                raise _unstorable(pointer)
            if _is_unstorable(value):
                raise _unstorable(_below(pointer, name, depth))
            if isinstance(value, (dict, list)):
                pending.append((value, depth + 1, _below(pointer, name, depth)))


def _is_unstorable(value: object) -> bool:
    return isinstance(value, str) and _UNSTORABLE.search(value) is not None


def _unstorable(pointer: str) -> InvalidRequestError:
    detail = "The character U+0000 and halves of surrogate pairs are not allowed."
    issue = Issue(code="unstorable_character", detail=detail, pointer=pointer)
    return InvalidRequestError(f"{pointer}: {detail}" if pointer else detail, issues=[issue])


def _below(pointer: str, name: str | int, depth: int) -> str:
    return f"{pointer}/{str(name).replace('~', '~0').replace('/', '~1')}" if depth else ""


def _too_deep() -> NestingTooDeepError:
    return NestingTooDeepError(f"Arrays and objects may be nested {MAX_NESTING} deep.")
