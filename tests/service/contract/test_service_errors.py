"""The tree of service errors: complete in its docstring, with unique codes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from service.contract import errors
from service.contract.errors import ServiceError


def concrete(root: type[ServiceError] = ServiceError) -> Iterator[type[ServiceError]]:
    for child in root.__subclasses__():
        if hasattr(child, "code"):
            yield child
        yield from concrete(child)


def test_codes_are_unique_and_snake_case() -> None:
    codes = [error.code for error in concrete()]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z]+(_[a-z]+)*", code) for code in codes)


@pytest.mark.parametrize("error", list(concrete()), ids=lambda error: error.code)
def test_the_tree_in_the_docstring_has_the_error(error: type[ServiceError]) -> None:
    assert re.search(rf"{error.__name__}\s+{error.status}\s+{error.code}\n", str(errors.__doc__) + "\n")


def test_unavailable_errors_have_retry_after() -> None:
    assert errors.NotReadyError("x", retry_after_seconds=3).headers == {"Retry-After": "3"}
