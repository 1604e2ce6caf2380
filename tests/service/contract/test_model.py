"""Flags and integers of the wire models."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from service.contract.model import Flag, Frozen, Whole


class Switch(Frozen):
    is_on: Flag


@pytest.mark.parametrize(("given", "is_on"), [(True, True), (False, False), ("true", True), ("FALSE", False)])
def test_a_flag_can_be_text(given: object, is_on: bool) -> None:
    assert Switch.model_validate({"is_on": given}).is_on is is_on


@pytest.mark.parametrize("given", [0, 1, 1.0, None, "2", []])
def test_a_flag_cannot_be_a_number(given: object) -> None:
    with pytest.raises(ValidationError):
        Switch.model_validate({"is_on": given})


class Counted(Frozen):
    number: Whole


@pytest.mark.parametrize(("given", "number"), [(0, 0), (7, 7), ("7", 7), (7.0, 7)])
def test_an_integer_can_be_text(given: object, number: int) -> None:
    assert Counted.model_validate({"number": given}).number == number


@pytest.mark.parametrize("given", [True, False, 1.5, None, "x", []])
def test_an_integer_cannot_be_a_flag(given: object) -> None:
    with pytest.raises(ValidationError):
        Counted.model_validate({"number": given})
