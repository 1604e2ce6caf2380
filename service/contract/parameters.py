"""Parameters of SQL: the values of its placeholders, by name (`:name`) or in the order of the placeholders (`?`).

Here is only their form in JSON. `service.sql.parameters` turns each value into a literal of its type.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from pydantic import (
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    TypeAdapter,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)
from pydantic_core import PydanticCustomError

from .model import Frozen
from .query import PARAMETERS

PARAMETER_NAME = r"[A-Za-z_][A-Za-z0-9_]{0,63}"
"""The pattern of a name, in `parameters` and in placeholders."""

_NAME = re.compile(PARAMETER_NAME)
_EXACT_INTEGERS = 1 << 53
"""Up to here, JSON parsers that read all numbers as doubles are exact."""


def _scalar(value: Any, _handler: ValidatorFunctionWrapHandler) -> Any:
    """Accepts a JSON scalar. The errors of pydantic's own union would name each of its members."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise PydanticCustomError("parameter_value", "The number is not finite. Write CAST('NaN' AS DOUBLE) in `sql`.")
    if isinstance(value, Sequence):
        detail = "A list is not a value. Write a placeholder for each of its values: x IN (:first, :second)."
        raise PydanticCustomError("parameter_value", detail)
    detail = 'A value is a string, a number, true, false, null, or an object: {"type": "DATE", "value": "2024-01-31"}.'
    raise PydanticCustomError("parameter_value", detail)


Scalar = Annotated[StrictBool | StrictInt | StrictFloat | StrictStr | None, WrapValidator(_scalar)]


class TypedValue(Frozen):
    """The value of a parameter, and its SQL type."""

    type: str = Field(
        min_length=1,
        max_length=40,
        description="A type of SQL: BOOLEAN, TINYINT, SMALLINT, INT, BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, "
        "BINARY, DATE, TIMESTAMP or TIMESTAMP_NTZ.",
        examples=["DATE"],
    )
    value: Scalar = Field(
        description="The value, of any type as text: `2024-01-31` for a DATE; `2024-01-31 12:00:00` for a TIMESTAMP, "
        "which may end with `Z` or an offset such as `+02:00`; base64 for BINARY. Numbers, true and false may also be "
        "given as such. `null` is NULL.",
        examples=["2024-01-31"],
    )


def _value(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    if isinstance(value, TypedValue):
        return value
    return TypedValue.model_validate(value) if isinstance(value, Mapping) else _scalar(value, handler)


ParameterValue = Annotated[
    StrictBool | StrictInt | StrictFloat | StrictStr | TypedValue | None,
    WrapValidator(_value),
]
Named = Annotated[
    dict[str, ParameterValue],
    Field(
        max_length=PARAMETERS.most,
        json_schema_extra={"propertyNames": {"type": "string", "pattern": f"^{PARAMETER_NAME}$"}},
    ),
]
Positional = Annotated[tuple[ParameterValue, ...], Field(max_length=PARAMETERS.most)]

_NAMED: TypeAdapter[dict[str, ParameterValue]] = TypeAdapter(Named)
_POSITIONAL: TypeAdapter[tuple[ParameterValue, ...]] = TypeAdapter(Positional)


def _read(value: Any, _handler: ValidatorFunctionWrapHandler) -> Parameters:
    if isinstance(value, Mapping):
        PARAMETERS.check(value)
        wrong = next((name for name in value if not isinstance(name, str) or not _NAME.fullmatch(name)), None)
        if wrong is not None:
            detail = (
                f"'{str(wrong)[:40]}' is not a name of a parameter. A name has at most 64 letters (A to Z), digits and "
                "_, and does not begin with a digit."
            )
            raise PydanticCustomError("parameter_name", "{detail}", {"detail": detail})
        return _NAMED.validate_python(value)
    if isinstance(value, list | tuple):
        return _POSITIONAL.validate_python(PARAMETERS.check(value))
    detail = "Give an object with the names and values of parameters, or a list with the values."
    raise PydanticCustomError("parameters_type", detail)


Parameters = Annotated[Named | Positional, WrapValidator(_read)]


def stored_parameters(dumped: Any) -> Any:
    """Returns dumped parameters in a form that no JSON store or client changes.

    JSONB of PostgreSQL writes 1e16 as an integer and loses the sign of -0.0; JavaScript writes 1.0 as 1, and reads
    large integers as doubles. So a DOUBLE has its type, and such numbers are text.
    """
    if isinstance(dumped, Mapping):
        return {name: _stored(value) for name, value in dumped.items()}
    return [_stored(value) for value in dumped]


def _stored(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {**value, "value": _exact(value["value"])}
    if isinstance(value, float):
        return {"type": "DOUBLE", "value": _exact(value)}
    exact = _exact(value)
    # An integer that is too long for BIGINT is refused before it is stored.
    return value if exact is value else {"type": "BIGINT", "value": exact}


def _exact(value: Any) -> Any:
    if isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) > _EXACT_INTEGERS:
        return str(value)
    if isinstance(value, float) and ("e+" in repr(value) or (value == 0 and math.copysign(1, value) < 0)):
        return repr(value)
    return value
