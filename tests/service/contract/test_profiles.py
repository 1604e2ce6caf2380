"""Requests for a profile."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.profiles import ProfileRequest

TABLE = {"format": "parquet", "path": "flights/"}


@pytest.mark.parametrize(
    "changes",
    [
        {"keys": []},
        {"keys": [[]]},
        {"keys": [["a"]] * 17},
        {"keys": [["a"] * 9]},
        {"keys": ["a"]},
        {"slots": 0},
        {"slots": True},
        {"slots": 100_001},
        {"table": {"format": "stream", "stream": "clicks"}},
        {"table": {**TABLE, "role": "static"}},
        {"table": {**TABLE, "refresh": True}},
        {"keys": [["a", "A"]]},
    ],
    ids=str,
)
def test_an_invalid_request_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ProfileRequest.model_validate({"table": TABLE, "keys": [["a"]], **changes})
