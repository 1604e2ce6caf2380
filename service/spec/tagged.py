"""Values of one of several shapes, told apart by one field, with errors that point as if there were but one shape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic_core import InitErrorDetails

from service.spec.model import Frozen


def told_apart_by(field: str, shapes: Mapping[str, type[Frozen]]) -> WrapValidator:
    """Reads an object as that of `shapes` which its `field` names; one without that field as the first of them.

    Pydantic's own discriminated union would put the name of the shape into the place of every error.
    """
    first = next(iter(shapes.values()))

    def read(value: Any, _handler: ValidatorFunctionWrapHandler) -> Any:
        if not isinstance(value, Mapping):
            return value if isinstance(value, tuple(shapes.values())) else first.model_validate(value)
        tag = value.get(field)
        if tag is None:
            return first.model_validate(value)
        shape = shapes.get(tag) if isinstance(tag, str) else None
        if shape is None:
            *others, last = (f"'{name}'" for name in shapes)
            expected = {"expected": f"{', '.join(others)} or {last}"}
            wrong = InitErrorDetails(type="enum", loc=(field,), input=tag, ctx=expected)
            raise ValidationError.from_exception_data(first.__name__, [wrong])
        return shape.model_validate(value)

    return WrapValidator(read)
