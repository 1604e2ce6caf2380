"""What is behind an error."""

from __future__ import annotations

from collections.abc import Iterator


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised for, and so on, to the first of them."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
