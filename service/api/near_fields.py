"""The fields that were meant, maybe, by one that nobody knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, get_args

from pydantic import BaseModel

from service.spec.errors import nearest_names

_MOST_LETTERS = 100


def near_fields(annotation: Any, path: Sequence[object]) -> tuple[str, ...]:
    """The names most like the last of `path`, which leads into a body of type `annotation`: those of fields that may
    stand there, whatever the shape of what stands around.
    """
    *parents, unknown = path
    models = frozenset(_models_in(annotation))
    for part in parents:
        fields = [
            field for model in models for name, field in model.model_fields.items() if part in (name, field.alias)
        ]
        # A key, an index, or the name of a shape leads nowhere else.
        if fields:
            models = frozenset(model for field in fields for model in _models_in(field.annotation))
    names = {field.alias or name for model in models for name, field in model.model_fields.items()}
    return nearest_names(str(unknown)[:_MOST_LETTERS], sorted(names))


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _models_in(part)
