"""The functions that take lambdas: how many parameters a lambda has, and which types they have.

A lambda is an argument of one of these functions. Its parameters get their types from the other arguments, and its
body may use them, the parameters of the lambdas around it, and columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from service.sql.types.data_types import INT, DataType, TypeName
from service.sql.types.signatures import Types

MAX_LAMBDA_DEPTH = 4
"""The most lambdas inside each other: Spark evaluates the innermost one for each combination of elements."""


@dataclass(frozen=True)
class LambdaShape:
    """A lambda of `least` to `most` parameters; `types` returns their types from those of the arguments before it."""

    least: int
    most: int
    types: Callable[[Types], Types]

    @property
    def arity(self) -> str:
        """The number of parameters, for messages: `1`, `1 or 2`."""
        return str(self.most) if self.least == self.most else f"{self.least} or {self.most}"


def part_of(type_: DataType | None, name: TypeName, index: int = 0) -> DataType | None:
    """Returns the type inside an array or a map; None if `type_` is not known, or has another name."""
    return type_.parts[index] if type_ is not None and type_.name is name else None


def _element(types: Types) -> Types:
    return (part_of(types[0], TypeName.ARRAY), INT)


def _two_elements(types: Types) -> Types:
    element = part_of(types[0], TypeName.ARRAY)
    return (element, element)


def _zipped(types: Types) -> Types:
    return (part_of(types[0], TypeName.ARRAY), part_of(types[1], TypeName.ARRAY))


def _folded(types: Types) -> Types:
    return (types[1], part_of(types[0], TypeName.ARRAY))


def _entry(types: Types) -> Types:
    return (part_of(types[0], TypeName.MAP), part_of(types[0], TypeName.MAP, 1))


def _zipped_entries(types: Types) -> Types:
    values = (part_of(types[0], TypeName.MAP, 1), part_of(types[1], TypeName.MAP, 1))
    return (part_of(types[0], TypeName.MAP), *values)


_EACH, _CONDITION = LambdaShape(1, 2, _element), LambdaShape(1, 1, _element)
_FOLD = {2: LambdaShape(2, 2, _folded), 3: LambdaShape(1, 1, lambda types: (types[1],))}
_OF_ENTRY = {1: LambdaShape(2, 2, _entry)}

LAMBDAS: Mapping[str, Mapping[int, LambdaShape]] = {
    "transform": {1: _EACH},
    "filter": {1: _EACH},
    "exists": {1: _CONDITION},
    "forall": {1: _CONDITION},
    "aggregate": _FOLD,
    "reduce": _FOLD,
    "zip_with": {2: LambdaShape(2, 2, _zipped)},
    "array_sort": {1: LambdaShape(2, 2, _two_elements)},
    "transform_keys": _OF_ENTRY,
    "transform_values": _OF_ENTRY,
    "map_filter": _OF_ENTRY,
    "map_zip_with": {2: LambdaShape(3, 3, _zipped_entries)},
}
"""By function, then by the place of the argument, from 0."""
