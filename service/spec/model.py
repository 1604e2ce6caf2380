"""The base of every value that crosses the wire."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict
from pydantic_core import PydanticKnownError


class Frozen(BaseModel):
    """An immutable model that refuses fields it does not know: a typing mistake is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


def _no_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticKnownError("bool_type")
    return value


def refuse_flag(value: Any) -> Any:
    """A value that is to be a whole number, as a validator before its type's own: true and false are none."""
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    return value


Flag = Annotated[bool, BeforeValidator(_no_number)]
"""True or false, also as the text that Flink writes; 0 and 1 are refused, as the specification says."""

Whole = Annotated[int, BeforeValidator(refuse_flag)]
"""A whole number, also as the text that Flink writes; true and false are refused, as the specification says."""
