"""Base class and field types of the wire models: `Frozen`, discriminated unions, durations and sizes.

Durations and sizes are written as people and Flink write them: `5s`, `500 ms`, `2 min`, `64MB`, `256mb`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    GetCoreSchemaHandler,
    PlainSerializer,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapValidator,
)
from pydantic_core import CoreSchema, InitErrorDetails, PydanticCustomError, PydanticKnownError, core_schema

_UNITS_MS = {
    name: milliseconds
    for milliseconds, names in (
        (1, ("ms", "milli", "millis", "millisecond", "milliseconds")),
        (1000, ("s", "sec", "secs", "second", "seconds")),
        (60_000, ("m", "min", "minute", "minutes")),
        (3_600_000, ("h", "hour", "hours")),
        (86_400_000, ("d", "day", "days")),
    )
    for name in names
}
_UNITS_BYTES = {"": 1, "b": 1, "bytes": 1} | {
    unit + suffix: 1 << shift for unit, shift in (("k", 10), ("m", 20), ("g", 30), ("t", 40)) for suffix in ("", "b")
}
_QUANTITY = re.compile(r"\s*([0-9]{1,19})\s*([A-Za-z]*)\s*")
_LONGEST = timedelta(days=3650)
_LARGEST = 1 << 60
_DURATION_PATTERN = r"^\s*[0-9]{1,19}\s*(ms|millis?|milliseconds?|s|secs?|seconds?|m|min|minutes?|h|hours?|d|days?)\s*$"
"""For the OpenAPI document. Units are also accepted in upper case, which a readable pattern cannot express."""

_SIZE_PATTERN = r"^\s*[0-9]{1,19}\s*([bB]([yY][tT][eE][sS])?|[kKmMgGtT][bB]?)?\s*$"


class Frozen(BaseModel):
    """An immutable model that refuses unknown fields, so that a misspelled field is never ignored."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)


def renamed(fields: Mapping[str, Any], name: str, other: str) -> dict[str, Any]:
    """Returns `fields` with the field `name`, if there is one, called `other`."""
    return {other if field == name else field: value for field, value in fields.items()}


def _refuse_number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticKnownError("bool_type")
    return value


def refuse_boolean(value: Any) -> Any:
    """Refuses true and false for an integer; a validator that runs before that of the type. Returns `value`."""
    if isinstance(value, bool):
        raise PydanticKnownError("int_type")
    return value


Flag = Annotated[bool, BeforeValidator(_refuse_number)]
"""A boolean, also as text, as Flink writes it; 0 and 1 are refused, as openapi.yaml specifies."""

Whole = Annotated[int, BeforeValidator(refuse_boolean)]
"""An integer, also as text, as Flink writes it; true and false are refused, as openapi.yaml specifies."""


def discriminated_by(field: str, models: Mapping[str, type[Frozen]]) -> WrapValidator:
    """Returns a validator for a union of `models`, of which an object's `field` names one; the first by default.

    Pydantic's own discriminated union would add the name of the model to the location of every error.
    """
    first = next(iter(models.values()))

    def read(value: Any, _handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, Mapping):
            return value if isinstance(value, tuple(models.values())) else first.model_validate(value)
        tag = value.get(field)
        if tag is None:
            return first.model_validate(value)
        model = models.get(tag) if isinstance(tag, str) else None
        if model is None:
            *others, last = (f"'{name}'" for name in models)
            expected = {"expected": f"{', '.join(others)} or {last}"}
            details = InitErrorDetails(type="enum", loc=(field,), input=tag, ctx=expected)
            raise ValidationError.from_exception_data(first.__name__, [details])
        return model.model_validate(value)

    return WrapValidator(read)


def parse_duration(value: Any) -> timedelta:
    """Returns a duration from text with a unit, or from a `timedelta`. A number without a unit is refused as ambiguous.

    Raises ValueError, with the accepted forms.
    """
    if isinstance(value, timedelta):
        duration = value
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        unit = _UNITS_MS.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise ValueError("a duration is a whole number and a unit, for example '500ms', '5s', '10min', '1h'")
        milliseconds = int(match.group(1)) * unit
        if milliseconds > _LONGEST / timedelta(milliseconds=1):
            raise ValueError("a duration is at most 3650 days")
        duration = timedelta(milliseconds=milliseconds)
    if not timedelta() <= duration <= _LONGEST:
        raise ValueError("a duration is between 0 and 3650 days")
    return duration


def format_duration(duration: timedelta) -> str:
    """Returns the shortest exact text: `500ms`, `5s`, `2min`, `1h`, `3d`."""
    milliseconds = round(duration / timedelta(milliseconds=1))
    for unit, size in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1000)):
        if milliseconds and milliseconds % size == 0:
            return f"{milliseconds // size}{unit}"
    return f"{milliseconds}ms"


def parse_bytes(value: Any) -> int:
    """Returns a number of bytes from an integer or from text such as `64MB` (powers of 1024, as in Flink and Spark).

    Raises ValueError, with the accepted forms.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        unit = _UNITS_BYTES.get(match.group(2).lower()) if match else None
        if match is None or unit is None:
            raise ValueError("a size is a whole number and a unit, for example '512kb', '64MB', '1GB'")
        size = int(match.group(1)) * unit
    if not 0 <= size <= _LARGEST:
        raise ValueError("a size is between 0 and 2^60 bytes")
    return size


def format_bytes(size: int) -> str:
    """Returns the shortest exact text: `64MB`, `1GB`, `1000b`."""
    for unit, scale in (("TB", 1 << 40), ("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return f"{size}b"


Duration = Annotated[
    timedelta,
    BeforeValidator(parse_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "pattern": _DURATION_PATTERN, "examples": ["5s", "500ms", "1h"]}),
]
"""A `timedelta` written as `5s`; the unit is required."""


@dataclass(frozen=True)
class Bounds:
    """Limits a `Duration` to at least `ge` and at most `le`; an annotation next to `Duration`.

    The errors are those of pydantic's own bounds, with the bound written as a duration.
    """

    ge: timedelta
    le: timedelta | None = None

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """See pydantic."""
        return core_schema.no_info_after_validator_function(self._checked, handler(source))

    def _checked(self, duration: timedelta) -> timedelta:
        if duration < self.ge:
            raise PydanticCustomError(
                "greater_than_equal", "Input should be at least {ge}", {"ge": format_duration(self.ge)}
            )
        if self.le is not None and duration > self.le:
            raise PydanticCustomError(
                "less_than_equal", "Input should be at most {le}", {"le": format_duration(self.le)}
            )
        return duration


ByteSize = Annotated[
    int,
    BeforeValidator(parse_bytes),
    PlainSerializer(format_bytes, return_type=str),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": _SIZE_PATTERN},
                {"type": "integer", "minimum": 0, "maximum": _LARGEST},
            ],
            "examples": ["64MB"],
        }
    ),
]
"""Bytes, written as `64MB` (powers of 1024)."""
