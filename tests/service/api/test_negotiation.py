"""Content negotiation by the Accept header."""

from __future__ import annotations

import pytest

from service.api.representations import choose_media_type
from service.contract.errors import NotAcceptableError

OFFERED = ("application/json", "text/csv")


@pytest.mark.parametrize(
    ("accept", "chosen"),
    [
        ("", "application/json"),
        (" , ", "application/json"),
        ("*/*", "application/json"),
        ("TEXT/CSV", "text/csv"),
        ("text/csv;charset=utf-8", "text/csv"),
        ("application/json;q=0.1, text/*;q=0.2", "text/csv"),
        ("*/*;q=0.9, application/json;q=0.1", "text/csv"),
        ("text/csv;q=nonsense", "text/csv"),
        ("application/json;q=0, */*", "text/csv"),
    ],
)
def test_the_preferred_type_is_chosen(accept: str, chosen: str) -> None:
    assert choose_media_type([accept], OFFERED) == chosen


def test_all_lines_of_the_header_are_read() -> None:
    assert choose_media_type(["application/json;q=0.1", "text/csv"], OFFERED) == "text/csv"
    assert choose_media_type([], OFFERED) == "application/json"


@pytest.mark.parametrize("accept", ["image/png", "text/csv;q=0", "nonsense", "*/*;q=0"])
def test_nothing_acceptable(accept: str) -> None:
    with pytest.raises(NotAcceptableError, match="text/csv"):
        choose_media_type([accept], OFFERED)
