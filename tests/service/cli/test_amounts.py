"""Numbers as people read them."""

from __future__ import annotations

import pytest

from service.cli.amounts import amount, size


def test_amounts() -> None:
    assert [amount(number, "job") for number in (0, 1, 1200)] == ["0 jobs", "1 job", "1,200 jobs"]
    assert amount(2, "directory", "directories") == "2 directories"


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.23 MB"), (999_999, "1 MB"), (5 * 10**15, "5,000 TB")],
)
def test_sizes(number: int, text: str) -> None:
    assert size(number) == text
